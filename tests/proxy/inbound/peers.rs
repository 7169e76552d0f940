//! Other pods of the namespace, and who takes the place of one.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use ctrlmesh::net::{
    Clock,
    identity::PodIdentity,
    leaf::{Leaf, LeafSource},
    peer::{PEER_NAME, PeerTls, RootsPlace},
    tls::H2,
};
use http::{Response, Version};
use hyper::body::Incoming;
use nix::sys::signal::Signal;
use rustls::ClientConfig;
use tokio::net::{TcpListener, TcpStream};

use super::mesh::{BOTH, Mesh, Setup, address, call, post, review};
use crate::support::{
    client::{self, Http, text},
    pki::Ca,
    scrape, soon, until,
};

/// An address where no pod is.
const NOBODY: Ipv4Addr = Ipv4Addr::new(127, 0, 5, 99);

#[tokio::test]
async fn i13_a_review_goes_to_another_pod_if_the_first_is_not_reached() {
    let mut mesh = Mesh::start().await;
    // The second pod of green does not answer; the first does.
    mesh.show("green-1", NOBODY, true).await;
    mesh.until_known(&mesh.shards[0], 2).await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    for _ in 0..4 {
        let pending = client.send(call(review("green")));
        mesh.shard("green").operator.call().await.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await.0, 200);
    }
    let failed = [("reason", "unreachable")];
    let failures = mesh.shards[0].metric("ctrlmesh_webhook_peer_failures_total", &failed).await;
    assert!(failures >= 1.0, "{failures}");
}

#[tokio::test]
async fn i13_a_review_that_meets_the_end_of_an_operator_goes_to_another_pod() {
    let shards = vec!["blue", "green", "green-1"];
    let mut mesh = Mesh::with(Setup { shards, ..Setup::default() }).await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    // Its proxy sees that within a tenth of a second, or takes the first of these reviews.
    mesh.end_operator("green").await;
    for _ in 0..4 {
        let pending = client.send(call(review("green")));
        mesh.shard("green-1").operator.call().await.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await.0, 200);
    }
}

#[tokio::test]
async fn i13_an_owner_that_was_here_a_moment_ago_is_waited_for() {
    let mut mesh = Mesh::start().await;
    mesh.show("green", address(1), false).await;
    mesh.until_known(&mesh.shards[0], 0).await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("green")));
    // A shard of one pod rolls: its next pod comes within five seconds.
    let page = || async { scrape::page(mesh.shards[0].process.admin, "/metrics").await.1 };
    until("the review waits", page, |text| {
        scrape::sample(text, "ctrlmesh_connections", &[("leg", "inbound")]).to_string() == "1"
    })
    .await;
    mesh.show("green", address(1), true).await;
    mesh.shard("green").operator.call().await.json(200, "{}");
    assert_eq!(text(pending.await.unwrap()).await.0, 200);

    // If it does not, the call fails.
    mesh.show("green", address(1), false).await;
    mesh.until_known(&mesh.shards[0], 0).await;
    let begun = std::time::Instant::now();
    let (code, body) = text(client.send(call(review("green"))).await.unwrap()).await;
    assert_eq!(code, 503);
    assert!(body.contains("no pod of shard green"), "{body}");
    assert!(begun.elapsed().as_secs() >= 4, "{:?}", begun.elapsed());

    // A call that is given less time is notified so within it.
    let begun = std::time::Instant::now();
    let short = post("/validate?timeout=2s", review("green"));
    let (code, body) = text(client.send(short).await.unwrap()).await;
    assert_eq!(code, 503);
    assert!(body.contains("no pod of shard green"), "{body}");
    assert!(begun.elapsed().as_millis() >= 1_500, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn i13_an_owner_that_is_ready_before_it_listens_is_tried_again() {
    let mut mesh = Mesh::start().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let green = mesh.shard("green");
    green.process.signal(Signal::SIGKILL);
    let listens = || async { TcpStream::connect(green.addr).await.is_ok() };
    until("its end", listens, |listens| !listens).await;
    let pending = client.send(call(review("green")));
    let blue = &mesh.shards[0];
    let unreachable = [("reason", "unreachable")];
    let missed = || blue.metric("ctrlmesh_webhook_peer_failures_total", &unreachable);
    until("two attempts", missed, |missed| *missed >= 2.0).await;
    mesh.shard("green").restart().await;
    mesh.shard("green").operator.call().await.json(200, "{}");
    assert_eq!(text(pending.await.unwrap()).await.0, 200);
}

#[tokio::test]
async fn a12_19_pods_of_a_shard_share_its_reviews_and_one_that_is_gone_gets_none() {
    let shards = vec!["blue", "green", "green-1"];
    let mut mesh = Mesh::with(Setup { shards, ..Setup::default() }).await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let mut other = mesh.client(&mesh.shards[0], Http::One).await;
    // Two reviews at once are at two pods.
    let both = [client.send(call(review("green"))), other.send(call(review("green")))];
    let first = mesh.shard("green").operator.call().await;
    let second = mesh.shard("green-1").operator.call().await;
    first.json(200, "{}");
    second.json(200, "{}");
    for pending in both {
        assert_eq!(text(pending.await.unwrap()).await.0, 200);
    }
    // A pod that is not ready is forgotten, and known again when it is.
    mesh.show("green", address(1), false).await;
    mesh.until_known(&mesh.shards[0], 1).await;
    all_at(&mut mesh, &mut client, "green-1").await;
    mesh.show("green", address(1), true).await;
    mesh.until_known(&mesh.shards[0], 2).await;
    // A pod that has gone unnoticed costs no review.
    drop(mesh.shards.remove(2));
    all_at(&mut mesh, &mut client, "green").await;
}

/// Sends reviews of green, which this pod answers, all of them.
async fn all_at(mesh: &mut Mesh, client: &mut client::Client, pod: &str) {
    for _ in 0..4 {
        let pending = client.send(call(review("green")));
        mesh.shard(pod).operator.call().await.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await.0, 200);
    }
}

