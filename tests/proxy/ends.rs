//! Connections that one side, a limit or a fault of our own ends.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use ctrlmesh::net::{
    Clock,
    tls::{self, H2, HTTP_11, roots_from_pem},
};
use http::Method;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::{
    ClientConfig, SignatureScheme,
    crypto::WebPkiSupportedAlgorithms,
    time_provider::{DefaultTimeProvider, TimeProvider},
};
use rustls_pki_types::UnixTime;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{
    client::{Client, Http, chunk, config, connect, request},
    pki::Ca,
    proxy::{Files, Proxy, Setup},
    soon,
    upstream::{Behaviour, Upstream},
};

const CLOSED: &str = "ctrlmesh_closed_connections_total";

#[tokio::test]
async fn bad_more_connections_than_a_data_thread_carries() {
    const MOST: usize = 4096;
    // Both ends of each are in this process.
    let (_, most_files) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most_files, most_files).unwrap();
    let mut upstream = Upstream::start().await;
    upstream.serve(|call| call.json(200, "{}"));
    let proxy = Proxy::start(&upstream).await;
    let mut held = Vec::new();
    for _ in 0..MOST {
        held.push(TcpStream::connect(proxy.addr).await.unwrap());
    }
    let mut one_more = TcpStream::connect(proxy.addr).await.unwrap();
    let end = soon("the close", one_more.read(&mut [0; 16])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    proxy.until_closed("overloaded").await;
    // One that goes makes room for another.
    drop(held.pop());
    proxy.until_closed("client_gone").await;
    let mut client = Client::new(&proxy, Http::Two).await;
    assert_eq!(client.get("/version").await.status(), 200);
    assert_eq!(proxy.metric(CLOSED, &[]).await.to_string(), "2");
}

#[tokio::test]
async fn bad_client_that_leaves_before_its_hello() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    for (count, sent) in [(1.0, &b""[..]), (2.0, b"\x16\x03\x01\x02")] {
        let mut tcp = TcpStream::connect(proxy.addr).await.unwrap();
        tcp.write_all(sent).await.unwrap();
        drop(tcp);
        proxy.until_metric(CLOSED, &[("reason", "client_gone")], count).await;
    }
    assert_eq!(upstream.accepted(), 0);
}

#[tokio::test]
async fn bad_client_reset_in_mid_request() {
    let mut upstream = Upstream::speaking(Http::One).await;
    let proxy = Proxy::start(&upstream).await;
    let trust = config(&proxy.files.mesh_ca_pem(), &[HTTP_11]);
    let mut tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    tls.write_all(b"GET /api/v1/pods HTTP/1.1\r\nHost: kubernetes\r\n\r\n").await.unwrap();
    let mut call = upstream.call().await;
    let (tcp, _) = tls.into_inner();
    socket2::SockRef::from(&tcp).set_linger(Some(Duration::ZERO)).unwrap();
    drop(tcp);
    call.given_up().await;
    proxy.until_closed("client_gone").await;
}

#[tokio::test]
async fn bad_client_without_a_signature_scheme_of_ours() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut provider = (*tls::provider()).clone();
    let known = provider.signature_verification_algorithms;
    let is_rsa = |(scheme, _): &(SignatureScheme, _)| *scheme == SignatureScheme::RSA_PSS_SHA512;
    let rsa = known.mapping.iter().position(is_rsa).unwrap();
    provider.signature_verification_algorithms =
        WebPkiSupportedAlgorithms { all: known.all, mapping: &known.mapping[rsa..] };
    let trust = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots_from_pem(&proxy.files.mesh_ca_pem()).unwrap())
        .with_no_client_auth();
    let refused = connect(proxy.addr, trust, "kubernetes").await.unwrap_err();
    assert!(refused.to_string().contains("HandshakeFailure"), "{refused}");
    proxy.until_closed("client_handshake").await;
    upstream.open_connections(0).await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn bad_upstream_that_never_answers_the_dial() {
    // The kernel accepts; nobody says a word of TLS.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ca = Ca::new("the cluster's CA");
    let proxy = Setup::to(mute.local_addr().unwrap()).start(Files::new(&ca.pem)).await;
    let began = Instant::now();
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    let refused = connect(proxy.addr, trust, "kubernetes").await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionReset);
    assert!(began.elapsed() > Duration::from_secs(5), "the limit is 10 s");
    proxy.until_closed("upstream_unreachable").await;
    proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
}

