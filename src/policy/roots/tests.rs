use std::collections::{BTreeMap, BTreeSet};

use kube_core::DynamicObject;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{root::Partitions, *};
use crate::{
    Draft, GroupResource, Kind, ObjectFacts, Policy, Scope, draft,
    intervals::{END, IntervalSet},
    sharding::{fnv1a, shard_bucket},
};
use ctrlmesh_api::{HashOf, Limit, ShardingConfigSpec, SharedWrite};
use ctrlmesh_wire::object::{Labels, Object};

const NAMES: [&str; 8] =
    ["ant", "bee", "cat", "default", "foo-01", "foo-02", "kube-system", "team-a"];

fn checked(spec: &Value) -> Result<Draft, String> {
    let object =
        json!({"metadata": {"namespace": "ops", "name": "root", "uid": "u"}, "spec": spec});
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    draft(Kind::ShardingConfig, &object).map_err(|invalid| invalid.to_string())
}

pub(super) fn root(spec: &Value) -> Root {
    match checked(spec) {
        Ok(Draft::Root(draft)) => draft.root,
        other => panic!("{spec}: {other:?}"),
    }
}

/// A root over pods and nodes.
fn spec(canary: &Value, size: u32, by: &str) -> Value {
    json!({
        "controller": {"leaderElectionName": "op"},
        "root": {
            "prefix": "op",
            "targetStatefulSet": "op",
            "canary": canary,
            "auto": {"shardingSize": size, "everyShardReplicas": 2, "by": by},
            "resourceSelector": [
                {"relateResources": [{"apiGroups": [""], "resources": ["pods"]}]},
                {"relateResources": [{"apiGroups": [""], "resources": ["nodes"]}],
                 "selector": {"matchLabels": {"kridge.kusionstack.io/control": "true"}},
                 "clusterScoped": "Include"},
            ],
        },
    })
}

fn canary() -> impl Strategy<Value = Value> {
    let names = prop::sample::subsequence(NAMES.to_vec(), 1..4);
    let buckets = prop::collection::btree_set(0..32_u32, 1..4);
    let texts = |all: BTreeSet<u32>| -> Vec<String> { all.iter().map(u32::to_string).collect() };
    prop_oneof![
        Just(Value::Null),
        names.prop_map(|names| json!({"replicas": 2, "inNamespaces": names})),
        buckets.prop_map(move |all| json!({"replicas": 1, "inShardHash": texts(all)})),
        Just(json!({"replicas": 1, "inNamespaces": ["ant", "bee"], "inShardHash": ["12", "15"]})),
    ]
}

fn roots() -> impl Strategy<Value = Root> {
    let by = prop::sample::select(vec!["Label", "Namespace", "Uid"]);
    (canary(), 1..6_u32, by, any::<bool>()).prop_map(|(canary, size, by, is_counted)| {
        let mut spec = spec(&canary, size, by);
        if is_counted && by != "Uid" {
            // The counts of pods alone, without those of nodes in no namespace.
            spec["root"]["auto"]["weight"] = json!("Objects");
        }
        root(&spec)
    })
}

/// The shards of a root of so many.
fn shards(root: &Root) -> Shards {
    root.shards(root.size(None).unwrap(), &Shards::new(), &Shards::new())
}

fn partitions(root: &Root, now: &Partitions, load: Load<'_>) -> Partitions {
    root.partitions(&shards(root), now, load)
}

fn at<'l>(root: &Root, load: Load<'l>) -> Situation<'l> {
    Situation { shards: Some(shards(root)), is_settled: true, load }
}

/// The numbers of objects in namespaces.
fn counts() -> impl Strategy<Value = BTreeMap<String, u64>> {
    let names = prop::sample::select(NAMES.to_vec()).prop_map(str::to_owned);
    prop::collection::btree_map(prop_oneof![names, "[a-z]{1,3}"], 0..100_u64, 0..20)
}

