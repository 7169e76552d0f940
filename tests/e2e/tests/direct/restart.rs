//! The proxy or the API server goes away in the middle of watches and comes back.

use std::{collections::BTreeSet, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy};
use serde_json::Value;

use crate::direct::{
    bed::{Bed, LIMIT, Way, config_maps, names, until_ready_says},
    stores::{History, expect_store, oracle},
};

/// An informer of each way to list, in step with the proxy.
fn informers(bed: &Bed, proxy: &Proxy) -> Result<[Program; 2]> {
    let way = Way::Through(proxy);
    let all = [
        bed.clients(&way, "informer", &[])?,
        bed.clients(&way, "informer", &["--json", "--watchlist=false"])?,
    ];
    let expected = oracle(bed, &BTreeSet::from(["a"]))?;
    let mut all = all;
    for informer in &mut all {
        expect_store("before the kill", informer, &expected)?;
    }
    // client-go lists again after a watch that ends within a second and has shown nothing.
    bed.config_map("shown", "team=a")?;
    for informer in &all {
        informer.wait_for(LIMIT, |line| {
            line["event"] == "added" && line["object"]["name"] == "shown"
        })?;
    }
    Ok(all)
}

/// How often each has listed, in either way.
fn lists(informers: &mut [Program; 2]) -> Result<[u64; 2]> {
    let count = |informer: &mut Program| -> Result<u64> {
        let store: Value = informer.ask("", "store", LIMIT)?;
        let of = |name: &str| store[name].as_u64().context("a count");
        Ok(of("count_lists")? + of("count_watchLists")?)
    };
    let [first, second] = informers;
    Ok([count(first)?, count(second)?])
}

#[test]
fn kill_9_with_the_same_policy_costs_no_list_and_loses_nothing() -> Result<()> {
    let bed = Bed::new("kill_same")?;
    let mut history = History::new("kill_same");
    history.go_on(&bed, 20)?;
    let mut proxy = Proxy::builder("mine", &config_maps(&["a"])).keeps_state().start(&bed.api)?;
    let mut informers = informers(&bed, &proxy)?;
    let before = lists(&mut informers)?;
    for round in 0..2 {
        proxy.kill()?;
        history.go_on(&bed, 20)?;
        proxy.start_again()?;
        // Each new watch shows something before the next kill.
        bed.config_map(&format!("shown-{round}"), "team=a")?;
        history.go_on(&bed, 10)?;
        let expected = oracle(&bed, &BTreeSet::from(["a"]))?;
        for informer in &mut informers {
            expect_store(&format!("after kill {round}"), informer, &expected)?;
        }
    }
    let after = lists(&mut informers)?;
    println!("kill -9, same policy: lists before {before:?}, after two kills {after:?}");
    ensure!(before == after, "a relist was forced: {before:?} became {after:?}");
    Ok(())
}

#[test]
fn kill_9_with_another_policy_costs_no_list_and_brings_every_watch_over() -> Result<()> {
    let bed = Bed::new("kill_other")?;
    let mut history = History::new("kill_other");
    history.go_on(&bed, 20)?;
    let mut proxy = Proxy::builder("mine", &config_maps(&["a"])).keeps_state().start(&bed.api)?;
    let mut informers = informers(&bed, &proxy)?;
    let before = lists(&mut informers)?;
    proxy.kill()?;
    history.go_on(&bed, 20)?;
    proxy.set_policy(&config_maps(&["b", "c"]))?;
    proxy.start_again()?;
    history.go_on(&bed, 10)?;
    let expected = oracle(&bed, &BTreeSet::from(["b", "c"]))?;
    for informer in &mut informers {
        expect_store("after the kill", informer, &expected)?;
    }
    let after = lists(&mut informers)?;
    println!("kill -9, other policy: lists before {before:?}, after {after:?}");
    ensure!(before == after, "a relist was forced: {before:?} became {after:?}");
    Ok(())
}

#[test]
fn kill_9_without_a_state_directory_expires_every_old_watch() -> Result<()> {
    let bed = Bed::new("kill_forgot")?;
    let mut history = History::new("kill_forgot");
    history.go_on(&bed, 20)?;
    let mut proxy = Proxy::builder("mine", &config_maps(&["a"])).start(&bed.api)?;
    let mut informers = informers(&bed, &proxy)?;
    let before = lists(&mut informers)?;
    proxy.kill()?;
    history.go_on(&bed, 20)?;
    proxy.start_again()?;
    // The history alone may leave the shard as it was.
    bed.config_map("shown-again", "team=a")?;
    let expected = oracle(&bed, &BTreeSet::from(["a"]))?;
    for informer in &mut informers {
        expect_store("after the kill", informer, &expected)?;
    }
    let after = lists(&mut informers)?;
    println!("kill -9, no state: lists before {before:?}, after {after:?}");
    ensure!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
    Ok(())
}

/// How long the API server is away.
const OUTAGE: Duration = Duration::from_secs(60);
/// What the proxy may spend on it: a proxy that asks without a pause spends a hundred times this.
const CPU_SECONDS: f64 = 0.6;

#[test]
fn bad_api_server_down_at_start_and_for_a_minute_later() -> Result<()> {
    let bed = Bed::with_own_server("outage")?;
    bed.install_crds()?;
    bed.draw(&["a"])?;
    bed.config_map("first", "team=a")?;
    bed.api.stop()?;

    let proxy = bed.proxy_of_cluster(&[])?;
    until_ready_says(&proxy, "[-]policy failed: cannot watch shardingconfigs")?;
    let client = proxy.client(bed.token())?;
    ensure!(client.get(&bed.path("configmaps")).is_err(), "there is no one to answer");
    bed.api.start_again()?;
    until_ready_says(&proxy, "[+]policy ok: mine epoch 1\n")?;
    ensure!(names(&client.get(&bed.path("configmaps"))?.json()?) == ["first"]);
    let mut informers = informers(&bed, &proxy)?;

    bed.api.stop()?;
    until_ready_says(&proxy, "[+]policy ok: mine epoch 1 stays in force: cannot watch")?;
    let cpu = proxy.cpu_seconds()?;
    pass(OUTAGE);
    let cpu = proxy.cpu_seconds()? - cpu;
    println!("an API server away for {OUTAGE:?} costs the proxy {cpu:.2} s of CPU");
    ensure!(cpu < CPU_SECONDS, "{cpu} s of CPU for nothing");
    until_ready_says(&proxy, "[+]policy ok: mine epoch 1 stays in force: cannot watch")?;
    bed.api.start_again()?;

    // The watches recover by themselves, and so does the one of the policy.
    bed.config_map("second", "team=a")?;
    bed.config_map("others", "team=b")?;
    for (teams, ready) in [("a", "mine epoch 1\n"), ("b", "mine epoch 2\n")] {
        bed.draw(&[teams])?;
        until_ready_says(&proxy, &format!("[+]policy ok: {ready}"))?;
        let expected = oracle(&bed, &BTreeSet::from([teams]))?;
        for informer in &mut informers {
            expect_store("after the outage", informer, &expected)?;
        }
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "the outage is as long as it is said to be")]
fn pass(time: Duration) {
    thread::sleep(time);
}
