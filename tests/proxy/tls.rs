//! From the first byte to TLS on both legs.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ctrlmesh::net::{
    Clock,
    tls::{self, H2, HTTP_11, roots_from_pem},
};
use http::Method;
use rustls::{
    ClientConfig, ClientConnection, SignatureScheme,
    client::ResolvesClientCert,
    sign::CertifiedKey,
    time_provider::{DefaultTimeProvider, TimeProvider},
};
use rustls_pki_types::{ServerName, UnixTime};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::redirected::in_own_network;
use crate::support::{
    client::{self, Client, Http, config, connect, request},
    log,
    pki::{Ca, Cert},
    process::{flags, run},
    proxy::{Files, Proxy, Setup},
    soon, until,
    upstream::{Behaviour, Upstream},
};

const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// All bytes until the other side closes; a reset counts as a close.
async fn rest(tcp: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match soon("the close", tcp.read(&mut buffer)).await {
            Ok(0) | Err(_) => return all,
            Ok(count) => all.extend_from_slice(&buffer[..count]),
        }
    }
}

/// The first record of a client that names `host`.
fn hello(proxy: &Proxy, host: &str) -> Vec<u8> {
    let config = config(&proxy.files.mesh_ca_pem(), &[H2]);
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let mut bytes = Vec::new();
    ClientConnection::new(Arc::new(config), name).unwrap().write_tls(&mut bytes).unwrap();
    bytes
}

fn is_alert(error: &io::Error, description: &str) -> bool {
    error.to_string().contains(description)
}

#[tokio::test]
async fn bad_not_tls() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut tcp = TcpStream::connect(proxy.addr).await.unwrap();
    tcp.write_all(b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n\r\n").await.unwrap();
    let answer = rest(&mut tcp).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    proxy.until_closed("not_tls").await;
    assert_eq!(upstream.accepted(), 0);
}

#[tokio::test]
async fn bad_server_name_outside_the_leaf() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let refused =
        connect(proxy.addr, config(&proxy.files.mesh_ca_pem(), &[H2]), "example.com").await;
    assert!(is_alert(&refused.unwrap_err(), "UnrecognisedName"));
    proxy.until_closed("unknown_server_name").await;
    assert_eq!(upstream.accepted(), 0);
}

/// A stream that writes few bytes at a time.
struct Pieces(TcpStream);

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let few = &buf[..buf.len().min(3)];
        Pin::new(&mut self.0).poll_write(cx, few)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn bad_hello_in_pieces_works() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let tcp = TcpStream::connect(proxy.addr).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let config = Arc::new(config(&proxy.files.mesh_ca_pem(), &[H2]));
    let name = ServerName::try_from("kubernetes").unwrap();
    let connecting = TlsConnector::from(config).connect(name, Pieces(tcp));
    let tls = soon("the handshake", connecting).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(H2));
}

#[tokio::test]
async fn bad_hello_oversized() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut tcp = TcpStream::connect(proxy.addr).await.unwrap();
    // A handshake record that begins a ClientHello of 1 MiB.
    let mut record = vec![22, 3, 1, 0x40, 0, 1, 0x10, 0, 0];
    record.resize(5 + 0x4000, 0);
    tcp.write_all(&record).await.unwrap();
    rest(&mut tcp).await;
    proxy.until_closed("hello_too_large").await;
    assert_eq!(upstream.accepted(), 0);
}

#[tokio::test]
async fn bad_hello_stalled() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let hello = hello(&proxy, "kubernetes");
    let mut tcp = TcpStream::connect(proxy.addr).await.unwrap();
    tcp.write_all(&hello[..hello.len() / 2]).await.unwrap();
    let began = Instant::now();
    assert_eq!(rest(&mut tcp).await, b"", "a silent close");
    assert!(began.elapsed() > Duration::from_secs(5), "the limit is 10 s");
    proxy.until_closed("hello_timeout").await;
    assert_eq!(upstream.accepted(), 0);
}

/// An address on which no one else listens: loopback has 16 million.
fn own_addr(port: u16) -> SocketAddr {
    let [_, a, b, c] = process::id().to_be_bytes();
    SocketAddr::new(IpAddr::from([127, 64 | a, b, c]), port)
}