#[tokio::test]
async fn bad_address_that_another_pod_has_taken_over() {
    let mut mesh =
        Mesh::with(Setup { shards: vec!["blue", "green", "red"], ..Setup::default() }).await;
    // The address of green is now that of red: another pod, which proves to be itself.
    mesh.show("green", address(2), true).await;
    let page = || async { scrape::page(mesh.shards[0].process.admin, "/debug/peers").await.1 };
    let at = format!("\"{}:", address(2));
    until("the new address", page, |text| text.matches(&at).count() == 2).await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let (code, body) = text(client.send(call(review("green"))).await.unwrap()).await;
    assert_eq!(code, 503);
    assert!(body.contains("no pod of shard green"), "{body}");
    assert!(mesh.shard("red").operator.is_quiet() && mesh.shard("green").operator.is_quiet());
}

#[tokio::test]
async fn bad_stranger_is_no_peer() {
    let mut mesh = Mesh::start().await;
    let blue = &mesh.shards[0];
    // A peer without a certificate of the mesh cannot send a request.
    let ca = mesh.mesh_ca_pem();
    let config = client::config(&ca, &[H2]);
    let tls = client::connect(blue.addr, config, "peer.ctrlmesh").await;
    let refused = match tls {
        Err(_) => true,
        Ok(tls) => {
            let mut client = client::Client::over(tls, Http::Two, 1 << 16).await;
            let mut marked = call(review("green"));
            marked.headers_mut().insert("ctrlmesh-hop", "http/1.1".parse().unwrap());
            client.send(marked).await.is_err()
        }
    };
    assert!(refused);
    let closed = mesh.shards[0].process.logged("closed").await;
    let closed = ["leg", "reason"].map(|field| closed[field].as_str());
    assert_eq!(closed, [Some("peer"), Some("client_distrusts")]);
    assert!(mesh.shard("blue").operator.is_quiet());
}

/// A review that green sends on to blue, over a connection of its own.
async fn from_green(
    addr: SocketAddr,
    tls: ClientConfig,
) -> Result<(client::Client, impl Future<Output = Result<Response<Incoming>, hyper::Error>>), String>
{
    let tls = client::connect(addr, tls, PEER_NAME).await.map_err(|error| error.to_string())?;
    let mut client = client::Client::over(tls, Http::Two, 1 << 16).await;
    let mut marked = call(review("blue"));
    marked.headers_mut().insert("ctrlmesh-hop", "http/1.1".parse().unwrap());
    let pending = client.send(marked);
    Ok((client, pending))
}

fn pod(name: &str) -> PodIdentity {
    PodIdentity::new("ns", &format!("{name}-0"), &format!("uid-of-{name}")).unwrap()
}

