//! Many connections and many watches: nothing leaks, nothing starves.

mod watches;

use std::{
    collections::HashMap,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Proxy, until};
use serde_json::Value;

use crate::direct::bed::{Bed, LIMIT, Way, label_map};

/// On a machine that builds something else at the same time.
const CHURN_LIMIT: Duration = Duration::from_secs(600);

/// What a proxy holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    rss_kib: u64,
    files: usize,
    connections: f64,
    streams: f64,
}

impl Held {
    fn by(proxy: &Proxy) -> Result<Self> {
        Ok(Self {
            rss_kib: proxy.rss_kib()?,
            files: proxy.open_files()?,
            connections: proxy.metric(r#"ctrlmesh_connections{leg="outbound"}"#)?,
            streams: proxy.metric(r#"ctrlmesh_streams{kind="watch"}"#)?,
        })
    }

    /// What it holds once it has noticed that its clients are gone.
    fn at_rest(proxy: &Proxy, files: usize) -> Result<Self> {
        until("the proxy is at rest", LIMIT, || {
            let held = Self::by(proxy)?;
            Ok((held.connections == 0.0 && held.files <= files).then_some(held))
        })
    }
}

/// What the proxy logged that is no access line.
fn told(proxy: &Proxy) -> String {
    let lines = proxy.log().unwrap_or_default();
    let lines = lines.iter().filter(|line| line["target"] != "access").map(Value::to_string);
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn t73_ten_thousand_connections_leave_nothing() -> Result<()> {
    let bed = Bed::alone("t73")?;
    let proxy = bed.proxy(&["a"])?;
    let way = Way::Through(&proxy);
    let idle = Held::by(&proxy)?;
    let churn = |count: &str| {
        let args = ["--mode=churn", "--workers=4", "--count", count];
        let ended = bed.clients(&way, "load", &args)?.finish(CHURN_LIMIT);
        let lines = ended.with_context(|| told(&proxy))?;
        lines.into_iter().find(|line| line["event"] == "load").context("a load event")
    };
    churn("500")?;
    let warm = Held::at_rest(&proxy, idle.files)?;
    let load = churn("10000")?;
    let after = Held::at_rest(&proxy, idle.files)?;
    println!(
        "t73: idle {idle:?}\nt73: after 500 connections {warm:?}\nt73: after 10,000 more {after:?}"
    );
    println!("t73: {} connections a second, {} errors", load["per_second"], load["errors"]);
    ensure!(load["requests"] == 10_000 && load["errors"] == 0, "{load}");
    ensure!(after.files == idle.files, "{} files became {}", idle.files, after.files);
    ensure!(after.streams == 0.0);
    let grown = after.rss_kib.saturating_sub(warm.rss_kib);
    ensure!(grown < 4096, "10,000 connections left {grown} KiB");
    ensure!(proxy.metric("ctrlmesh_panics_total")? == 0.0);
    Ok(())
}

#[test]
fn t73_a_client_that_goes_ends_its_upstream_watch() -> Result<()> {
    let bed = Bed::alone("t73_gone")?;
    let proxy = bed.proxy(&["a"])?;
    for version in ["--http1.1", "--http2"] {
        let id = format!("0b5c9c2e-0001-4000-8000-{:012x}", fastrand::u64(..1 << 48));
        let mut curl =
            bed.curl(&Way::Through(&proxy), &format!("{}?watch=1", bed.path("configmaps")));
        curl.args([version, "-N", "-H", &format!("Audit-ID: {id}")]);
        let mut client = curl.stdout(Stdio::null()).spawn()?;
        let mut audit = bed.api.audit().reader()?;
        audit.wait_for(LIMIT, |entry| entry.audit_id == id && entry.stage == "ResponseStarted")?;
        client.kill()?;
        client.wait()?;
        let gone = Instant::now();
        audit.wait_for(LIMIT, |entry| entry.audit_id == id && entry.stage == "ResponseComplete")?;
        let took = gone.elapsed();
        println!("t73: {version}: the upstream watch ended {took:.2?} after the client");
        ensure!(took < Duration::from_secs(1), "{took:?}");
    }
    Held::at_rest(&proxy, usize::MAX)?;
    Ok(())
}

#[test]
fn i16_three_hundred_watches_of_one_client() -> Result<()> {
    let bed = Bed::alone("i16")?;
    let proxy = bed.proxy(&["a"])?;
    let idle = Held::by(&proxy)?;
    let way = Way::Through(&proxy);
    let ten = bed.clients(&way, "watches", &["--count=10"])?;
    ten.wait_for(LIMIT, |line| line["event"] == "open")?;
    let with_ten = Held::by(&proxy)?;
    ten.finish(LIMIT)?;
    let mut many = bed.clients(&way, "watches", &["--count=300"])?;
    let open = many.wait_for(LIMIT, |line| line["event"] == "open")?;
    let with_many = Held::by(&proxy)?;
    bed.config_map("seen", "team=a")?;
    bed.config_map("unseen", "team=b")?;
    bed.delete("seen")?;
    until("all 300 have seen both events", LIMIT, || {
        let counts = many.ask("", "counts", LIMIT)?;
        let total = &counts["total"];
        Ok((total["ADDED"] == 300 && total["DELETED"] == 300).then_some(()))
    })?;
    let streams: Value = serde_json::from_str(&proxy.admin_text("/debug/streams")?)?;
    let mut by_connection = HashMap::new();
    for stream in streams["streams"].as_array().context("a list")? {
        *by_connection.entry(stream["connection"].as_u64()).or_insert(0) += 1;
    }
    let mut sizes: Vec<i32> = by_connection.into_values().collect();
    sizes.sort_unstable();
    println!("i16: idle {idle:?}\ni16: 10 watches {with_ten:?}\ni16: 300 watches {with_many:?}");
    println!("i16: open after {} s, on connections of {sizes:?} watches", open["seconds"]);
    ensure!(with_many.streams == 300.0, "{with_many:?}");
    ensure!(
        with_ten.rss_kib < 40 << 10 && with_many.rss_kib < 80 << 10,
        "{with_ten:?} {with_many:?}"
    );
    many.finish(LIMIT)?;
    let after = Held::at_rest(&proxy, idle.files)?;
    println!("i16: after them {after:?}");
    ensure!(after.streams == 0.0, "{after:?}");
    Ok(())
}

#[test]
fn t74_unread_watches_starve_nobody_and_hold_little() -> Result<()> {
    let bed = Bed::alone("t74")?;
    let proxy = bed.proxy(&["a"])?;
    let idle = Held::by(&proxy)?;
    bed.config_map("probed", "team=a")?;
    let args = ["--count=20", "--unread", "--probe=probed"];
    let mut unread = bed.clients(&Way::Through(&proxy), "watches", &args)?;
    unread.wait_for(LIMIT, |line| line["event"] == "open")?;
    let data = "x".repeat(512 << 10);
    let object = serde_json::json!({
        "metadata": { "name": "large", "labels": label_map("team=a") }, "data": { "data": data },
    });
    bed.api.client().post(&bed.path("configmaps"), &object)?.json()?;
    // Half a mebibyte an event: 8 MiB in each watch, of which Go's client takes 4 MiB unread.
    let mut slowest: f64 = 0.0;
    for change in 0..16 {
        let patch = format!(r#"{{"metadata":{{"annotations":{{"change":"{change}"}}}}}}"#);
        let path = format!("{}/large", bed.path("configmaps"));
        let kind = "application/merge-patch+json";
        bed.api.client().request("PATCH", &path, kind, patch.into_bytes())?.json()?;
        let probe = unread.ask("", "probe", LIMIT)?;
        ensure!(probe["error"].is_null(), "{probe}");
        slowest = slowest.max(probe["seconds"].as_f64().context("seconds")?);
    }
    let held = Held::by(&proxy)?;
    println!("t74: the slowest get next to 20 unread watches took {slowest:.3} s");
    println!("t74: idle {idle:?}\nt74: 20 unread watches {held:?}");
    ensure!(slowest < 2.0, "{slowest}");
    ensure!(held.rss_kib - idle.rss_kib < 32 << 10, "{held:?}");
    Ok(())
}

#[test]
fn t07_added_delay_of_an_event() -> Result<()> {
    let bed = Bed::alone("t07_delay")?;
    let proxy = bed.proxy(&["a"])?;
    let straight = bed.api.url();
    let ca = bed.api.ca_file().display().to_string();
    let mut figures = Vec::new();
    for round in 0..2 {
        for (what, way) in [("straight", Way::Straight), ("through", Way::Through(&proxy))] {
            let name = format!("delay-{round}-{what}");
            let args = [
                "--mode=watch",
                "--rate=50",
                "--seconds=2",
                "--labels=team=a",
                "--name",
                &name,
                "--writer-server",
                &straight,
                "--writer-ca",
                &ca,
            ];
            let lines = bed.clients(&way, "load", &args)?.finish(LIMIT)?;
            let load =
                lines.into_iter().find(|line| line["event"] == "load").context("a load event")?;
            println!("t07: {what}: {load}");
            figures.push(load);
        }
    }
    ensure!(figures.iter().all(|load| load["errors"] == 0 || load["errors"].is_null()));
    Ok(())
}
