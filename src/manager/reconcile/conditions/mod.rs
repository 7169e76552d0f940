//! The conditions of ShardingConfigs.
//!
//! Hides the spelling of a condition, and when one differs from another. Does not know how a config
//! selects its pods, or how an object is written.

mod compared;
mod locks;
mod pods;
mod related;
mod reviews;
mod rings;
#[cfg(test)]
mod tests;
mod writes;

use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde_json::{Value, json};

pub(super) use self::{compared::Comparisons, locks::Unheld, pods::SelectedPods, rings::Rings};
use crate::{
    configs::{ConfigFacts, name, namespace},
    reconcile::{
        roots::Roots,
        verdict::{READY, Verdict},
    },
};
use ctrlmesh_api::{Condition, RootStatus, ShardingConfig, ShardingConfigStatus};
use ctrlmesh_policy::{Draft, NamespaceLabels, object_of};

/// The condition of a config whose pods all have a proxy.
pub(super) const INJECTED: &str = "Injected";

/// The reason why a condition is `True` or `False`, and the message.
type Because = (&'static str, String);

/// The facts of a shard that its config alone does not say.
pub(super) struct OfShard<'a> {
    pub(super) pods: &'a SelectedPods<'a>,
    /// The verdict about pods without a proxy.
    pub(super) injected: Verdict,
    /// The labels of all namespaces. `None` until they are known.
    pub(super) namespaces: Option<&'a NamespaceLabels>,
}

/// The object to apply to the status of a config. `None` if its conditions are as they should be.
pub(super) fn due(
    key: &str,
    config: &ConfigFacts,
    shard: OfShard<'_>,
    rings: &Rings<'_>,
    roots: &Roots<'_>,
    now: Timestamp,
) -> Option<Value> {
    let mut status = ShardingConfigStatus::default();
    let verdicts = match &config.checked {
        Ok(Draft::Sharding(draft)) => {
            let OfShard { pods, injected, namespaces } = shard;
            status.pods = Some(pods.status());
            let words = config.owns(namespaces);
            let before = &config.status;
            (status.owns, status.resources) = match words {
                Some(words) => (Some(words.objects), Some(words.resources)),
                None => (before.owns.clone(), before.resources.clone()),
            };
            let [active, no_overlap, no_gaps, renewed, locks, writes, related] =
                rings.verdicts(namespace(key), draft);
            vec![
                (rings::HANDOVER_ACTIVE, active),
                (rings::NO_OVERLAP, no_overlap),
                (rings::NO_GAPS, no_gaps),
                (rings::LEASES_RENEWED, renewed),
                (locks::LOCKS_RENAMED, locks),
                (writes::WRITES_REFUSED, writes),
                (related::RELATED_RESOURCES_LIMITED, related),
                (reviews::TYPE, pods.reviewed.verdict(draft)),
                (INJECTED, injected),
                (READY, pods.verdict()),
            ]
        }
        Ok(Draft::Root(_)) => {
            let (ready, child_sharding_configs) = roots.verdict(key);
            status.root = Some(RootStatus { child_sharding_configs });
            vec![(INJECTED, shard.injected), (READY, ready)]
        }
        // The last good policy is in force, which is not known here.
        Err(_) => return None,
    };
    let mut present = Vec::new();
    for (r#type, verdict) in verdicts {
        let mut all = config.status.conditions.iter();
        let now_is = all.find(|condition| condition.r#type == r#type);
        present.extend(now_is.cloned());
        let (is, because) = match verdict {
            Verdict::None => continue,
            Verdict::Unknown => {
                status.conditions.extend(now_is.cloned());
                continue;
            }
            Verdict::Yes(reason, message) => ("True", (reason, message)),
            Verdict::No(reason, message) => ("False", (reason, message)),
            Verdict::Undecided(reason, message) => ("Unknown", (reason, message)),
        };
        let generation = object_of(&config.checked).generation;
        status.conditions.push(condition(r#type, is, because, generation, now_is, now));
    }
    // Conditions of others are theirs.
    let is = ShardingConfigStatus { conditions: present, ..config.status.clone() };
    (status != is).then(|| {
        json!({
            "apiVersion": ShardingConfig::api_version(&()),
            "kind": ShardingConfig::kind(&()),
            "metadata": { "namespace": namespace(key), "name": name(key) },
            "status": status,
        })
    })
}

/// The condition, with the time since when it has its status.
pub(super) fn condition(
    r#type: &str,
    status: &str,
    (reason, message): Because,
    generation: Option<i64>,
    present: Option<&Condition>,
    now: Timestamp,
) -> Condition {
    let same = present.filter(|present| present.status == status);
    let since = same.map(|present| present.last_transition_time.clone());
    Condition {
        r#type: r#type.to_owned(),
        status: status.to_owned(),
        observed_generation: generation,
        last_transition_time: since.unwrap_or_else(|| now.to_string()),
        reason: reason.to_owned(),
        message,
    }
}