#[tokio::test]
async fn bad_i21_the_proxy_dials_itself() {
    let addr = own_addr(5443);
    let files = Files::new(&Ca::new("any").pem);
    let proxy = Setup { listen: addr, ..Setup::to(addr) }.start(files).await;
    let refused = connect(addr, config(&proxy.files.mesh_ca_pem(), &[H2]), "kubernetes").await;
    refused.unwrap_err();
    proxy.until_closed("loop").await;
    proxy.until_closed("upstream_unreachable").await;
    proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
}

async fn untrusted(cert: Cert) {
    for alpn in [[H2], [HTTP_11]] {
        let mut upstream = Upstream::with(Behaviour { cert, ..Behaviour::default() }).await;
        let proxy = Proxy::start(&upstream).await;
        let refused =
            connect(proxy.addr, config(&proxy.files.mesh_ca_pem(), &alpn), "kubernetes").await;
        assert!(is_alert(&refused.unwrap_err(), "InternalError"));
        proxy.until_closed("upstream_untrusted").await;
        assert_eq!(upstream.accepted(), 1);
        upstream.open_connections(0).await;
        assert_eq!(upstream.handshakes(), 0, "nothing can be sent before a handshake is complete");
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn bad_t65_upstream_of_another_ca() {
    untrusted(Cert::OtherCa).await;
}

#[tokio::test]
async fn bad_t65_upstream_of_another_name() {
    untrusted(Cert::WrongName).await;
}

#[tokio::test]
async fn bad_t65_upstream_expired() {
    untrusted(Cert::Expired).await;
    untrusted(Cert::NotYetValid).await;
}

#[tokio::test]
async fn t65_the_leaf_covers_every_name_of_the_api_server() {
    let mut upstream = Upstream::start().await;
    upstream.serve(|call| call.json(200, "{}"));
    let proxy = Proxy::start(&upstream).await;
    let v6 = SocketAddr::new("::1".parse().unwrap(), proxy.addr.port());
    for (addr, name) in [
        (proxy.addr, "kubernetes"),
        (proxy.addr, "kubernetes.default"),
        (proxy.addr, "kubernetes.default.svc"),
        (proxy.addr, "kubernetes.default.svc.cluster.local"),
        (proxy.addr, "localhost"),
        // A connection by address has no SNI.
        (proxy.addr, "127.0.0.1"),
        (v6, "::1"),
        (v6, "kubernetes.default.svc"),
    ] {
        let config = config(&proxy.files.mesh_ca_pem(), &[H2]);
        let tls = connect(addr, config, name).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut client = Client::over(tls, Http::Two, 1 << 16).await;
        assert_eq!(client.get("/version").await.status(), 200, "{name}");
    }
}

#[tokio::test]
async fn t65_the_upstreams_own_name_is_verified_not_the_clients() {
    let mut upstream = Upstream::start().await;
    upstream.serve(|call| call.json(200, "{}"));
    let files = Files::new(&upstream.ca.pem);
    let to = format!("localhost:{}", upstream.addr.port());
    let proxy = Setup { upstream: to, ..Setup::of(&upstream) }.start(files).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    assert_eq!(client.get("/version").await.status(), 200);
}

#[tokio::test]
async fn the_client_gets_the_protocol_that_the_upstream_chose() {
    for (client_alpn, upstream_alpn, chosen) in [
        (vec![H2, HTTP_11], vec![H2, HTTP_11], Some(H2)),
        (vec![H2, HTTP_11], vec![HTTP_11], Some(HTTP_11)),
        (vec![HTTP_11], vec![H2, HTTP_11], Some(HTTP_11)),
        (vec![], vec![H2, HTTP_11], None),
        (vec![H2, HTTP_11], vec![], None),
    ] {
        let behaviour = Behaviour { alpn: upstream_alpn.clone(), ..Behaviour::default() };
        let mut upstream = Upstream::with(behaviour).await;
        upstream.serve(|call| call.json(200, "{}"));
        let proxy = Proxy::start(&upstream).await;
        let config = config(&proxy.files.mesh_ca_pem(), &client_alpn);
        let tls = connect(proxy.addr, config, "kubernetes").await.unwrap();
        assert_eq!(tls.get_ref().1.alpn_protocol(), chosen, "{client_alpn:?} {upstream_alpn:?}");
        let http = if chosen == Some(H2) { Http::Two } else { Http::One };
        let mut client = Client::over(tls, http, 1 << 16).await;
        assert_eq!(client.get("/version").await.status(), 200);
    }
}

/// Records whether the server asked for a certificate.
#[derive(Debug, Default)]
struct Asked(AtomicBool);

impl ResolvesClientCert for Asked {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, SeqCst);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn t64_no_client_certificate_is_ever_asked_for() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let asked = Arc::new(Asked::default());
    let mut config = config(&proxy.files.mesh_ca_pem(), &[H2]);
    config.client_auth_cert_resolver = Arc::clone(&asked) as _;
    connect(proxy.addr, config, "kubernetes").await.unwrap();
    assert!(!asked.0.load(SeqCst));
}

#[tokio::test]
async fn bad_clock_ten_years_off() {
    let mut upstream = Upstream::start().await;
    let clock = Clock::ahead_by(TEN_YEARS);
    let files = Files::made_at(&clock, &upstream.ca.pem);
    let proxy = Setup { clock, ..Setup::of(&upstream) }.start(files).await;
    let refused =
        connect(proxy.addr, config(&proxy.files.mesh_ca_pem(), &[H2]), "kubernetes").await;
    assert!(is_alert(&refused.unwrap_err(), "InternalError"));
    proxy.until_closed("upstream_untrusted").await;
    upstream.open_connections(0).await;
    assert!(upstream.handshakes() == 0 && upstream.is_quiet());
}

#[tokio::test]
async fn bad_clock_ten_years_off_and_the_client_refuses_too() {
    let mut upstream =
        Upstream::with(Behaviour { cert: Cert::LongLived, ..Behaviour::default() }).await;
    let clock = Clock::ahead_by(TEN_YEARS);
    let files = Files::made_at(&clock, &upstream.ca.pem);
    let proxy = Setup { clock, ..Setup::of(&upstream) }.start(files).await;
    let refused =
        connect(proxy.addr, config(&proxy.files.mesh_ca_pem(), &[H2]), "kubernetes").await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("not valid yet"), "{error}");
    proxy.until_closed("client_distrusts").await;
    upstream.open_connections(0).await;
    assert!(upstream.is_quiet());
}

