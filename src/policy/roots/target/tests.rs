use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::roots::{
    Blocked, Load, Situation, Step, Write, step,
    tests::{World, names, objects, root},
};

/// A root of a workload of this kind, whose shards have so many pods each.
fn of(kind: &str, canary: &Value, each: u32) -> Root {
    root(&json!({
        "controller": {"leaderElectionName": "op"},
        "root": {
            "prefix": "op",
            "target": {"kind": kind, "name": "op"},
            "canary": canary,
            "auto": {"everyShardReplicas": each, "by": "Namespace"},
            "resourceSelector": [
                {"relateResources": [{"apiGroups": [""], "resources": ["pods"]}]},
                {"relateResources": [{"apiGroups": [""], "resources": ["nodes"]}],
                 "clusterScoped": "Include"},
            ],
        },
    }))
}

fn deployment(each: u32) -> Root {
    of("Deployment", &Value::Null, each)
}

fn with_canary(each: u32) -> Root {
    of("Deployment", &json!({"replicas": 1, "inNamespaces": ["ant"]}), each)
}

fn normals(numbers: impl IntoIterator<Item = u32>) -> Shards {
    numbers.into_iter().map(Shard::Normal).collect()
}

fn new_pod(at: usize, template: &str, shard: Option<Shard>) -> TargetPod {
    TargetPod {
        name: format!("op-{template}-{at}"),
        template: template.to_owned(),
        shard,
        is_going: false,
        created: i64::try_from(at).unwrap(),
    }
}

/// Pods of one template with these shards, in the order of their creation.
fn pods(shards: impl IntoIterator<Item = u32>) -> Vec<TargetPod> {
    let shards = shards.into_iter().enumerate();
    shards.map(|(at, number)| new_pod(at, "a", Some(Shard::Normal(number)))).collect()
}

/// Gives each pod without a shard the one that it gets.
fn place(root: &Root, shards: &Shards, pods: &mut [TargetPod]) {
    for (at, shard) in root.place(shards, pods) {
        assert_eq!(pods[at].shard.replace(shard), None, "a pod keeps its shard");
    }
}

#[test]
fn there_is_a_shard_for_so_many_replicas() {
    for (root, replicas, size) in [
        (deployment(1), None, None),
        (deployment(1), Some(0), None),
        (deployment(1), Some(1), Some(1)),
        (deployment(1), Some(4), Some(4)),
        (deployment(1), Some(33), Some(32)),
        (deployment(2), Some(1), Some(1)),
        (deployment(2), Some(5), Some(2)),
        (with_canary(1), Some(1), Some(1)),
        (with_canary(2), Some(5), Some(2)),
        (with_canary(1), Some(40), Some(32)),
    ] {
        assert_eq!(root.size(replicas), size, "{replicas:?} of {root:?}");
    }
}

#[test]
fn a_shard_is_what_has_pods() {
    let none = Shards::new();
    let (root, all) = (deployment(1), normals(1..=4));
    assert_eq!(root.shards(3, &none, &none), normals(1..=3));
    assert_eq!(root.shards(3, &normals([2, 3, 4]), &all), normals([2, 3, 4]));
    assert_eq!(root.shards(3, &all, &all), all, "one goes once its last pod does");
    assert_eq!(root.shards(4, &normals([2, 5]), &normals([2, 5, 7])), normals([1, 2, 5, 7]));
    let canary = with_canary(1).shards(2, &none, &none);
    assert_eq!(canary, [Shard::Canary, Shard::Normal(1), Shard::Normal(2)].into());
    // The ordinals of a StatefulSet tell.
    let set = of("StatefulSet", &Value::Null, 1);
    assert_eq!(set.shards(3, &none, &all), normals(1..=3));
    assert_eq!(set.shards(3, &all, &all), all);
    assert_eq!(set.shards(3, &all, &normals(1..=3)), normals(1..=3), "no new shard is made");
    assert_eq!(root.possible_shards(), normals(1..=MOST_SHARDS));
}

