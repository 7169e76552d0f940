//! How far a workload is on its way to its shards: a function of its pods and its configs.
//!
//! Hides which conditions say it. Asks no one, and waits for nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use serde::Deserialize;

use super::facts::is_injected;
use ctrlmesh_api::{Condition, ShardingConfigStatus, TargetKind, keys};

/// The conditions of a shard that leads and has its objects. One that is not there has no meaning for it.
const OF_SHARD: [&str; 5] = ["Ready", "HandoverActive", "LocksRenamed", "NoOverlap", "NoGaps"];
/// The conditions that may be unknown: that two configs never overlap need not be proven.
const MAY_BE_UNKNOWN: [&str; 2] = ["NoOverlap", "NoGaps"];

/// The progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// The shards that lead and have their objects, by name.
    pub(super) shards: Vec<String>,
    /// The reason to wait. `None` if each shard has all that it must have.
    pub(super) waits: Option<String>,
    /// Whether the root names locks.
    pub(super) has_locks: bool,
}

impl Progress {
    /// The progress of a root to so many shards.
    pub(super) fn of(
        kind: TargetKind,
        name: &str,
        shards: u32,
        pods: &[Pod],
        configs: &[DynamicObject],
    ) -> Self {
        let wanted = usize::try_from(shards).unwrap_or(usize::MAX);
        let of_root = configs.iter().find(|config| config.metadata.name.as_deref() == Some(name));
        let root = of_root.map(|root| status(root).unwrap_or_default());
        let children = children(name, configs);
        let problems: BTreeMap<&str, String> =
            children.iter().filter_map(|(name, child)| Some((*name, problem(child)?))).collect();
        let led = children.keys().filter(|name| !problems.contains_key(*name));
        let led: Vec<_> = led.map(|name| (*name).to_owned()).collect();
        let ready = pods.iter().filter(|pod| is_injected(pod) && is_ready(pod)).count();
        let stay = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
        let waits = match (of_root.zip(root), problems.first_key_value()) {
            (None, _) => Some(format!("ShardingConfig {name} is gone")),
            _ if ready < wanted || stay != wanted || pods.len() != stay => {
                Some(pods_wait(kind, (ready, wanted), pods))
            }
            (Some((config, status)), _) if root_problem(config, &status).is_some() => {
                root_problem(config, &status)
            }
            _ if children.len() != wanted => {
                Some(format!("{} of {wanted} shards are drawn", children.len()))
            }
            (_, Some((shard, problem))) => Some(format!("{shard}: {problem}")),
            (_, None) => None,
        };
        Self { shards: led, waits, has_locks: of_root.is_some_and(has_locks) }
    }
}

fn has_locks(config: &DynamicObject) -> bool {
    config.data.pointer("/spec/controller").is_some()
}

fn status(config: &DynamicObject) -> Option<ShardingConfigStatus> {
    ShardingConfigStatus::deserialize(config.data.get("status")?).ok()
}

/// The children of a root, by name.
pub(super) fn children<'c>(
    root: &str,
    configs: &'c [DynamicObject],
) -> BTreeMap<&'c str, &'c DynamicObject> {
    let is_child = |config: &&DynamicObject| {
        let labels = config.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.get(keys::ROOT).is_some_and(|of| of == root))
    };
    let children = configs.iter().filter(is_child);
    children.filter_map(|config| Some((config.metadata.name.as_deref()?, config))).collect()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}

fn pods_wait(kind: TargetKind, (ready, wanted): (usize, usize), pods: &[Pod]) -> String {
    let says = format!("{ready} of {wanted} pods are ready");
    let ends = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
    let reasons = pods.iter().filter(|pod| !is_ready(pod)).find_map(why);
    match (pods.is_empty(), reasons, ends) {
        (true, ..) => format!("{says}: the {} has created none", kind.as_str()),
        (_, Some(why), _) => format!("{says}: {why}"),
        (_, None, 1..) => format!("{says}, {ends} end"),
        _ => says,
    }
}

/// The reason why a pod is not ready: that of the first container that waits, or of its scheduling.
fn why(pod: &Pod) -> Option<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    let unscheduled = status.conditions.iter().flatten();
    let mut unscheduled =
        unscheduled.filter(|one| one.type_ == "PodScheduled" && one.status == "False");
    if let Some(one) = unscheduled.next() {
        return Some(format!(
            "{name} is not scheduled: {}",
            one.message.as_deref().unwrap_or_default()
        ));
    }
    let all = [&status.init_container_statuses, &status.container_statuses];
    all.into_iter().flatten().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|reason| *reason != "PodInitializing")?;
        Some(format!("{name}, container {}: {reason}", container.name))
    })
}

fn condition<'s>(
    config: &DynamicObject,
    status: &'s ShardingConfigStatus,
    of: &str,
) -> Option<&'s Condition> {
    let mut all = status.conditions.iter();
    all.find(|one| one.r#type == of && one.observed_generation == config.metadata.generation)
}

fn root_problem(config: &DynamicObject, status: &ShardingConfigStatus) -> Option<String> {
    match condition(config, status, "Ready") {
        None => Some("the manager has not looked at the root yet".to_owned()),
        Some(ready) if ready.status != "True" => Some(ready.message.clone()),
        Some(_) => None,
    }
}