/// A clock that is set while the proxy runs.
#[derive(Debug, Default)]
struct Settable {
    ahead: AtomicU64,
}

impl TimeProvider for Settable {
    fn current_time(&self) -> Option<UnixTime> {
        let now = DefaultTimeProvider.current_time()?.as_secs();
        Some(UnixTime::since_unix_epoch(Duration::from_secs(now + self.ahead.load(SeqCst))))
    }
}

/// The end of the certificate that a client with this clock gets, in seconds since 1970.
async fn shown_not_after(proxy: &Proxy, clock: &Arc<Settable>) -> i64 {
    let trust = ClientConfig::builder_with_details(tls::provider(), Arc::clone(clock) as _)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots_from_pem(&proxy.files.mesh_ca_pem()).unwrap())
        .with_no_client_auth();
    let tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    let leaf = &tls.get_ref().1.peer_certificates().unwrap()[0];
    let (_, leaf) = X509Certificate::from_der(leaf).unwrap();
    leaf.validity().not_after.timestamp()
}

#[tokio::test]
async fn the_leaf_is_renewed_before_it_ends() {
    const NOT_AFTER: &str = "ctrlmesh_leaf_not_after_seconds";
    let upstream = Upstream::start().await;
    let clock = Arc::new(Settable::default());
    let setup = Setup { clock: Clock::of(Arc::clone(&clock) as _), ..Setup::of(&upstream) };
    let proxy = setup.start(Files::new(&upstream.ca.pem)).await;
    let first = shown_not_after(&proxy, &clock).await;
    let look = || proxy.metric(NOT_AFTER, &[]);
    let told = look().await;

    // A leaf is valid for 24 hours, and is used for 16 of them.
    const HOURS_17: u64 = 17 * 3600;
    clock.ahead.store(HOURS_17, SeqCst);
    until(NOT_AFTER, look, |now| *now > told).await;
    let second = shown_not_after(&proxy, &clock).await;
    let by = second - first;
    assert!(by >= i64::try_from(HOURS_17).unwrap(), "the next one ends {by} s later");
}