#[test]
fn twenty_pods_at_once_have_a_shard_each() {
    let (root, shards) = (deployment(1), normals(1..=20));
    let mut all: Vec<_> = (0..20).map(|at| new_pod(at, "a", None)).collect();
    place(&root, &shards, &mut all);
    let given: Vec<_> = all.iter().map(|pod| pod.shard.unwrap()).collect();
    let expected: Vec<_> = (1..=20).rev().map(Shard::Normal).collect();
    assert_eq!(given, expected, "the highest number first, in the order of creation");
    assert_eq!(root.surplus(&shards, &all), None);
    // Of those that end, each leaves its place.
    all[3].is_going = true;
    all.push(new_pod(20, "a", None));
    place(&root, &shards, &mut all);
    assert_eq!(all[20].shard, all[3].shard);
    assert_eq!(root.place(&Shards::new(), &[new_pod(0, "a", None)]), [], "there is no shard yet");
}

#[test]
fn a_pod_is_too_many_only_where_a_shard_has_none() {
    let (root, shards) = (deployment(1), normals(1..=3));
    assert_eq!(root.surplus(&shards, &pods([1, 2, 2])), Some(2), "the youngest");
    assert_eq!(root.surplus(&shards, &pods([2, 1, 2, 2])), Some(3));
    assert_eq!(root.surplus(&shards, &pods([1, 2, 3, 3])), None, "each has one");
    assert_eq!(root.surplus(&shards, &pods([1, 2])), None, "none has more than its share");
    let mut unlabelled = pods([1, 2, 2]);
    unlabelled.push(new_pod(3, "a", None));
    assert_eq!(root.surplus(&shards, &unlabelled), None, "it may be of any");
    let mut going = pods([1, 2, 2]);
    going[2].is_going = true;
    assert_eq!(root.surplus(&shards, &going), None, "it goes by itself");
    let two = deployment(2);
    assert_eq!(two.surplus(&normals(1..=2), &pods([1, 1])), None);
    assert_eq!(two.surplus(&normals(1..=2), &pods([1, 1, 1])), Some(2));
}

/// A rollout as the Deployment's controller and the ReplicaSet's make it with `maxSurge: 1` and
/// `maxUnavailable: 0`: of the pods of the old template, the one with the least cost goes for one that is ready.
fn roll_out(root: &Root, shards: &Shards, all: &mut Vec<TargetPod>, (from, to): (&str, &str)) {
    let count = all.len();
    for at in 0..count {
        all.push(new_pod(100 + at, to, None));
        place(root, shards, all);
        // It is ready now.
        let old = all.iter().enumerate().filter(|(_, pod)| pod.template == from);
        let (goes, _) = old.min_by_key(|(_, pod)| pod.shard.unwrap().deletion_cost()).unwrap();
        all.remove(goes);
        for shard in shards {
            let is_served = all.iter().any(|pod| pod.shard == Some(*shard));
            assert!(is_served, "{shard:?} has no ready pod: {all:?}");
        }
    }
    assert!(all.iter().all(|pod| pod.template == to));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_shard_is_without_a_ready_pod_in_a_rollout(
        numbers in prop::collection::btree_set(1..=MOST_SHARDS, 1..9),
        each in 1..4_u32,
        has_canary in any::<bool>(),
        more in 0..3_u32,
    ) {
        let root = if has_canary { with_canary(each) } else { deployment(each) };
        let size = u32::try_from(numbers.len()).unwrap();
        let shards = root.shards(size, &normals(numbers), &Shards::new());
        let replicas = size * each + u32::from(has_canary) + more.min(each - 1);
        let mut all: Vec<_> =
            (0..usize::try_from(replicas).unwrap()).map(|at| new_pod(at, "a", None)).collect();
        place(&root, &shards, &mut all);
        roll_out(&root, &shards, &mut all, ("a", "b"));
        for pod in &mut all {
            pod.created = 0;
        }
        roll_out(&root, &shards, &mut all, ("b", "c"));
    }
}

/// Lets the pods of these shards run in the children. Returns the writes of the next step, and its obstacles.
fn run(root: &Root, world: &mut World, ready: &Shards, now: &Situation<'_>) -> Step {
    for (name, child) in &mut world.children {
        let runs = root.shard_named(name).is_some_and(|shard| ready.contains(&shard));
        child.pods = runs.then(|| format!("{name}-pod")).into_iter().collect();
        child.is_ready = runs;
        child.opening.clear();
    }
    step(root, &world.children, now)
}

