//! `spec.root`.

use std::collections::BTreeSet;

use crate::{
    api::{self, By, ShardingConfigSpec, Weight},
    policy::{
        dialect::problem::Problems,
        object::ObjectRef,
        roots::{BUCKETS, Canary, POD_NAME, Root},
        spans::Spans,
    },
    wire::dns::is_label,
};

/// The longest beginning of a child's name: with `-32-normal` it is a label's value.
const LONGEST_PREFIX: usize = 52;
/// The most shards, and the most pods of one.
const MOST_SHARDS: u32 = 32;
const MOST_PODS: u32 = 10_000;

/// Checks a root by itself. Its children are checked as configs.
pub(super) fn root(
    object: &ObjectRef,
    spec: &ShardingConfigSpec,
    given: &api::Root,
    problems: &mut Problems,
) -> Option<Root> {
    name(&given.prefix, "prefix", LONGEST_PREFIX, problems);
    name(&given.target_stateful_set, "targetStatefulSet", 63, problems);
    let api::Auto { sharding_size: size, every_shard_replicas: pods_each, by, weight, balance } =
        given.auto;
    let is_few = number(size, "auto.shardingSize", MOST_SHARDS, problems)
        & number(pods_each, "auto.everyShardReplicas", MOST_PODS, problems);
    if !spec.limits.is_empty() {
        problems.add("spec.limits", "is not for a root: give spec.root.resourceSelector");
    }
    if given.resource_selector.is_empty() {
        problems.add(
            "spec.root.resourceSelector",
            "is empty: name the resources whose objects the shards have between them",
        );
    }
    selected(spec, problems);
    let by = by.unwrap_or_default();
    hashes(given, by, problems);
    let weight = weight.unwrap_or_default();
    if weight != Weight::Even && by == By::Uid {
        let what = format!(
            "{weight:?} is for namespaces, and uids spread the objects evenly: leave it out"
        );
        problems.add("spec.root.auto.weight", what);
    }
    if weight == Weight::Objects {
        counted(given, problems);
    }
    let canary = given.canary.as_ref().and_then(|given| canary(given, problems));
    let buckets = canary.as_ref().filter(|canary| canary.names.is_none());
    let buckets = buckets.and_then(|canary| canary.buckets.as_ref()).map_or(0, Spans::size);
    if by == By::Label && u128::from(size) > BUCKETS - buckets {
        let left = BUCKETS - buckets;
        let what = format!(
            "{size} shards cannot share the {left} buckets that the canary leaves: give at most {left}, or \
             auto.by: Namespace"
        );
        problems.add("spec.root.auto.shardingSize", what);
    }
    let mut template = spec.clone();
    template.root = None;
    template.limits.clone_from(&given.resource_selector);
    if template.ring.is_none() && template.controller.is_none() {
        template.ring = Some(object.name.to_string());
    }
    let root = || Root {
        object: object.clone(),
        is_disabled: given.disable.unwrap_or_default(),
        prefix: given.prefix.clone(),
        stateful_set: given.target_stateful_set.clone(),
        canary,
        size,
        pods_each,
        by,
        weight,
        balance: balance.unwrap_or_default(),
        template: Box::new(template),
    };
    is_few.then(root)
}

fn name(text: &str, field: &str, longest: usize, problems: &mut Problems) {
    if text.len() > longest || !is_label(text) {
        let what = format!(
            "{text:?} is no name here: give at most {longest} of a-z, 0-9 and -, beginning and ending \
             with a letter or digit"
        );
        problems.add(format!("spec.root.{field}"), what);
    }
}

/// Whether a number is one that is possible.
fn number(number: u32, field: &str, most: u32, problems: &mut Problems) -> bool {
    let is_possible = (1..=most).contains(&number);
    if !is_possible {
        problems.add(format!("spec.root.{field}"), format!("{number} is not 1 to {most}"));
    }
    is_possible
}

/// A selector beside a root holds for the pods of all shards. One by the names of pods would leave all
/// but one shard without pods.
fn selected(spec: &ShardingConfigSpec, problems: &mut Problems) {
    let Some(selector) = &spec.selector else { return };
    let expressions = selector.match_expressions.iter().map(|one| &one.key);
    if selector.match_labels.keys().chain(expressions).any(|key| key == POD_NAME) {
        let what = format!(
            "selects by {POD_NAME}, by which each child of the root selects its pods: take it out"
        );
        problems.add("spec.selector", what);
    }
}

/// A limit has one hash, which tells the shards apart.
fn hashes(given: &api::Root, by: By, problems: &mut Problems) {
    if by == By::Label {
        return;
    }
    let all = given.resource_selector.iter().enumerate();
    for (at, _) in all.filter(|(_, limit)| limit.hash.is_some()) {
        let what = format!("is drawn by auto.by: {by:?}: take it out, or shard by Label");
        problems.add(format!("spec.root.resourceSelector[{at}].hash"), what);
    }
}

/// Objects are counted by resource.
fn counted(given: &api::Root, problems: &mut Problems) {
    for (at, limit) in given.resource_selector.iter().enumerate() {
        let is_any = |names: &[String]| names.iter().any(|name| name == "*");
        let any = |one: &api::Resources| is_any(&one.api_groups) || is_any(&one.resources);
        if limit.relate_resources.is_empty() || limit.relate_resources.iter().any(any) {
            let what = "names no resource whose objects can be counted: name each, without *, or leave out \
                        auto.weight";
            problems.add(format!("spec.root.resourceSelector[{at}].relateResources"), what);
        }
    }
}

/// The canary. `None` if it has no pods, or a problem.
fn canary(given: &api::Canary, problems: &mut Problems) -> Option<Canary> {
    let at = "spec.root.canary";
    if given.replicas == 0 {
        return None;
    }
    number(given.replicas, "canary.replicas", MOST_PODS, problems);
    for (number, name) in given.in_namespaces.iter().enumerate() {
        if name.len() > 63 || !is_label(name) {
            let what = format!("{name:?} is not a namespace");
            problems.add(format!("{at}.inNamespaces[{number}]"), what);
        }
    }
    let mut buckets = Vec::new();
    for (number, text) in given.in_shard_hash.iter().enumerate() {
        let bucket = text.parse().ok().filter(|bucket: &u8| bucket.to_string() == *text);
        match bucket.map(u128::from).filter(|bucket| *bucket < BUCKETS) {
            Some(bucket) => buckets.push(bucket),
            None => {
                let what = format!("{text:?} is no bucket: give a number from \"0\" to \"31\"");
                problems.add(format!("{at}.inShardHash[{number}]"), what);
            }
        }
    }
    let names: BTreeSet<String> = given.in_namespaces.iter().cloned().collect();
    let canary = Canary {
        pods: given.replicas.min(MOST_PODS),
        names: (!names.is_empty()).then_some(names),
        buckets: (!given.in_shard_hash.is_empty()).then(|| Spans::numbers(buckets)),
    };
    if canary.lot().is_nothing() {
        let what = match (&canary.names, &canary.buckets) {
            (Some(_), Some(_)) => {
                "has no objects: none of inNamespaces is in one of the buckets inShardHash"
            }
            _ => "has no objects: give inNamespaces, inShardHash, or replicas: 0",
        };
        problems.add(at, what);
    }
    Some(canary)
}
