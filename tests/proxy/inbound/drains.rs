//! A pod that ends, and reviews that come to it.

use http::Version;

use super::mesh::{BOTH, Mesh, Setup, call, review};
use crate::support::{
    client::{Http, text},
    until,
};

#[tokio::test]
async fn i13_a_drain_closes_no_idle_connection_and_says_close() {
    let mut mesh = Mesh::start().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(mesh.client(&mesh.shards[0], Http::One).await);
    }
    for (team, is_draining) in [("blue", false), ("green", true), ("blue", true), ("green", true)] {
        if is_draining && clients.len() == 3 {
            mesh.drain(&mesh.shards[0]).await;
        }
        let client = clients.last_mut().expect("one is left");
        let pending = client.send(call(review(team)));
        mesh.shard(team).operator.call().await.json(200, "{}");
        let answer = pending.await.expect("the idle connection is still there");
        let closes = answer.headers().get("connection").is_some_and(|it| it == "close");
        assert_eq!(text(answer).await.0, 200);
        assert_eq!(closes, is_draining, "{team}");
        if closes {
            client.ended().await.unwrap();
            clients.pop();
        }
    }
}

#[tokio::test]
async fn i13_in_http2_a_drain_lets_reviews_end() {
    let mut mesh = Mesh::with(Setup { alpn: BOTH.to_vec(), ..Setup::default() }).await;
    let mut client = mesh.client(&mesh.shards[0], Http::Two).await;
    let pending = client.send(call(review("blue")));
    let arrived = mesh.shard("blue").operator.call().await;
    assert_eq!(arrived.parts.version, Version::HTTP_2);
    mesh.drain(&mesh.shards[0]).await;
    arrived.json(200, "{}");
    assert_eq!(text(pending.await.unwrap()).await.0, 200);
}

#[tokio::test]
async fn i13_a_pod_whose_operator_has_ended_takes_reviews_for_a_moment_though_it_drains() {
    let shards = vec!["blue", "blue-1"];
    let mut mesh = Mesh::with(Setup { shards, ..Setup::default() }).await;
    drop(mesh.end_operator("blue").await);
    let stopped = std::time::Instant::now();
    mesh.drain(&mesh.shards[0]).await;
    // Without a connection it has nothing to wait for.
    while stopped.elapsed().as_secs() < 1 {
        let mut client = mesh.client(&mesh.shards[0], Http::One).await;
        let pending = client.send(call(review("blue")));
        mesh.shard("blue-1").operator.call().await.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await.0, 200);
    }
    assert_eq!(mesh.shards.remove(0).process.end().await.0, Some(0));
    assert!(stopped.elapsed().as_secs() < 10, "before the drain's deadline");
}

#[tokio::test]
async fn i13_connections_that_came_before_the_end_carry_one_more_review() {
    let shards = vec!["blue", "blue-1"];
    let mut mesh = Mesh::with(Setup { shards, ..Setup::default() }).await;
    let mut used = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = used.send(call(review("blue")));
    mesh.shard("blue").operator.call().await.json(200, "{}");
    assert_eq!(text(pending.await.unwrap()).await.0, 200);
    let fresh = mesh.client(&mesh.shards[0], Http::One).await;
    drop(mesh.end_operator("blue").await);
    let listening = || mesh.shards[0].metric("ctrlmesh_webhook_listening", &[]);
    until("the end of the listener", listening, |listening| *listening < 1.0).await;
    for mut client in [fresh, used] {
        let pending = client.send(call(review("blue")));
        mesh.shard("blue-1").operator.call().await.json(200, "{}");
        let answer = pending.await.expect("the connection is still there");
        assert_eq!(answer.headers()["connection"], "close");
        assert_eq!(text(answer).await.0, 200);
        client.ended().await.unwrap();
    }
}

#[tokio::test]
async fn i13_connections_without_a_review_end_with_the_operator() {
    let mut mesh = Mesh::with(Setup { shards: vec!["blue"], ..Setup::default() }).await;
    let mut idle = mesh.client(&mesh.shards[0], Http::One).await;
    drop(mesh.end_operator("blue").await);
    // In order or not: it carried nothing.
    let _ = idle.ended().await;
}
