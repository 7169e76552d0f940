//! Who read what, while objects come, go and change their team, and a boundary moves.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ctrlmesh_e2e::{AuditEntry, NAMESPACE, Shards};
use k8s_openapi::jiff::Timestamp;

use crate::node::{
    admin::Admin,
    records::{Event, Reader},
    scene::{LIMIT, Owners, Turn, settle},
    shards::t63_every_request_is_the_operators_own,
    versions::{Versions, Writes},
};

const TEAMS: [&str; 4] = ["ant", "bee", "cat", "dog"];
const SHARDS: [&str; 2] = ["blue", "green"];
const RESOURCES: [&str; 2] = ["widgets", "configmaps"];

/// The oracle is a watch of everything, straight at the API server: each version by any writer,
/// with its labels.
#[test]
fn t13_t14_t17_every_version_is_read_by_its_own_shard_alone() -> Result<()> {
    let shards = Turn::wait()?;
    let writes = Writes::follow(&shards)?;
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
    let seen = move_boundary(&shards, &readers, &mut admin, &after)?;
    edit_in_turns(&shards, &readers, &mut admin, &after)?;
    println!("edited for {:.1?}", began.elapsed());

    let windows = Windows::of(&shards, &readers, &seen)?;
    judge(&writes, &readers, &windows, [&before, &after])?;
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

/// What a shard was seen to have done about a change.
struct Seen {
    at: Timestamp,
    /// Uid and version of what was created after that: a Widget and a ConfigMap of the shard.
    created: [(String, u64); 2],
}

/// Draws the shards again while the edits go on, until every watch was brought over.
fn move_boundary(
    shards: &Shards,
    readers: &[Reader],
    admin: &mut Admin<'_>,
    after: &Owners,
) -> Result<BTreeMap<String, Seen>> {
    thread::scope(|scope| {
        let draw = |shard: &&str| shards.draw(shard, &teams_of(after, shard));
        let drawn = scope.spawn(move || SHARDS.iter().try_for_each(draw));
        while !drawn.is_finished() {
            admin.step()?;
        }
        drawn.join().map_err(|_| anyhow!("drawing the shards panicked"))?
    })?;
    let deadline = Instant::now() + LIMIT;
    let mut seen = BTreeMap::new();
    while seen.len() < readers.len() {
        admin.step()?;
        for reader in readers {
            let shard = &reader.pod.shard;
            if !seen.contains_key(shard) && are_brought_over(shards, &reader.pod.name)? {
                let at = Timestamp::now();
                let team = *teams_of(after, shard).first().context("a team")?;
                let create = |resource| admin.create_named(resource, "after", team);
                let created = [create("widgets")?, create("configmaps")?];
                seen.insert(shard.clone(), Seen { at, created });
            }
        }
        if Instant::now() >= deadline {
            let states = readers.iter().map(|reader| state(shards, &reader.pod.name));
            let states = states.collect::<Result<Vec<_>>>()?;
            bail!("not every watch was brought over: {states:#?}");
        }
    }
    Ok(seen)
}

/// The page `/readyz` of a proxy, and the changes that its watches have had.
fn state(shards: &Shards, pod: &str) -> Result<String> {
    let ready = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:5441/proxy/readyz");
    let ready = shards.node().kubectl(&["get", "--raw", &ready])?;
    let metrics = shards.metrics(pod)?;
    let changes = metrics.lines().filter(|line| line.starts_with("ctrlmesh_stream_changes_total"));
    Ok(changes.fold(ready, |all, line| format!("{all}{line}\n")))
}

fn are_brought_over(shards: &Shards, pod: &str) -> Result<bool> {
    let metrics = shards.metrics(pod)?;
    let count = |how: &str| {
        let series = format!("ctrlmesh_stream_changes_total{{how=\"{how}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&series)).map(str::to_owned)
    };
    ensure!(count("expired").is_none(), "{pod}: a watch was ended");
    Ok(count("difference").as_deref() == Some("2"))
}

/// When each watch was brought over: from the request that changed the shard's config until the operator noted what was created after it was seen; by shard and resource.
struct Windows(BTreeMap<(String, &'static str), (Timestamp, Timestamp)>);

impl Windows {
    /// Reads them off the audit log, and prints them.
    fn of(shards: &Turn, readers: &[Reader], seen: &BTreeMap<String, Seen>) -> Result<Self> {
        let log = shards.entries()?;
        let addresses = addresses(shards)?;
        let mut windows = BTreeMap::new();
        for reader in readers {
            let shard = reader.pod.shard.clone();
            let change = |entry: &&AuditEntry| is_change(entry, &shard);
            let entry = log.iter().find(change).context("the change")?;
            // The proxy may have brought its watches over before the reply is complete.
            let asked: Timestamp = entry.request_received_timestamp.parse()?;
            let address = addresses.get(&reader.pod.name).context("an address")?;
            let seen = seen.get(&shard).context("a shard")?;
            let reads = reader.reads()?;
            for (resource, created) in RESOURCES.into_iter().zip(&seen.created) {
                let noted = reads.iter().find(|read| read.id() == *created);
                let noted = noted.with_context(|| format!("{shard} did not read {created:?}"))?;
                windows.insert((shard.clone(), resource), (asked, noted.time));
                let watches = Watches::of(&log, address, resource, asked)?;
                println!(
                    "{shard}, {resource}: the API server's watch ended {:.3} s after the request, \
                     brought over before {:.3} s",
                    seconds(asked, watches.ended),
                    seconds(asked, seen.at),
                );
                ensure!(watches.listed.is_empty(), "{shard}, {resource}: {:?}", watches.listed);
            }
        }
        Ok(Self(windows))
    }
}

/// What the API server saw of one pod's watches of a resource since a change.
struct Watches {
    /// When the watch ended that lived at the change.
    ended: Timestamp,
    /// When the pod was given all objects again, and not just those that change hands.
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
                ("list", "ResponseComplete") if !is_of_change(entry) => listed.push(time),
                ("watch", "ResponseStarted") if is_streamed_list => listed.push(time),
                ("watch", "ResponseComplete") => ended = ended.or(Some(time)),
                _ => {}
            }
        }
        Ok(Self { ended: ended.context("no watch ended since the change")?, listed })
    }
}

/// Whether the proxy lists what changes hands.
fn is_of_change(entry: &AuditEntry) -> bool {
    let uri = &entry.request_uri;
    uri.contains("resourceVersionMatch=Exact") && uri.contains("labelSelector=")
}

/// Whether it is the second drawing of a shard, by which the boundary moved.
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
/// [`settle`] has compared what the pods hold with what there is. So every last version was read,
/// and the last record of a deleted object says that it is deleted.
fn judge(
    writes: &Writes,
    readers: &[Reader],
    windows: &Windows,
    policies: [&Owners; 2],
) -> Result<()> {
    let mut reads = Vec::new();
    for reader in readers {
        reads.extend(reader.reads()?.into_iter().map(|read| (&*reader.pod.shard, read)));
    }
    let versions = writes.versions(reads.iter().map(|(_, read)| read))?;
    let (mut within, mut told) = (0, 0);
    for (shard, read) in &reads {
        let (start, end) = windows.0[&((*shard).to_owned(), read.resource)];
        let [before, after] = policies.map(|owners| versions.judge(read, shard, owners));
        if read.time < start {
            before?;
        } else if read.time > end {
            after?;
        } else {
            within += 1;
            let handed_over = versions.judge_handed_over(read, shard, policies);
            told += usize::from(handed_over.is_ok());
            before.or(after).or(handed_over)?;
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
         moved, {told} of these told what is handed over; {} times an object left a shard by its label, {there_and_back} objects came back; \
         {again} names were used again",
        labelled.len(),
        labelled.intersection(&read).count(),
        reads.len(),
        moved_out.count(),
    );
    let has_enough = there_and_back > 0 && again > 0 && within > 0 && told > 0;
    ensure!(has_enough, "the run had too little in it");
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
