use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{identity, siblings, usable};
use crate::peers::{PeerPicker, Peers};

/// A review that may wait for longer than any search takes.
const LONG: Duration = Duration::from_secs(30);

fn put(peers: &Peers, pods: &[(&str, &str)]) {
    let pods: Vec<_> = pods.iter().map(|(name, shard)| usable(name, shard)).collect();
    let shards = siblings(&["blue", "green"]);
    let table = peers.table().next(&shards, &pods, &identity("own"), Instant::now());
    peers.put(table);
}

/// The pod that is found in blue, and the seconds that it took.
async fn found(peers: &Peers) -> (Option<String>, u64) {
    let begun = Instant::now();
    let owner = PeerPicker::new(peers, "blue", None, LONG).next().await;
    (owner.map(|chosen| chosen.identity.name().to_owned()), begun.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn i13_a_shard_that_had_a_pod_a_moment_ago_is_given_5_s_to_have_one_again() {
    let peers = Peers::default();
    assert_eq!(found(&peers).await, (None, 0), "nothing is known");
    put(&peers, &[("a", "blue"), ("b", "green")]);
    assert_eq!(found(&peers).await, (Some("a".to_owned()), 0));
    put(&peers, &[("b", "green")]);
    let replaced = async {
        sleep(Duration::from_secs(2)).await;
        put(&peers, &[("b", "green"), ("c", "green")]);
        sleep(Duration::from_secs(1)).await;
        put(&peers, &[("c", "blue")]);
    };
    let (found_then, ()) = tokio::join!(found(&peers), replaced);
    assert_eq!(found_then, (Some("c".to_owned()), 3));
    put(&peers, &[]);
    assert_eq!(found(&peers).await, (None, 5));
    sleep(Duration::from_secs(24)).await;
    assert_eq!(found(&peers).await, (None, 5), "29 s after it was gone");
    assert_eq!(found(&peers).await, (None, 0), "34 s after it was gone");
    assert_eq!(PeerPicker::new(&peers, "red", None, LONG).next().await.map(|_| ()), None);
}

#[tokio::test(start_paused = true)]
async fn i13_a_pod_that_was_not_reached_is_tried_again_for_5_s() {
    let peers = Peers::default();
    put(&peers, &[("a", "blue")]);
    let begun = Instant::now();
    let mut search = PeerPicker::new(&peers, "blue", None, LONG);
    let mut last = None;
    while let Some(chosen) = search.next().await {
        let now = Instant::now();
        if let Some(last) = last.replace(now) {
            // tokio's timers count in milliseconds.
            assert!((100..=101).contains(&now.duration_since(last).as_millis()));
        }
        search.missed(Arc::clone(chosen.peer()));
    }
    assert_eq!(begun.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn i13_a_review_waits_no_longer_than_its_timeout_allows() {
    let peers = Peers::default();
    put(&peers, &[("a", "blue")]);
    put(&peers, &[]);
    for (wait, expected) in [(0, 0), (1_500, 1_500), (4_999, 4_999), (9_500, 5_000)] {
        let begun = Instant::now();
        let mut search = PeerPicker::new(&peers, "blue", None, Duration::from_millis(wait));
        assert!(search.next().await.is_none());
        let waited = u64::try_from(begun.elapsed().as_millis()).unwrap();
        assert!((expected..=expected + 1).contains(&waited), "{wait}: {waited}");
    }
}

#[tokio::test(start_paused = true)]
async fn i13_another_pod_comes_before_one_that_was_not_reached() {
    let peers = Peers::default();
    put(&peers, &[("a", "blue")]);
    let begun = Instant::now();
    let mut search = PeerPicker::new(&peers, "blue", None, LONG);
    let failed = Arc::clone(search.next().await.unwrap().peer());
    failed.was_reached(false, Instant::now());
    search.missed(failed);
    let surges = async {
        sleep(Duration::from_millis(20)).await;
        put(&peers, &[("a", "blue"), ("b", "blue")]);
    };
    let (next, ()) = tokio::join!(search.next(), surges);
    let next = next.unwrap();
    assert_eq!((next.identity.clone(), begun.elapsed().as_millis()), (identity("b"), 20));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(search.next().await.unwrap().identity, identity("b"), "though it is busy");
}

#[tokio::test(start_paused = true)]
async fn i13_a_pod_whose_operator_has_just_ended_waits_for_the_next_of_its_shard() {
    let peers = Peers::default();
    put(&peers, &[("b", "green")]);
    let begun = Instant::now();
    let replaced = async {
        sleep(Duration::from_secs(2)).await;
        put(&peers, &[("a", "blue"), ("b", "green")]);
    };
    let mut search = PeerPicker::new(&peers, "blue", Some(begun), LONG);
    let (next, ()) = tokio::join!(search.next(), replaced);
    assert_eq!((next.unwrap().identity.clone(), begun.elapsed().as_secs()), (identity("a"), 2));
    let begun = Instant::now();
    assert!(PeerPicker::new(&Peers::default(), "blue", Some(begun), LONG).next().await.is_none());
    assert_eq!(begun.elapsed().as_secs(), 5);
}
