//! Objects change hands while the watches of their informers stay open.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{AuditEntry, Program, Proxy};
use serde_json::{Value, json};

use crate::direct::{
    bed::{Bed, LIMIT, Way, output, seconds, sharding_config},
    stores::{Store, content, expect_store},
};

const OBJECTS: usize = 5000;
const CHANGES: usize = 10;
/// Changes in other ways, to compare.
const BESIDE: usize = 3;
/// How long a change may take, as a multiple of a direct list of all objects at that time. It takes
/// from the policy in force to the last event in the last informer. A machine that is busy with
/// other tests is slow at both. Usual are one or two; by 410 it is tens, since client-go waits
/// first.
const USUALLY: f64 = 4.0;
/// The same for the slowest of all changes, which may meet any other load of the machine. A direct
/// GET at that time shows for how long nothing went on at all.
const AT_MOST: f64 = 10.0;
/// The ends of the shard, one after the other: each moves a fifth of all objects, or less.
const ENDS: [u64; CHANGES + 1] = [
    0x80 << 56,
    0x99 << 56,
    0x70 << 56,
    0x8c << 56,
    0x66 << 56,
    0x84 << 56,
    0x90 << 56,
    0x78 << 56,
    0x94 << 56,
    0x6c << 56,
    0x80 << 56,
];
const KINDS: [(&str, &[&str]); 3] = [
    ("protobuf, streamed list", &[]),
    ("JSON, paged list", &["--json", "--watchlist=false"]),
    ("metadata", &["--metadata"]),
];

fn policy(end: u64) -> String {
    let range = json!({ "from": "0x0000000000000000", "to": format!("{end:#018x}") });
    let limit = json!({
        "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
        "hash": { "of": "uid", "ranges": [range] },
    });
    sharding_config("mine", &[limit]).to_string()
}

/// Many objects, written by several hands.
fn fill(bed: &Bed) -> Result<()> {
    const HANDS: usize = 8;
    thread::scope(|scope| {
        let hands: Vec<_> = (0..HANDS)
            .map(|hand| {
                scope.spawn(move || -> Result<()> {
                    for at in (hand..OBJECTS).step_by(HANDS) {
                        let object = json!({
                            "metadata": { "name": format!("object-{at}") },
                            "data": { "text": "x".repeat(500) },
                        });
                        bed.api.client().post(&bed.path("configmaps"), &object)?.json()?;
                    }
                    Ok(())
                })
            })
            .collect();
        for hand in hands {
            hand.join().map_err(|_| anyhow::anyhow!("a hand failed"))??;
        }
        Ok(())
    })
}

/// What the API server itself says is in the shard.
fn native(bed: &Bed, end: u64) -> Result<Store> {
    let range =
        format!("shardRange(object.metadata.uid%2C%270x0000000000000000%27%2C%27{end:#018x}%27)");
    let list =
        bed.api.client().get(&format!("{}?shardSelector={range}", bed.path("configmaps")))?;
    let list: Value = list.json()?;
    ensure!(list["metadata"]["shardInfo"].is_object(), "the server shards: {}", list["metadata"]);
    let items = list["items"].as_array().context("items")?;
    let entry = |item: &Value| {
        let meta = &item["metadata"];
        let object = json!({ "rv": meta["resourceVersion"], "labels": meta["labels"] });
        (meta["uid"].as_str().unwrap_or_default().to_owned(), content(&object))
    };
    Ok(items.iter().map(entry).collect())
}

/// Seconds.
#[derive(Debug)]
struct Took {
    /// Until each informer had its last event.
    change: Vec<(&'static str, f64)>,
    /// Of a direct list, the slower one of two.
    list: f64,
    /// Of the slowest direct GET meanwhile: the machine or the API server may stand still.
    get: f64,
}

impl Took {
    fn last(&self) -> f64 {
        self.change.iter().map(|(_, took)| *took).fold(f64::NAN, f64::max)
    }
}

/// Seconds of the slowest of many direct GETs.
fn slowest_get(bed: &Bed, is_over: &AtomicBool) -> Result<f64> {
    let path = format!("{}/object-0", bed.path("configmaps"));
    let mut slowest: f64 = 0.0;
    while !is_over.load(Ordering::Acquire) {
        let began = Instant::now();
        bed.api.client().get(&path)?.json()?;
        slowest = slowest.max(began.elapsed().as_secs_f64());
    }
    Ok(slowest)
}

/// Seconds that a list of all objects takes without a proxy.
fn direct_list(bed: &Bed) -> Result<f64> {
    let began = Instant::now();
    let list: Value = bed.api.client().get(&bed.path("configmaps"))?.json()?;
    ensure!(list["items"].as_array().context("items")?.len() >= OBJECTS);
    Ok(began.elapsed().as_secs_f64())
}

struct Run {
    proxy: Proxy,
    informers: Vec<(&'static str, Program)>,
}

impl Run {
    fn start(bed: &Bed, flags: &[&str]) -> Result<Self> {
        let builder = Proxy::builder("mine", &policy(ENDS[0]));
        let proxy =
            flags.iter().fold(builder, |builder, flag| builder.flag(flag)).start(&bed.api)?;
        let informers = KINDS
            .iter()
            .map(|(kind, args)| Ok((*kind, bed.clients(&Way::Through(&proxy), "informer", args)?)));
        let mut run = Self { informers: informers.collect::<Result<_>>()?, proxy };
        run.has(&native(bed, ENDS[0])?)?;
        Ok(run)
    }

    fn has(&mut self, expected: &Store) -> Result<()> {
        for (kind, informer) in &mut self.informers {
            expect_store(kind, informer, expected)?;
        }
        Ok(())
    }

