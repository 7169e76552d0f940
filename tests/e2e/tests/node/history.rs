//! Who read what, while objects come, go and change their team, and a boundary moves.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, anyhow, ensure};
use ctrlmesh_e2e::{AuditEntry, AuditLevel, Binaries, Node, Shards};
use k8s_openapi::jiff::Timestamp;

use crate::{
    admin::Admin,
    records::{Event, Read, Reader, Versions},
    scene::{LIMIT, Owners, settle},
    shards::t63_every_request_is_the_operators_own,
};

const TEAMS: [&str; 4] = ["ant", "bee", "cat", "dog"];
const SHARDS: [&str; 2] = ["blue", "green"];
const RESOURCES: [&str; 2] = ["widgets", "configmaps"];
/// The oracle is the audit log: with [`AuditLevel::RequestResponse`] it holds the answer to every
/// write, whoever wrote, and so each version with its labels.
#[test]
fn t13_t14_t17_every_version_is_read_by_its_own_shard_alone() -> Result<()> {
    let node = Node::builder().audit(AuditLevel::RequestResponse);
    let shards = Shards::start_on(Binaries::from_env()?, node)?;
    let before =
        Owners::from([("ant", "blue"), ("bee", "blue"), ("cat", "green"), ("dog", "green")]);
    let after =
        Owners::from([("ant", "blue"), ("bee", "green"), ("cat", "green"), ("dog", "green")]);
    for shard in SHARDS {
        shards.draw(shard, &teams_of(&before, shard))?;
    }
    for shard in SHARDS {
        shards.run_operator(shard)?;
    }
    let pods = shards.pods()?;
    ensure!(pods.len() == SHARDS.len(), "{pods:?}");
    let readers: Vec<Reader> =
        pods.into_iter().map(|pod| Reader::follow(&shards, pod)).collect::<Result<_>>()?;

    let began = Instant::now();
    let mut admin = Admin::new(&shards, &TEAMS);
    shards.create_widgets(&TEAMS, 2)?;
    admin.create_lasting()?;
    edit_in_turns(&shards, &readers, &mut admin, &before)?;
    move_boundary(&shards, &readers, &mut admin, &after)?;
    edit_in_turns(&shards, &readers, &mut admin, &after)?;
    println!("edited for {:.1?}", began.elapsed());

    let windows = Windows::of(&shards, &readers)?;
    judge(&shards, &readers, &windows, [&before, &after])?;
    for pod in shards.pods()? {
        ensure!(pod.restarts == 0, "{} was restarted", pod.name);
    }
    t63_every_request_is_the_operators_own(&shards)
}

fn teams_of(owners: &Owners, shard: &str) -> Vec<&'static str> {
    owners.iter().filter(|(_, owner)| **owner == shard).map(|(team, _)| *team).collect()
}

/// Edits, and lets the operators catch up now and then: else they would see the last of many
/// edits alone.
fn edit_in_turns(
    shards: &Shards,
    readers: &[Reader],
    admin: &mut Admin<'_>,
    owners: &Owners,
) -> Result<()> {
    for _ in 0..4 {
        admin.go_on(25)?;
        settle(shards, readers, owners)?;
    }
    Ok(())
}

/// Draws the shards anew while the edits go on, until every watch was brought over.
fn move_boundary(
    shards: &Shards,
    readers: &[Reader],
    admin: &mut Admin<'_>,
    after: &Owners,
) -> Result<()> {
    thread::scope(|scope| {
        let draw = |shard: &&str| shards.draw(shard, &teams_of(after, shard));
        let drawn = scope.spawn(move || SHARDS.iter().try_for_each(draw));
        while !drawn.is_finished() {
            admin.step()?;
        }
        drawn.join().map_err(|_| anyhow!("drawing the shards panicked"))?
    })?;
    let deadline = Instant::now() + LIMIT;
    while !have_listed_anew(readers)? {
        admin.step()?;
        ensure!(Instant::now() < deadline, "not every watch was brought over");
    }
    Ok(())
}

