//! The conditions of ShardingConfigs.
//!
//! Hides the spelling of a condition, and when one differs from another. Does not know how a config
//! selects its pods, or how an object is written.

mod compared;
mod reviews;
mod rings;
#[cfg(test)]
mod tests;

use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde_json::{Value, json};

pub(super) use self::{
    compared::Comparisons,
    reviews::SelectedPods,
    rings::{PodOfRing, Rings},
};
use crate::{
    api::{Condition, ShardingConfig},
    manager::configs::{ConfigFacts, name, namespace},
    policy::Draft,
};

/// The reason why a condition is `True` or `False`, and the message.
type Because = (&'static str, String);

/// The verdict about one condition of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is `True`.
    Yes(&'static str, String),
    /// It is `False`.
    No(&'static str, String),
    /// It is `Unknown`: more cannot be known.
    Undecided(&'static str, String),
    /// It says nothing about this config.
    None,
    /// It is not known yet: it stays as it is.
    Unknown,
}

/// Some objects, named by the first of them so that a message changes no more often than it must.
#[derive(Clone, Copy, Debug, Default)]
struct Missed<'a> {
    /// The first of them by name.
    first: Option<&'a str>,
    are_several: bool,
}

impl<'a> Missed<'a> {
    fn add(&mut self, name: &'a str) {
        self.are_several = self.first.is_some_and(|first| self.are_several || first != name);
        self.first = Some(self.first.map_or(name, |first| first.min(name)));
    }

    /// Their name. `None` if there are none.
    fn named(&self, noun: &str) -> Option<String> {
        let others = if self.are_several { " and others" } else { "" };
        self.first.map(|first| format!("{noun} {first}{others}"))
    }
}

/// The object to apply to the status of a config. `None` if its conditions are as they should be.
pub(super) fn due(
    key: &str,
    config: &ConfigFacts,
    pods: &SelectedPods<'_>,
    rings: &Rings<'_>,
    now: Timestamp,
) -> Option<Value> {
    // The last good policy is in force, which is not known here.
    let Ok(Draft::Sharding(draft)) = &config.checked else { return None };
    let [in_force, overlap, covered, silent] = rings.verdicts(namespace(key), draft);
    let verdicts = [
        (rings::IN_FORCE, in_force),
        (rings::OVERLAP, overlap),
        (rings::COVERED, covered),
        (rings::SILENT, silent),
        (reviews::TYPE, pods.verdict(draft)),
    ];
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
        let generation = draft.config.object.generation;
        wanted.push(condition(r#type, status, because, generation, now_is, now));
    }
    (wanted != present).then(|| {
        json!({
            "apiVersion": ShardingConfig::api_version(&()),
            "kind": ShardingConfig::kind(&()),
            "metadata": { "namespace": namespace(key), "name": name(key) },
            "status": { "conditions": wanted },
        })
    })
}

/// The condition, with the time since when it has its status.
fn condition(
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