/// The policy of a child.
pub(super) fn policy(name: &str, spec: &ShardingConfigSpec) -> Policy {
    let object = json!({"metadata": {"namespace": "ops", "name": name}, "spec": spec});
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    match draft(Kind::ShardingConfig, &object) {
        Ok(Draft::Sharding(draft)) => draft.resolve(None).unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}

/// Whether the proxy of a shard with this policy owns a pod of a namespace, or a cluster-scoped object.
pub(super) fn owns(policy: &Policy, (namespace, uid): (&str, &str)) -> bool {
    let resource = GroupResource::new("", if namespace.is_empty() { "nodes" } else { "pods" });
    let object = Object { namespace, name: "x", uid, ..Object::default() };
    let scope = policy.sharding.scope(&resource).unwrap();
    let labels = BTreeMap::new();
    scope
        .owns(&ObjectFacts { labels: Some(Labels::of(&labels)), ..ObjectFacts::of(&object, false) })
        .unwrap()
}

pub(super) fn objects() -> impl Strategy<Value = Vec<(String, String)>> {
    let namespace = prop_oneof![
        2 => Just(String::new()),
        4 => prop::sample::select(NAMES.to_vec()).prop_map(str::to_owned),
        4 => "[a-z]{1,8}(-[0-9]{1,3})?",
    ];
    prop::collection::vec((namespace, "[0-9a-f]{8}"), 12)
}

/// The children as an API server has them, and the pods that run.
#[derive(Default)]
pub(super) struct World {
    pub(super) children: BTreeMap<String, Child>,
}

impl World {
    pub(super) fn write(&mut self, write: &Write) {
        match write {
            Write::Put { name, spec, partition } => {
                let child = self.children.entry(name.clone()).or_insert_with(|| Child {
                    spec: None,
                    partition: None,
                    is_own: true,
                    pods: BTreeSet::new(),
                    is_ready: false,
                    opening: BTreeSet::new(),
                    is_claimed: false,
                    is_going: false,
                });
                // The spec is read back as it goes over the wire.
                let text = serde_json::to_string(spec).unwrap();
                child.spec = Some(serde_json::from_str(&text).unwrap());
                child.partition = Some(Partition::read(&partition.text()).unwrap());
            }
            Write::Delete { name } => {
                let gone = self.children.remove(name).unwrap();
                assert!(
                    gone.partition.unwrap().is_nothing(),
                    "{name} is deleted before it is empty"
                );
                assert!(!gone.is_claimed, "{name} is deleted and claimed");
            }
        }
    }

    fn policies(&self) -> Vec<Policy> {
        let spec = |child: &Child| child.spec.clone().unwrap();
        self.children.iter().map(|(name, child)| policy(name, &spec(child))).collect()
    }

    pub(super) fn owners(&self, (namespace, uid): &(String, String)) -> usize {
        let object = (namespace.as_str(), uid.as_str());
        self.policies().iter().filter(|policy| owns(policy, object)).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    /// Roots replace each other while pods come and go. The writer dies after any write.
    #[test]
    fn i15_children_are_disjoint_at_every_write_and_whole_at_the_end(
        versions in prop::collection::vec(roots(), 1..4),
        chance in prop::collection::vec(any::<u8>(), 64),
        objects in objects(),
        counts in prop::collection::vec(counts(), 4),
    ) {
        let mut world = World::default();
        let mut chance = chance.into_iter().cycle();
        let mut draw = move |of: u8| chance.next().is_some_and(|byte| byte % 8 < of);
        for root in &versions {
            for objects_of_each in &counts {
                let load = match draw(2) {
                    true => Load::Unknown,
                    false => Load::Known { objects: objects_of_each, may_move: draw(4) },
                };
                for (name, child) in &mut world.children {
                    let runs = root.shard_named(name).is_none() || draw(6);
                    child.is_ready = runs && draw(5);
                    child.is_claimed = draw(2);
                    child.opening = draw(1).then(|| "pod".to_owned()).into_iter().collect();
                    // Pods of their own alone: those of others are refused, which is another test.
                    let pods = root.shard_named(name).into_iter().flat_map(|at| root.pods(at).take(1));
                    child.pods = if runs { pods.collect() } else { BTreeSet::new() };
                }
                let before = world.children.clone();
                for writes in step(root, &world.children, &at(root, load)).phases {
                    // A writer that dies may have done any of a phase's writes.
                    let done: Vec<_> = writes.iter().filter(|_| !draw(1)).collect();
                    for write in &done {
                        world.write(write);
                        for object in &objects {
                            prop_assert!(world.owners(object) <= 1, "{object:?} after {write:?}");
                        }
                        taken_by_who_is_ready(&before, write, &objects);
                    }
                    if done.len() < writes.len() {
                        break;
                    }
                }
            }
        }
        let root = versions.last().unwrap();
        let last = Load::Known { objects: &counts[0], may_move: true };
        for _ in 0..6 {
            for (name, child) in &mut world.children {
                child.pods = root.shard_named(name).map(|at| root.pods(at).collect()).unwrap_or_default();
                (child.is_ready, child.is_claimed, child.opening) = (true, false, BTreeSet::new());
            }
            for write in &next_of(root, &world, last).0 {
                world.write(write);
            }
        }
        prop_assert_eq!(step(root, &world.children, &at(root, last)), Step::default(), "it comes to rest");
        let names: Vec<_> = shards(root).into_iter().map(|shard| root.name(shard)).collect();
        prop_assert!(world.children.keys().eq(names.iter().collect::<BTreeSet<_>>()));
        for object in &objects {
            prop_assert_eq!(world.owners(object), 1, "{:?} of {:?}", object, world.children);
        }
    }

    #[test]
    fn i15_lots_meet_and_are_told_apart_as_objects_are(
        [one, other] in [roots(), roots()],
        [first, second]: [prop::sample::Index; 2],
        objects in objects(),
    ) {
        let partition = |root: &Root, at: prop::sample::Index| {
            let partitions: Vec<Partition> = partitions(root, &Partitions::new(), Load::Unknown).into_values().collect();
            at.get(&partitions).clone()
        };
        let (first, second) = (partition(&one, first), partition(&other, second));
        let both = first.meet(&second);
        let of = |partition: &Partition| policy("child", &one.spec(Shard::Normal(1), partition));
        let of_two = |one: &Partition, other: &Partition| {
            one.hashes(HashOf::Uid).is_some() && other.hashes(HashOf::Namespace).is_some()
        };
        let has_two_hashes = of_two(&first, &second) || of_two(&second, &first);
        for (namespace, uid) in &objects {
            let object = (namespace.as_str(), uid.as_str());
            let expected = owns(&of(&first), object) && owns(&of(&second), object);
            let meets = owns(&of(&both), object);
            prop_assert!(!meets || expected, "{both:?} has {object:?}");
            if !has_two_hashes {
                prop_assert_eq!(meets, expected, "{:?} of {:?} and {:?}", object, first, second);
            }
            prop_assert!(!expected || !first.is_disjoint(&second), "{object:?} {first:?} {second:?}");
        }
        prop_assert_eq!(Partition::read(&both.text()), Some(both));
    }
}

/// A check that a shard gets what others have whose pods run with a ready pod of its own alone.
fn taken_by_who_is_ready(
    before: &BTreeMap<String, Child>,
    write: &Write,
    objects: &[(String, String)],
) {
    let Write::Put { name, spec, .. } = write else { return };
    let is_ready = before.get(name).is_some_and(|child| child.is_ready);
    let new = policy(name, spec);
    for (namespace, uid) in objects.iter().filter(|_| !is_ready) {
        let object = (namespace.as_str(), uid.as_str());
        let had = |child: &Child| owns(&policy("c", child.spec.as_ref().unwrap()), object);
        let others =
            before.iter().filter(|(other, child)| *other != name && !child.pods.is_empty());
        let is_taken = others.into_iter().any(|(_, child)| had(child)) && owns(&new, object);
        assert!(!is_taken, "{name} has no ready pod and gets {object:?}");
    }
}

/// The owner of an object by KusionStack's rules, of which this is a second implementation: the labels
/// that it stamps, and the selectors that it generates (`auto_sharding.go`).
fn by_kusionstack(namespace: &str, canary: &[&str], size: u64) -> Shard {
    if canary.contains(&namespace) {
        return Shard::Canary;
    }
    let bucket = namespace.bytes().map(u64::from).sum::<u64>() % 32;
    let batch = 32_u64.div_ceil(size);
    Shard::Normal(u32::try_from(bucket / batch).unwrap() + 1)
}

#[test]
fn i15_without_labels_objects_are_whose_kusionstack_makes_them() {
    for size in [1, 2, 4, 8, 16, 32] {
        let canary = ["foo-1", "foo-2"];
        let root = root(&spec(&json!({"replicas": 1, "inNamespaces": canary}), size, "Label"));
        let partitions = partitions(&root, &Partitions::new(), Load::Unknown);
        let policies: Vec<_> = partitions
            .iter()
            .map(|(shard, partition)| {
                (*shard, policy(&root.name(*shard), &root.spec(*shard, partition)))
            })
            .collect();
        let more = (0..100).map(|at| format!("tenant-{at:03}"));
        for namespace in canary.into_iter().chain(NAMES).map(str::to_owned).chain(more) {
            let owners = policies.iter().filter(|(_, policy)| owns(policy, (&namespace, "u")));
            let owners: Vec<Shard> = owners.map(|(shard, _)| *shard).collect();
            assert_eq!(owners, [by_kusionstack(&namespace, &canary, size.into())], "{namespace}");
        }
    }
}

#[test]
fn i15_names_pods_and_what_is_in_no_namespace() {
    let root = root(&spec(&json!({"replicas": 2, "inNamespaces": ["ant"]}), 2, "Label"));
    let names: Vec<_> = shards(&root).into_iter().map(|shard| root.name(shard)).collect();
    assert_eq!(names, ["op-0-canary", "op-1-normal", "op-2-normal"]);
    let pods: Vec<Vec<_>> =
        shards(&root).into_iter().map(|shard| root.pods(shard).collect()).collect();
    assert_eq!(pods, [["op-0", "op-1"], ["op-2", "op-3"], ["op-4", "op-5"]]);
    for (shard, pods) in shards(&root).into_iter().zip(&pods) {
        assert!(pods.iter().all(|pod| root.shard_of(pod) == Some(shard)));
        assert_eq!(root.shard_named(&root.name(shard)), Some(shard));
    }
    for no in ["op-6", "op-01", "op", "op-x", "other-1"] {
        assert_eq!(root.shard_of(no), None, "{no}");
        assert_eq!(root.is_beyond(no, &shards(&root)), no == "op-6", "{no}");
    }
    for no in ["op-0-normal-x", "op-x-normal", "op-01-normal", "o-1-normal"] {
        assert_eq!(root.shard_named(no), None, "{no}");
    }
    let partitions = partitions(&root, &Partitions::new(), Load::Unknown);
    let has = |shard| owns(&policy("c", &root.spec(shard, &partitions[&shard])), ("", "u"));
    assert_eq!([Shard::Canary, Shard::Normal(1), Shard::Normal(2)].map(has), [false, true, false]);
    let one = &root.spec(Shard::Normal(1), &partitions[&Shard::Normal(1)]);
    let one = serde_json::to_value(one).unwrap();
    assert_eq!(
        one["selector"]["matchExpressions"],
        json!([{"key": POD_NAME, "operator": "In", "values": ["op-2", "op-3"]}])
    );
    assert_eq!(one["controller"]["leaderElectionName"], "op");
}

#[test]
fn i15_a_thousand_numbered_namespaces_are_spread_evenly_and_stay_while_they_grow() {
    let canary = json!({"replicas": 1, "inNamespaces": ["ns-0007"]});
    let root = root(&spec(&canary, 3, "Namespace"));
    let partitions = partitions(&root, &Partitions::new(), Load::Unknown);
    let policies: Vec<_> = partitions
        .iter()
        .map(|(shard, partition)| (*shard, policy("c", &root.spec(*shard, partition))))
        .collect();
    let mut counts = BTreeMap::new();
    for at in 0..1000 {
        let namespace = format!("ns-{at:04}");
        let mut owners = policies.iter().filter(|(_, policy)| owns(policy, (&namespace, "u")));
        *counts.entry(owners.next().unwrap().0).or_insert(0) += 1;
        assert!(owners.next().is_none(), "{namespace}");
    }
    assert_eq!(counts.remove(&Shard::Canary), Some(1));
    let largest = f64::from(*counts.values().max().unwrap());
    assert!(largest <= 1.15 * 333.0, "{counts:?}");
    let again = root.partitions(&shards(&root), &partitions, Load::Unknown);
    assert_eq!(again, partitions, "they do not depend on namespaces");
}

/// The check of a root in which one field is another.
fn with(pointer: &str, value: Value) -> Result<Draft, String> {
    let mut spec = spec(&Value::Null, 2, "Label");
    let (of, field) = pointer.rsplit_once('/').unwrap();
    spec.pointer_mut(of).unwrap()[field] = value;
    checked(&spec)
}

#[test]
fn bad_i15_a_root_says_what_would_be_right() {
    for (checked, expected) in [
        (with("/root/prefix", json!("Op")), "spec.root.prefix: \"Op\" is no name here"),
        (with("/root/prefix", json!("a".repeat(53))), "give at most 52 of a-z"),
        (
            with("/root/targetStatefulSet", json!("")),
            "spec.root.targetStatefulSet: \"\" is no name",
        ),
        (
            with("/root/auto/shardingSize", json!(0)),
            "spec.root.auto.shardingSize: 0 is not 1 to 32",
        ),
        (with("/root/auto/shardingSize", json!(33)), "shardingSize: 33 is not 1 to 32"),
        (
            with("/root/auto/everyShardReplicas", json!(0)),
            "everyShardReplicas: 0 is not 1 to 10000",
        ),
        (with("/root/auto/shardingSize", json!(-1)), "spec: invalid value: integer `-1`"),
        (with("/root/auto", Value::Null), "spec: invalid type: null"),
        (with("/root/resourceSelector", json!([])), "spec.root.resourceSelector: is empty"),
        (with("/limits", json!([{}])), "spec.limits: is not for a root"),
        (
            with("/selector", json!({"matchLabels": {POD_NAME: "op-0"}})),
            "spec.selector: selects by statefulset.kubernetes.io/pod-name",
        ),
        (
            with(
                "/root/resourceSelector/0/relateResources",
                json!([{"apiGroups": [], "resources": ["pods"]}]),
            ),
            "spec.root.resourceSelector[0].relateResources[0].apiGroups: is empty",
        ),
        (with("/controller/leaderElectionName", json!("A")), "spec.controller.leaderElectionName"),
    ] {
        let error = checked.expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn bad_a_root_names_one_workload() {
    let target = |kind: &str, name: &str| json!({"kind": kind, "name": name});
    let mut spec = spec(&Value::Null, 2, "Label");
    spec["root"]["target"] = target("Deployment", "op");
    let error = checked(&spec).unwrap_err();
    assert!(error.contains("spec.root.target: is given next to targetStatefulSet"), "{error}");
    spec["root"].as_object_mut().unwrap().remove("targetStatefulSet");
    assert!(checked(&spec).is_ok());
    for (target, expected) in [
        (Value::Null, "spec.root.target: is missing: give the kind, Deployment or StatefulSet"),
        (target("Deployment", "Op"), "spec.root.target.name: \"Op\" is no name here"),
        (target("DaemonSet", "op"), "unknown variant `DaemonSet`"),
        (json!({"kind": "Deployment"}), "missing field `name`"),
    ] {
        spec["root"]["target"] = target;
        let error = checked(&spec).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    spec["root"]["target"] = target("Deployment", "op");
    spec["selector"] = json!({"matchLabels": {"ctrlmesh.kusionstack.io/shard": "op-1-normal"}});
    let error = checked(&spec).unwrap_err();
    assert!(error.contains("spec.selector: selects by ctrlmesh.kusionstack.io/shard"), "{error}");
}

#[test]
fn bad_i15_the_objects_of_a_root_are_told_apart_in_one_way() {
    let canary = |value| with("/root/canary", value);
    for (checked, expected) in [
        (canary(json!({"replicas": 1})), "spec.root.canary: has no objects: give inNamespaces"),
        (
            canary(json!({"replicas": 1, "inNamespaces": ["ant"], "inShardHash": ["0"]})),
            "spec.root.canary: has no objects: none of inNamespaces",
        ),
        (
            canary(json!({"replicas": 1, "inShardHash": ["32", "x", "01"]})),
            "spec.root.canary.inShardHash[0]: \"32\" is no bucket: give a number from \"0\" to \"31\"",
        ),
        (
            canary(json!({"replicas": 10001, "inNamespaces": ["A"]})),
            "spec.root.canary.replicas: 10001 is not 1 to 10000; spec.root.canary.inNamespaces[0]: \"A\" is not",
        ),
    ] {
        let error = checked.expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
    let hash = json!({"of": "uid", "ranges": []});
    let mut by_hash = spec(&Value::Null, 2, "Namespace");
    by_hash["root"]["resourceSelector"][0]["hash"] = hash;
    let error = checked(&by_hash).unwrap_err();
    assert!(error.contains("resourceSelector[0].hash: is drawn by auto.by: Namespace"), "{error}");
    let many: Vec<_> = (0..31).map(|bucket: u32| bucket.to_string()).collect();
    let few = spec(&json!({"replicas": 1, "inShardHash": many}), 2, "Label");
    let error = checked(&few).unwrap_err();
    assert!(error.contains("2 shards cannot share the 1 buckets"), "{error}");
    // A canary without pods is none.
    assert!(canary(json!({"replicas": 0, "inShardHash": many})).is_ok());
}

/// The writes of the next step, and what holds it up.
fn next(root: &Root, world: &World) -> (Vec<Write>, Vec<Blocked>) {
    next_of(root, world, Load::Unknown)
}

fn next_of(root: &Root, world: &World, load: Load<'_>) -> (Vec<Write>, Vec<Blocked>) {
    let Step { phases, holds } = step(root, &world.children, &at(root, load));
    (phases.concat(), holds)
}

/// The step with each pod ready, and after it the children.
fn settle(root: &Root, world: &mut World) -> Vec<Write> {
    for (name, child) in &mut world.children {
        child.pods = root.shard_named(name).map(|at| root.pods(at).collect()).unwrap_or_default();
        child.is_ready = true;
    }
    let (writes, _) = next(root, world);
    writes.iter().for_each(|write| world.write(write));
    writes
}

pub(super) fn names(writes: &[Write]) -> Vec<String> {
    let name = |write: &Write| match write {
        Write::Put { name, partition, .. } if partition.is_nothing() => format!("empty {name}"),
        Write::Put { name, .. } => format!("put {name}"),
        Write::Delete { name } => format!("delete {name}"),
    };
    writes.iter().map(name).collect()
}

/// The root over `size` shards with equal numbers of namespaces.
fn of_namespaces(size: u32) -> Root {
    let mut spec = spec(&Value::Null, size, "Namespace");
    spec["root"]["auto"]["weight"] = json!("Namespaces");
    root(&spec)
}

/// The numbers of these namespaces in the shards, once all that may move has.
fn spread(root: &Root, world: &mut World, namespaces: &BTreeSet<String>) -> Vec<usize> {
    let objects = namespaces.iter().map(|name| (name.clone(), 1)).collect();
    for _ in 0..3 {
        for (name, child) in &mut world.children {
            child.pods = root.shard_named(name).map(|at| root.pods(at).collect()).unwrap();
            child.is_ready = true;
        }
        let load = Load::Known { objects: &objects, may_move: true };
        let (writes, _) = next_of(root, world, load);
        writes.iter().for_each(|write| world.write(write));
    }
    let of = |child: &Child| {
        let partition = child.partition.as_ref().unwrap();
        namespaces.iter().filter(|name| partition.has_namespace(name)).count()
    };
    world.children.values().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn few_namespaces_are_spread_evenly_when_shards_are_drawn(
        namespaces in prop::collection::btree_set("[a-z][a-z0-9-]{0,8}[a-z0-9]", 0..256),
        size in 1..32_u32,
    ) {
        let counts = spread(&of_namespaces(size), &mut World::default(), &namespaces);
        prop_assert_eq!(counts.iter().sum::<usize>(), namespaces.len());
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{:?}", counts);
    }
}

#[test]
fn a_namespace_more_moves_nothing_unless_a_shard_has_too_many() {
    let root = of_namespaces(2);
    let mut world = World::default();
    assert_eq!(
        step(&root, &world.children, &at(&root, Load::Unknown)).phases,
        [[]; 0],
        "they are not known yet"
    );
    let mut namespaces: BTreeSet<String> = (0..12).map(|at| format!("team-{at:02}")).collect();
    assert_eq!(spread(&root, &mut world, &namespaces), [6, 6]);
    let partitions = |world: &World| -> Vec<_> {
        world.children.values().map(|child| child.partition.clone()).collect()
    };
    let before = partitions(&world);
    namespaces.insert("one-more".to_owned());
    spread(&root, &mut world, &namespaces);
    assert_eq!(partitions(&world), before);
    // All that comes falls to one shard.
    let first = world.children["op-1-normal"].partition.clone().unwrap();
    let more = (0..100).map(|at| format!("more-{at}")).filter(|name| first.has_namespace(name));
    namespaces.extend(more.take(12));
    let counts = spread(&root, &mut world, &namespaces);
    assert!(counts.iter().all(|count| (11..=14).contains(count)), "{counts:?}");
    assert_ne!(partitions(&world), before);
}

#[test]
fn i15_a_shard_more_comes_with_its_pod_and_one_less_goes_empty() {
    let sized = |size| root(&spec(&Value::Null, size, "Namespace"));
    let (two, three) = (sized(2), sized(3));
    let mut world = World::default();
    assert_eq!(names(&settle(&two, &mut world)), ["put op-1-normal", "put op-2-normal"]);
    assert_eq!(names(&settle(&two, &mut world)), [""; 0]);
    let (writes, holds) = next(&three, &world);
    assert_eq!(names(&writes), ["empty op-3-normal"]);
    assert_eq!(holds, [Blocked::NotReady(vec!["op-3-normal".to_owned()])]);
    writes.iter().for_each(|write| world.write(write));
    assert_eq!(
        names(&settle(&three, &mut world)),
        ["put op-1-normal", "put op-2-normal", "put op-3-normal"]
    );
    // The next layout waits for the last.
    world.children.get_mut("op-3-normal").unwrap().opening.insert("op-4".to_owned());
    let (writes, holds) = next(&two, &world);
    assert_eq!((writes.len(), holds), (3, vec![]), "what goes opens nothing");
    world.children.get_mut("op-3-normal").unwrap().opening.clear();
    world.children.get_mut("op-1-normal").unwrap().opening.insert("op-0".to_owned());
    let (writes, holds) = next(&two, &world);
    assert_eq!((writes.len(), holds), (0, vec![Blocked::Opening(vec!["op-0".to_owned()])]));
    world.children.get_mut("op-1-normal").unwrap().opening.clear();
    world.children.get_mut("op-3-normal").unwrap().is_claimed = true;
    assert_eq!(
        names(&settle(&two, &mut world)),
        ["empty op-3-normal", "put op-1-normal", "put op-2-normal"]
    );
    let (writes, holds) = next(&two, &world);
    assert_eq!((writes.len(), holds), (0, vec![Blocked::Claimed(vec!["op-3-normal".to_owned()])]));
    world.children.get_mut("op-3-normal").unwrap().is_claimed = false;
    // Someone's finalizer may keep it.
    world.children.get_mut("op-3-normal").unwrap().is_going = true;
    assert_eq!(step(&two, &world.children, &at(&two, Load::Unknown)), Step::default());
    world.children.get_mut("op-3-normal").unwrap().is_going = false;
    assert_eq!(names(&settle(&two, &mut world)), ["delete op-3-normal"]);
    // No one handles what a shard without a ready pod has.
    world.children.get_mut("op-2-normal").unwrap().is_ready = false;
    let (writes, holds) = next(&two, &world);
    assert_eq!((writes.len(), holds), (0, vec![Blocked::Idle(vec!["op-2-normal".to_owned()])]));
}

#[test]
fn bad_i15_a_child_changed_by_hand_is_put_back_and_another_config_left_alone() {
    let root = root(&spec(&Value::Null, 2, "Label"));
    let mut world = World::default();
    settle(&root, &mut world);
    let before = world.children.clone();
    let one = |world: &mut World| world.children.get_mut("op-1-normal").unwrap().clone();
    let mut edited = one(&mut world);
    edited.spec.as_mut().unwrap().limits.clear();
    world.children.insert("op-1-normal".to_owned(), edited);
    assert_eq!(names(&settle(&root, &mut world)), ["put op-1-normal"]);
    let (mut unread, mut untold) = (one(&mut world), one(&mut world));
    unread.spec = None;
    untold.partition = None;
    for broken in [unread, untold] {
        world.children.insert("op-1-normal".to_owned(), broken);
        assert_eq!(names(&settle(&root, &mut world)), ["put op-1-normal"]);
    }
    world.children.remove("op-2-normal");
    assert_eq!(names(&settle(&root, &mut world)), ["put op-2-normal"]);
    for child in world.children.values_mut() {
        child.pods.clear();
        child.is_ready = false;
    }
    let partitions = |children: &BTreeMap<String, Child>| -> Vec<_> {
        children.values().map(|child| child.partition.clone()).collect()
    };
    assert_eq!(partitions(&world.children), partitions(&before));
    world.children.get_mut("op-1-normal").unwrap().is_own = false;
    let (writes, holds) = next(&root, &world);
    assert_eq!((writes.len(), holds), (0, vec![Blocked::Foreign(vec!["op-1-normal".to_owned()])]));
}

#[test]
fn bad_i15_a_pod_that_runs_is_given_no_other_shard() {
    let with = |replicas: u32, each: u32, prefix: &str| {
        let mut spec = spec(&json!({"replicas": replicas, "inNamespaces": ["ant"]}), 2, "Label");
        spec["root"]["auto"]["everyShardReplicas"] = json!(each);
        spec["root"]["prefix"] = json!(prefix);
        root(&spec)
    };
    let before = with(1, 2, "op");
    let mut world = World::default();
    settle(&before, &mut world);
    settle(&before, &mut world);
    for (root, pods) in [
        (with(2, 2, "op"), &["op-1", "op-3"][..]),
        (with(1, 1, "op"), &["op-2"]),
        (with(1, 2, "other"), &["op-0", "op-1", "op-2", "op-3", "op-4"]),
    ] {
        let (writes, holds) = next(&root, &world);
        let pods = pods.iter().map(|pod| (*pod).to_owned()).collect();
        assert_eq!((writes, holds), (vec![], vec![Blocked::Pods(pods)]));
    }
    for child in world.children.values_mut() {
        child.pods.clear();
    }
    let other = with(1, 2, "other");
    let (writes, holds) = next(&other, &world);
    assert_eq!(holds, [], "of pods that do not run no shard is taken");
    assert_eq!(
        names(&writes),
        [
            "empty op-0-canary",
            "empty op-1-normal",
            "empty op-2-normal",
            "put other-0-canary",
            "put other-1-normal",
            "put other-2-normal"
        ]
    );
    // By hashes that are not those of the code.
    assert_ne!(fnv1a("ant") % 32, shard_bucket("ant"));
    let limit: &Limit = &before.template.limits[0];
    assert!(limit.selector.is_none());
}

/// A root in the shape of those that KusionStack's sample and charts have.
#[test]
fn i15_a_root_of_kusionstack_means_what_it_meant() {
    let resources =
        json!([{"apiGroups": ["*"], "resources": ["configmaps", "pods", "namespaces"]}]);
    let auto = json!({"everyShardReplicas": 2, "shardingSize": 2});
    let canary = json!({"replicas": 1, "inNamespaces": ["foo-1", "foo-2"]});
    let whole = json!({
        "controller": {"leaderElectionName": "leader"},
        "root": {
            "prefix": "sample",
            "targetStatefulSet": "operating",
            "canary": canary,
            "auto": auto,
            "resourceSelector": [{"relateResources": resources}],
        },
    });
    let root = root(&whole);
    let partitions = partitions(&root, &Partitions::new(), Load::Unknown);
    let policies: Vec<_> = partitions
        .iter()
        .map(|(shard, partition)| {
            (*shard, policy(&root.name(*shard), &root.spec(*shard, partition)))
        })
        .collect();
    for name in ["foo-1", "foo-2", "foo-3", "default", "kube-system"] {
        let expected = by_kusionstack(name, &["foo-1", "foo-2"], 2);
        for (shard, policy) in &policies {
            let is_expected = *shard == expected;
            assert_eq!(owns(policy, (name, "u")), is_expected, "{name} {shard:?}");
            // A Namespace is judged as what it names.
            let scope = policy.sharding.scope(&GroupResource::new("", "namespaces")).unwrap();
            let object = Object { name, uid: "u", ..Object::default() };
            let labels = BTreeMap::new();
            let facts =
                ObjectFacts { labels: Some(Labels::of(&labels)), ..ObjectFacts::of(&object, true) };
            assert_eq!(scope.owns(&facts), Some(is_expected), "{name} {shard:?}");
        }
    }
}

/// A shard in the shape of those of KusionStack's canary sample.
fn sampled(operator: &str) -> Value {
    let of = json!({
        "key": "ctrlmesh.kusionstack.io/namespace",
        "operator": operator,
        "values": ["foo-01", "foo-02"],
    });
    json!({
        "selector": {"matchLabels": {"controller-version": operator}},
        "limits": [{
            "relateResources": [{"apiGroups": ["*"], "resources": ["configmaps", "pods"]}],
            "selector": {"matchExpressions": [of]},
        }],
    })
}

#[test]
fn i15_shards_of_kusionstack_mean_what_they_meant() {
    let [v1, v0] = ["In", "NotIn"].map(|operator| {
        let Ok(Draft::Sharding(draft)) = checked(&sampled(operator)) else { panic!("{operator}") };
        draft.resolve(None).unwrap()
    });
    for (name, is_canary) in [("foo-01", true), ("foo-02", true), ("foo-03", false)] {
        assert_eq!([&v1, &v0].map(|policy| owns(policy, (name, "u"))), [is_canary, !is_canary]);
    }
}

#[test]
fn bad_i15_manifests_of_kusionstack_that_never_worked_say_what_to_write() {
    let mut selecting = spec(&Value::Null, 2, "Label");
    selecting["selector"] = json!({"matchExpressions": [
        {"key": POD_NAME, "operator": "In", "values": ["operating-0"]},
    ]});
    let mut beside = spec(&Value::Null, 2, "Label");
    beside["root"].as_object_mut().unwrap().remove("resourceSelector");
    beside["resourceSelector"] = json!([]);
    let mut nested = sampled("In");
    nested["limits"] = json!([{"objectSelector": {}}]);
    for (spec, expected) in [
        (
            &selecting,
            "spec.selector: selects by statefulset.kubernetes.io/pod-name, by which each child",
        ),
        (&beside, "unknown field `resourceSelector`, expected one of `selector`, `root`"),
        (&nested, "unknown field `objectSelector`, expected one of `relateResources`, `selector`"),
    ] {
        let error = checked(spec).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn i15_a_shard_more_waits_until_the_objects_are_counted() {
    let sized = |size, balance: &str| {
        let mut spec = spec(&json!({"replicas": 1, "inNamespaces": ["ant"]}), size, "Namespace");
        spec["root"]["auto"]["weight"] = json!("Objects");
        spec["root"]["auto"]["balance"] = json!(balance);
        root(&spec)
    };
    let (two, three) = (sized(2, "Move"), sized(3, "Move"));
    assert_eq!(two.counted().collect::<Vec<_>>(), [("", "pods"), ("", "nodes")]);
    let mut world = World::default();
    settle(&two, &mut world);
    settle(&two, &mut world);
    let (writes, _) = next(&three, &world);
    writes.iter().for_each(|write| world.write(write));
    settle(&three, &mut world);
    let (writes, holds) = next(&three, &world);
    assert_eq!(
        (writes.len(), holds),
        (0, vec![Blocked::Uncounted(vec!["op-3-normal".to_owned()])])
    );
    // The canary's count for no one else.
    let objects: BTreeMap<_, _> = (0..300).map(|at| (format!("ns-{at}"), 10)).collect();
    let of_canary = [("ant".to_owned(), 1_000_000)];
    let objects: BTreeMap<_, _> = objects.into_iter().chain(of_canary).collect();
    let known = |may_move| Load::Known { objects: &objects, may_move };
    let (writes, holds) = next_of(&three, &world, known(false));
    writes.iter().for_each(|write| world.write(write));
    assert_eq!(holds, []);
    assert_eq!(
        names(&writes),
        ["put op-1-normal", "put op-2-normal", "put op-3-normal"],
        "who loses comes first"
    );
    assert_eq!(step(&three, &world.children, &at(&three, known(true))), Step::default());
    let shares = |world: &World| -> Vec<usize> {
        let policies = world.policies();
        let has = |policy| objects.keys().filter(|name| owns(policy, (name, "1"))).count();
        policies.iter().map(has).collect()
    };
    let spread = shares(&world);
    assert_eq!((spread.len(), spread[0]), (4, 1), "the canary has its one");
    assert!(spread.iter().skip(1).all(|some| (85..=115).contains(some)), "{spread:?}");
    // A namespace has grown: others leave its shard, if they may.
    let mut grown = objects.clone();
    grown.insert("ns-7".to_owned(), 2000);
    let known = |may_move| Load::Known { objects: &grown, may_move };
    assert_eq!(step(&three, &world.children, &at(&three, known(false))), Step::default());
    let keep = sized(3, "Keep");
    assert_eq!(step(&keep, &world.children, &at(&keep, known(true))), Step::default());
    let (writes, _) = next_of(&three, &world, known(true));
    writes.iter().for_each(|write| world.write(write));
    let uneven = shares(&world);
    assert!(uneven.iter().skip(1).any(|some| *some < 30), "{uneven:?}");
    assert_eq!(uneven.iter().sum::<usize>(), 301);
}

#[test]
fn bad_i15_objects_are_counted_by_the_names_of_resources() {
    let with = |by: &str, resources: Value| {
        let mut spec = spec(&Value::Null, 2, by);
        spec["root"]["auto"]["weight"] = json!("Objects");
        spec["root"]["resourceSelector"][0]["relateResources"] = resources;
        checked(&spec)
    };
    let pods = json!([{"apiGroups": [""], "resources": ["pods"]}]);
    assert!(with("Label", pods.clone()).is_ok());
    let error = with("Uid", pods).unwrap_err();
    assert!(error.contains("spec.root.auto.weight: Objects is for namespaces"), "{error}");
    for any in [
        json!([]),
        json!([{"apiGroups": ["*"], "resources": ["pods"]}]),
        json!([{"apiGroups": [""], "resources": ["pods"]}, {"apiGroups": ["apps"], "resources": ["*"]}]),
    ] {
        let error = with("Namespace", any).unwrap_err();
        let expected =
            "resourceSelector[0].relateResources: names no resource whose objects can be counted";
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn bad_i15_while_objects_are_not_counted_nobody_gets_what_a_shard_that_goes_has() {
    let canary = json!({"replicas": 2, "inNamespaces": ["ant"]});
    let mut world = World::default();
    let before = root(&spec(&canary, 1, "Namespace"));
    settle(&before, &mut world);
    settle(&before, &mut world);
    let mut after = spec(&Value::Null, 3, "Namespace");
    after["root"]["auto"]["weight"] = json!("Objects");
    after["root"]["prefix"] = json!("op");
    let after = root(&after);
    // Those of the pods that ran are gone.
    for child in world.children.values_mut() {
        child.pods.clear();
        child.is_ready = true;
    }
    let ant = ("ant".to_owned(), "u".to_owned());
    for _ in 0..4 {
        for write in &next(&after, &world).0 {
            world.write(write);
            assert!(world.owners(&ant) <= 1, "after {write:?}");
        }
    }
    assert_eq!(world.owners(&ant), 1);
    assert_eq!(
        next(&after, &world).1,
        [Blocked::Uncounted(vec!["op-2-normal".to_owned(), "op-3-normal".to_owned()])]
    );
}

/// A shard with no bucket may have cluster-scoped objects.
#[test]
fn i15_a_lot_without_a_namespace_has_what_is_in_none() {
    let root = root(&spec(&Value::Null, 2, "Label"));
    for partition in [
        Partition::of_buckets(IntervalSet::default()).with_outside(),
        Partition::of_names(BTreeSet::new()).with_outside(),
        Partition::of_hashes(HashOf::Uid, IntervalSet::up_to(END)).within(&IntervalSet::default()),
    ] {
        assert!(!partition.is_nothing());
        assert_eq!(Partition::read(&partition.text()).as_ref(), Some(&partition));
        let policy = policy("op-1-normal", &root.spec(Shard::Normal(1), &partition));
        assert!(owns(&policy, ("", "u")), "{partition:?}");
        assert!(NAMES.iter().all(|name| !owns(&policy, (name, "u"))), "{partition:?}");
    }
}

/// A root without resources, with other fields of its own.
fn whole_root(change: &Value) -> Value {
    let mut spec = spec(&Value::Null, 2, "Namespace");
    spec["root"]["resourceSelector"] = json!([]);
    for (pointer, value) in change.as_object().unwrap() {
        let (of, field) = pointer.rsplit_once('/').unwrap();
        spec.pointer_mut(of).unwrap()[field] = value.clone();
    }
    spec
}

#[test]
fn a_root_without_resources_has_whole_namespaces_by_their_number() {
    let mine = json!([{"apiGroups": ["example.com"], "resources": ["classes"], "namespaces": [""], "write": "All"}]);
    let root = root(&whole_root(&json!({"/shared": mine})));
    assert!(root.counts_namespaces());
    let mut world = World::default();
    let names = NAMES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(spread(&root, &mut world, &names), [4, 4]);
    let [one, two] = &world.policies()[..] else { panic!("two shards") };
    for (group, resource) in [("", "pods"), ("example.com", "widgets"), ("new.example.com", "any")]
    {
        let resource = GroupResource::new(group, resource);
        let has = |policy: &Policy, namespace: &str| {
            let object = Object { namespace, name: "x", uid: "u", ..Object::default() };
            let scope = policy.sharding.scope(&resource).unwrap();
            let facts = ObjectFacts::of(&object, false);
            let owns = scope.owns(&facts).unwrap();
            (owns, scope.shows(&facts, &policy.sharding.shared_namespaces(&resource)).unwrap())
        };
        for namespace in NAMES {
            let [(one, is_shown), (two, _)] = [one, two].map(|policy| has(policy, namespace));
            assert!(one != two && one == is_shown, "{namespace}");
        }
        assert_eq!([one, two].map(|policy| has(policy, "")), [(true, true), (false, true)]);
    }
    // The pods' own namespace has one owner, and what each shard has next to its pods is shown to all.
    let shown = |resource: &str| {
        let shared = two.sharding.shared_namespaces(&GroupResource::new("", resource));
        ["", "ops", "ant"].map(|namespace| {
            let object = Object { namespace, name: "x", uid: "u", ..Object::default() };
            Scope::nothing().shows(&ObjectFacts::of(&object, false), &shared).unwrap()
        })
    };
    for resource in ["configmaps", "secrets", "serviceaccounts", "services"] {
        assert_eq!(shown(resource), [true, true, false], "{resource}");
    }
    assert_eq!(shown("pods"), [true, false, false]);
    let child = serde_json::to_value(&world.children["op-2-normal"].spec).unwrap();
    assert_eq!(child["shared"][0], mine[0], "those of the root come first, and count");
    assert_eq!(child["limits"][0]["clusterScoped"], "Exclude");
}

#[test]
fn what_is_in_no_namespace_is_written_as_its_group_says() {
    let of = |change: &Value| {
        let root = root(&whole_root(change));
        let partitions = partitions(&root, &Partitions::new(), Load::Unknown);
        let spec = root.spec(Shard::Normal(2), &partitions[&Shard::Normal(2)]);
        move |group: &str, resource: &str| {
            policy("op-2-normal", &spec)
                .sharding
                .shared()
                .write(&GroupResource::new(group, resource), "")
        }
    };
    let write = of(&json!({}));
    for (group, resource) in [
        ("", "persistentvolumes"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
        ("storage.k8s.io", "storageclasses"),
    ] {
        assert_eq!(write(group, resource), Some(SharedWrite::All), "{resource}");
    }
    for (group, resource) in [("cert-manager.io", "clusterissuers"), ("k8s.io", "any")] {
        assert_eq!(write(group, resource), Some(SharedWrite::Owner), "{resource}");
    }
    let first = of(&json!({"/root/clusterScoped": "First"}));
    assert_eq!(first("", "persistentvolumes"), None);
    // With resources it is shown to the first shard alone, unless the root says otherwise.
    let pods = json!([{"relateResources": [{"apiGroups": [""], "resources": ["nodes"]}]}]);
    assert_eq!(of(&json!({"/root/resourceSelector": pods}))("", "nodes"), None);
    let shared = json!({"/root/resourceSelector": pods, "/root/clusterScoped": "Shared"});
    assert_eq!(of(&shared)("", "nodes"), Some(SharedWrite::All));
}

#[test]
fn bad_root_without_resources_says_what_it_needs() {
    for (change, expected) in [
        (
            json!({"/root/auto/by": "Label"}),
            "spec.root.resourceSelector: is empty: name the resources",
        ),
        (
            json!({"/root/auto/by": "Uid"}),
            "or give auto.by: Namespace, by which they have whole namespaces",
        ),
        (
            json!({"/root/auto/weight": "Objects"}),
            "spec.root.auto.weight: Objects needs spec.root.resourceSelector",
        ),
        (json!({"/root/clusterScoped": "Second"}), "unknown variant `Second`"),
        (
            json!({"/root/auto/by": "Uid", "/root/clusterScoped": "Shared"}),
            "spec.root.clusterScoped: Shared is for namespaces",
        ),
        (
            json!({"/shared": [{"apiGroups": [], "resources": ["*"], "namespaces": ["a"]}]}),
            "spec.shared[0]: apiGroups",
        ),
    ] {
        let error = checked(&whole_root(&change)).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}
