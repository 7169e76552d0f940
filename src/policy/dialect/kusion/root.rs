//! `spec.root`.

use std::collections::BTreeSet;

use crate::{
    dialect::problem::Problems,
    fence::OWN_RESOURCES,
    intervals::IntervalSet,
    object::ObjectRef,
    roots::{BUCKETS, Canary, MOST_SHARDS, POD_NAME, Root},
};
use ctrlmesh_api as api;
use ctrlmesh_api::{
    By, Limit, RootClusterScoped, RootTarget, ShardingConfigSpec, Shared, SharedWrite, TargetKind,
    Weight, keys,
};
use ctrlmesh_wire::dns::is_label;

/// The longest beginning of a child's name: with `-32-normal` it is a label's value.
const LONGEST_PREFIX: usize = 52;
/// The API groups of Kubernetes itself with kinds that are in no namespace (its API reference, 1.37).
const OWN_GROUPS: [&str; 14] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "certificates.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];
/// The most pods of a shard.
const MOST_PODS: u32 = 10_000;

/// Checks a root by itself. Its children are checked as configs.
pub(super) fn root(
    object: &ObjectRef,
    spec: &ShardingConfigSpec,
    given: &api::Root,
    problems: &mut Problems,
) -> Option<Root> {
    name(&given.prefix, "prefix", LONGEST_PREFIX, problems);
    let target = target(given, problems);
    let api::Auto { sharding_size: size, every_shard_replicas: pods_each, by, weight, balance } =
        given.auto;
    let is_possible = |size| number(size, "auto.shardingSize", MOST_SHARDS, problems);
    let is_few = size.is_none_or(is_possible)
        & number(pods_each, "auto.everyShardReplicas", MOST_PODS, problems);
    if !spec.limits.is_empty() {
        problems.add("spec.limits", "is not for a root: give spec.root.resourceSelector");
    }
    let by = by.unwrap_or_default();
    let is_whole = given.resource_selector.is_empty();
    if is_whole && by != By::Namespace {
        problems.add(
            "spec.root.resourceSelector",
            "is empty: name the resources whose objects the shards have between them, or give auto.by: \
             Namespace, by which they have whole namespaces",
        );
    }
    selected(spec, problems);
    hashes(given, by, problems);
    let weight = weight.unwrap_or(if is_whole { Weight::Namespaces } else { Weight::Even });
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
    let most_shards = most_shards(size, by, canary.as_ref(), problems);
    let template = template(object, spec, given, by, problems);
    let root = || {
        Some(Root {
            object: object.clone(),
            is_disabled: given.disable.unwrap_or_default(),
            prefix: given.prefix.clone(),
            target: target?,
            canary,
            size,
            most_shards,
            pods_each,
            by,
            weight,
            balance: balance.unwrap_or_default(),
            template: Box::new(template),
        })
    };
    is_few.then(root).flatten()
}

/// The most shards that can share what the canary leaves. There is one at least.
fn most_shards(size: Option<u32>, by: By, canary: Option<&Canary>, problems: &mut Problems) -> u32 {
    let buckets = canary.filter(|canary| canary.names.is_none());
    let buckets = buckets.and_then(|canary| canary.buckets.as_ref()).map_or(0, IntervalSet::size);
    let left = if by == By::Label { BUCKETS - buckets } else { BUCKETS };
    let least = size.unwrap_or(1);
    if u128::from(least) > left {
        let what = format!(
            "{least} shards cannot share the {left} buckets that the canary leaves: give at most {left}, or \
             auto.by: Namespace"
        );
        problems.add("spec.root.auto.shardingSize", what);
    }
    u32::try_from(left).unwrap_or(MOST_SHARDS)
}

/// The workload, in either spelling. `None` if there is none, or a problem.
fn target(given: &api::Root, problems: &mut Problems) -> Option<RootTarget> {
    match (&given.target, &given.target_stateful_set) {
        (Some(target), None) => {
            name(&target.name, "target.name", 63, problems);
            Some(target.clone())
        }
        (None, Some(stateful_set)) => {
            name(stateful_set, "targetStatefulSet", 63, problems);
            Some(RootTarget { kind: TargetKind::StatefulSet, name: stateful_set.clone() })
        }
        (one, _) => {
            let what = match one {
                Some(_) => "is given next to targetStatefulSet: give one of the two",
                None => {
                    "is missing: give the kind, Deployment or StatefulSet, and the name of the workload \
                         whose pods are sharded"
                }
            };
            problems.add("spec.root.target", what);
            None
        }
    }
}

/// The config of a shard, but for its pods and its partition.
fn template(
    object: &ObjectRef,
    spec: &ShardingConfigSpec,
    given: &api::Root,
    by: By,
    problems: &mut Problems,
) -> ShardingConfigSpec {
    let mut template = spec.clone();
    template.root = None;
    template.limits.clone_from(&given.resource_selector);
    if given.resource_selector.is_empty() {
        template.limits.push(Limit::default());
        template.shared.push(beside_the_pods(&object.namespace));
    }
    template.shared.extend(outside(given, by, problems));
    if template.ring.is_none() && template.controller.is_none() {
        template.ring = Some(object.name.to_string());
    }
    template
}

/// What every shard has next to its own pods: certificates, settings, accounts.
fn beside_the_pods(namespace: &str) -> Shared {
    Shared {
        api_groups: vec![String::new()],
        resources: OWN_RESOURCES.map(str::to_owned).into(),
        namespaces: vec![namespace.to_owned()],
        write: Some(SharedWrite::All),
    }
}

/// Cluster-scoped objects, if all shards are shown it.
fn outside(given: &api::Root, by: By, problems: &mut Problems) -> Vec<Shared> {
    let is_whole = given.resource_selector.is_empty();
    let of_first = if is_whole { RootClusterScoped::Shared } else { RootClusterScoped::First };
    if given.cluster_scoped.unwrap_or(of_first) == RootClusterScoped::First {
        return Vec::new();
    }
    if by == By::Uid {
        let what = "Shared is for namespaces, and uids spread cluster-scoped objects: leave it out";
        problems.add("spec.root.clusterScoped", what);
    }
    let entry = |groups: &[&str], write| Shared {
        api_groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        resources: vec!["*".to_owned()],
        namespaces: vec![String::new()],
        write: Some(write),
    };
    // The first that names an object counts.
    vec![entry(&OWN_GROUPS, SharedWrite::All), entry(&["*"], SharedWrite::Owner)]
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

/// A selector next to a root holds for the pods of all shards. One by the names of pods would leave all
/// but one shard without pods.
fn selected(spec: &ShardingConfigSpec, problems: &mut Problems) {
    let Some(selector) = &spec.selector else { return };
    let expressions = selector.match_expressions.iter().map(|one| &one.key);
    let mut named = selector.match_labels.keys().chain(expressions);
    if let Some(key) = named.find(|key| [POD_NAME, keys::SHARD].contains(&key.as_str())) {
        let what = format!(
            "selects by {key}, by which each child of the root selects its pods: take it out"
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
    if given.resource_selector.is_empty() {
        let what = "Objects needs spec.root.resourceSelector, which names the resources to count: give it, or \
                    leave out auto.weight";
        problems.add("spec.root.auto.weight", what);
    }
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
        buckets: (!given.in_shard_hash.is_empty()).then(|| IntervalSet::numbers(buckets)),
    };
    if canary.partition().is_nothing() {
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
