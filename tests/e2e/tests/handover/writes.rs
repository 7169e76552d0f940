//! Writes of all shards into all namespaces while these change hands: the API server takes those of the shard that
//! has the namespace alone. `HANDOVERS=n` makes that many.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Client, until};
use fastrand::Rng;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::handover::{
    count,
    moves::{Move, SHARDS, Split, TEAMS},
    quantile, rng,
    scene::{LIMIT, Scene},
};

/// The pause of each pod's client between two writes: eight pods send fifty a second together.
const PAUSE: Duration = Duration::from_millis(160);
const PODS_A_SHARD: usize = 2;
/// The writes that are taken between two moves.
const A_MOVE: usize = 4;

/// A write that the API server took.
#[derive(Debug)]
struct Taken {
    shard: String,
    from: Timestamp,
    to: Timestamp,
}

#[test]
fn a_namespace_is_written_by_one_shard_at_a_time_while_it_moves() -> Result<()> {
    let mut rng = rng();
    let (mut last, moves) = (Split::first(), count(8)?);
    let scene = Scene::by_namespace(&last, PODS_A_SHARD)?;
    scene.settle(&last)?;
    moved(&scene, &mut rng, &mut last, moves, None)?.say("without writes");
    let clients = scene.pods.iter().map(|pod| Ok((SHARDS[pod.shard], scene.client(pod)?)));
    let clients = clients.collect::<Result<Vec<_>>>()?;
    let (is_over, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (opened, answers) = thread::scope(|threads| {
        let (is_over, taken) = (&is_over, &taken);
        let mut writers = Vec::new();
        for (shard, client) in &clients {
            let rng = rng.fork();
            writers.push(threads.spawn(move || writes((shard, client), rng, is_over, taken)));
        }
        let opened = moved(&scene, &mut rng, &mut last, moves, Some(taken));
        is_over.store(true, Ordering::Relaxed);
        let mut answers: BTreeMap<u16, usize> = BTreeMap::new();
        for writer in writers {
            for code in writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?? {
                *answers.entry(code).or_default() += 1;
            }
        }
        Ok::<_, anyhow::Error>((opened?, answers))
    })?;
    opened.say("under writes");
    println!("moves: answers to writes {answers:?}");
    one_writer_at_a_time(&scene, moves)?;
    ensure!(answers.keys().all(|code| [200, 403, 409].contains(code)), "{answers:?}");
    ensure!([200, 403].iter().all(|code| answers.contains_key(code)), "{answers:?}");
    Ok(())
}

/// The times from edits until each pod had what it gained, in seconds.
struct Opened(Vec<f64>);

impl Opened {
    fn say(mut self, how: &str) {
        self.0.sort_by(f64::total_cmp);
        let [half, most] = [0.5, 0.99].map(|share| quantile(&self.0, share));
        let count = self.0.len();
        println!("moves: {how} {count} gains: edit to open p50 {half:.3} s, p99 {most:.3} s");
    }
}

/// Moves namespaces this many times. After each move a few writes are taken, if there are any.
fn moved(
    scene: &Scene,
    rng: &mut Rng,
    last: &mut Split,
    moves: usize,
    taken: Option<&AtomicUsize>,
) -> Result<Opened> {
    let mut opened = Vec::new();
    for _ in 0..moves {
        let next = Move::redraw(rng, last);
        let edit = Timestamp::now();
        for step in next.steps(rng) {
            scene.take(&step)?;
        }
        scene.settle(&next.to)?;
        let [of_move, _] = scene.records()?.moves_since(edit);
        opened.extend(of_move);
        *last = next.to;
        let Some(taken) = taken else { continue };
        let goal = taken.load(Ordering::Relaxed) + A_MOVE;
        until("writes are taken", LIMIT, || {
            Ok((taken.load(Ordering::Relaxed) >= goal).then_some(()))
        })?;
    }
    Ok(Opened(opened))
}

/// Writes into namespaces of any shard until it is over. Returns the codes of the answers.
fn writes(
    (shard, client): (&str, &Client),
    mut rng: Rng,
    is_over: &AtomicBool,
    taken: &AtomicUsize,
) -> Result<Vec<u16>> {
    let mut codes = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let team = TEAMS[rng.usize(..TEAMS.len())];
        let path = format!("/api/v1/namespaces/{team}/configmaps/{team}?fieldManager={shard}");
        let patch =
            json!({ "metadata": { "annotations": { "by": format!("{shard}-{}", codes.len()) } } });
        let kind = "application/merge-patch+json";
        let status = client.request("PATCH", &path, kind, patch.to_string().into())?.status;
        taken.fetch_add(usize::from(status == 200), Ordering::Relaxed);
        codes.push(status);
        pass();
    }
    Ok(codes)
}

#[allow(clippy::disallowed_methods, reason = "writes come at a rate")]
fn pass() {
    thread::sleep(PAUSE);
}

/// No write of a shard was taken while another shard's write into the same namespace was under way.
/// The writers of a namespace have changed at most once a move.
fn one_writer_at_a_time(scene: &Scene, moves: usize) -> Result<()> {
    let mut of_team: BTreeMap<String, Vec<Taken>> = BTreeMap::new();
    for api in scene.apis.iter() {
        for entry in api.audit().entries()? {
            let of = entry.object_ref.unwrap_or_default();
            let manager = entry.request_uri.split_once("?fieldManager=").map(|(_, shard)| shard);
            let is_taken = entry.response_status.is_some_and(|status| status.code == 200);
            let Some(shard) = manager.filter(|_| is_taken && entry.verb == "patch") else {
                continue;
            };
            if of.resource != "configmaps" || entry.stage != "ResponseComplete" {
                continue;
            }
            of_team.entry(of.namespace).or_default().push(Taken {
                shard: shard.to_owned(),
                from: entry.request_received_timestamp.parse().context("a time")?,
                to: entry.stage_timestamp.parse().context("a time")?,
            });
        }
    }
    let mut turns = 0;
    for (team, all) in &mut of_team {
        all.sort_by_key(|taken| taken.from);
        for (at, one) in all.iter().enumerate() {
            let overlapping = all.iter().skip(at + 1).take_while(|other| other.from < one.to);
            let twice = overlapping.into_iter().find(|other| other.shard != one.shard);
            ensure!(twice.is_none(), "two shards wrote into {team}: {one:?}, {twice:?}");
        }
        let turns_of_it = all.windows(2).filter(|two| two[0].shard != two[1].shard).count();
        ensure!(turns_of_it <= moves, "{turns_of_it} turns in {moves} moves of {team}: {all:?}");
        turns += turns_of_it;
    }
    println!("moves: {turns} times another shard began to write into a namespace");
    ensure!(turns > 0, "no namespace has moved");
    Ok(())
}
