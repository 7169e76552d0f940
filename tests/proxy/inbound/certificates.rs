//! The operator's certificate, and the listener, which exists while the operator does.

use std::{fs, os::unix::fs::PermissionsExt};

use tokio::net::TcpStream;

use super::mesh::{Mesh, Setup, call, review};
use crate::support::{
    client::{self, Http, text},
    pki::{Ca, Cert},
    process::{Process, flags},
    proxy::Files,
    scrape, soon, until,
    upstream::{Behaviour, Upstream},
};

async fn one(setup: Setup) -> Mesh {
    Mesh::begin(Setup { shards: vec!["blue"], ..setup }).await
}

#[tokio::test]
async fn i13_there_is_no_listener_while_the_operator_does_not_listen() {
    let mut mesh = one(Setup::default()).await;
    mesh.shards[0].until_open().await;
    TcpStream::connect(mesh.shards[0].addr).await.unwrap();
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("blue")));
    mesh.shard("blue").operator.call().await.json(200, "{}");
    assert_eq!(text(pending.await.unwrap()).await.0, 200);

    let place = mesh.end_operator("blue").await;
    let blue = &mesh.shards[0];
    let says = || async { blue.ready().await };
    let (code, _) =
        until("the end", says, |(_, text)| text.contains("the controller does not listen")).await;
    assert_eq!(code, 200, "its own probes say what it lacks");
    // As the operator would have ended it.
    let _ = client.ended().await;
    let refused = TcpStream::connect(blue.addr).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    let _again = place.listen();
    blue.until_open().await;
    TcpStream::connect(blue.addr).await.unwrap();
}

#[tokio::test]
async fn a12_2_a_proxy_with_a_webhook_starts_and_tells_whether_it_is_ready() {
    let mut mesh = one(Setup::default()).await;
    let blue = mesh.shard("blue");
    let (_, text) = blue.ready().await;
    assert!(text.contains("webhook"), "the check is there from the start: {text}");
    blue.until_open().await;
    assert_eq!(blue.ready().await.0, 200);
    assert_eq!(blue.metric("ctrlmesh_panics_total", &[]).await.to_string(), "0");
}

#[tokio::test]
async fn bad_certificate_that_is_not_there_yet() {
    let mesh = one(Setup { has_certificates: false, ..Setup::default() }).await;
    let blue = &mesh.shards[0];
    let says = || async { blue.ready().await };
    let (code, text) = until("readyz", says, |(_, text)| text.contains("[-]webhook")).await;
    assert_eq!(code, 503, "{text}");
    assert!(text.contains("tls.crt"), "it names a file: {text}");
    TcpStream::connect(blue.addr).await.expect_err("no one answers for the operator");
    // The controller, which may write the certificate itself, starts behind this page.
    let (code, text) = scrape::page(blue.process.admin, "/startupz").await;
    assert_eq!((code, text.contains("webhook")), (200, false), "{text}");

    blue.files.put_pair(&mesh.ca.signed(Cert::Good));
    blue.until_open().await;
    let (code, _) = blue.ready().await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn bad_certificate_that_is_torn_keeps_the_last_good_one() {
    let mesh = one(Setup::default()).await;
    let blue = &mesh.shards[0];
    blue.until_open().await;
    let (other, _) = mesh.ca.signed(Cert::Good).pem();
    fs::write(blue.files.certs().join("tls.crt"), other).unwrap();
    let says = || async { blue.ready().await };
    let (code, text) =
        until("the problem", says, |(_, text)| text.contains("the last good certificate")).await;
    assert_eq!(code, 200, "{text}");
    assert!(text.contains("tls.crt") && !text.contains("PRIVATE"), "{text}");
    mesh.client(blue, Http::One).await;
}

#[tokio::test]
async fn bad_certificate_that_may_not_be_read_says_mode_and_uid() {
    let mesh = one(Setup::default()).await;
    let blue = &mesh.shards[0];
    blue.until_open().await;
    let key = blue.files.certs().join("tls.key");
    fs::remove_file(&key).unwrap();
    fs::create_dir(&key).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
    let says = || async { blue.ready().await.1 };
    until("the problem", says, |text| text.contains("tls.key")).await;
}

#[tokio::test]
async fn i13_a_new_certificate_is_shown_to_new_connections() {
    let mut mesh = one(Setup::default()).await;
    mesh.shards[0].until_open().await;
    let other = Ca::new("another CA of the operator's");
    let signed = other.signed(Cert::Good);
    let blue = mesh.shard("blue");
    blue.files.put_pair(&signed);
    let config = || client::config(other.pem.as_bytes(), &[Http::One.alpn()]);
    let shows = || async { client::connect(blue.addr, config(), "localhost").await.is_ok() };
    until("the new certificate", shows, |shown| *shown).await;

    // The operator shows the former one still, which certDir held.
    let tls = client::connect(blue.addr, config(), "localhost").await.unwrap();
    let mut client = client::Client::over(tls, Http::One, 1 << 16).await;
    let pending = client.send(call(review("blue")));
    blue.operator.call().await.json(200, "{}");
    assert_eq!(text(pending.await.unwrap()).await.0, 200);
}

#[tokio::test]
async fn i13_an_operator_that_never_read_its_new_certificate_is_known_after_a_restart() {
    let mut mesh = one(Setup::default()).await;
    mesh.shards[0].until_open().await;
    let other = Ca::new("another CA of the operator's");
    let blue = mesh.shard("blue");
    blue.files.put_pair(&other.signed(Cert::Good));
    let config = || client::config(other.pem.as_bytes(), &[Http::One.alpn()]);
    let shows = || async { client::connect(blue.addr, config(), "localhost").await.is_ok() };
    until("the new certificate", shows, |shown| *shown).await;
    blue.restart().await;
    blue.until_open().await;
    let tls = client::connect(blue.addr, config(), "localhost").await.unwrap();
    let mut client = client::Client::over(tls, Http::One, 1 << 16).await;
    let pending = client.send(call(review("blue")));
    blue.operator.call().await.json(200, "{}");
    assert_eq!(text(pending.await.unwrap()).await.0, 200);

    // Who comes in its place with another is a stranger.
    let spare = Upstream::start().await;
    let (place, _) = std::mem::replace(&mut blue.operator, spare).down().await;
    blue.operator = Upstream::on(place.listen(), Ca::new("a stranger"), Behaviour::default());
    blue.restart().await;
    blue.until_open().await;
    let tls = client::connect(blue.addr, config(), "localhost").await.unwrap();
    let mut client = client::Client::over(tls, Http::One, 1 << 16).await;
    let (code, body) = text(client.send(call(review("blue"))).await.unwrap()).await;
    assert_eq!(code, 503);
    assert!(body.contains("a certificate that certDir does not hold"), "{body}");
    assert_eq!(blue.operator.handshakes(), 0, "nothing was sent to it");
}

#[tokio::test]
async fn bad_operator_that_shows_a_stranger() {
    let mut mesh = one(Setup::default()).await;
    mesh.shards[0].until_open().await;
    mesh.put_stranger("blue").await;
    let blue = &mesh.shards[0];
    blue.until_open().await;
    let mut client = mesh.client(blue, Http::One).await;
    let (code, body) = text(client.send(call(review("blue"))).await.unwrap()).await;
    assert_eq!(code, 503);
    assert!(body.contains("a certificate that certDir does not hold"), "{body}");
    let (_, text) = blue.ready().await;
    assert!(text.contains("a certificate that certDir does not hold"), "{text}");
    assert_eq!(blue.operator.handshakes(), 0, "nothing was sent to it");
    assert_eq!(blue.refused("webhook_down").await.to_string(), "1");
}

#[tokio::test]
async fn i13_another_pod_of_the_shard_answers_if_the_own_operator_does_not() {
    let mut mesh = Mesh::with(Setup { shards: vec!["blue", "blue-1"], ..Setup::default() }).await;
    mesh.put_stranger("blue").await;
    mesh.shards[0].until_open().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("blue")));
    let mut arrived = mesh.shard("blue-1").operator.call().await;
    assert_eq!(arrived.body().await.unwrap(), review("blue").as_bytes());
    arrived.json(200, "{}");
    assert_eq!(text(pending.await.unwrap()).await.0, 200);
    assert_eq!(mesh.shards[0].reviews("forwarded").await.to_string(), "1");

    // One that may have been taken is not sent again.
    let pending = client.send(call(review("blue")));
    mesh.shard("blue-1").operator.call().await.reset();
    let (code, body) = text(pending.await.unwrap()).await;
    assert_eq!(code, 503);
    assert!(body.contains("a pod of shard blue did not finish its answer"), "{body}");
}

