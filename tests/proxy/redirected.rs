//! `--mode iptables`: the real rules, in a network namespace of the test's own.

use std::{fs, io, net::SocketAddr, process::Command, thread};

use ctrlmesh::net::tls::H2;
use ctrlmesh_init::{
    Family, Plan, Pod, RuleSet, Targets, apply, backend, targets::system_resolver,
};
use http::Method;
use nix::sched::{CloneFlags, unshare};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    runtime,
};

use crate::support::{
    client::{self, Client, Http, config, connect, request},
    pki::{Ca, Cert},
    proxy::{Files, Proxy, Setup},
    soon, until,
    upstream::{Behaviour, Upstream},
};

const PROXY_UID: u32 = 1359;
/// The API server's addresses.
const VIPS: [&str; 2] = ["10.96.0.1:443", "[fd00:96::1]:443"];

/// Runs a test in a network of its own, where it has the API server's addresses.
pub(crate) fn in_own_network(body: impl AsyncFnOnce() + Send + 'static) {
    let test = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
        sh("ip link set lo up
            ip addr add 10.96.0.1/32 dev lo
            ip addr add fd00:96::1/128 dev lo nodad
            # The kernel makes its route in a task of its own, also where duplicates are not
            # detected (addrconf_dad_work).
            timeout 10 sh -c 'until ip -6 route get fd00:96::1 | grep -q ^local; do :; done'");
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(body());
    });
    if let Err(panicked) = test.join() {
        std::panic::resume_unwind(panicked);
    }
}

/// [`in_own_network`], where all but `excluded` are redirected to the proxy.
fn inside(excluded: u32, body: impl AsyncFnOnce() + Send + 'static) {
    in_own_network(async move || {
        let plan = Plan::from_args([
            format!("--upstream={}", VIPS.join(",")),
            format!("--proxy-uid={excluded}"),
            "--outbound-port=5443".to_owned(),
        ])
        .unwrap();
        let families = [Family::V4, Family::V6].into();
        let pod = Pod { api_server: VIPS[0].parse(), families };
        // Not `ctrlmesh_init::run`, which refuses an API server on an address of the pod's own.
        let targets = Targets::resolve(&plan, &pod, system_resolver).unwrap();
        let rules = RuleSet::render(&plan, &targets);
        let backend = backend::choose(plan.backend(), &rules).unwrap();
        apply::commit(backend, &rules).unwrap();
        body().await;
    });
}

