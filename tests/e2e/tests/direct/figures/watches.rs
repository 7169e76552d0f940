//! The cost of a watch over WebSocket, next to HTTP/1.1. Also the cost of a boundary that moves
//! over HTTP/1.1, next to HTTP/2.

use std::{
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Proxy, until};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::Held;
use crate::direct::{
    bed::{Bed, LIMIT, Way, config_maps, label_map},
    websocket::{Socket, run},
};

/// A plain watch over HTTP/1.1.
const PLAIN: &[(&str, &str)] = &[("Connection", ""), ("Upgrade", "")];
const EVENTS: usize = 1000;
/// Watches of which the memory is measured.
const MANY: usize = 600;
/// Objects, those of them that leave, as many that come, and the watches that see it. All that moves at
/// once shares 32 MiB in the proxy.
const OBJECTS: usize = 4000;
const LEAVE: usize = 200;
const WATCHES: usize = 50;

/// The next event of a watch. In HTTP/1.1 lines that are no object are those of the chunks.
async fn event(socket: &mut Socket, is_websocket: bool) -> Result<Value> {
    if is_websocket {
        return Ok(serde_json::from_slice(&socket.frame().await?.1)?);
    }
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            line.push(socket.stream.read_u8().await?);
        }
        if line.starts_with(b"{") {
            return Ok(serde_json::from_slice(&line)?);
        }
    }
}

