use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use super::{identity, siblings, usable};
use crate::proxy::inbound::peers::Peers;

fn put(peers: &Peers, pods: &[(&str, &str)]) {
    let pods: Vec<_> = pods.iter().map(|(name, shard)| usable(name, shard)).collect();
    let shards = siblings(&["blue", "green"]);
    let table = peers.table().next(&shards, &pods, &identity("own"), Instant::now());
    peers.put(table);
}

/// The pod that is found in blue, and the seconds that it took.
async fn found(peers: &Peers) -> (Option<String>, u64) {
    let begun = Instant::now();
    let owner = peers.owner("blue", &[], None).await;
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
    assert_eq!(peers.owner("red", &[], None).await.map(|_| ()), None);
}

#[tokio::test(start_paused = true)]
async fn i13_a_pod_that_failed_is_not_chosen_again_until_it_was_away() {
    let peers = Arc::new(Peers::default());
    put(&peers, &[("a", "blue")]);
    let failed = Arc::clone(peers.owner("blue", &[], None).await.unwrap().peer());
    let again = peers.owner("blue", std::slice::from_ref(&failed), None);
    assert!(timeout(Duration::from_secs(4), again).await.is_err(), "another may come");
    let restarted = async {
        put(&peers, &[]);
        sleep(Duration::from_secs(1)).await;
        put(&peers, &[("a", "blue")]);
    };
    let (again, ()) =
        tokio::join!(peers.owner("blue", std::slice::from_ref(&failed), None), restarted);
    assert_eq!(again.unwrap().identity, identity("a"));
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
    let (next, ()) = tokio::join!(peers.owner("blue", &[], Some(begun)), replaced);
    assert_eq!((next.unwrap().identity.clone(), begun.elapsed().as_secs()), (identity("a"), 2));
    let begun = Instant::now();
    assert!(Peers::default().owner("blue", &[], Some(begun)).await.is_none());
    assert_eq!(begun.elapsed().as_secs(), 5);
}