fn sh(script: &str) {
    let output = Command::new("sh").args(["-euc", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

async fn upstream_at(addr: &str) -> Upstream {
    upstream_with(addr, Cert::Good).await
}

async fn upstream_with(addr: &str, cert: Cert) -> Upstream {
    let listener = TcpListener::bind(addr).await.unwrap();
    let behaviour = Behaviour { cert, ..Behaviour::default() };
    Upstream::on(listener, Ca::new("the cluster's CA"), behaviour)
}

async fn proxy_for(upstream: &Upstream) -> Proxy {
    let setup = Setup {
        listen: "127.0.0.1:5443".parse().unwrap(),
        redirected_except: Some(PROXY_UID),
        ..Setup::of(upstream)
    };
    setup.start(Files::new(&upstream.ca.pem)).await
}

#[test]
fn i08_a_redirected_connection_reaches_its_destination() {
    for vip in VIPS {
        inside(PROXY_UID, async move || {
            let mut upstream = upstream_at(vip).await;
            let proxy = proxy_for(&upstream).await;
            let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
            let tls = connect(vip.parse().unwrap(), trust, "kubernetes").await.unwrap();
            let mut client = Client::over(tls, Http::Two, 1 << 16).await;
            let pending = client.send(request(Method::GET, "/api/v1/configmaps"));
            let call = upstream.call().await;
            assert_eq!(call.query("labelSelector").as_deref(), Some("shard=blue"));
            call.json(200, "{}");
            assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
        });
    }
}

/// The result of a connection to the API server's address that asks for this name.
async fn dialled(proxy: &Proxy, name: &str) -> io::Result<()> {
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    connect(VIPS[0].parse().unwrap(), trust, name).await.map(drop)
}

/// Waits until the upstream has finished handshakes for these names: the proxy finishes earlier.
async fn until_asked_for(upstream: &Upstream, names: &[Option<&str>]) {
    let names: Vec<_> = names.iter().map(|name| name.map(str::to_owned)).collect();
    until("names", async || upstream.server_names(), |asked| *asked == names).await;
}

#[test]
fn t65_a_redirected_connection_is_verified_by_the_name_that_was_asked_for_or_the_address() {
    inside(PROXY_UID, async || {
        let upstream = upstream_with(VIPS[0], Cert::NamesOnly).await;
        let proxy = proxy_for(&upstream).await;
        for _ in 0..2 {
            dialled(&proxy, "kubernetes.default.svc").await.unwrap();
        }
        until_asked_for(&upstream, &[Some("kubernetes.default.svc"); 2]).await;
    });
    inside(PROXY_UID, async || {
        let upstream = upstream_at(VIPS[0]).await;
        let proxy = proxy_for(&upstream).await;
        dialled(&proxy, "kubernetes.default").await.unwrap();
        dialled(&proxy, "10.96.0.1").await.unwrap();
        until_asked_for(&upstream, &[Some("kubernetes.default"), None]).await;
    });
}

#[test]
fn bad_t65_redirected_to_a_certificate_of_neither_the_name_nor_the_address() {
    for (cert, name) in [
        // Another name of the API server, or no name at all.
        (Cert::NamesOnly, "kubernetes.default"),
        (Cert::NamesOnly, "10.96.0.1"),
        // A name that a machine gives itself is not one of the API server's.
        (Cert::Localhost, "localhost"),
        (Cert::OtherCa, "kubernetes.default.svc"),
        (Cert::Expired, "kubernetes.default.svc"),
    ] {
        inside(PROXY_UID, async move || {
            let upstream = upstream_with(VIPS[0], cert).await;
            let proxy = proxy_for(&upstream).await;
            dialled(&proxy, name).await.unwrap_err();
            proxy.until_closed("upstream_untrusted").await;
            assert_eq!(upstream.handshakes(), 0, "{cert:?} {name}");
        });
    }
}

#[test]
fn bad_i21_direct_hit() {
    inside(PROXY_UID, async || {
        let upstream = upstream_at(VIPS[0]).await;
        let proxy = proxy_for(&upstream).await;
        for (hit, addr) in [(1.0, "127.0.0.1:5443"), (2.0, "[::1]:5443")] {
            let addr: SocketAddr = addr.parse().unwrap();
            let mut tcp = TcpStream::connect(addr).await.unwrap();
            let mut buffer = [0; 16];
            let end = soon("the close", tcp.read(&mut buffer)).await;
            assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
            let labels = [("reason", "direct_hit")];
            proxy.until_metric("ctrlmesh_closed_connections_total", &labels, hit).await;
        }
        assert_eq!(upstream.accepted(), 0);
    });
}

#[test]
fn bad_i21_rules_that_do_not_exclude_the_proxy() {
    // The rules exclude another user: what the proxy dials comes back to it.
    inside(PROXY_UID + 1, async || {
        let upstream = upstream_at(VIPS[0]).await;
        let proxy = proxy_for(&upstream).await;
        let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
        connect(VIPS[0].parse().unwrap(), trust, "kubernetes").await.unwrap_err();
        proxy.until_closed("loop").await;
        proxy.until_closed("upstream_unreachable").await;
        proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
        assert_eq!(upstream.accepted(), 0);
    });
}

#[test]
fn bad_i21_a_connection_that_the_kernel_does_not_track() {
    // Without rules, nothing makes the kernel track connections.
    in_own_network(async || {
        let upstream = upstream_at(VIPS[0]).await;
        let proxy = proxy_for(&upstream).await;
        let mut tcp = TcpStream::connect(proxy.addr).await.unwrap();
        let end = soon("the close", tcp.read(&mut [0; 16])).await;
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
        proxy.until_closed("no_original_destination").await;
        assert_eq!(upstream.accepted(), 0);
    });
}

#[test]
fn bad_i08_ipv6_disabled_in_the_pod() {
    in_own_network(async || {
        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        let v6 = TcpListener::bind("[::1]:0").await;
        assert_eq!(v6.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable, "so the test shows it");
        let mut upstream = upstream_at(VIPS[0]).await;
        upstream.serve(|call| call.json(200, "{}"));
        let setup = Setup { listen: "127.0.0.1:5443".parse().unwrap(), ..Setup::of(&upstream) };
        let proxy = setup.start(Files::new(&upstream.ca.pem)).await;
        let mut client = Client::new(&proxy, Http::Two).await;
        assert_eq!(client.get("/version").await.status(), 200);
    });
}