/// The reason why a shard does not lead or does not have its objects.
fn problem(child: &DynamicObject) -> Option<String> {
    let Some(status) = status(child) else {
        return Some("the manager has not looked at it yet".to_owned());
    };
    for of in OF_SHARD {
        match condition(child, &status, of) {
            None if of == "LocksRenamed" && !has_locks(child) => {}
            None => return Some(format!("its condition {of} is not known yet")),
            Some(one) if one.status == "True" => {}
            Some(one) if one.status == "Unknown" && MAY_BE_UNKNOWN.contains(&of) => {}
            Some(one) => return Some(format!("{of}: {}", one.message)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn pod(name: &str, is_ready: bool) -> Pod {
        let status = if is_ready { "True" } else { "False" };
        read(json!({
            "metadata": {"name": name, "annotations": {keys::INJECTED: "iptables"}},
            "status": {"conditions": [{"type": "Ready", "status": status}]},
        }))
    }

    /// A config of generation 2 with these conditions, of which each was told for it.
    fn config(name: &str, is_child: bool, conditions: &[(&str, &str)]) -> DynamicObject {
        let conditions = conditions.iter().map(|(of, status)| {
            json!({"type": of, "status": status, "observedGeneration": 2, "reason": "Because",
                   "lastTransitionTime": "2026-11-23T08:00:00Z", "message": format!("why {of}")})
        });
        let labels = if is_child { json!({keys::ROOT: "op"}) } else { json!({}) };
        read(json!({
            "metadata": {"name": name, "namespace": "ops", "generation": 2, "labels": labels},
            "spec": {"controller": {"leaderElectionName": "op"}},
            "status": {"conditions": conditions.collect::<Vec<_>>()},
        }))
    }

    const GOOD: [(&str, &str); 5] = [
        ("Ready", "True"),
        ("HandoverActive", "True"),
        ("LocksRenamed", "True"),
        ("NoOverlap", "Unknown"),
        ("NoGaps", "True"),
    ];

    fn two() -> (Vec<Pod>, Vec<DynamicObject>) {
        let configs = vec![
            config("op", false, &[("Ready", "True")]),
            config("op-1-normal", true, &GOOD),
            config("op-2-normal", true, &GOOD),
            config("other", false, &[]),
        ];
        (vec![pod("a", true), pod("b", true)], configs)
    }

    fn waits(pods: &[Pod], configs: &[DynamicObject]) -> Option<String> {
        Progress::of(TargetKind::Deployment, "op", 2, pods, configs).waits
    }

    #[test]
    fn it_is_done_once_each_shard_leads_and_has_its_objects() {
        let (pods, configs) = two();
        let progress = Progress::of(TargetKind::Deployment, "op", 2, &pods, &configs);
        let shards = vec!["op-1-normal".to_owned(), "op-2-normal".to_owned()];
        assert_eq!(progress, Progress { shards, waits: None, has_locks: true });
    }

    #[test]
    fn each_thing_that_lacks_is_waited_for() {
        let (pods, configs) = two();
        let expect = |pods: &[Pod], configs: &[DynamicObject], expected: &str| {
            let waits = waits(pods, configs).unwrap_or_default();
            assert!(waits.contains(expected), "{expected}: {waits}");
        };
        expect(&[], &configs, "0 of 2 pods are ready: the Deployment has created none");
        expect(&[pod("a", true), pod("b", false)], &configs, "1 of 2 pods are ready");
        let mut ends = pods.clone();
        ends.push(pod("c", true));
        expect(&ends, &configs, "3 of 2 pods are ready");
        let mut bare = pods.clone();
        bare[0].metadata.annotations = None;
        expect(&bare, &configs, "1 of 2 pods are ready");
        expect(&pods, &configs[1..], "ShardingConfig op is gone");
        expect(&pods, &configs[..2], "1 of 2 shards are drawn");
        for of in OF_SHARD {
            for (status, expected) in
                [("False", format!("{of}: why {of}")), ("", format!("{of} is not known"))]
            {
                let conditions =
                    GOOD.map(|(name, good)| (name, if name == of { status } else { good }));
                let conditions: Vec<_> =
                    conditions.into_iter().filter(|(_, status)| !status.is_empty()).collect();
                let mut configs = configs.clone();
                configs[1] = config("op-1-normal", true, &conditions);
                expect(&pods, &configs, &expected);
            }
        }
        let mut not_ready = configs.clone();
        not_ready[0] = config("op", false, &[("Ready", "False")]);
        expect(&pods, &not_ready, "why Ready");
        // What was told is about a former generation.
        for at in [0, 1] {
            let mut stale = configs.clone();
            stale[at].metadata.generation = Some(3);
            assert!(waits(&pods, &stale).is_some());
        }
    }

    #[test]
    fn without_locks_it_is_bad_news_alone_that_count() {
        let (pods, mut configs) = two();
        let without = |conditions: &[(&str, &str)]| {
            let mut child = config("op-1-normal", true, conditions);
            child.data["spec"] = json!({});
            child
        };
        let unsaid: Vec<_> = GOOD.into_iter().filter(|(of, _)| *of != "LocksRenamed").collect();
        configs[1] = without(&unsaid);
        assert_eq!(waits(&pods, &configs), None);
        configs[1] = without(
            &GOOD.map(|(of, good)| (of, if of == "LocksRenamed" { "False" } else { good })),
        );
        assert!(waits(&pods, &configs).unwrap().contains("why LocksRenamed"));
    }

    #[test]
    fn the_first_container_that_cannot_start_is_named() {
        let (_, configs) = two();
        let waiting = |reason: &str| {
            json!({"name": "app", "state": {"waiting": {"reason": reason}},
                                            "image": "", "imageID": "", "ready": false, "restartCount": 0})
        };
        let mut stuck = pod("b", false);
        stuck.status.as_mut().unwrap().container_statuses =
            Some(vec![read(waiting("PodInitializing")), read(waiting("ErrImagePull"))]);
        let says = waits(&[pod("a", true), stuck], &configs).unwrap();
        assert_eq!(says, "1 of 2 pods are ready: b, container app: ErrImagePull");
    }
}