/// The TLS of a pod of green that is none of the mesh's.
fn green(mesh: &Mesh) -> PeerTls {
    let (dir, identity) = (mesh.mesh_ca(), Some(pod("green")));
    let source = LeafSource::MeshCa { dir: dir.clone(), names: Vec::new(), identity };
    let leaf = Arc::new(Leaf::new(source, &Clock::system()).unwrap());
    PeerTls::new(leaf, "ns", RootsPlace::MeshCa(dir), Clock::system()).unwrap()
}

/// A pod of an earlier version names no protocol.
#[tokio::test]
async fn i13_what_a_peer_sends_on_reaches_the_operator_in_the_protocol_that_it_names() {
    let setup = Setup { shards: vec!["blue"], alpn: BOTH.to_vec(), ..Setup::default() };
    let mut mesh = Mesh::with(setup).await;
    let config = green(&mesh).dialling(pod("blue")).unwrap();
    let tls = client::connect(mesh.shards[0].addr, config, PEER_NAME).await.unwrap();
    let mut client = client::Client::over(tls, Http::Two, 1 << 16).await;
    for (named, version) in
        [("http/1.1", Version::HTTP_11), ("h2", Version::HTTP_2), ("1", Version::HTTP_11)]
    {
        for kind in ["application/json", "text/plain"] {
            let mut marked = call(review("blue"));
            marked.headers_mut().insert("content-type", kind.parse().unwrap());
            marked.headers_mut().insert("ctrlmesh-hop", named.parse().unwrap());
            let pending = client.send(marked);
            let arrived = mesh.shard("blue").operator.call().await;
            assert_eq!(arrived.parts.version, version, "{named}");
            arrived.json(200, "{}");
            assert_eq!(text(pending.await.unwrap()).await, (200, "{}".to_owned()));
        }
    }
}

#[tokio::test]
async fn i13_a_peer_that_names_no_protocol_gets_no_word_in() {
    let mut mesh = Mesh::with(Setup { shards: vec!["blue"], ..Setup::default() }).await;
    let mut config = green(&mesh).dialling(pod("blue")).unwrap();
    config.alpn_protocols.clear();
    let is_parted = match client::connect(mesh.shards[0].addr, config, PEER_NAME).await {
        Err(_) => true,
        Ok(tls) => {
            let mut client = client::Client::over(tls, Http::One, 1 << 16).await;
            soon("the end", client.send(call(review("blue")))).await.is_err()
        }
    };
    assert!(is_parted && mesh.shard("blue").operator.is_quiet());
}

#[tokio::test]
async fn i13_a_peer_for_which_new_roots_do_not_vouch_is_parted_from_in_order() {
    let mut mesh = Mesh::with(Setup { shards: vec!["blue"], ..Setup::default() }).await;
    let (dir, addr) = (mesh.mesh_ca(), mesh.shards[0].addr);
    let tls = green(&mesh);
    let dialling = || tls.dialling(pod("blue")).unwrap();

    let (mut client, under_way) = from_green(addr, dialling()).await.unwrap();
    let arrived = mesh.shard("blue").operator.call().await;
    fs::write(dir.join("ca.crt"), Ca::new("other roots").pem).unwrap();
    let refused = || async {
        match from_green(addr, dialling()).await {
            Ok((_client, pending)) => pending.await.is_err(),
            Err(_) => true,
        }
    };
    // Those that come before the new roots are answered like the first.
    let operator = &mut mesh.shard("blue").operator;
    let others = async {
        loop {
            operator.call().await.json(200, "{}");
        }
    };
    tokio::select! {
        _ = until("the new roots", refused, |refused| *refused) => {}
        () = others => {}
    }
    arrived.json(200, "{}");
    assert_eq!(text(under_way.await.unwrap()).await.0, 200);
    soon("the end of the connection", client.ended()).await.unwrap();
}

#[tokio::test]
async fn bad_peer_that_accepts_and_says_nothing() {
    let mut mesh = Mesh::start().await;
    let silent = TcpListener::bind(SocketAddr::from((NOBODY, mesh.port))).await.unwrap();
    mesh.show("green-1", NOBODY, true).await;
    mesh.until_known(&mesh.shards[0], 2).await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    for _ in 0..2 {
        let pending = client.send(call(review("green")));
        mesh.shard("green").operator.call().await.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await.0, 200);
    }
    drop(silent);
}