#[tokio::test]
async fn a_ca_of_the_upstream_that_is_rotated_is_taken_over() {
    let mut upstream = Upstream::start().await;
    upstream.serve(|call| call.json(200, "{}"));
    let proxy = Proxy::start(&upstream).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    assert_eq!(client.get("/version").await.status(), 200);
    let trust = proxy.files.mesh_ca_pem();
    let dial = || connect(proxy.addr, config(&trust, &[H2]), "kubernetes");

    let (place, old) = upstream.down().await;
    let new = Ca::new("the cluster's next CA");
    std::fs::write(proxy.files.upstream_ca(), &new.pem).unwrap();
    let upstream = Upstream::on(place.listen(), new, Behaviour::default());
    // The proxy checks the CA every ten seconds.
    until("a connection by the new CA", dial, Result::is_ok).await.unwrap();

    // A certificate of the old CA is not trusted any more, not even in a session of old.
    let (place, _) = upstream.down().await;
    let upstream = Upstream::on(place.listen(), old, Behaviour::default());
    let refused = dial().await.unwrap_err();
    assert!(is_alert(&refused, "InternalError"), "{refused}");
    assert_eq!(upstream.handshakes(), 0);
}

/// A leaf of a CA that the proxy does not have, as others put it into a file.
#[tokio::test]
async fn a_leaf_in_a_file_is_shown_and_the_next_one_too() {
    let mut upstream = Upstream::start().await;
    upstream.serve(|call| call.json(200, "{}"));
    let files = Files::new(&upstream.ca.pem);
    let [first, second] = ["first", "second"].map(Ca::new);
    files.put_leaf(&first.leaf());
    let proxy = Setup { leaf: Some(files.leaf()), ..Setup::of(&upstream) }.start(files).await;
    let mut client = Client::to(proxy.addr, first.pem.as_bytes(), Http::Two).await;
    assert_eq!(client.get("/version").await.status(), 200);
    // A name of the API server, but none of this leaf.
    let trust = config(first.pem.as_bytes(), &[H2]);
    connect(proxy.addr, trust, "kubernetes.default").await.unwrap_err();
    proxy.until_closed("unknown_server_name").await;

    proxy.files.put_leaf("not PEM");
    let refused = format!("--leaf {}", proxy.files.leaf().display());
    until("the refusal", async || log::contains(&refused), |said| *said).await;
    proxy.files.put_leaf(&second.leaf());
    let dial = || connect(proxy.addr, config(second.pem.as_bytes(), &[H2]), "kubernetes");
    until("a connection by the new leaf", dial, Result::is_ok).await.unwrap();
    connect(proxy.addr, config(first.pem.as_bytes(), &[H2]), "kubernetes").await.unwrap_err();
    assert_eq!(client.get("/version").await.status(), 200);
}

#[tokio::test]
async fn bad_leaf_file() {
    let files = Files::new(&Ca::new("any").pem);
    let mut args = flags(&files, "127.0.0.1:6443");
    args.retain(|arg| !arg.starts_with("--mesh-ca-dir"));
    let (code, said) = run(&args).await;
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("--mesh-ca-dir DIR or --leaf FILE"), "{said}");
    args.push(format!("--leaf={}", files.leaf().display()));
    for (text, wanted) in [
        (None, "cannot be read"),
        (Some(Ca::new("any").leaf().replace("PRIVATE KEY", "THING")), "no private key"),
    ] {
        text.inspect(|text| files.put_leaf(text));
        let (code, said) = run(&args).await;
        assert_eq!(code, 64, "{said}");
        for part in ["--leaf", "leaf.pem", wanted] {
            assert!(said.contains(part), "no {part} in {said}");
        }
        assert!(!said.contains("BEGIN"), "{said}");
    }
}

