//! A certificate from the manager.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use ctrlmesh::net::{Clock, tls::H2};
use http::{Method, header};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls_pki_types::UnixTime;
use tokio::{net::TcpSocket, time::interval};

use crate::support::{
    client::{Client, Http, config, connect},
    log,
    manager::{Manager, POD_TOKEN, Reply},
    pki::Ca,
    process::{flags, run},
    proxy::{Files, Proxy},
    until,
    upstream::Upstream,
};

const HOUR: u64 = 3600;

async fn upstream() -> Upstream {
    let mut upstream = Upstream::start().await;
    upstream.serve(|call| call.json(200, "{}"));
    upstream
}

/// A proxy of this manager that has no certificate yet.
async fn enrolling(manager: &Manager, upstream: &Upstream) -> Proxy {
    let files = Files::new(&upstream.ca.pem);
    manager.give_to(&files);
    manager.setup(upstream, &files).start(files).await
}

async fn enrolled(proxy: &Proxy, result: &str) -> f64 {
    proxy.metric("ctrlmesh_enrolments_total", &[("result", result)]).await
}

async fn end(proxy: &Proxy) -> f64 {
    proxy.metric("ctrlmesh_leaf_not_after_seconds", &[]).await
}

/// A clock that is set while the proxy runs.
#[derive(Debug, Default)]
struct Settable(AtomicU64);

impl TimeProvider for Settable {
    fn current_time(&self) -> Option<UnixTime> {
        let now = DefaultTimeProvider.current_time()?.as_secs();
        Some(UnixTime::since_unix_epoch(Duration::from_secs(now + self.0.load(SeqCst))))
    }
}

#[tokio::test]
async fn the_first_certificate_comes_from_the_manager_by_the_pods_token() {
    let (upstream, manager) = (upstream().await, Manager::start().await);
    let proxy = enrolling(&manager, &upstream).await;
    proxy.until_ready_says("[+]certificate ok: valid\n").await;
    let mut client = Client::new(&proxy, Http::Two).await;
    assert_eq!(client.get("/version").await.status(), 200);

    let asked = manager.until_asked(1).await;
    assert_eq!((asked.method.clone(), asked.path.as_str()), (Method::POST, "/v1/leaf"));
    assert_eq!(asked.header(header::AUTHORIZATION), format!("Bearer {POD_TOKEN}"));
    assert_eq!(asked.header(header::CONTENT_TYPE), "application/pkcs10");
    assert_eq!(asked.header(header::HOST), manager.name());
    assert!(asked.header(header::USER_AGENT).starts_with("ctrlmesh/"));
    assert_eq!(manager.asked().len(), 1);
    assert!((enrolled(&proxy, "ok").await - 1.0).abs() < 0.1);
    assert!(end(&proxy).await > 0.0);

    let mode = fs::metadata(proxy.files.leaf()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let kept = fs::read_to_string(proxy.files.leaf()).unwrap();
    let key = kept.lines().nth(1).unwrap();
    for secret in [POD_TOKEN, key] {
        assert!(!log::contains(secret) && !proxy.admin_page("/metrics").await.1.contains(secret));
    }
}

#[tokio::test]
async fn bad_manager_that_refuses_is_told_and_asked_again() {
    let (upstream, manager) = (upstream().await, Manager::start().await);
    manager.replies(Reply::Status(403, "pod ns/op-0 is not injected", None));
    let proxy = enrolling(&manager, &upstream).await;
    let told = format!(
        "[-]certificate failed: the manager {}: the response is 403: pod ns/op-0 is not injected\n",
        manager.name()
    );
    proxy.until_ready_says(&told).await;
    assert_eq!(proxy.admin_page("/readyz").await.0, 503);
    assert!(end(&proxy).await.abs() < 0.1);
    let trust = || config(&proxy.files.mesh_ca_pem(), &[H2]);
    let refused = connect(proxy.addr, trust(), "kubernetes").await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionReset, "as of a server that is not there");
    proxy.until_closed("no_certificate").await;
    assert_eq!(upstream.accepted(), 0);

    manager.replies(Reply::Sign);
    proxy.until_ready_says("[+]certificate ok: valid\n").await;
    connect(proxy.addr, trust(), "kubernetes").await.unwrap();
    assert!(enrolled(&proxy, "refused").await > 0.9);
    assert!((enrolled(&proxy, "ok").await - 1.0).abs() < 0.1);
    let asked = manager.asked();
    assert_ne!(asked[0].body, asked[1].body, "each request has a key of its own");
}