fn have_listed_anew(readers: &[Reader]) -> Result<bool> {
    for reader in readers {
        let reads = reader.reads()?;
        let has = |resource| reads.iter().any(|r| r.resource == resource && r.is_of_relist());
        if !RESOURCES.into_iter().all(has) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// When each watch was brought over: from the API server's reply to the change of the shard's
/// config to the last thing that only the list made for it could tell; by shard and resource.
struct Windows(BTreeMap<(String, &'static str), (Timestamp, Timestamp)>);

impl Windows {
    /// Reads them off the audit log and the records, and prints them. The times are told, not
    /// judged: the edits of this scene use all of the machine.
    fn of(shards: &Shards, readers: &[Reader]) -> Result<Self> {
        let log = shards.node().api().audit().entries()?;
        let addresses = addresses(shards)?;
        let mut windows = BTreeMap::new();
        for reader in readers {
            let (shard, reads) = (reader.pod.shard.clone(), reader.reads()?);
            let change = |entry: &&AuditEntry| is_change(entry, &shard);
            let replied: Timestamp =
                log.iter().find(change).context("the change")?.stage_timestamp.parse()?;
            let address = addresses.get(&reader.pod.name).context("an address")?;
            for resource in RESOURCES {
                let of_relist = |read: &&Read| read.resource == resource && read.is_of_relist();
                let all: Vec<&Read> = reads.iter().filter(of_relist).collect();
                let (first, last) = (all.first().context("a list")?, all.last().context("it")?);
                ensure!(first.time > replied, "a list before the change: {first:?}");
                windows.insert((shard.clone(), resource), (replied, last.time));
                let watches = Watches::of(&log, address, resource, replied)?;
                println!(
                    "{shard}, {resource}: 410 {:.3} s after the reply, listed anew from {:.3} s \
                     to {:.3} s",
                    seconds(replied, watches.ended),
                    seconds(replied, *watches.listed.first().context("a list")?),
                    seconds(replied, last.time),
                );
                ensure!(watches.listed.len() == 1, "{shard}, {resource}: {:?}", watches.listed);
            }
        }
        Ok(Self(windows))
    }
}

/// What the API server saw of one pod's watches of a resource since a change.
struct Watches {
    /// When the watch ended that lived at the change.
    ended: Timestamp,
    /// When the pod was given all objects anew.
    listed: Vec<Timestamp>,
}

impl Watches {
    fn of(log: &[AuditEntry], address: &str, resource: &str, since: Timestamp) -> Result<Self> {
        let (mut ended, mut listed) = (None, Vec::new());
        for entry in log {
            let is_about =
                entry.object_ref.as_ref().is_some_and(|about| about.resource == resource);
            let is_from_pod = entry.source_ips.first().is_some_and(|ip| ip == address);
            let time: Timestamp = entry.stage_timestamp.parse()?;
            let is_done = entry.response_status.as_ref().is_some_and(|status| status.code == 200);
            if !(is_about && is_from_pod && is_done && time > since) {
                continue;
            }
            let is_streamed_list = entry.request_uri.contains("sendInitialEvents=true");
            match (&*entry.verb, &*entry.stage) {
                ("list", "ResponseComplete") => listed.push(time),
                ("watch", "ResponseStarted") if is_streamed_list => listed.push(time),
                ("watch", "ResponseComplete") => ended = ended.or(Some(time)),
                _ => {}
            }
        }
        Ok(Self { ended: ended.context("a watch ended")?, listed })
    }
}

/// Whether it is the reply to the second drawing of a shard, by which the boundary moved.
fn is_change(entry: &AuditEntry, shard: &str) -> bool {
    let about = entry.object_ref.as_ref();
    entry.verb == "patch"
        && about.is_some_and(|about| about.resource == "shardingconfigs" && about.name == shard)
}

fn addresses(shards: &Shards) -> Result<BTreeMap<String, String>> {
    let pods = shards.items("pods")?;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    Ok(pods
        .iter()
        .map(|pod| (text(&pod["metadata"]["name"]), text(&pod["status"]["podIP"])))
        .collect())
}

/// Each version that was read belonged to the shard of the pod that read it, by the policy in
/// force: before the shard's window by the old one, after it by the new one, within it by either.
/// As [`settle`] has compared what the pods hold with what there is, every last version was read,
/// and of what is deleted the last record says so.
fn judge(
    shards: &Shards,
    readers: &[Reader],
    windows: &Windows,
    policies: [&Owners; 2],
) -> Result<()> {
    let mut reads = Vec::new();
    for reader in readers {
        reads.extend(reader.reads()?.into_iter().map(|read| (&*reader.pod.shard, read)));
    }
    let versions = Versions::of(&shards.node().api().audit(), reads.iter().map(|(_, read)| read))?;
    let mut within = 0;
    for (shard, read) in &reads {
        let (start, end) = windows.0[&((*shard).to_owned(), read.resource)];
        let [before, after] = policies.map(|owners| versions.judge(read, shard, owners));
        if read.time < start {
            before?;
        } else if read.time > end {
            after?;
        } else {
            within += 1;
            before.or(after)?;
        }
    }
    let labelled = versions.labelled();
    let read: BTreeSet<_> = reads.iter().map(|(_, read)| read.id()).collect();
    let moved_out = reads.iter().filter(|(_, read)| {
        read.event == Event::Delete && versions.team(&read.uid, read.version).is_some()
    });
    let there_and_back = there_and_back(&versions, policies[0]);
    let again = versions.names_used_again();
    println!(
        "{} labelled versions, {} of them read; {} records, {within} of them while the boundary \
         moved; {} times an object left a shard by its label, {there_and_back} objects came back; \
         {again} names were used again",
        labelled.len(),
        labelled.intersection(&read).count(),
        reads.len(),
        moved_out.count(),
    );
    ensure!(there_and_back > 0 && again > 0 && within > 0, "the run had too little in it");
    Ok(())
}

/// Objects that were moved to the other shard and back by their labels.
fn there_and_back(versions: &Versions, owners: &Owners) -> usize {
    let is_moved = |teams: &Vec<&str>| {
        let mut shards: Vec<_> = teams.iter().map(|team| owners.get(team)).collect();
        shards.dedup();
        shards.len() >= 3
    };
    versions.careers().iter().filter(|teams| is_moved(teams)).count()
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