#[tokio::test]
async fn bad_client_that_does_not_trust_the_mesh_ca() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let other = Ca::new("the cluster's CA alone").pem;
    connect(proxy.addr, config(other.as_bytes(), &[H2]), "kubernetes").await.unwrap_err();
    proxy.until_closed("client_distrusts").await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn bad_api_server_down_at_start() {
    let port = TcpSocket::new_v4().unwrap();
    port.set_reuseaddr(true).unwrap();
    port.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let ca = Ca::new("the cluster's CA");
    let proxy = Setup::to(port.local_addr().unwrap()).start(Files::new(&ca.pem)).await;
    assert_eq!(proxy.admin_page("/readyz").await.0, 200);
    let trust = proxy.files.mesh_ca_pem();
    let refused = connect(proxy.addr, config(&trust, &[H2]), "kubernetes").await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionReset, "what its own dial would see");
    proxy.until_closed("upstream_unreachable").await;

    let mut upstream = Upstream::on(port.listen(16).unwrap(), ca, Behaviour::default());
    upstream.serve(|call| call.json(200, "{}"));
    let mut client = Client::new(&proxy, Http::Two).await;
    let response = client.send(request(Method::GET, "/api/v1/pods")).await.unwrap();
    assert_eq!(client::text(response).await.0, 200);
}

#[tokio::test]
async fn bad_port_taken() {
    let upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    let taken = upstream.addr.to_string();
    for flag in ["--listen", "--listen-names", "--admin"] {
        let mut args = flags(&files, &taken);
        args.retain(|arg| !arg.starts_with(flag));
        args.push(format!("{flag}={taken}"));
        let (code, said) = run(&args).await;
        assert_eq!(code, 69, "{said}");
        assert!(said.contains(flag) && said.contains(&taken), "{said}");
    }
}

/// Ports below 1024 need a capability in this network, and the process lacks it.
#[test]
fn bad_port_not_permitted() {
    in_own_network(async || {
        let files = Files::new(&Ca::new("any").pem);
        for flag in ["--listen", "--listen-names", "--admin"] {
            let mut args = flags(&files, "127.0.0.1:6443");
            args.retain(|arg| !arg.starts_with(flag));
            let output = process::Command::new("setpriv")
                .args(["--bounding-set=-net_bind_service", env!("CARGO_BIN_EXE_ctrlmesh")])
                .args(&args)
                .arg(format!("{flag}=127.0.0.1:81"))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(77), "{said}");
            assert!(said.contains(&format!("{flag} 127.0.0.1:81")), "{said}");
        }
    });
}

#[tokio::test]
async fn bad_mesh_ca_may_not_sign_for_the_upstream() {
    let files = Files::new(&Ca::new("any").pem);
    let (code, said) = run(&flags(&files, "api.example.com:6443")).await;
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("api.example.com") && said.contains("--dns"), "{said}");
}

/// Noon of 2004-05-06, after which a mesh CA lasts two years.
#[derive(Debug)]
struct In2004;

impl TimeProvider for In2004 {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(1_083_844_800)))
    }
}

#[tokio::test]
async fn bad_mesh_ca_that_is_not_valid_now() {
    for (clock, wanted) in [
        (Clock::of(Arc::new(In2004)), "not valid after 2006-05-06T12:00:00Z"),
        (Clock::ahead_by(TEN_YEARS), "not valid before 20"),
    ] {
        let files = Files::made_at(&clock, &Ca::new("any").pem);
        let (code, said) = run(&flags(&files, "127.0.0.1:6443")).await;
        assert_eq!(code, 64, "{said}");
        for part in ["--mesh-ca-dir", "ca.crt", wanted, "ctrlmesh mesh-ca"] {
            assert!(said.contains(part), "no {part} in {said}");
        }
    }
}

#[tokio::test]
async fn bad_files_that_are_no_certificates() {
    let files = Files::new("not PEM");
    let (code, said) = run(&flags(&files, "127.0.0.1:6443")).await;
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("--upstream-ca"), "{said}");

    let files = Files::new(&Ca::new("any").pem);
    std::fs::write(files.mesh_ca().join("ca.key"), "not PEM").unwrap();
    let (code, said) = run(&flags(&files, "127.0.0.1:6443")).await;
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("--mesh-ca-dir") && said.contains("ca.key"), "{said}");
}
