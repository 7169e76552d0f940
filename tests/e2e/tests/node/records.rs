//! What the operator says that it read.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use ctrlmesh_e2e::{NAMESPACE, OperatorPod, Program, Shards};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

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

    /// Whether only a list that was made again tells this.
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
