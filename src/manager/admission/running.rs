//! Pods that run, and would be of another shard by a change of a config: they would get another lock and
//! other objects in the middle of their work.
//!
//! Hides which changes can do that. Does not know how pods are found.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::{Deserialize, de::IgnoredAny};

use crate::{configs::Configs, workload::deployment_of};
use ctrlmesh_api::{TargetKind, keys};
use ctrlmesh_policy::{
    Checked, Choices, Draft, object_of,
    roots::{POD_NAME, Root},
    shard_of,
};

/// The pods that have not ended, by a field selector.
pub const RUNS: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// An injected pod that runs.
#[derive(Clone, Debug)]
pub struct RunningPod {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// The metadata of a pod, as far as it tells whether it runs in a shard.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMeta {
    /// Its name.
    pub name: String,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its annotations, by their keys alone: one may be large.
    #[serde(default)]
    annotations: BTreeMap<String, IgnoredAny>,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
    deletion_timestamp: Option<IgnoredAny>,
}

impl PodMeta {
    /// Whether it has a proxy.
    pub fn is_injected(&self) -> bool {
        self.annotations.contains_key(keys::INJECTED)
    }

    /// The name of the Deployment that it is of. `None` if it is of none.
    pub fn deployment(&self) -> Option<&str> {
        let mut owners = self.owner_references.iter();
        let owner = owners.find(|owner| owner.controller == Some(true))?;
        let template = self.labels.get(keys::TEMPLATE_HASH)?;
        deployment_of(&owner.api_version, &owner.kind, &owner.name, template)
    }

    /// Whether it is being deleted.
    pub fn is_going(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

impl RunningPod {
    /// A pod that has not ended. `None` if it is not injected, or is being deleted.
    pub fn of(pod: PodMeta) -> Option<Self> {
        let runs = pod.is_injected() && !pod.is_going();
        runs.then_some(Self { name: pod.name, labels: pod.labels })
    }
}

/// A pod that would be of another shard.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) pod: String,
    pub(super) from: String,
    pub(super) to: String,
}

/// Whether a change of a config may give a pod another shard.
pub(super) fn may_move(old: &Checked, new: &Draft) -> bool {
    match (old, new) {
        (Ok(Draft::Sharding(old)), Draft::Sharding(new)) => old.config.pods != new.config.pods,
        (Ok(Draft::Root(old)), Draft::Root(new)) => old.root.may_move(&new.root),
        _ => false,
    }
}

/// The pods that would move to another shard if the new config replaced the old one. The other configs of the
/// namespace stay as they are.
pub(super) fn moved(
    old: &Checked,
    new: &Draft,
    configs: &Configs,
    pods: &[RunningPod],
) -> Vec<Moved> {
    let new = Ok(new.clone());
    match (old, &new) {
        (Ok(Draft::Root(old)), Ok(Draft::Root(new))) => {
            let moved = |pod: &RunningPod| {
                let [from, to] = [&old.root, &new.root].map(|root| child_of(root, pod));
                let to = match old.root.target.kind {
                    // One whose label names no child any more would be of none.
                    TargetKind::Deployment => to.unwrap_or_else(|| "none alone".to_owned()),
                    TargetKind::StatefulSet => to?,
                };
                Moved::of(pod, from?, to)
            };
            pods.iter().filter_map(moved).collect()
        }
        _ => {
            // No other config alone can select the pods of the old one. Such a pod would have no config, and
            // then the one that selects it next.
            let [before, after] = [old, &new].map(|config| beside_others(config, configs));
            let of = |choices: &Choices<'_>, pod: &RunningPod| {
                let chosen = choices.choose(&pod.labels, &object_of(old).namespace).ok()?;
                Some(chosen.config.object.name.to_string())
            };
            let moved = |pod: &RunningPod| {
                let to = of(&after, pod).unwrap_or_else(|| "none alone".to_owned());
                Moved::of(pod, of(&before, pod)?, to)
            };
            // Of a pod that neither selects nothing changes, and there may be many.
            let selects = |config: &Checked, pod: &RunningPod| {
                let label = |key: &str| pod.labels.get(key).map(String::as_str);
                shard_of(config).is_some_and(|draft| draft.config.pods.matches(label))
            };
            let touched = pods.iter().filter(|pod| selects(old, pod) || selects(&new, pod));
            touched.filter_map(moved).collect()
        }
    }
}

/// The child of a root that a pod is of, by its ordinal or its label.
fn child_of(root: &Root, pod: &RunningPod) -> Option<String> {
    let shard = match root.target.kind {
        TargetKind::StatefulSet => {
            let name = pod.labels.get(POD_NAME).filter(|name| **name == pod.name)?;
            root.shard_of(name)
        }
        TargetKind::Deployment => root.shard_named(pod.labels.get(keys::SHARD)?),
    };
    shard.map(|shard| root.name(shard))
}

/// The configs of a namespace, with this one in place of the one of its name.
fn beside_others<'c>(config: &'c Checked, configs: &'c Configs) -> Choices<'c> {
    let object = object_of(config);
    let others = configs.of_namespace(&object.namespace);
    Choices::of(others.filter(|other| !object_of(other).is_same(object)).chain([config]))
}

impl Moved {
    fn of(pod: &RunningPod, from: String, to: String) -> Option<Self> {
        (from != to).then(|| Self { pod: pod.name.clone(), from, to })
    }
}