#[tokio::test]
async fn bad_manager_that_is_away_is_named_with_host_and_port() {
    let port = TcpSocket::new_v4().unwrap();
    port.set_reuseaddr(true).unwrap();
    port.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = port.local_addr().unwrap();
    let (upstream, other) = (upstream().await, Manager::start().await);
    let files = Files::new(&upstream.ca.pem);
    other.give_to(&files);
    let mut setup = other.setup(&upstream, &files);
    setup.manager.manager = Some(format!("localhost:{}", addr.port()).parse().unwrap());
    let proxy = setup.start(files).await;
    let told = format!(
        "[-]certificate failed: the manager localhost:{}: cannot be reached at ",
        addr.port()
    );
    proxy.until_ready_says(&told).await;
    let (code, body) = proxy.admin_page("/readyz").await;
    assert!(code == 503 && body.contains("refused"), "{body}");
    assert!(enrolled(&proxy, "unreachable").await > 0.9);

    let back = Manager::on(port.listen(16).unwrap(), Clock::system());
    back.give_to(&proxy.files);
    proxy.until_ready_says("[+]certificate ok: valid\n").await;
}

#[tokio::test]
async fn a_process_that_starts_again_has_its_certificate_without_the_manager() {
    let (upstream, manager) = (upstream().await, Manager::start().await);
    let proxy = enrolling(&manager, &upstream).await;
    proxy.until_ready_says("[+]certificate ok").await;
    let before = end(&proxy).await;
    let files = proxy.kill();
    manager.replies(Reply::Close);
    let proxy = manager.setup(&upstream, &files).start(files).await;
    assert_eq!(proxy.admin_page("/readyz").await.0, 200);
    let mut client = Client::new(&proxy, Http::One).await;
    assert_eq!(client.get("/version").await.status(), 200);
    assert!((end(&proxy).await - before).abs() < 0.1);
    assert_eq!(manager.asked().len(), 1);
}

#[tokio::test]
async fn a_certificate_is_renewed_in_time_and_when_that_fails_it_stays_until_its_end() {
    let time = Arc::new(Settable::default());
    let mut upstream = Upstream::start().await;
    upstream.serve(|call| call.json(200, "{}"));
    let manager = Manager::at(Clock::of(Arc::clone(&time) as _)).await;
    let proxy = enrolling(&manager, &upstream).await;
    proxy.until_ready_says("[+]certificate ok: valid\n").await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let first = end(&proxy).await;

    time.0.store(17 * HOUR, SeqCst);
    manager.until_asked(2).await;
    until("the next certificate", || end(&proxy), |end| *end > first).await;
    assert_eq!(client.get("/version").await.status(), 200, "no connection ended by that");

    manager.replies(Reply::Status(503, "no replica leads", None));
    time.0.store(34 * HOUR, SeqCst);
    proxy.until_ready_says("and not renewed: the manager localhost:").await;
    let (code, body) = proxy.admin_page("/readyz").await;
    assert!(code == 200 && body.contains("[+]certificate ok: valid until 20"), "{body}");
    time.0.store(42 * HOUR, SeqCst);
    proxy.until_ready_says("[-]certificate failed: expired at 20").await;
    let (code, body) = proxy.admin_page("/readyz").await;
    assert!(code == 503 && body.contains("503: no replica leads"), "{body}");
    assert!(proxy.admin_page("/readyz").await.1.contains("the manager localhost:"), "{body}");

    manager.replies(Reply::Sign);
    proxy.until_ready_says("[+]certificate ok: valid\n").await;
}

#[tokio::test]
async fn a_root_that_is_replaced_has_the_proxy_enrol_at_once() {
    let (upstream, manager) = (upstream().await, Manager::start().await);
    let proxy = enrolling(&manager, &upstream).await;
    proxy.until_ready_says("[+]certificate ok").await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let old = proxy.files.mesh_ca_pem();
    manager.forgets_its_secret();
    manager.give_to(&proxy.files);
    let new = proxy.files.mesh_ca_pem();
    assert_ne!(old, new);
    let dial = || connect(proxy.addr, config(&new, &[H2]), "kubernetes");
    until("a connection by the new root", dial, Result::is_ok).await.unwrap();
    connect(proxy.addr, config(&old, &[H2]), "kubernetes").await.unwrap_err();
    assert_eq!(client.get("/version").await.status(), 200);
    assert_eq!(manager.asked().len(), 2);

    // A process that starts with the new bundle does not show what was kept under the old root.
    let files = proxy.kill();
    manager.forgets_its_secret();
    manager.give_to(&files);
    manager.replies(Reply::Status(503, "no replica leads", None));
    let proxy = manager.setup(&upstream, &files).start(files).await;
    proxy.until_ready_says("[-]certificate failed: ").await;
    assert_eq!(proxy.admin_page("/readyz").await.0, 503);
}

