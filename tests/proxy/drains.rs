//! SIGTERM, in every phase.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use ctrlmesh::wire::media::Encoding;
use http::Method;
use nix::sys::signal::Signal;
use tokio::{io::AsyncReadExt, net::TcpStream, task::spawn_blocking};

use crate::support::{
    CONFIGMAPS,
    client::{self, Client, Http, bytes, chunk, request, request_with, upload},
    events::added,
    process::{Process, flags},
    proxy::{Files, Proxy},
    scene, scrape, soon, until,
    upstream::Upstream,
};

/// A part of the log line of a connection that was drained.
const DRAINED: &str = "\"reason\":\"drained\"";
const GRACE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn bad_sigterm_when_idle() {
    for http in Http::BOTH {
        let mut upstream = Upstream::start().await;
        upstream.serve(|call| call.json(200, "{}"));
        let mut proxy = Proxy::start(&upstream).await;
        let mut client = Client::new(&proxy, http).await;
        client::text(client.get("/version").await).await;
        let began = Instant::now();
        proxy.drain(GRACE);
        client.ended().await.unwrap();
        proxy.ended().await;
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        upstream.open_connections(0).await;
    }
}

#[tokio::test]
async fn bad_sigterm_during_a_handshake() {
    let upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    let mut args = flags(&files, &upstream.addr.to_string());
    args.push("--drain-timeout=2".into());
    let process = Process::start(&args).await;
    let mut tcp = TcpStream::connect(process.addr).await.unwrap();
    let connections = || async {
        let (_, metrics) = scrape::page(process.admin, "/metrics").await;
        scrape::sample(&metrics, "ctrlmesh_connections", &[])
    };
    until("the connection", connections, |count| *count > 0.5).await;
    let began = Instant::now();
    process.signal(Signal::SIGTERM);
    let mut buffer = [0; 16];
    let end = soon("the close", tcp.read(&mut buffer)).await;
    assert!(matches!(end, Ok(0) | Err(_)));
    let (code, log) = process.end().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(log.matches(DRAINED).count(), 1, "{log}");
}

#[tokio::test]
async fn bad_sigterm_during_requests() {
    for http in Http::BOTH {
        for method in [Method::GET, Method::POST] {
            let (mut upstream, mut proxy, mut client) = scene(http).await;
            // A connection that is idle, and is older than the drain.
            let mut idle = Client::new(&proxy, http).await;
            let version = idle.send(request(Method::GET, "/version"));
            upstream.call().await.json(200, "{}");
            client::text(version.await.unwrap()).await;
            let pending =
                client.send(request_with(method.clone(), "/api/v1/namespaces/ns/pods", "{}"));
            let mut call = upstream.call().await;
            call.body().await.unwrap();
            proxy.drain(GRACE);
            idle.ended().await.unwrap();
            proxy.until_closed("drained").await;
            // The response comes in two parts, the second when both sides know of the drain.
            let answer = call.stream(200, &[("content-type", "text/plain")]);
            answer.send("one").await;
            let mut response = pending.await.unwrap();
            assert_eq!(bytes(&mut response, 3).await, b"one");
            answer.send("two").await;
            answer.end();
            assert_eq!(client::whole(response).await.unwrap().1, "two");
            proxy.ended().await;
        }
    }
}

#[tokio::test]
async fn bad_sigterm_during_an_upload() {
    for http in Http::BOTH {
        let (mut upstream, mut proxy, mut client) = scene(http).await;
        let (sent, body) = upload(Method::POST, "/api/v1/namespaces/ns/pods");
        let pending = client.send(sent);
        body.send("one").await;
        let mut call = upstream.call().await;
        assert_eq!(call.chunk().await.unwrap().unwrap(), "one");
        proxy.drain(GRACE);
        body.send("two").await;
        body.end();
        assert_eq!(call.body().await.unwrap(), "two");
        call.json(201, "{}");
        assert_eq!(pending.await.unwrap().status(), 201);
        proxy.ended().await;
    }
}

