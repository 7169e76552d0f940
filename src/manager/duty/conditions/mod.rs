//! The conditions of ShardingConfigs.
//!
//! Hides the spelling of a condition, and when one differs from another. Does not know how a config
//! selects its pods, or how an object is written.

mod compared;
mod reviews;
mod rings;
#[cfg(test)]
mod tests;
mod verdict;

use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde_json::{Value, json};

pub(super) use self::{
    compared::Comparisons,
    reviews::SelectedPods,
    rings::{PodOfRing, Rings},
    verdict::{Missed, Verdict},
};
use crate::{
    api::{Condition, RootStatus, ShardingConfig},
    manager::{
        configs::{ConfigFacts, name, namespace},
        duty::roots::{READY, Roots},
    },
    policy::{Draft, object_of},
};

/// The condition of a config whose pods all have a proxy.
pub(super) const INJECTED: &str = "Injected";

/// The reason why a condition is `True` or `False`, and the message.
type Because = (&'static str, String);

/// The object to apply to the status of a config. `None` if its conditions are as they should be.
pub(super) fn due(
    key: &str,
    config: &ConfigFacts,
    pods: &SelectedPods<'_>,
    rings: &Rings<'_>,
    roots: &Roots<'_>,
    injected: Verdict,
    now: Timestamp,
) -> Option<Value> {
    let mut root = None;
    let verdicts = match &config.checked {
        Ok(Draft::Sharding(draft)) => {
            let [in_force, disjoint, covered, silent] = rings.verdicts(namespace(key), draft);
            vec![
                (rings::IN_FORCE, in_force),
                (rings::DISJOINT, disjoint),
                (rings::COVERED, covered),
                (rings::SILENT, silent),
                (reviews::TYPE, pods.verdict(draft)),
                (INJECTED, injected),
            ]
        }
        Ok(Draft::Root(_)) => {
            let (ready, child_sharding_configs) = roots.verdict(key);
            root = Some(RootStatus { child_sharding_configs });
            vec![(READY, ready)]
        }
        // The last good policy is in force, which is not known here.
        Err(_) => return None,
    };
    let [mut wanted, mut present] = [Vec::new(), Vec::new()];
    for (r#type, verdict) in verdicts {
        let mut all = config.status.conditions.iter();
        let now_is = all.find(|condition| condition.r#type == r#type);
        present.extend(now_is.cloned());
        let (status, because) = match verdict {
            Verdict::None => continue,
            Verdict::Unknown => {
                wanted.extend(now_is.cloned());
                continue;
            }
            Verdict::Yes(reason, message) => ("True", (reason, message)),
            Verdict::No(reason, message) => ("False", (reason, message)),
            Verdict::Undecided(reason, message) => ("Unknown", (reason, message)),
        };
        let generation = object_of(&config.checked).generation;
        wanted.push(condition(r#type, status, because, generation, now_is, now));
    }
    let is_other = wanted != present || config.status.root != root;
    is_other.then(|| {
        let mut status = json!({ "conditions": wanted });
        if let Some(root) = root {
            status["root"] = json!(root);
        }
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