#[tokio::test]
async fn bad_operator_that_asks_for_a_client_certificate() {
    let mut mesh = one(Setup { has_certificates: false, ..Setup::default() }).await;
    let signed = mesh.ca.signed(Cert::Good);
    let listener = mesh.end_operator("blue").await.listen();
    let tls = signed.server_for_clients_of(&mesh.ca, &[Http::One.alpn()]);
    mesh.shard("blue").operator =
        Upstream::showing(listener, Ca::new("unused"), Behaviour::default(), tls);
    let blue = &mesh.shards[0];
    blue.files.put_pair(&signed);
    blue.until_open().await;
    let mut client = mesh.client(blue, Http::One).await;
    let (code, body) = text(client.send(call(review("blue"))).await.unwrap()).await;
    assert_eq!(code, 503);
    assert!(body.contains("leave spec.webhook out"), "{body}");
}

#[tokio::test]
async fn i13_readyz_says_that_reviews_do_not_pass_the_proxy() {
    let api = Upstream::start().await;
    let files = Files::new(&api.ca.pem);
    files.put_policy(
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
         metadata: {name: blue}\n\
         spec: {selector: {matchLabels: {a: b}}, webhook: {certDir: /certs, port: 9443}}\n",
    );
    for (mode, wanted) in [
        ("direct", "nothing is redirected in env mode"),
        ("iptables", "before its config had spec.webhook: create the pod again"),
    ] {
        let mut args = flags(&files, &api.addr.to_string());
        args.retain(|arg| {
            !arg.starts_with("--mode=") && (mode == "direct" || !arg.starts_with("--upstream="))
        });
        args.push(format!("--mode={mode}"));
        let process = Process::start(&args).await;
        let (code, text) = scrape::page(process.admin, "/readyz").await;
        assert_eq!(code, 200, "its own probes say what it lacks: {text}");
        let line = text.lines().find(|line| line.contains("webhook ok: ")).unwrap();
        let begin = "[+]webhook ok: reviews at port 9443 do not pass the proxy: ";
        assert!(line.starts_with(begin) && line.contains(wanted), "{mode}: {line}");
    }
}

#[tokio::test]
async fn i13_a_probe_that_only_connects_is_no_error() {
    let mesh = one(Setup::default()).await;
    let blue = &mesh.shards[0];
    blue.until_open().await;
    for _ in 0..3 {
        drop(TcpStream::connect(blue.addr).await.unwrap());
    }
    let mut client = mesh.client(blue, Http::One).await;
    drop(soon("any answer", client.ready()).await);
    let closed = blue.metric("ctrlmesh_closed_connections_total", &[("reason", "client_gone")]);
    assert_eq!(closed.await.to_string(), "0");
}
