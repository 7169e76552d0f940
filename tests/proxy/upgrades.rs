//! exec, attach, port-forward.

use ctrlmesh::net::tls::{H2, HTTP_11};
use http::{Method, Request, header};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};

use crate::support::{
    client::{self, AnyBody, Client, Http, request},
    proxy::Proxy,
    scene, soon,
    upstream::{Upstream, echo},
};

const EXEC: &str = "/api/v1/namespaces/ns/pods/p/exec?command=sh&stdin=true";

fn upgrade(target: &str, protocol: &str) -> Request<AnyBody> {
    let mut sent = request(Method::POST, target);
    sent.headers_mut().insert(header::CONNECTION, "Upgrade".parse().unwrap());
    sent.headers_mut().insert(header::UPGRADE, protocol.parse().unwrap());
    sent
}

#[tokio::test]
async fn i17_t61_a_101_is_spliced_both_ways() {
    for protocol in ["SPDY/3.1", "websocket"] {
        let (mut upstream, proxy, mut client) = scene(Http::One).await;
        let pending = client.send(upgrade(EXEC, protocol));
        let call = upstream.call().await;
        assert_eq!(call.target(), EXEC);
        assert_eq!(call.header("upgrade").as_deref(), Some(protocol));
        assert_eq!(call.header("connection").as_deref(), Some("Upgrade"));
        let mut tasks = JoinSet::new();
        let mut server = call.switch(protocol).await;
        tasks.spawn(async move { echo(&mut server).await });
        let response = pending.await.unwrap();
        assert_eq!(response.status(), 101);
        assert_eq!(response.headers()[header::UPGRADE], protocol);
        proxy.until_metric("ctrlmesh_streams", &[("kind", "upgrade")], 1.0).await;

        let mut io = TokioIo::new(soon("the upgrade", hyper::upgrade::on(response)).await.unwrap());
        let mut buffer = [0; 5];
        for word in [b"hello", b"again"] {
            io.write_all(word).await.unwrap();
            soon("the echo", io.read_exact(&mut buffer)).await.unwrap();
            assert_eq!(&buffer, word);
        }
        // A half-close goes through: the other direction still carries the rest.
        io.write_all(b"final").await.unwrap();
        io.shutdown().await.unwrap();
        let mut rest = Vec::new();
        soon("the rest", io.read_to_end(&mut rest)).await.unwrap();
        assert_eq!(rest, b"final");
        tasks.join_next().await.unwrap().unwrap();
        proxy.until_metric("ctrlmesh_streams", &[], 0.0).await;
        proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
        upstream.open_connections(0).await;
    }
}

#[tokio::test]
async fn i17_what_is_not_switched_is_not_spliced() {
    for code in [403, 500, 200] {
        let (mut upstream, proxy, mut client) = scene(Http::One).await;
        let pending = client.send(upgrade(EXEC, "SPDY/3.1"));
        upstream.call().await.json(code, "{\"no\":1}");
        let response = pending.await.unwrap();
        assert_eq!(client::text(response).await, (code, "{\"no\":1}".into()));
        assert!(proxy.metric("ctrlmesh_streams", &[]).await < 0.5);
        // The connection still carries HTTP on both sides, if it is open at all.
        if client.ready().await.is_ok() {
            let pending = client.send(request(Method::GET, "/version"));
            let call = upstream.call().await;
            assert_eq!((call.target(), call.connection), ("/version", 0));
            call.json(200, "{}");
            assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
        }
    }
}

#[tokio::test]
async fn i17_upgrades_end_when_either_side_does() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    for client_ends in [true, false] {
        let mut client = Client::new(&proxy, Http::One).await;
        let pending = client.send(upgrade(EXEC, "SPDY/3.1"));
        let mut server = upstream.call().await.switch("SPDY/3.1").await;
        let upgraded = hyper::upgrade::on(pending.await.unwrap());
        let mut io = TokioIo::new(soon("the upgrade", upgraded).await.unwrap());
        let mut buffer = [0; 8];
        if client_ends {
            drop((io, client));
            let end = soon("the end", server.read(&mut buffer)).await;
            assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
            drop(server);
        } else {
            drop(server);
            let end = soon("the end", io.read(&mut buffer)).await;
            assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
            drop((io, client));
        }
        proxy.until_metric("ctrlmesh_streams", &[], 0.0).await;
        proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
    }
}

#[tokio::test]
async fn bad_an_upgrade_of_a_watch_is_answered_over_http() {
    const WATCH: &str = "/api/v1/namespaces/ns/configmaps?watch=1";
    let (mut upstream, _proxy, mut client) = scene(Http::One).await;
    for method in [Method::HEAD, Method::GET] {
        for protocol in ["h2c", "TLS/1.3", "SPDY/3.1"] {
            let mut sent = upgrade(WATCH, protocol);
            *sent.method_mut() = method.clone();
            let pending = client.send(sent);
            let call = upstream.call().await;
            assert_eq!((call.header("upgrade"), call.header("connection")), (None, None));
            call.json(200, "");
            let (code, _) = client::text(pending.await.unwrap()).await;
            assert_eq!(code, 200, "{method} {protocol}");
        }
    }
}

#[tokio::test]
async fn i17_a_client_that_offers_both_can_upgrade_on_http1() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let trust = client::config(&proxy.files.mesh_ca_pem(), &[HTTP_11, H2]);
    let tls = client::connect(proxy.addr, trust, "kubernetes").await.unwrap();
    // The API server prefers HTTP/2, and so the client gets it.
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(H2));
    assert!(upstream.is_quiet());
}