    /// Changes the shard's end, between two direct lists and next to direct GETs.
    fn change(&mut self, bed: &Bed, end: u64) -> Result<Took> {
        let expected = native(bed, end)?;
        let list = direct_list(bed)?;
        let before: Vec<_> = self.informers.iter().map(|(_, i)| i.lines().len()).collect();
        let is_over = AtomicBool::new(false);
        let (in_force, get) = thread::scope(|scope| {
            let gets = scope.spawn(|| slowest_get(bed, &is_over));
            let changed = self.proxy.change_policy(&policy(end)).and_then(|time| seconds(&time));
            let has = changed.and_then(|in_force| self.has(&expected).map(|()| in_force));
            is_over.store(true, Ordering::Release);
            let get = gets.join().map_err(|_| anyhow::anyhow!("the direct GETs failed"))?;
            Ok::<_, anyhow::Error>((has?, get?))
        })?;
        let mut last = Vec::new();
        for ((kind, informer), before) in self.informers.iter().zip(before) {
            let mut at = f64::NAN;
            for line in informer.lines().iter().skip(before) {
                if matches!(line["event"].as_str(), Some("added" | "updated" | "deleted")) {
                    at = at.max(seconds(line["time"].as_str().context("a time")?)?);
                }
            }
            last.push((*kind, at - in_force));
        }
        Ok(Took { change: last, list: list.max(direct_list(bed)?), get })
    }

    fn changes(&mut self, what: &str, bed: &Bed, count: usize) -> Result<Vec<Took>> {
        let ends = ENDS.iter().skip(1).take(count);
        let took = ends.map(|end| self.change(bed, *end)).collect::<Result<Vec<_>>>()?;
        let text = took.iter().map(|took| format!("{:.3}/{:.3}", took.last(), took.list));
        println!("handing over, {what}: {} s", text.collect::<Vec<_>>().join(" "));
        Ok(took)
    }
}

/// The lists that the API server saw while objects changed hands, as paths and queries.
fn lists(bed: &Bed) -> Result<Vec<String>> {
    let is_list = |entry: &AuditEntry| {
        entry.verb == "list"
            && entry.user.username == bed.account.user()
            && entry.object_ref.as_ref().is_some_and(|object| object.resource == "configmaps")
    };
    let uris =
        bed.api.audit().entries()?.into_iter().filter(is_list).map(|entry| entry.request_uri);
    // Each request has an entry a stage.
    Ok(BTreeSet::from_iter(uris).into_iter().collect())
}

/// Bytes of the lists' bodies, and of the objects in them.
fn bytes(bed: &Bed, lists: &[&String]) -> Result<(usize, usize)> {
    let (mut all, mut objects) = (0, 0);
    for list in lists {
        // curl would get it with indents.
        let body = output(&mut bed.curl(&Way::Straight, &format!("{list}&pretty=false")))?;
        let parsed: Value = serde_json::from_slice(&body)?;
        all += body.len();
        for item in parsed["items"].as_array().context("items")? {
            objects += item.to_string().len();
        }
    }
    Ok((all, objects))
}

#[test]
fn ten_boundary_changes_are_in_every_informer_in_time_without_a_full_list() -> Result<()> {
    let bed = Bed::alone_with_sharding_server("handing")?;
    fill(&bed)?;
    let mut run = Run::start(&bed, &[])?;
    let before = BTreeSet::from_iter(lists(&bed)?);
    let took = run.changes("by difference, ranges pushed down", &bed, CHANGES)?;
    let after = lists(&bed)?;
    let during: Vec<_> = after.iter().filter(|uri| !before.contains(*uri)).collect();
    let is_narrow = |uri: &&&String| {
        uri.contains("resourceVersionMatch=Exact") && uri.contains("shardSelector=")
            || uri.contains("continue=") && uri.contains("shardSelector=")
    };
    let wide: Vec<_> = during.iter().filter(|uri| !is_narrow(uri)).collect();
    ensure!(wide.is_empty(), "before {before:#?} wide {wide:#?}");
    let (all, objects) = bytes(
        &bed,
        &during.iter().filter(|u| !u.contains("continue=")).copied().collect::<Vec<_>>(),
    )?;
    let ratio = all as f64 / objects as f64;
    println!("handing over: {} lists, {all} bytes, {ratio:.3} times their objects", during.len());
    ensure!(ratio <= 1.2, "{ratio}");
    for (kind, informer) in run.informers {
        let summary = informer.finish(LIMIT)?.pop().context("a summary")?;
        ensure!(
            summary["count_watchErrors"] == 0 && summary["count_watches"] == 1,
            "{kind}: {summary}"
        );
    }
    let how = run.proxy.metric(r#"ctrlmesh_stream_changes_total{how="difference"}"#)?;
    ensure!(how == (CHANGES * KINDS.len()) as f64, "{how} changes by difference");
    drop(run.proxy);
    // Behind these, which tell why a change took long.
    let mut ratios: Vec<_> = took.iter().map(|took| took.last() / took.list).collect();
    ratios.sort_by(f64::total_cmp);
    let is_in_time = |took: &Took| took.last() <= AT_MOST * took.list + took.get;
    ensure!(ratios[CHANGES / 2] <= USUALLY && took.iter().all(is_in_time), "{took:#?}");
    // Next to it, for who reads the figures: client-go waits longer after each 410.
    for (what, flag) in [
        ("by difference, judged in the proxy alone", "--pushdown=off"),
        ("by 410 alone", "--on-change=expire"),
    ] {
        Run::start(&bed, &[flag])?.changes(what, &bed, BESIDE)?;
    }
    Ok(())
}
