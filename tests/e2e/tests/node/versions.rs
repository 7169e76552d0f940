//! What there was to read: every version that someone wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use ctrlmesh_e2e::{NAMESPACE, Program, Shards};
use serde_json::Value;

use crate::node::{
    records::{Event, Read, team},
    scene::Owners,
};

/// How long the watches of everything may lag behind those of the pods.
const LAG: Duration = Duration::from_secs(30);

/// A watch of all Widgets and one of all ConfigMaps, straight at the API server.
///
/// The audit log would not do: a write is carried out also when its client has gone, and is logged
/// as a 504 that names no version (`FinishRequest` of k8s.io/apiserver). A proxy that is killed
/// leaves such writes behind.
pub(crate) struct Writes([(&'static str, Program); 2]);

impl Writes {
    /// Follows whatever is written from now on.
    pub(crate) fn follow(shards: &Shards) -> Result<Self> {
        let widgets = Self::watch(shards, "/apis/demo.example.com/v1alpha1", "widgets")?;
        Ok(Self([widgets, Self::watch(shards, "/api/v1", "configmaps")?]))
    }

    fn watch(
        shards: &Shards,
        api: &str,
        resource: &'static str,
    ) -> Result<(&'static str, Program)> {
        let server = shards.node().api();
        let path = format!("{api}/namespaces/{NAMESPACE}/{resource}");
        // kubectl asks again while the API server makes its cache of a new kind ready.
        let list: Value = serde_json::from_str(&shards.node().kubectl(&["get", "--raw", &path])?)?;
        let version = list["metadata"]["resourceVersion"].as_str().context("a list's version")?;
        // Raw events are a line each.
        let mut watch = server.kubectl_client().command();
        watch.args(["get", "--raw", &format!("{path}?watch=true&resourceVersion={version}")]);
        let errors = server.directory().join(format!("writes-of-{resource}.log"));
        Ok((resource, Program::start("kubectl get --raw", &watch, &errors)?))
    }

    /// All that was written so far, and at the least what was read. That an object has left its shard
    /// is notified at a version that no one wrote.
    pub(crate) fn versions<'a>(&self, reads: impl Iterator<Item = &'a Read>) -> Result<Versions> {
        let mut needed = BTreeMap::<_, BTreeSet<_>>::new();
        for read in reads.filter(|read| read.event != Event::Delete) {
            needed.entry(read.resource).or_default().insert(read.id());
        }
        let mut versions = Versions::default();
        for (resource, watch) in &self.0 {
            let mut needed = needed.remove(resource).unwrap_or_default();
            let (mut next, mut failed) = (0, None);
            let told = watch.wait_until(LAG, |events| {
                for event in &events[next..] {
                    match versions.add(resource, event) {
                        Ok(id) => drop(needed.remove(&id)),
                        Err(error) => failed = Some(error),
                    }
                }
                next = events.len();
                (needed.is_empty() || failed.is_some()).then_some(())
            });
            if let Some(error) = failed {
                return Err(error);
            }
            told.with_context(|| format!("no one wrote the versions {needed:?}"))?;
        }
        Ok(versions)
    }
}

/// The versions of every Widget and ConfigMap, by every writer: the administrator, the operators,
/// the garbage collector.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    teams: BTreeMap<String, BTreeMap<u64, Option<String>>>,
    names: BTreeMap<(&'static str, String), BTreeSet<String>>,
}

impl Versions {
    /// Takes in one event; the uid and version that it tells of.
    fn add(&mut self, resource: &'static str, event: &Value) -> Result<(String, u64)> {
        let meta = &event["object"]["metadata"];
        let text = |field: &str| meta[field].as_str().with_context(|| format!("{field}: {event}"));
        let (uid, version) = (text("uid")?.to_owned(), text("resourceVersion")?.parse()?);
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => {
                self.names
                    .entry((resource, text("name")?.to_owned()))
                    .or_default()
                    .insert(uid.clone());
                self.teams.entry(uid.clone()).or_default().insert(version, team(&meta["labels"]));
            }
            // Its version is that of the end: no one wrote it.
            Some("DELETED") => {}
            _ => bail!("a watch of everything has no such event: {event}"),
        }
        Ok((uid, version))
    }

    /// The team of a version; nothing when no one wrote that version.
    pub(crate) fn team(&self, uid: &str, version: u64) -> Option<&Option<String>> {
        self.teams.get(uid)?.get(&version)
    }

    /// The team of the version before.
    fn team_before(&self, uid: &str, version: u64) -> Option<&Option<String>> {
        self.teams.get(uid)?.range(..version).next_back().map(|(_, team)| team)
    }

    /// Whether a watch with the shard's selector, straight at the API server, could have shown
    /// this.
    ///
    /// When a label edit takes an object out of a selector, the API server sends DELETED with the
    /// *old* labels and the *new* resourceVersion: so someone wrote the version, with a team of
    /// another shard, and what was read is the version before it. When an object is deleted, its
    /// last version comes with a resourceVersion that no one wrote.
    pub(crate) fn judge(&self, read: &Read, shard: &str, owners: &Owners) -> Result<()> {
        let is_owned = |team: &Option<String>| {
            team.as_deref().is_some_and(|team| owners.get(team) == Some(&shard))
        };
        let written = self.team(&read.uid, read.version);
        let shown = match read.event {
            Event::Delete => {
                ensure!(!written.is_some_and(is_owned), "{shard} lost what it owns: {read:?}");
                self.team_before(&read.uid, read.version)
            }
            // What was read before is not in the list any more.
            Event::MissedDelete => return Ok(()),
            _ => written,
        };
        let shown = shown.with_context(|| format!("no one wrote {read:?}"))?;
        ensure!(*shown == read.team, "{shard} read {read:?}, which was written with {shown:?}");
        ensure!(is_owned(shown), "{shard} read {read:?}, which is not its own");
        Ok(())
    }

    /// Whether a watch that was brought over could have told this: that an object is gone which is
    /// not, because it is another's from now on. The event has the version at which it left, at or
    /// above that which the shard had.
    pub(crate) fn judge_handed_over(
        &self,
        read: &Read,
        shard: &str,
        [before, after]: [&Owners; 2],
    ) -> Result<()> {
        let known = self.teams.get(&read.uid);
        let last = known.and_then(|known| known.range(..=read.version).next_back());
        let team = last.and_then(|(_, team)| team.as_deref());
        let team = team.with_context(|| format!("no one wrote {read:?}"))?;
        let is_right = read.event == Event::Delete
            && read.team.as_deref() == Some(team)
            && before.get(team) == Some(&shard)
            && after.get(team) != Some(&shard);
        ensure!(is_right, "{shard} read {read:?}, which was not handed over");
        Ok(())
    }

    /// Uid and number of all that have a team.
    pub(crate) fn labelled(&self) -> BTreeSet<(String, u64)> {
        let all = self.teams.iter().flat_map(|(uid, known)| known.iter().map(move |v| (uid, v)));
        all.filter(|(_, (_, team))| team.is_some())
            .map(|(uid, (version, _))| (uid.clone(), *version))
            .collect()
    }

    /// The teams of every object in the order of its versions, each change once.
    pub(crate) fn careers(&self) -> Vec<Vec<&str>> {
        self.teams
            .values()
            .map(|known| {
                let mut teams: Vec<&str> = known.values().flatten().map(String::as_str).collect();
                teams.dedup();
                teams
            })
            .collect()
    }

    /// How many names were given to more than one object.
    pub(crate) fn names_used_again(&self) -> usize {
        self.names.values().filter(|uids| uids.len() > 1).count()
    }
}