#[tokio::test]
async fn bad_upstream_that_never_sends_its_settings() {
    let mut upstream = Upstream::with(Behaviour { gate: true, ..Behaviour::default() }).await;
    let proxy = Proxy::start(&upstream).await;
    let began = Instant::now();
    let mut client = Client::new(&proxy, Http::Two).await;
    let pending = client.send(request(Method::GET, "/version"));
    assert!(client.ended().await.is_err(), "a close without GOAWAY");
    pending.await.unwrap_err();
    assert!(began.elapsed() > Duration::from_secs(5), "the limit is 10 s");
    proxy.until_closed("upstream_lost").await;
    upstream.open_gate();
    upstream.open_connections(0).await;
    assert!(upstream.is_quiet());
}

/// A clock that a data thread cannot read without a panic, once it is broken.
#[derive(Debug, Default)]
struct Fragile {
    is_broken: AtomicBool,
}

impl TimeProvider for Fragile {
    fn current_time(&self) -> Option<UnixTime> {
        let is_data_thread = thread::current().name().is_some_and(|name| name.starts_with("data"));
        assert!(!is_data_thread || !self.is_broken.load(SeqCst), "the test breaks the clock");
        DefaultTimeProvider.current_time()
    }
}

#[tokio::test]
async fn bad_panic_ends_one_connection_alone() {
    let mut upstream = Upstream::start().await;
    let clock = Arc::new(Fragile::default());
    let setup = Setup { clock: Clock::of(Arc::clone(&clock) as _), ..Setup::of(&upstream) };
    let proxy = setup.start(Files::new(&upstream.ca.pem)).await;
    let mut first = Client::new(&proxy, Http::Two).await;
    let watching = first.send(request(Method::GET, "/api/v1/pods?watch=1"));
    let events = upstream.call().await.watch();
    let mut seen = watching.await.unwrap();

    clock.is_broken.store(true, SeqCst);
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    connect(proxy.addr, trust, "kubernetes").await.unwrap_err();
    proxy.until_closed("panicked").await;
    assert_eq!(proxy.metric("ctrlmesh_panics_total", &[]).await.to_string(), "1");

    clock.is_broken.store(false, SeqCst);
    events.send("{\"type\":\"ADDED\",\"object\":{}}\n").await;
    chunk(&mut seen).await.unwrap().unwrap();
    let mut third = Client::new(&proxy, Http::Two).await;
    let pending = third.send(request(Method::GET, "/version"));
    upstream.call().await.json(200, "{}");
    assert_eq!(pending.await.unwrap().status(), 200);
    proxy.until_metric("ctrlmesh_connections", &[], 2.0).await;
}

#[tokio::test]
async fn bad_nothing_about_an_orderly_close() {
    let mut upstream = Upstream::start().await;
    upstream.serve(|call| call.json(200, "{}"));
    let proxy = Proxy::start(&upstream).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    assert_eq!(client.get("/version").await.status(), 200);
    client.close().await;
    let trust = config(&proxy.files.mesh_ca_pem(), &[HTTP_11]);
    let mut idle = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    idle.shutdown().await.unwrap();
    soon("the close", idle.read_to_end(&mut Vec::new())).await.unwrap();
    proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
    // One that is counted comes after them.
    let mut tcp = TcpStream::connect(proxy.addr).await.unwrap();
    tcp.write_all(b"no TLS").await.unwrap();
    proxy.until_closed("not_tls").await;
    assert_eq!(proxy.metric(CLOSED, &[]).await.to_string(), "1");
}
