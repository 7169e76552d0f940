//! What the operator says that it read, and what the audit log says that there was to read.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{AuditEntry, AuditLog, NAMESPACE, OperatorPod, Program, Shards};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::scene::Owners;

/// How long the audit log may lag behind the answers that it tells of.
const LOG_LIMIT: Duration = Duration::from_secs(30);

/// What a pod holds. An informer's key is the name: a list that has another object of the same
/// name updates the one to the other.
pub(crate) type Store = BTreeMap<Key, Held>;

/// Resource and name.
pub(crate) type Key = (&'static str, String);

/// Uid, version and team.
pub(crate) type Held = (String, u64, Option<String>);

/// What an informer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Event {
    /// Of the first list.
    Initial,
    Add,
    Update,
    /// A later list has the version that was known already.
    Relist,
    Delete,
    /// A later list does not have the object any more; the version is the last known.
    MissedDelete,
}

/// One version that entered an informer.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) resource: &'static str,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: u64,
    pub(crate) team: Option<String>,
    pub(crate) event: Event,
    pub(crate) time: Timestamp,
}

impl Read {
    /// Nothing for a line that is no record of a read.
    pub(crate) fn parse(line: &Value) -> Result<Option<Self>> {
        if line["record"] != "read" {
            return Ok(None);
        }
        let text = |field: &str| line[field].as_str().with_context(|| format!("{field}: {line}"));
        Ok(Some(Self {
            resource: if text("gvk")?.ends_with("Kind=Widget") { "widgets" } else { "configmaps" },
            name: text("name")?.to_owned(),
            uid: text("uid")?.to_owned(),
            version: text("rv")?.parse()?,
            team: team(&line["labels"]),
            event: Event::deserialize(&line["event"])?,
            time: text("time")?.parse()?,
        }))
    }

    /// Uid and version.
    pub(crate) fn id(&self) -> (String, u64) {
        (self.uid.clone(), self.version)
    }

    /// Whether the object is there, in this version.
    fn is_shown(&self) -> bool {
        !matches!(self.event, Event::Delete | Event::MissedDelete)
    }

    /// Whether only a list that was made anew tells this.
    pub(crate) fn is_of_relist(&self) -> bool {
        matches!(self.event, Event::Relist | Event::MissedDelete)
    }
}

/// The label that the shards are drawn by.
pub(crate) fn team(labels: &Value) -> Option<String> {
    labels["team"].as_str().map(str::to_owned)
}

/// The records of one container of a pod's operator, followed from its start to its end.
pub(crate) struct Reader {
    pub(crate) pod: OperatorPod,
    program: Program,
}

impl Reader {
    pub(crate) fn follow(shards: &Shards, pod: OperatorPod) -> Result<Self> {
        let api = shards.node().api();
        let mut logs = api.kubectl_client().command();
        logs.args(["--namespace", NAMESPACE, "logs", "--follow", &pod.name]);
        logs.args(["--container", "operator"]);
        let errors = api.directory().join(format!("records-of-{}.log", pod.name));
        Ok(Self { program: Program::start("kubectl logs", &logs, &errors)?, pod })
    }

    /// Everything read so far, in its order.
    pub(crate) fn reads(&self) -> Result<Vec<Read>> {
        self.program.lines().iter().filter_map(|line| Read::parse(line).transpose()).collect()
    }
}

/// What these reads leave a pod with.
pub(crate) fn store(reads: &[Read]) -> Store {
    let mut store = Store::new();
    for read in reads {
        let key = (read.resource, read.name.clone());
        match read.event {
            Event::Delete | Event::MissedDelete => drop(store.remove(&key)),
            _ => drop(store.insert(key, (read.uid.clone(), read.version, read.team.clone()))),
        }
    }
    store
}

/// The versions of every Widget and ConfigMap, as the API server answered whoever wrote them:
/// the administrator, the operators, the garbage collector.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    teams: BTreeMap<String, BTreeMap<u64, Option<String>>>,
    names: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Versions {
    /// All that the log tells, and at the least what was read: the log is written after the
    /// answer.
    pub(crate) fn of<'a>(log: &AuditLog, reads: impl Iterator<Item = &'a Read>) -> Result<Self> {
        let mut needed: BTreeSet<_> = reads.filter(|read| read.is_shown()).map(Read::id).collect();
        let mut versions = Self::default();
        let mut reader = log.reader()?;
        let mut failed = None;
        let told = reader.wait_for(LOG_LIMIT, |entry| {
            match versions.add(entry) {
                Ok(Some(version)) => drop(needed.remove(&version)),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
            needed.is_empty() || failed.is_some()
        });
        if let Some(error) = failed {
            return Err(error);
        }
        told.with_context(|| format!("nobody wrote the versions {needed:?}"))?;
        while let Some(entry) = reader.next_written()? {
            versions.add(&entry)?;
        }
        Ok(versions)
    }

    fn add(&mut self, entry: &AuditEntry) -> Result<Option<(String, u64)>> {
        let (Some(about), Some(answer)) = (&entry.object_ref, &entry.response_object) else {
            return Ok(None);
        };
        let is_write = matches!(&*entry.verb, "create" | "update" | "patch");
        let is_ours = matches!(&*about.resource, "widgets" | "configmaps");
        let is_done = entry.response_status.as_ref().is_some_and(|status| status.code < 300);
        if !(is_write && is_ours && is_done && about.namespace == NAMESPACE) {
            return Ok(None);
        }
        let meta = &answer["metadata"];
        let text = |field: &str| meta[field].as_str().with_context(|| format!("{field}: {answer}"));
        let (uid, version) = (text("uid")?.to_owned(), text("resourceVersion")?.parse()?);
        let team = team(&meta["labels"]);
        let name = (about.resource.clone(), text("name")?.to_owned());
        self.names.entry(name).or_default().insert(uid.clone());
        let known = self.teams.entry(uid.clone()).or_default();
        // A write that changes nothing is answered with the version that there is.
        let first = known.entry(version).or_insert_with(|| team.clone());
        ensure!(*first == team, "two answers tell of the version {version} of {uid}: {entry:?}");
        Ok(Some((uid, version)))
    }

    /// The team of a version; nothing when nobody wrote that version.
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
    /// *old* labels and the *new* resourceVersion: so somebody wrote the version, with a team of
    /// another shard, and what was read is the version before it. When an object is deleted, its
    /// last version comes with a resourceVersion that nobody wrote.
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
        let shown = shown.with_context(|| format!("nobody wrote {read:?}"))?;
        ensure!(*shown == read.team, "{shard} read {read:?}, which was written with {shown:?}");
        ensure!(is_owned(shown), "{shard} read {read:?}, which is not its own");
        Ok(())
    }

    /// Whether a watch that was brought over could have told this: that an object is gone which is
    /// not, in the very version that the shard had, because it is another's from now on.
    pub(crate) fn judge_handed_over(
        &self,
        read: &Read,
        shard: &str,
        [before, after]: [&Owners; 2],
    ) -> Result<()> {
        let written = self.team(&read.uid, read.version).and_then(Option::as_deref);
        let team = written.with_context(|| format!("nobody wrote {read:?}"))?;
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