fn settled(shards: &Shards) -> Situation<'static> {
    Situation { shards: Some(shards.clone()), is_settled: true, load: Load::Unknown }
}

/// Writes of a step, and its names.
fn write(world: &mut World, step: &Step) -> Vec<String> {
    let writes = step.phases.concat();
    writes.iter().for_each(|write| world.write(write));
    names(&writes)
}

#[test]
fn nothing_is_drawn_for_a_workload_without_pods() {
    let (root, shards) = (deployment(1), normals(1..=2));
    let mut world = World::default();
    let unknown = Situation { shards: None, ..settled(&shards) };
    assert_eq!(run(&root, &mut world, &shards, &unknown), Step::default());
    let first = run(&root, &mut world, &Shards::new(), &settled(&shards));
    assert_eq!(write(&mut world, &first), ["put op-1-normal", "put op-2-normal"]);
    let scaled_to_zero = run(&root, &mut world, &Shards::new(), &unknown);
    assert_eq!(scaled_to_zero, Step::default(), "they may come back");
}

#[test]
fn the_first_shards_need_not_wait_for_their_number_to_stand() {
    let (root, shards) = (deployment(1), normals(1..=2));
    let mut world = World::default();
    let moving = Situation { is_settled: false, ..settled(&shards) };
    let first = run(&root, &mut world, &shards, &moving);
    assert_eq!(first.holds, []);
    assert_eq!(write(&mut world, &first), ["put op-1-normal", "put op-2-normal"]);
}

/// Two shards that run.
fn two(root: &Root) -> World {
    let (mut world, shards) = (World::default(), normals(1..=2));
    let first = run(root, &mut world, &shards, &settled(&shards));
    write(&mut world, &first);
    world
}

#[test]
fn a_new_shard_gets_its_share_once_it_is_ready_and_the_number_has_stood() {
    let (root, shards) = (deployment(1), normals(1..=3));
    let mut world = two(&root);
    let third = || vec!["op-3-normal".to_owned()];
    let moving = Situation { is_settled: false, ..settled(&shards) };
    let step = run(&root, &mut world, &normals(1..=2), &moving);
    assert_eq!(step.holds, [Blocked::NotReady(third())]);
    assert_eq!(write(&mut world, &step), ["empty op-3-normal"]);
    let step = run(&root, &mut world, &shards, &moving);
    assert_eq!((step.holds, step.phases), (vec![Blocked::Settling(third())], vec![]));
    let step = run(&root, &mut world, &normals(1..=2), &settled(&shards));
    assert_eq!((step.holds, step.phases), (vec![Blocked::NotReady(third())], vec![]));
    let step = run(&root, &mut world, &shards, &settled(&shards));
    assert_eq!(step.holds, []);
    let written = write(&mut world, &step);
    assert_eq!(written, ["put op-1-normal", "put op-2-normal", "put op-3-normal"]);
    assert_eq!(run(&root, &mut world, &shards, &settled(&shards)), Step::default());
}