#[tokio::test]
async fn bad_sigterm_with_a_watch_open() {
    for http in Http::BOTH {
        let (mut upstream, mut proxy, mut client) = scene(http).await;
        let pending = client
            .send(request(Method::GET, &format!("{CONFIGMAPS}?watch=1&allowWatchBookmarks=true")));
        let events = upstream.call().await.watch();
        let mut seen = pending.await.unwrap();
        let event = added(Encoding::Json, 5);
        let half = event.len() / 2;
        events.send(event[..half].to_vec()).await;
        assert_eq!(bytes(&mut seen, half).await, &event[..half]);
        let began = Instant::now();
        proxy.drain(GRACE);
        events.send(event[half..].to_vec()).await;
        assert_eq!(bytes(&mut seen, event.len() - half).await, &event[half..]);
        let end = chunk(&mut seen).await;
        assert!(end.is_none(), "a clean end between two events: {end:?}");
        proxy.ended().await;
        upstream.open_connections(0).await;
        assert!(began.elapsed() < GRACE / 2, "not at the last call: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn t13_a_connection_that_comes_during_a_drain_is_served() {
    let (mut upstream, mut proxy, mut first) = scene(Http::Two).await;
    let slow = first.send(request(Method::GET, "/version"));
    let slow_call = upstream.call().await;
    proxy.drain(GRACE);
    let mut late = Client::new(&proxy, Http::Two).await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/op";
    let release = late.send(request_with(Method::PUT, lease, "{\"metadata\":{\"name\":\"op\"}}"));
    let call = upstream.call().await;
    assert!(call.path().ends_with("/leases/op---blue"));
    call.json(200, "{}");
    assert_eq!(client::text(release.await.unwrap()).await.0, 200);
    slow_call.json(200, "{}");
    assert_eq!(client::text(slow.await.unwrap()).await.0, 200);
    drop((first, late));
    proxy.ended().await;
}

#[tokio::test]
async fn bad_sigterm_ends_by_its_deadline() {
    for http in Http::BOTH {
        let (mut upstream, mut proxy, mut client) = scene(http).await;
        let pending = client.send(request(Method::GET, "/api/v1/pods"));
        let _call = upstream.call().await;
        let began = Instant::now();
        proxy.drain(Duration::from_secs(2));
        pending.await.unwrap_err();
        proxy.ended().await;
        let took = began.elapsed();
        assert!(took > Duration::from_secs(1) && took < Duration::from_secs(5), "{took:?}");
    }
}

#[tokio::test]
async fn bad_sigterm_to_the_process() {
    let mut upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    let process = Process::start(&flags(&files, &upstream.addr.to_string())).await;
    let mut client = Client::to(process.addr, &files.mesh_ca_pem(), Http::Two).await;
    let pending = client.send(request(Method::GET, &format!("{CONFIGMAPS}?watch=1")));
    let events = upstream.call().await.watch();
    let mut seen = pending.await.unwrap();
    events.send(added(Encoding::Json, 5)).await;
    chunk(&mut seen).await.unwrap().unwrap();
    let write = client.send(request_with(Method::POST, "/api/v1/namespaces/ns/pods", "{}"));
    let mut call = upstream.call().await;
    process.signal(Signal::SIGTERM);
    let end = chunk(&mut seen).await;
    assert!(end.is_none(), "{end:?}");
    assert_eq!(call.body().await.unwrap(), "{}");
    call.json(201, "{}");
    assert_eq!(client::text(write.await.unwrap()).await.0, 201);
    let (code, log) = process.end().await;
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("draining"), "{log}");
    assert_eq!(log.matches(DRAINED).count(), 1, "{log}");
    assert!(!log.contains(crate::support::TOKEN));
}

#[tokio::test]
async fn bad_sigterm_twice_ends_at_once() {
    let mut upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    let process = Process::start(&flags(&files, &upstream.addr.to_string())).await;
    let mut client = Client::to(process.addr, &files.mesh_ca_pem(), Http::Two).await;
    let pending = client.send(request(Method::GET, "/api/v1/pods"));
    let _call = upstream.call().await;
    let began = Instant::now();
    process.signal(Signal::SIGTERM);
    let goaway = client.ended();
    process.signal(Signal::SIGINT);
    let (code, log) = process.end().await;
    assert_eq!(code, Some(0), "{log}");
    assert!(began.elapsed() < Duration::from_secs(5));
    let _ = goaway.await;
    pending.await.unwrap_err();
}

/// The preStop hook of a classic sidecar, as it queries the proxy next to it.
#[tokio::test]
async fn i13_the_hook_before_sigterm_knows_whether_there_are_clients() {
    let mut upstream = Upstream::start().await;
    upstream.serve(|call| call.json(200, "{}"));
    let proxy = Proxy::start(&upstream).await;
    let hook = |seconds: u32| {
        let mut wait = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
        let admin = format!("--admin={}", proxy.admin);
        wait.args(["wait", "--for=no-clients", &admin, &format!("--timeout={seconds}")]);
        async { soon("the hook", spawn_blocking(move || wait.output().unwrap())).await.unwrap() }
    };
    assert!(hook(5).await.status.success(), "no client has come yet");
    let mut client = Client::new(&proxy, Http::Two).await;
    client::text(client.get("/version").await).await;
    let waited = hook(2).await;
    let told = String::from_utf8_lossy(&waited.stderr);
    assert_eq!(waited.status.code(), Some(69), "{told}");
    assert!(told.contains("has clients after 2 s"), "{told}");
    drop(client);
    assert!(hook(5).await.status.success(), "the client has gone");
}
