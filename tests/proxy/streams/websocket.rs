//! Watches over WebSocket: on the client's leg frames, upstream plain HTTP.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ctrlmesh::wire::media::Encoding;
use http::{HeaderValue, Method, Request, Response, header};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::shared::{ALL, event, is_compacted, object, page, scene_of};
use crate::support::{
    CONFIGMAPS,
    client::{AnyBody, Client, Http, request, text},
    events::{added, expired, too_old},
    policies::{configmaps_policy, moved_policy},
    scene, soon, until,
    upstream::{Stream, Upstream},
};

const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PONG: u8 = 0x8A;
/// The payload of a close.
const NORMAL: [u8; 2] = 1000_u16.to_be_bytes();
const PROTOCOL: [u8; 2] = 1002_u16.to_be_bytes();

fn handshake(query: &str, others: &[(&'static str, &str)]) -> Request<AnyBody> {
    let mut sent = request(Method::GET, &format!("{CONFIGMAPS}?watch=1{query}"));
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
        ("origin", "https://kubernetes"),
    ]
    .iter()
    .chain(others)
    {
        match *value {
            "" => drop(sent.headers_mut().remove(*name)),
            value => drop(sent.headers_mut().insert(*name, value.parse().unwrap())),
        }
    }
    sent
}

/// The client's end of a watch over WebSocket.
struct Socket(TokioIo<Upgraded>);

impl Socket {
    async fn on(reply: Response<Incoming>) -> Self {
        assert_eq!(reply.status(), 101);
        assert_eq!(reply.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(reply.headers()[header::UPGRADE], "websocket");
        assert!(!reply.headers().contains_key(header::CONTENT_TYPE));
        Self(TokioIo::new(soon("the upgrade", hyper::upgrade::on(reply)).await.unwrap()))
    }

    /// Sends a frame with a mask that changes nothing.
    async fn send(&mut self, first: u8, payload: &[u8]) {
        let length = 0x80 | u8::try_from(payload.len()).unwrap();
        self.0.write_all(&[&[first, length, 0, 0, 0, 0][..], payload].concat()).await.unwrap();
        self.0.flush().await.unwrap();
    }

    async fn frame(&mut self) -> (u8, Vec<u8>) {
        soon("a frame", async {
            let (first, length) =
                (self.0.read_u8().await.unwrap(), self.0.read_u8().await.unwrap());
            let length = match length {
                127 => self.0.read_u64().await.unwrap(),
                126 => self.0.read_u16().await.unwrap().into(),
                length => length.into(),
            };
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.0.read_exact(&mut payload).await.unwrap();
            (first, payload)
        })
        .await
    }

    /// Nothing comes after the close.
    async fn ends(&mut self, payload: [u8; 2]) {
        assert_eq!(self.frame().await, (CLOSE, payload.to_vec()));
        let mut rest = Vec::new();
        soon("the end", self.0.read_to_end(&mut rest)).await.unwrap();
        assert_eq!(rest, b"");
    }
}

/// Opens a watch over WebSocket that the API server answers in this encoding.
async fn opened(
    client: &mut Client,
    upstream: &mut Upstream,
    sent: Request<AnyBody>,
    encoding: Encoding,
) -> (Stream, Socket) {
    let pending = client.send(sent);
    let call = upstream.call().await;
    for gone in ["connection", "upgrade", "sec-websocket-key", "sec-websocket-version", "origin"] {
        assert_eq!(call.header(gone), None, "{gone}");
    }
    let events = call.stream(200, &[("content-type", encoding.stream_content_type())]);
    (events, Socket::on(pending.await.unwrap()).await)
}

#[tokio::test]
async fn a_watch_over_websocket_has_an_event_in_each_frame() {
    for (encoding, kind, prefix) in [(Encoding::Json, TEXT, 0), (Encoding::Protobuf, BINARY, 4)] {
        let (mut upstream, proxy, mut client) = scene(Http::One).await;
        let mut sent = handshake("", &[]);
        let accept = HeaderValue::from_static(encoding.stream_content_type());
        sent.headers_mut().insert(header::ACCEPT, accept);
        let (events, mut socket) = opened(&mut client, &mut upstream, sent, encoding).await;
        proxy.until_metric("ctrlmesh_streams", &[("kind", "watch")], 1.0).await;
        let (one, two) = (added(encoding, 7), added(encoding, 8));
        let (begin, end) = two.split_at(two.len() / 2);
        events.send([&one[..], begin].concat()).await;
        assert_eq!(socket.frame().await, (kind, one[prefix..].to_vec()));
        events.send(end.to_vec()).await;
        assert_eq!(socket.frame().await, (kind, two[prefix..].to_vec()));
        events.end();
        socket.ends(NORMAL).await;
        proxy.until_metric("ctrlmesh_streams", &[], 0.0).await;
        proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
        let labels = [("verb", "watch"), ("code_class", "1xx"), ("decision", "scoped")];
        proxy.until_metric("ctrlmesh_requests_total", &labels, 1.0).await;
    }
}

#[tokio::test]
async fn a_watch_over_websocket_shows_the_shards_objects_alone() {
    let policy = configmaps_policy("namespaces: {names: [ours]}, clusterScoped: Exclude");
    let (mut upstream, _proxy, mut client) = scene_of(&policy, Http::One).await;
    let mut sent = handshake("", &[]);
    *sent.uri_mut() = format!("{ALL}?watch=1").parse().unwrap();
    let (events, mut socket) = opened(&mut client, &mut upstream, sent, Encoding::Json).await;
    events.send(event("ADDED", "other", 5)).await;
    events.send(event("ADDED", "ours", 6)).await;
    assert_eq!(socket.frame().await, (TEXT, event("ADDED", "ours", 6).into_bytes()));
}

#[tokio::test]
async fn a_boundary_that_moves_expires_a_watch_over_websocket() {
    let (mut upstream, proxy, mut client) = scene(Http::One).await;
    let sent = handshake("", &[]);
    let (events, mut socket) = opened(&mut client, &mut upstream, sent, Encoding::Json).await;
    events.send(added(Encoding::Json, 100)).await;
    socket.frame().await;
    proxy.change_policy(&moved_policy("green")).await;
    assert_eq!(socket.frame().await, (TEXT, expired(Encoding::Json)));
    socket.ends(NORMAL).await;
    events.given_up().await;

    // As from the API server: a position that is too old is an event, not an answer in HTTP.
    let mut client = Client::new(&proxy, Http::One).await;
    let pending = client.send(handshake("&resourceVersion=50", &[]));
    is_compacted(upstream.call().await, 50);
    let mut socket = Socket::on(pending.await.unwrap()).await;
    assert_eq!(socket.frame().await, (TEXT, too_old(Encoding::Json)));
    socket.ends(NORMAL).await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_boundary_that_moves_is_told_over_websocket_by_difference() {
    let (mut upstream, proxy, mut client) = scene(Http::One).await;
    let sent = handshake("&resourceVersion=100&allowWatchBookmarks=true", &[]);
    let pending = client.send(sent);
    let events = upstream.call().await.watch();
    let reply = pending.await.unwrap();
    let mut socket = Socket::on(reply).await;
    proxy.change_policy(&moved_policy("green")).await;
    events.given_up().await;
    for item in [object("ns", "one", 7), object("ns", "two", 8)] {
        upstream.call().await.json(200, &page(100, "", &[item]));
    }
    let events = upstream.call().await.watch();
    for (kind, name) in [("DELETED", Some("one")), ("ADDED", Some("two")), ("BOOKMARK", None)] {
        let told: Value = serde_json::from_slice(&socket.frame().await.1).unwrap();
        assert_eq!(
            (told["type"].as_str(), told["object"]["metadata"]["name"].as_str()),
            (Some(kind), name)
        );
    }
    events.send(event("MODIFIED", "ns", 106)).await;
    assert_eq!(socket.frame().await, (TEXT, event("MODIFIED", "ns", 106).into_bytes()));
    upstream.open_connections(1).await;
    socket.send(0x88, &[]).await;
    socket.ends(NORMAL).await;
    upstream.open_connections(0).await;
    proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
}

#[tokio::test]
async fn bad_websocket_handshakes() {
    let (mut upstream, proxy, _client) = scene(Http::One).await;
    let bearer = format!("base64url.bearer.authorization.k8s.io.{}", encoded("secret"));
    for (others, code, reason) in [
        (&[("sec-websocket-key", "")][..], 400, "websocket_handshake"),
        (&[("sec-websocket-version", "8")], 400, "websocket_handshake"),
        (&[("sec-websocket-protocol", "a,b")], 400, "websocket_handshake"),
        (&[("origin", "")], 403, "websocket_origin"),
        (&[("authorization", ""), ("sec-websocket-protocol", &bearer)], 401, "websocket_token"),
    ] {
        let mut client = Client::new(&proxy, Http::One).await;
        let reply = client.send(handshake("", others)).await.unwrap();
        if reason == "websocket_handshake" {
            assert_eq!(reply.headers()["sec-websocket-version"], "13");
        }
        let (status, body) = text(reply).await;
        assert_eq!(status, code, "{body}");
        assert!(body.contains("ctrlmesh: the WebSocket handshake"), "{body}");
        assert!(!body.contains(&encoded("secret")), "{body}");
        assert!(proxy.metric("ctrlmesh_refusals_total", &[("reason", reason)]).await > 0.5);
    }
    assert!(upstream.is_quiet());
    proxy.until_metric("ctrlmesh_refusals_total", &[("reason", "websocket_handshake")], 3.0).await;
}

fn encoded(token: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(token)
}

#[tokio::test]
async fn a_token_subprotocol_is_the_clients_identity_upstream() {
    let (mut upstream, _proxy, mut client) = scene(Http::One).await;
    let bearer = format!("base64url.bearer.authorization.k8s.io.{}, other", encoded("secret"));
    let others = [("authorization", ""), ("sec-websocket-protocol", &*bearer)];
    let pending = client.send(handshake("", &others));
    let call = upstream.call().await;
    assert_eq!(call.header("authorization").as_deref(), Some("Bearer secret"));
    assert_eq!(call.header("sec-websocket-protocol"), None);
    let _events = call.watch();
    assert_eq!(pending.await.unwrap().headers()["sec-websocket-protocol"], "other");
}

#[tokio::test]
async fn what_the_api_server_refuses_is_an_answer_in_http() {
    let (mut upstream, proxy, mut client) = scene(Http::One).await;
    let pending = client.send(handshake("", &[]));
    upstream.call().await.json(403, "{\"no\":1}");
    let reply = pending.await.unwrap();
    assert_eq!(reply.headers().get("sec-websocket-accept"), None);
    assert_eq!(text(reply).await, (403, "{\"no\":1}".into()));

    let pending = client.send(handshake("", &[("accept", "application/cbor")]));
    let kind = Encoding::Cbor.stream_content_type();
    let events = upstream.call().await.stream(200, &[("content-type", kind)]);
    let reply = pending.await.unwrap();
    assert_eq!(reply.status(), 406, "CBOR");
    assert!(text(reply).await.1.contains("JSON or protobuf"));
    events.given_up().await;
    let refused = [("reason", "unknown_encoding")];
    proxy.until_metric("ctrlmesh_refusals_total", &refused, 1.0).await;
}

#[tokio::test]
async fn a_websocket_client_is_heard() {
    let (mut upstream, proxy, _client) = scene(Http::One).await;
    let open = async |upstream: &mut Upstream| {
        let mut client = Client::new(&proxy, Http::One).await;
        opened(&mut client, upstream, handshake("", &[]), Encoding::Json).await
    };
    let (events, mut socket) = open(&mut upstream).await;
    socket.send(0x81, b"ignored").await;
    socket.send(0x89, b"are you there").await;
    assert_eq!(socket.frame().await, (PONG, b"are you there".to_vec()));
    socket.send(0x88, &4001_u16.to_be_bytes()).await;
    socket.ends(NORMAL).await;
    events.given_up().await;

    let (events, mut socket) = open(&mut upstream).await;
    socket.0.write_all(&[0x81, 0x02, b'h', b'i']).await.unwrap();
    socket.ends(PROTOCOL).await;
    events.given_up().await;

    let (events, mut socket) = open(&mut upstream).await;
    let announced = [&[0x82, 0xFF][..], &100_000_000_u64.to_be_bytes(), &[0; 4]].concat();
    socket.0.write_all(&announced).await.unwrap();
    socket.ends(NORMAL).await;
    events.given_up().await;

    let (events, socket) = open(&mut upstream).await;
    drop(socket);
    events.given_up().await;
    proxy.until_metric("ctrlmesh_streams", &[], 0.0).await;
    proxy.until_metric("ctrlmesh_connections", &[], 1.0).await;
}

#[tokio::test]
async fn bad_a_watch_over_websocket_that_breaks_off_shows_no_part_of_an_event() {
    let (mut upstream, _proxy, mut client) = scene(Http::One).await;
    let sent = handshake("", &[]);
    let (events, mut socket) = opened(&mut client, &mut upstream, sent, Encoding::Json).await;
    let event = added(Encoding::Json, 5);
    events.send([&event[..], &event[..20]].concat()).await;
    assert_eq!(socket.frame().await, (TEXT, event));
    events.tear().await;
    socket.ends(NORMAL).await;
}

#[tokio::test]
async fn bad_websocket_clients_that_do_not_read_share_one_room() {
    const MEMORY: &str = "ctrlmesh_filter_memory_bytes";
    let (mut upstream, proxy, mut client) = scene(Http::One).await;
    let large = |mib: usize| {
        let data = "x".repeat(mib << 20);
        format!("{{\"type\":\"ADDED\",\"object\":{{\"data\":\"{data}\"}}}}\n")
    };
    let sent = handshake("&allowWatchBookmarks=true", &[]);
    let (events, socket) = opened(&mut client, &mut upstream, sent, Encoding::Json).await;
    let event = large(20);
    events.send(event.clone()).await;
    let memory = || async { proxy.metric(MEMORY, &[]).await };
    // The whole of it, while the kernel has no room for more.
    until("the event that waits", memory, |bytes| *bytes > event.len() as f64).await;
    let mut other = Client::new(&proxy, Http::One).await;
    let sent = handshake("&allowWatchBookmarks=true", &[]);
    let (more, mut second) = opened(&mut other, &mut upstream, sent, Encoding::Json).await;
    more.offer(large(16)).await;
    second.ends(NORMAL).await;
    more.given_up().await;
    // One that reads has all, also next to it.
    let mut third = Client::new(&proxy, Http::One).await;
    let sent = handshake("&allowWatchBookmarks=true", &[]);
    let (small, mut third) = opened(&mut third, &mut upstream, sent, Encoding::Json).await;
    let event = large(1);
    small.send(event.clone()).await;
    assert_eq!(third.frame().await, (TEXT, event.into_bytes()));
    drop(socket);
    events.given_up().await;
    proxy.until_metric(MEMORY, &[], 0.0).await;
}

#[tokio::test]
async fn bad_sigterm_during_a_watch_over_websocket() {
    let (mut upstream, mut proxy, mut client) = scene(Http::One).await;
    let sent = handshake("", &[]);
    let (events, mut socket) = opened(&mut client, &mut upstream, sent, Encoding::Json).await;
    events.send(added(Encoding::Json, 5)).await;
    socket.frame().await;
    proxy.drain(Duration::from_secs(10));
    socket.ends(NORMAL).await;
    events.given_up().await;
    proxy.ended().await;
}
