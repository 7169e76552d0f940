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
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::Signal,
};
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
    client::{self, Client, Http, chunk, config, connect, request},
    log,
    pki::Ca,
    policies::moved_policy,
    process::{Process, flags},
    proxy::{Files, Proxy, Setup},
    scrape, soon, until,
    upstream::{Behaviour, Upstream},
};

const CLOSED: &str = "ctrlmesh_closed_connections_total";

#[tokio::test]
async fn bad_more_connections_than_a_data_thread_carries() {
    const MOST: usize = 4096;
    // Both ends of each connection are in this process.
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
    // A connection that ends makes room for another.
    drop(held.pop());
    proxy.until_closed("client_gone").await;
    let mut client = Client::new(&proxy, Http::Two).await;
    assert_eq!(client.get("/version").await.status(), 200);
    assert_eq!(proxy.metric(CLOSED, &[]).await.to_string(), "2");
}

#[tokio::test]
async fn bad_more_connections_than_there_are_descriptors_for() {
    let upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    let args = flags(&files, &upstream.addr.to_string());
    let process = Process::start_with_descriptors(&args, 200).await;
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(TcpStream::connect(process.addr).await.unwrap());
    }
    let metric = async |name: &str, labels: &[(&str, &str)]| {
        let page = soon("the admin port", scrape::page(process.admin, "/metrics")).await;
        scrape::sample(&page.1, name, labels)
    };
    // The proxy carries (200 - 64) / 2 connections.
    let overloaded = || metric(CLOSED, &[("reason", "overloaded")]);
    until("closed at once", overloaded, |count| *count >= 232.0).await;
    // The control thread still does all its work.
    files.put_policy(&moved_policy("green"));
    let epoch = || metric("ctrlmesh_policy_epoch", &[]);
    until("the policy's epoch", epoch, |epoch| *epoch >= 2.0).await;
    assert_eq!(metric("ctrlmesh_policy_rejected_total", &[]).await.to_string(), "0");
    process.signal(Signal::SIGKILL);
    let (_, log) = process.end().await;
    assert!(!log.contains("cannot accept"), "{log}");
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
    // The kernel accepts the connection, but no one speaks TLS.
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

/// A clock that, once broken, panics when a thread of this name reads it.
#[derive(Debug)]
struct Fragile {
    thread: &'static str,
    is_broken: AtomicBool,
}

impl Fragile {
    fn on(thread: &'static str) -> Arc<Self> {
        Arc::new(Self { thread, is_broken: AtomicBool::default() })
    }
}

impl TimeProvider for Fragile {
    fn current_time(&self) -> Option<UnixTime> {
        let reads = thread::current().name().is_some_and(|name| name.starts_with(self.thread));
        assert!(!reads || !self.is_broken.load(SeqCst), "the test breaks the clock");
        DefaultTimeProvider.current_time()
    }
}

#[tokio::test]
async fn bad_panic_ends_one_connection_alone() {
    let mut upstream = Upstream::start().await;
    let clock = Fragile::on("data");
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
async fn bad_panic_of_a_task_that_must_not_end_drains_the_proxy() {
    let mut upstream = Upstream::start().await;
    let clock = Fragile::on("control");
    let setup = Setup { clock: Clock::of(Arc::clone(&clock) as _), ..Setup::of(&upstream) };
    let mut proxy = setup.start(Files::new(&upstream.ca.pem)).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let watching = client.send(request(Method::GET, "/api/v1/pods?watch=1"));
    let events = upstream.call().await.watch();
    let mut seen = watching.await.unwrap();
    events.send("{\"type\":\"ADDED\",\"object\":{}}\n").await;
    chunk(&mut seen).await.unwrap().unwrap();

    // Certificates are checked by this clock every ten seconds.
    clock.is_broken.store(true, SeqCst);
    assert!(chunk(&mut seen).await.is_none(), "the watch ends in good order");
    drop((client, seen));
    let why = proxy.end_of_service().await.unwrap_err();
    assert_eq!(why.exit_code(), 70);
    assert!(why.to_string().starts_with("certificates panicked"), "{why}");
    assert!(log::contains("a task that must not end has ended"));
}

#[tokio::test]
async fn bad_nothing_about_an_orderly_close() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let pending = client.send(request(Method::GET, "/version"));
    upstream.call().await.json(200, "{}");
    // Read to the end: a client that closes before resets the connection.
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    client.close().await;
    let trust = config(&proxy.files.mesh_ca_pem(), &[HTTP_11]);
    let mut idle = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    idle.shutdown().await.unwrap();
    soon("the close", idle.read_to_end(&mut Vec::new())).await.unwrap();
    // A client that no longer wants what it asked for says so, too.
    let trust = config(&proxy.files.mesh_ca_pem(), &[HTTP_11]);
    let mut asking = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    asking.write_all(b"GET /slow HTTP/1.1\r\nhost: kubernetes\r\n\r\n").await.unwrap();
    let held = upstream.call().await;
    asking.shutdown().await.unwrap();
    // Its request is over, so our side has no more to say.
    let _ = soon("the close", asking.read_to_end(&mut Vec::new())).await;
    drop(held);
    proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
    // A connection that is counted comes after them.
    let mut tcp = TcpStream::connect(proxy.addr).await.unwrap();
    tcp.write_all(b"no TLS").await.unwrap();
    proxy.until_closed("not_tls").await;
    let (_, metrics) = proxy.admin_page("/metrics").await;
    let counted: Vec<_> = metrics.lines().filter(|line| line.starts_with(CLOSED)).collect();
    assert_eq!(counted, [format!("{CLOSED}{{reason=\"not_tls\"}} 1")]);
}
