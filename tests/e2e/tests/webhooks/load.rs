//! Writes that go on while something happens.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use ctrlmesh_e2e::Webhooks;
use serde_json::json;

use crate::webhooks::world::Resource;

/// Clients that write side by side, and the time between two writes of one.
const CLIENTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(30);

/// A write that was answered.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) shard: &'static str,
    pub(crate) status: u16,
    pub(crate) text: String,
    pub(crate) took: Duration,
}

/// Creates a ConfigMap of a shard's team, which is reviewed and not kept.
pub(crate) fn write(scene: &Webhooks, namespace: &str, shard: &'static str) -> Result<Written> {
    let path = format!("{}?dryRun=All", Resource::ConfigMap.path(namespace, ""));
    let map = json!({ "metadata": { "generateName": "load-", "labels": { "team": shard } } });
    let began = Instant::now();
    let answer = scene.node().api().client().post(&path, &map)?;
    Ok(Written { shard, status: answer.status, text: answer.text, took: began.elapsed() })
}

/// Writes objects of all shards, each in turn, while `work` goes on.
pub(crate) fn during<T>(
    scene: &Webhooks,
    namespace: &str,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Written>)> {
    let (is_over, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    let client = || {
        let mut written = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            let shard = Webhooks::SHARDS[turn % Webhooks::SHARDS.len()];
            written.push(write(scene, namespace, shard)?);
            pass(PAUSE);
        }
        Ok::<_, anyhow::Error>(written)
    };
    thread::scope(|threads| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| threads.spawn(client)).collect();
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for client in clients {
            all.extend(client.join().map_err(|_| anyhow!("a client panicked"))??);
        }
        Ok((done?, all))
    })
}

/// Checks that all were written.
pub(crate) fn none_failed(what: &str, all: &[Written]) -> Result<()> {
    let failed: Vec<&Written> = all.iter().filter(|write| write.status != 201).collect();
    let slowest = all.iter().map(|write| write.took).max().unwrap_or_default();
    println!(
        "{what}: {} writes, {} failed, the slowest took {slowest:.1?}",
        all.len(),
        failed.len()
    );
    ensure!(!all.is_empty(), "{what}: nothing was written");
    ensure!(failed.is_empty(), "{what}: {:#?}", &failed[..failed.len().min(5)]);
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "requests come at a rate")]
fn pass(time: Duration) {
    thread::sleep(time);
}