#[test]
fn a_shard_whose_pods_end_is_held_up_by_those_that_take_alone() {
    let root = deployment(1);
    let mut world = two(&root);
    let four = normals(1..=4);
    for _ in 0..2 {
        let step = run(&root, &mut world, &four, &settled(&four));
        write(&mut world, &step);
    }
    // The pod of the first ends, and that of the third is not ready.
    let stay = normals(2..=4);
    let partition =
        |world: &World, at: u32| world.children[&root.name(Shard::Normal(at))].partition.clone();
    let third = partition(&world, 3);
    run(&root, &mut world, &normals([2, 4]), &settled(&stay));
    world.children.get_mut("op-3-normal").unwrap().pods.insert("op-3-normal-pod".to_owned());
    // Its proxy still answers.
    world.children.get_mut("op-1-normal").unwrap().is_claimed = true;
    let ends = step(&root, &world.children, &settled(&stay));
    let written = write(&mut world, &ends);
    assert!(written.contains(&"empty op-1-normal".to_owned()), "{written:?}");
    assert!(!written.contains(&"put op-3-normal".to_owned()), "{written:?}");
    assert_eq!(partition(&world, 3), third, "it keeps its part");
    for object in ["ant", "bee", "cat", ""] {
        let object = (object.to_owned(), "u".to_owned());
        assert_eq!(world.owners(&object), 1, "{object:?}");
    }
    // Without any that is ready no one gets it.
    let mut world = two(&root);
    let (one, none) = (normals([2]), Shards::new());
    let first = partition(&world, 1);
    run(&root, &mut world, &none, &settled(&one));
    world.children.get_mut("op-2-normal").unwrap().pods.insert("op-2-normal-pod".to_owned());
    world.children.get_mut("op-1-normal").unwrap().is_claimed = true;
    let held = step(&root, &world.children, &settled(&one));
    assert_eq!(held.phases, [[]; 0], "{held:?}");
    assert_eq!(partition(&world, 1), first);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    /// Replicas change while pods come, get ready and end, and the leader dies after any write.
    #[test]
    fn children_of_a_deployment_are_disjoint_at_every_write_and_whole_at_the_end(
        sizes in prop::collection::vec(1..7_u32, 1..8),
        has_canary in any::<bool>(),
        chance in prop::collection::vec(any::<u8>(), 64),
        objects in objects(),
    ) {
        let root = if has_canary { with_canary(1) } else { deployment(1) };
        let mut world = World::default();
        let mut chance = chance.into_iter().cycle();
        let mut draw = move |of: u8| chance.next().is_some_and(|byte| byte % 8 < of);
        let mut with_pods = Shards::new();
        for size in &sizes {
            for _ in 0..3 {
                with_pods.retain(|_| draw(6));
                let with_child = world.children.keys().filter_map(|name| root.shard_named(name));
                let shards = root.shards(*size, &with_pods, &with_child.collect());
                with_pods.extend(shards.iter().filter(|_| draw(4)));
                for (name, child) in &mut world.children {
                    let runs = root.shard_named(name).is_some_and(|at| with_pods.contains(&at));
                    child.pods = runs.then(|| format!("{name}-pod")).into_iter().collect();
                    child.is_ready = runs && draw(6);
                    child.is_claimed = draw(2);
                    child.opening = child.pods.iter().filter(|_| draw(1)).cloned().collect();
                }
                let now = Situation { is_settled: draw(4), ..settled(&shards) };
                for writes in step(&root, &world.children, &now).phases {
                    let done: Vec<&Write> = writes.iter().filter(|_| !draw(1)).collect();
                    for write in &done {
                        world.write(write);
                        for object in &objects {
                            prop_assert!(world.owners(object) <= 1, "{object:?} after {write:?}");
                        }
                    }
                    if done.len() < writes.len() {
                        break;
                    }
                }
            }
        }
        let size = *sizes.last().unwrap();
        let mut last = Shards::new();
        for _ in 0..8 {
            let known: BTreeSet<_> =
                world.children.keys().filter_map(|name| root.shard_named(name)).collect();
            // The ReplicaSet's controller keeps as many pods as there are replicas.
            with_pods = root.shards(size, &Shards::new(), &with_pods);
            last = root.shards(size, &with_pods, &known);
            for (name, child) in &mut world.children {
                let runs = root.shard_named(name).is_some_and(|at| last.contains(&at));
                child.pods = runs.then(|| format!("{name}-pod")).into_iter().collect();
                (child.is_ready, child.is_claimed, child.opening) = (runs, false, BTreeSet::new());
            }
            let step = step(&root, &world.children, &settled(&last));
            write(&mut world, &step);
        }
        let children: BTreeMap<_, _> =
            world.children.keys().map(|name| (root.shard_named(name).unwrap(), name)).collect();
        prop_assert!(children.keys().eq(last.iter()), "{children:?} of {last:?}");
        prop_assert_eq!(step(&root, &world.children, &settled(&last)), Step::default());
        for object in &objects {
            prop_assert_eq!(world.owners(object), 1, "{:?}", object);
        }
    }
}
