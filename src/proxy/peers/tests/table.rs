use std::{collections::BTreeMap, sync::Arc, time::Duration};

use proptest::prelude::*;
use serde_json::json;
use tokio::time::Instant;

use super::{facts, identity, pod, siblings, usable};
use crate::peers::{
    Peer,
    facts::PodFacts,
    table::{Choice, Chosen, Table, Tried},
};

fn table(before: &Table, pods: &[PodFacts], now: Instant) -> Table {
    before.next(&siblings(&["blue", "green"]), pods, &identity("own"), now)
}

fn chosen(choice: Choice) -> Chosen {
    match choice {
        Choice::Pod(chosen) => chosen,
        nobody @ Choice::Nobody { .. } => panic!("{nobody:?}"),
    }
}

fn name(peer: &Peer) -> String {
    peer.identity.name().to_owned()
}

#[test]
fn i13_the_pods_of_a_shard_are_those_that_it_alone_selects() {
    let pods = [
        usable("a", "blue"),
        usable("b", "green"),
        usable("c", "red"),
        usable("own", "blue"),
        usable("d", "blue"),
    ];
    let table = table(&Table::default(), &pods, Instant::now());
    let all: Vec<_> = table.peers().map(|peer| (&*peer.shard, name(peer))).collect();
    let expected = [("blue", "a"), ("blue", "d"), ("green", "b")];
    assert_eq!(all, expected.map(|(shard, pod)| (shard, pod.to_owned())));
    assert_eq!(table.shards().collect::<Vec<_>>(), [("blue", 2), ("green", 1)]);
}

#[test]
fn i13_the_pod_with_the_fewest_open_reviews_is_chosen_and_equals_take_turns() {
    let now = Instant::now();
    let pods = ["a", "b", "c"].map(|name| usable(name, "blue"));
    let first = table(&Table::default(), &pods, now);
    let mut open: Vec<_> =
        (0..9).map(|_| chosen(first.choose("blue", &Tried::default(), now))).collect();
    assert!(first.peers().all(|peer| peer.open() == 3));
    open.retain(|chosen| name(chosen) != "b");
    assert_eq!(name(&chosen(first.choose("blue", &Tried::default(), now))), "b");
    // The loads outlive the table.
    let second = table(&first, &[usable("a", "blue"), usable("e", "blue")], now);
    drop(first);
    assert_eq!(second.peers().map(|peer| peer.open()).collect::<Vec<_>>(), [3, 0]);
    open.clear();
    let mut turns = BTreeMap::new();
    for _ in 0..10 {
        // Another shard's choices are no turns of this one.
        let _ = second.choose("green", &Tried::default(), now);
        *turns.entry(name(&chosen(second.choose("blue", &Tried::default(), now)))).or_insert(0) +=
            1;
    }
    assert_eq!(turns, [("a".to_owned(), 5), ("e".to_owned(), 5)].into());
}

#[test]
fn i13_a_pod_that_could_not_be_reached_rests_and_then_comes_last_for_a_while() {
    let now = Instant::now();
    let table = table(&Table::default(), &["a", "b"].map(|name| usable(name, "blue")), now);
    let [a, b] = [0, 1].map(|at| Arc::clone(table.peers().nth(at).unwrap()));
    a.was_reached(false, now);
    let open: Vec<_> =
        (0..4).map(|_| chosen(table.choose("blue", &Tried::default(), now))).collect();
    assert!(open.iter().all(|chosen| name(chosen) == "b"));
    let mut tried = Tried::default();
    let after = |millis| now + Duration::from_millis(millis);
    tried.add(b, after(30));
    for (millis, expected) in [(30, Err(100)), (99, Err(100)), (100, Ok("a")), (130, Ok("b"))] {
        match (table.choose("blue", &tried, after(millis)), expected) {
            (Choice::Pod(chosen), Ok(expected)) => assert_eq!(name(&chosen), expected, "{millis}"),
            (Choice::Nobody { last_ready, again }, Err(expected)) => {
                assert_eq!((last_ready, again), (Some(after(millis)), Some(after(expected))));
            }
            (other, _) => panic!("{millis}: {other:?}"),
        }
    }
    // It has the fewest open reviews again.
    assert_eq!(name(&chosen(table.choose("blue", &Tried::default(), after(4_999)))), "b");
    assert_eq!(name(&chosen(table.choose("blue", &Tried::default(), after(5_000)))), "a");
    a.was_reached(true, now);
    assert_eq!(name(&chosen(table.choose("blue", &Tried::default(), now))), "a");
}