#[tokio::test]
async fn bad_answers_of_the_manager_are_refused_and_named() {
    let (upstream, manager) = (upstream().await, Manager::start().await);
    let half = {
        let whole = enrolling(&manager, &upstream).await;
        whole.until_ready_says("[+]certificate ok").await;
        let kept = fs::read_to_string(whole.files.leaf()).unwrap();
        let chain = &kept[kept.find("-----BEGIN CERT").unwrap()..];
        chain[..chain.len() / 4].to_owned()
    };
    let other = Ca::new("another mesh").leaf();
    let other = other[other.find("-----BEGIN CERT").unwrap()..].to_owned();
    let page = "<html>Bad Gateway</html>";
    for (reply, result, wanted) in [
        (Reply::Body(200, half.into()), "bad_certificate", "the response: has PEM that is broken"),
        (Reply::Body(200, page.into()), "bad_certificate", "the response: has no certificate"),
        (Reply::Body(200, vec![b' '; 65 << 10].into()), "bad_certificate", "more than 65536 bytes"),
        (Reply::Body(200, other.into()), "bad_certificate", "is for another key than ours"),
        (Reply::OtherKey, "bad_certificate", "is for another key than ours"),
        (Reply::Body(502, page.into()), "refused", "the response is 502\n"),
        (
            Reply::Status(400, "no\\n\\u0007proof", None),
            "refused",
            "the response is 400: no proof\n",
        ),
        (Reply::Body(302, page.into()), "refused", "the response is 302\n"),
        (Reply::Close, "unreachable", "the request or its response was cut off"),
    ] {
        manager.replies(reply.clone());
        let proxy = enrolling(&manager, &upstream).await;
        proxy.until_ready_says(wanted).await;
        assert!(enrolled(&proxy, result).await > 0.9, "{reply:?}");
        assert!(!proxy.files.leaf().exists(), "{reply:?}");
    }
}

#[tokio::test]
async fn bad_manager_of_another_ca_gets_no_token_and_the_right_one_is_found_without_a_restart() {
    let (upstream, manager, other) =
        (upstream().await, Manager::start().await, Manager::start().await);
    let files = Files::new(&upstream.ca.pem);
    other.give_to(&files);
    let proxy = manager.setup(&upstream, &files).start(files).await;
    proxy.until_ready_says("the TLS handshake failed: invalid peer certificate").await;
    assert!(manager.asked().is_empty());

    // The CA is rotated, and so is the token.
    manager.replies(Reply::Status(401, "the token is not accepted", None));
    manager.give_to(&proxy.files);
    proxy.until_ready_says("the response is 401: the token is not accepted").await;
    fs::write(proxy.files.manager_token(), "").unwrap();
    let token = proxy.files.manager_token();
    proxy.until_ready_says(&format!("--manager-token {}: holds no token", token.display())).await;
    fs::write(token, "pod-token-the-next").unwrap();
    manager.replies(Reply::Sign);
    proxy.until_ready_says("[+]certificate ok: valid\n").await;
    let last = manager.asked().pop().unwrap();
    assert_eq!(last.header(header::AUTHORIZATION), "Bearer pod-token-the-next");
    assert!(!log::contains("pod-token-the-next"));
}

#[tokio::test]
async fn bad_manager_that_is_silent_is_given_up() {
    let (upstream, manager) = (upstream().await, Manager::start().await);
    manager.replies(Reply::Silence);
    let proxy = enrolling(&manager, &upstream).await;
    manager.until_asked(1).await;
    let began = Instant::now();
    // The time limit takes longer than any other step may.
    let mut looks = interval(Duration::from_millis(50));
    while !proxy.admin_page("/readyz").await.1.contains("no response within 15 s") {
        looks.tick().await;
        assert!(began.elapsed() < Duration::from_secs(20), "the limit is 15 s");
    }
    assert!(began.elapsed() > Duration::from_secs(10), "the limit is 15 s");
}

#[tokio::test]
async fn bad_manager_flags() {
    let files = Files::new(&Ca::new("any").pem);
    let args = flags(&files, "127.0.0.1:6443");
    let with = |more: &[&str]| {
        let more = more.iter().map(|flag| (*flag).to_owned());
        args.iter().cloned().chain(more).collect::<Vec<_>>()
    };
    for (args, wanted) in [
        (with(&["--manager=localhost:1"]), "--mesh-ca-dir and --manager both give"),
        (with(&["--manager=localhost"]), "ctrlmesh-manager.ctrlmesh-system.svc:9443"),
        (with(&["--mesh-bundle=/none"]), "--mesh-bundle has no effect without --manager"),
    ] {
        let (code, said) = run(&args).await;
        assert!(code == 64 && said.contains(wanted), "{code}: {said}");
    }
    let mut args = with(&["--manager=localhost:1"]);
    args.retain(|arg| !arg.starts_with("--mesh-ca-dir"));
    let (code, said) = run(&args).await;
    assert!(code == 64 && said.contains("give --manager-ca FILE and "), "{code}: {said}");
}

#[tokio::test]
async fn without_a_bundle_every_root_is_taken() {
    let (upstream, manager) = (upstream().await, Manager::start().await);
    let files = Files::new(&upstream.ca.pem);
    manager.give_to(&files);
    let mut setup = manager.setup(&upstream, &files);
    setup.manager.mesh_bundle = None;
    fs::write(files.bundle(), Ca::new("another").pem).unwrap();
    let proxy = setup.start(files).await;
    proxy.until_ready_says("[+]certificate ok: valid\n").await;
}