/// Tells when each write of the object arrived.
fn follow(bed: &Bed, way: &Way<'_>, is_websocket: bool, tell: &SyncSender<Instant>) -> Result<()> {
    run(async {
        let headers = if is_websocket { &[] } else { PLAIN };
        let mut socket = Socket::open(bed, way, "", headers).await?;
        // The object as it is.
        event(&mut socket, is_websocket).await?;
        tell.send(Instant::now())?;
        for _ in 0..EVENTS {
            event(&mut socket, is_websocket).await?;
            tell.send(Instant::now())?;
        }
        Ok(())
    })
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// The delays of all events, from before the write, over several ways at the same time. The API server
/// tells the watch first that was opened first.
fn delays(bed: &Bed, ways: &[(Way<'_>, bool)]) -> Result<Vec<Vec<Duration>>> {
    let path = format!("{}/written", bed.path("configmaps"));
    thread::scope(|scope| {
        let mut followers = Vec::new();
        for (way, is_websocket) in ways {
            let (tell, told) = sync_channel(EVENTS + 1);
            followers.push((scope.spawn(move || follow(bed, way, *is_websocket, &tell)), told));
        }
        for (_, told) in &followers {
            told.recv_timeout(LIMIT)?;
        }
        let mut delays = vec![Vec::new(); ways.len()];
        for number in 0..EVENTS {
            let patch = json!({ "data": { "number": number.to_string() } }).to_string();
            let began = Instant::now();
            let kind = "application/merge-patch+json";
            bed.api.client().request("PATCH", &path, kind, patch.into_bytes())?.json()?;
            for ((_, told), delays) in followers.iter().zip(&mut delays) {
                delays.push(told.recv_timeout(LIMIT)? - began);
            }
        }
        for (follower, _) in followers {
            follower.join().map_err(|_| anyhow::anyhow!("a follower failed"))??;
        }
        Ok(delays)
    })
}

#[test]
fn events_over_websocket_arrive_as_over_http_1() -> Result<()> {
    let bed = Bed::alone("websocket_delay")?;
    let proxy = bed.proxy(&["a"])?;
    bed.config_map("written", "team=a")?;
    let (mut http, mut websocket) = (Vec::new(), Vec::new());
    for is_websocket_first in [false, true, false, true] {
        let ways = [is_websocket_first, !is_websocket_first].map(|it| (Way::Through(&proxy), it));
        for ((_, is_websocket), delays) in ways.iter().zip(delays(&bed, &ways)?) {
            if *is_websocket { websocket.extend(delays) } else { http.extend(delays) }
        }
    }
    let [http, websocket] = [http, websocket].map(|mut all| {
        all.sort_unstable();
        [50, 99].map(|percent| percentile(&all, percent).as_secs_f64() * 1e3)
    });
    println!(
        "websocket: p50 and p99 of {} events {websocket:.3?} ms; over HTTP/1.1 {http:.3?} ms",
        4 * EVENTS
    );
    Ok(())
}

/// The memory of a watch, in KiB.
fn of_each(bed: &Bed, proxy: &Proxy, is_websocket: bool) -> Result<f64> {
    let way = Way::Through(proxy);
    run(async {
        let headers = if is_websocket { &[] } else { PLAIN };
        let mut sockets = Vec::new();
        let mut before = Held::by(proxy)?;
        for number in 0..=MANY {
            let mut socket = Socket::open(bed, &way, "", headers).await?;
            event(&mut socket, is_websocket).await?;
            sockets.push(socket);
            if number == 0 {
                before = Held::by(proxy)?;
            }
        }
        let after = Held::by(proxy)?;
        Ok((after.rss_kib - before.rss_kib) as f64 / MANY as f64)
    })
}

#[test]
fn a_watch_over_websocket_holds_as_much_as_one_over_http_1() -> Result<()> {
    let bed = Bed::alone("websocket_memory")?;
    bed.config_map("one", "team=a")?;
    let [http, websocket] = [(), ()].map(|()| bed.proxy(&["a"]));
    let http = of_each(&bed, &http?, false)?;
    let websocket = of_each(&bed, &websocket?, true)?;
    println!(
        "websocket: {websocket:.1} KiB a watch, over HTTP/1.1 {http:.1} KiB: {:.2} x",
        websocket / http
    );
    Ok(())
}

/// How long it takes until all watches have been told of a boundary that moves.
fn moved(bed: &Bed, flags: &[&str]) -> Result<Duration> {
    let proxy = bed.proxy(&["stays", "a"])?;
    let count = format!("--count={WATCHES}");
    let args = [&[count.as_str()], flags].concat();
    let mut watches = bed.clients(&Way::Through(&proxy), "watches", &args)?;
    let mut has = |added: usize, deleted: usize| -> Result<Option<()>> {
        let total = watches.ask("", "counts", LIMIT)?["total"].clone();
        let count = |kind: &str| total[kind].as_u64().unwrap_or_default();
        let wanted = [added, deleted].map(|of| u64::try_from(of * WATCHES).unwrap_or_default());
        Ok(([count("ADDED"), count("DELETED")] == wanted).then_some(()))
    };
    until("all are open", LIMIT, || has(OBJECTS - LEAVE, 0))?;
    let began = Instant::now();
    proxy.set_policy(&config_maps(&["stays", "b"]))?;
    until("all are moved", LIMIT, || has(OBJECTS, LEAVE))?;
    let took = began.elapsed();
    let expired = proxy.metric(r#"ctrlmesh_stream_changes_total{how="expired"}"#)?;
    ensure!(expired == 0.0, "{expired} watches got a 410");
    watches.finish(LIMIT)?;
    Ok(took)
}

#[test]
fn a_boundary_moves_over_http_1_in_twice_the_time_of_http_2() -> Result<()> {
    let bed = Bed::alone("move_http_1")?;
    let items: Vec<Value> = (0..OBJECTS)
        .map(|number| {
            let team = match number / LEAVE {
                0 => "team=a",
                1 => "team=b",
                _ => "team=stays",
            };
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": format!("object-{number}"), "labels": label_map(team) },
            })
        })
        .collect();
    for item in &items {
        bed.api.client().post(&bed.path("configmaps"), item)?.json().context("an object")?;
    }
    let http_2 = moved(&bed, &[])?;
    let http_1 = moved(&bed, &["--http1"])?;
    println!(
        "moves: {WATCHES} watches of {OBJECTS} objects: {http_1:.2?} over HTTP/1.1, {http_2:.2?} over \
         HTTP/2: {:.2} x",
        http_1.as_secs_f64() / http_2.as_secs_f64()
    );
    Ok(())
}
