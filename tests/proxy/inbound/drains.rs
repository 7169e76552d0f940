//! A pod that ends, and reviews that come to it.

use std::sync::Arc;

use ctrlmesh::net::tls::HTTP_11;
use http::Version;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server};

use super::mesh::{BOTH, Mesh, Setup, address, call, post, review};
use crate::support::{
    client::{Http, text},
    soon, until,
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

/// An operator in whose place a test stands.
struct Bare {
    accepting: JoinSet<()>,
    accepted: mpsc::Receiver<server::TlsStream<TcpStream>>,
}

impl Bare {
    async fn instead_of(mesh: &mut Mesh, name: &str) -> Self {
        let listener = mesh.end_operator(name).await.listen();
        let shard = mesh.shard(name);
        shard.until_open().await;
        let tls = TlsAcceptor::from(Arc::new(shard.signed.server(&[HTTP_11])));
        let (streams, accepted) = mpsc::channel(4);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                streams.send(tls.accept(tcp).await.unwrap()).await.unwrap();
            }
        });
        Self { accepting, accepted }
    }

    /// The next connection, and the request on it.
    async fn request(&mut self) -> (server::TlsStream<TcpStream>, String) {
        let mut stream = soon("a connection", self.accepted.recv()).await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"}}") {
            let count = soon("a request", stream.read_buf(&mut read)).await.unwrap();
            assert_ne!(count, 0, "the proxy closed the connection");
        }
        (stream, String::from_utf8(read).unwrap())
    }

    /// Closes the next connection in order when a request comes, as a server does that has just found
    /// it idle.
    async fn closes(&mut self) -> String {
        let (mut stream, request) = self.request().await;
        stream.shutdown().await.unwrap();
        request
    }
}

#[tokio::test]
async fn i13_a_review_that_meets_the_close_of_an_idle_connection_is_sent_again() {
    let mut mesh = Mesh::with(Setup { shards: vec!["blue"], ..Setup::default() }).await;
    let mut operator = Bare::instead_of(&mut mesh, "blue").await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("blue")));
    let answer = async {
        let first = operator.closes().await;
        let (mut stream, second) = operator.request().await;
        assert_eq!(first, second);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
    };
    let (answer, ()) = tokio::join!(pending, answer);
    assert_eq!(text(answer.unwrap()).await, (200, "{}".to_owned()));

    // A request that is no review may have an effect that must happen only once.
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(post("/orders", "{\"one\":{}}".to_owned()));
    let (answer, _) = tokio::join!(pending, operator.closes());
    answer.expect_err("the connection ends");
    assert!(operator.accepted.try_recv().is_err(), "once");
}

#[tokio::test]
async fn i13_a_review_that_meets_the_end_of_the_operator_is_sent_to_another_pod() {
    // From the API server to this pod, and from there to one of the shard; and from another shard's.
    for arrives_at in ["blue", "green"] {
        let shards = vec!["blue", "blue-1", "green"];
        let mut mesh = Mesh::with(Setup { shards, ..Setup::default() }).await;
        let mut operator = Bare::instead_of(&mut mesh, "blue").await;
        // The other pod has the next review only if this one could not take it.
        mesh.show("blue-1", address(1), false).await;
        let at = mesh.shards.iter().find(|shard| shard.name == arrives_at).unwrap();
        mesh.until_known(at, 1).await;
        let mut client = mesh.client(at, Http::One).await;
        let pending = client.send(call(review("blue")));
        let (mut stream, _) = operator.request().await;
        operator.accepting.shutdown().await;
        stream.shutdown().await.unwrap();
        mesh.show("blue-1", address(1), true).await;
        mesh.shard("blue-1").operator.call().await.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await, (200, "{}".to_owned()), "{arrives_at}");
    }
}