#[test]
fn i13_a_peer_is_the_same_until_its_facts_change() {
    let now = Instant::now();
    let first = table(&Table::default(), &[usable("a", "blue")], now);
    let peer = Arc::clone(first.peers().next().unwrap());
    assert!(table(&first, &[usable("a", "blue"), usable("b", "blue")], now).has(&peer));
    assert!(!table(&first, &[usable("a", "green")], now).has(&peer));
    let mut moved = pod("a", "blue");
    moved["status"]["podIPs"][0]["ip"] = json!("10.1.0.9");
    assert!(!table(&first, &[facts(&moved).unwrap()], now).has(&peer));
    let gone = table(&first, &[], now);
    assert!(!gone.has(&peer));
    assert!(!table(&gone, &[usable("a", "blue")], now).has(&peer), "it was away");
}

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    /// The usable pods are those of these numbers, each of the shard of its last bit.
    Pods(Vec<u8>),
    /// A choice in a shard, perhaps of a review that has just tried the last pod that was chosen.
    Choose {
        is_green: bool,
        is_second: bool,
    },
    /// The end of the oldest review.
    End,
    Reached(bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => prop::collection::vec(0..8_u8, 0..6).prop_map(Step::Pods),
        6 => (any::<bool>(), any::<bool>())
            .prop_map(|(is_green, is_second)| Step::Choose { is_green, is_second }),
        3 => Just(Step::End),
        1 => any::<bool>().prop_map(Step::Reached),
        2 => (0..8_000_u64).prop_map(Step::Wait),
    ]
}

fn shard_of(pod: u8) -> &'static str {
    if pod % 2 == 1 { "green" } else { "blue" }
}

/// The facts of a pod that the table should know.
#[derive(Clone, Default)]
struct Model {
    open: usize,
    failed: Option<Instant>,
    /// Number of its stays in the table.
    stay: usize,
}

proptest! {
    #[test]
    fn i13_a_choice_is_the_best_of_what_there_is(steps in prop::collection::vec(step(), 1..60)) {
        let mut now = Instant::now();
        let mut present = Table::default();
        let mut pods: BTreeMap<u8, Model> = BTreeMap::new();
        let mut stays = 0;
        let mut last_ready: BTreeMap<&str, Instant> = BTreeMap::new();
        let mut open: Vec<(u8, usize, Chosen)> = Vec::new();
        let mut last: Option<Arc<Peer>> = None;
        let number = |peer: &Peer| peer.identity.name().parse::<u8>().unwrap();
        for step in steps {
            match step {
                Step::Wait(milliseconds) => now += Duration::from_millis(milliseconds),
                Step::Pods(mut numbers) => {
                    numbers.sort_unstable();
                    numbers.dedup();
                    let facts: Vec<_> = numbers
                        .iter()
                        .map(|pod| usable(&pod.to_string(), shard_of(*pod)))
                        .collect();
                    for pod in pods.keys() {
                        last_ready.insert(shard_of(*pod), now);
                    }
                    present = table(&present, &facts, now);
                    stays += 1;
                    let fresh = Model { stay: stays, ..Model::default() };
                    let stayed = |pod: &u8| pods.get(pod).unwrap_or(&fresh).clone();
                    pods = numbers.iter().map(|pod| (*pod, stayed(pod))).collect();
                }
                Step::End if open.is_empty() => {}
                Step::End => {
                    let (pod, stay, _chosen) = open.remove(0);
                    if let Some(model) = pods.get_mut(&pod).filter(|model| model.stay == stay) {
                        model.open -= 1;
                    }
                }
                Step::Reached(is_reached) => if let Some(peer) = &last && present.has(peer) {
                    peer.was_reached(is_reached, now);
                    pods.get_mut(&number(peer)).unwrap().failed = (!is_reached).then_some(now);
                }
                Step::Choose { is_green, is_second } => {
                    let shard = if is_green { "green" } else { "blue" };
                    let mut tried = Tried::default();
                    if let Some(last) = last.clone().filter(|_| is_second) {
                        tried.add(last, now);
                    }
                    let rests_until = |pod: &u8| {
                        let is_tried = tried.0.iter().any(|(peer, _)| present.has(peer) && number(peer) == *pod);
                        let failed = is_tried.then_some(now).max(pods[pod].failed);
                        let until = failed.map(|at| at + Duration::from_millis(100));
                        until.filter(|until| *until > now)
                    };
                    let is_usable =
                        |pod: &u8| shard_of(*pod) == shard && rests_until(pod).is_none();
                    let rank = |model: &Model| {
                        let is_avoided =
                            model.failed.is_some_and(|at| now - at < Duration::from_secs(5));
                        (is_avoided, model.open)
                    };
                    let best = pods.iter().filter(|(pod, _)| is_usable(pod));
                    let best = best.map(|(_, model)| rank(model)).min();
                    match present.choose(shard, &tried, now) {
                        Choice::Pod(chosen) => {
                            let pod = number(&chosen);
                            prop_assert!(is_usable(&pod));
                            let model = pods.get_mut(&pod).unwrap();
                            prop_assert_eq!(Some(rank(model)), best);
                            model.open += 1;
                            prop_assert_eq!(chosen.open(), model.open);
                            last = Some(Arc::clone(chosen.peer()));
                            open.push((pod, model.stay, chosen));
                        }
                        Choice::Nobody { last_ready: told, again } => {
                            let rest = pods.keys().filter(|pod| shard_of(**pod) == shard);
                            prop_assert_eq!(again, rest.filter_map(rests_until).min());
                            prop_assert_eq!(best, None);
                            let has_any = pods.keys().any(|pod| shard_of(*pod) == shard);
                            let expected =
                                if has_any { Some(now) } else { last_ready.get(shard).copied() };
                            prop_assert_eq!(told, expected);
                        }
                    }
                }
            }
        }
    }
}
