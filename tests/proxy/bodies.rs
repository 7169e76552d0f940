//! Bodies that stop before their end, and connections that do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use ctrlmesh::net::tls::H2;
use http::{Method, Response};
use hyper::body::Incoming;
use tokio::{task::JoinSet, time::timeout};

use crate::support::{
    CONFIGMAPS, PATIENCE,
    client::{self, Client, Http, bytes, chunk, config, connect, request, request_with, upload},
    log,
    proxy::{Files, Proxy, Setup},
    scene, scene_before, scene_speaking, soon, stand_still, until,
    upstream::{Behaviour, Stream, Upstream},
};

const JSON: (&str, &str) = ("content-type", "application/json");
const PART: &str =
    "{\"kind\":\"ConfigMapList\",\"metadata\":{\"resourceVersion\":\"7\"},\"items\":[{}";

#[tokio::test]
async fn bad_request_body_cut_off() {
    for http in Http::BOTH {
        for length in [None, Some("100")] {
            let (mut upstream, _proxy, mut client) = scene_speaking(http).await;
            let (mut sent, body) = upload(Method::POST, "/api/v1/namespaces/ns/pods");
            if let Some(length) = length {
                sent.headers_mut().insert("content-length", length.parse().unwrap());
            }
            let pending = client.send(sent);
            body.send("{\"kind\":").await;
            let mut call = upstream.call().await;
            assert_eq!(call.chunk().await.unwrap().unwrap(), "{\"kind\":");
            body.tear().await;
            call.body().await.expect_err("a part is not taken for the whole");
            drop(call);
            pending.await.unwrap_err();
        }
    }
}

#[tokio::test]
async fn bad_request_body_cut_off_that_may_name_the_lock() {
    for http in Http::BOTH {
        let (mut upstream, proxy, mut client) = scene_speaking(http).await;
        let (sent, body) = upload(Method::POST, CONFIGMAPS);
        let pending = client.send(sent);
        body.send("{\"kind\":").await;
        body.tear().await;
        // Over HTTP/1.1 the connection has ended, over HTTP/2 the stream.
        let _ = pending.await;
        proxy.until_metric("ctrlmesh_refusals_total", &[("reason", "bad_body")], 1.0).await;
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn bad_request_body_that_may_name_the_lock_and_cannot_be_read() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let mut count = 0.0;
    for (kind, body) in [
        ("application/json", &b"{\"metadata\":{\"name\":\"op\""[..]),
        ("application/vnd.kubernetes.protobuf", b"k8s\0\x0a\xff"),
        ("application/cbor", b"\xd9\xd9\xf7\xa1"),
        ("application/yaml", b"{\"metadata\":[]}"),
    ] {
        let mut sent = request_with(Method::POST, CONFIGMAPS, body);
        sent.headers_mut().insert("content-type", kind.parse().unwrap());
        let (code, told) = client::text(client.send(sent).await.unwrap()).await;
        assert!(code == 400 && told.contains("ctrlmesh: "), "{kind}: {code} {told}");
        count += 1.0;
        proxy.until_metric("ctrlmesh_refusals_total", &[("reason", "bad_body")], count).await;
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn bad_yaml_that_may_name_the_lock() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let mut count = 0.0;
    for (method, target, kind) in [
        (Method::POST, CONFIGMAPS.to_owned(), "application/yaml"),
        (Method::PUT, format!("{CONFIGMAPS}/op"), "application/yaml"),
        (Method::PATCH, format!("{CONFIGMAPS}/op?fieldManager=x"), "application/apply-patch+yaml"),
    ] {
        let write = |body: &str| {
            let mut sent = request_with(method.clone(), &target, body.to_owned());
            sent.headers_mut().insert("content-type", kind.parse().unwrap());
            sent
        };
        let (code, told) =
            client::text(client.send(write("metadata: {name: op}\n")).await.unwrap()).await;
        assert!(code == 415 && told.contains("UnsupportedMediaType"), "{kind}: {code} {told}");
        assert!(told.contains("send JSON"), "{told}");
        count += 1.0;
        let reason = [("reason", "unsupported_body")];
        proxy.until_metric("ctrlmesh_refusals_total", &reason, count).await;
        assert!(upstream.is_quiet());
        // JSON in the type of YAML, as kubectl and client-go apply it.
        let pending = client.send(write(r#"{"kind":"ConfigMap","metadata":{"name":"op"}}"#));
        let mut call = upstream.call().await;
        let expected = r#"{"kind":"ConfigMap","metadata":{"name":"op---blue"}}"#;
        assert_eq!(call.body().await.unwrap(), expected, "{kind}");
        call.json(200, "{}");
        pending.await.unwrap();
    }
}

/// The ways in which an upstream can die.
#[derive(Clone, Copy, Debug)]
enum Death {
    Tear,
    Kill,
}

#[tokio::test]
async fn bad_t45_upstream_dies_in_mid_list() {
    for http in Http::BOTH {
        for length in [None, Some("1000000")] {
            for death in [Death::Tear, Death::Kill] {
                for path in [CONFIGMAPS, "/api/v1/pods", "/version"] {
                    let (mut upstream, _proxy, mut client) = scene_speaking(http).await;
                    let pending = client.send(request(Method::GET, path));
                    let call = upstream.call().await;
                    let mut headers = vec![JSON];
                    headers.extend(length.map(|length| ("content-length", length)));
                    let list = call.stream(200, &headers);
                    list.send(PART).await;
                    let mut response = pending.await.unwrap();
                    let got = bytes(&mut response, PART.len()).await;
                    assert_eq!(got, PART.as_bytes());
                    match death {
                        Death::Tear => list.tear().await,
                        Death::Kill => upstream.kill(0).await,
                    }
                    let what = format!("{http:?} {length:?} {death:?} {path}");
                    let end = chunk(&mut response).await.unwrap_or_else(|| panic!("clean: {what}"));
                    assert!(end.is_err(), "{what}: {end:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn bad_t45_a_list_that_ends_clean_in_the_middle_is_broken_off() {
    for http in Http::BOTH {
        let (mut upstream, _proxy, mut client) = scene_speaking(http).await;
        let pending = client.send(request(Method::GET, CONFIGMAPS));
        let list = upstream.call().await.stream(200, &[JSON]);
        list.send(&PART[..40]).await;
        list.end();
        if let Ok(response) = pending.await {
            client::whole(response).await.expect_err("no part is taken for the whole");
        }
    }
}

#[tokio::test]
async fn t62_a_write_is_never_sent_twice() {
    for http in Http::BOTH {
        for death in [Death::Tear, Death::Kill] {
            let (mut upstream, proxy, mut client) = scene_speaking(http).await;
            let sent = request_with(Method::POST, "/api/v1/namespaces/ns/pods", "{}");
            let pending = client.send(sent);
            let mut call = upstream.call().await;
            call.body().await.unwrap();
            match death {
                Death::Tear => call.reset(),
                Death::Kill => upstream.kill(0).await,
            }
            pending.await.expect_err("the answer is lost, and no one knows what was done");
            assert!(upstream.is_quiet(), "{http:?} {death:?}");
            assert_eq!(upstream.accepted(), 1, "{http:?} {death:?}");
            let labels = [("verb", "create"), ("code_class", "none")];
            proxy.until_metric("ctrlmesh_requests_total", &labels, 1.0).await;
        }
    }
}

#[tokio::test]
async fn t69_pings_are_answered_while_the_upstream_stalls() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    let tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    let (sender, mut connection) = h2::client::handshake(tls).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let mut sender = soon("readiness", sender.ready()).await.unwrap();
    let stalled = http::Request::get("https://kubernetes/api/v1/pods").body(()).unwrap();
    let (pending, _) = sender.send_request(stalled, true).unwrap();
    let call = upstream.call().await;
    for _ in 0..3 {
        soon("the pong", pings.ping(h2::Ping::opaque())).await.unwrap();
    }
    call.json(200, "{}");
    assert_eq!(soon("the answer", pending).await.unwrap().status(), 200);
}

/// Sends requests, which the upstream answers, until one is refused; returns its error.
async fn refused_request(client: &mut Client, upstream: &mut Upstream) -> String {
    loop {
        let mut pending = Box::pin(client.send(request(Method::GET, "/version")));
        let answer = tokio::select! {
            answer = &mut pending => answer,
            call = upstream.call() => {
                call.json(200, "{}");
                pending.await
            }
        };
        match answer {
            Ok(response) => drop(client::text(response).await),
            Err(error) => {
                return format!("{error:?}");
            }
        }
    }
}

#[tokio::test]
async fn t69_goaway_lets_streams_finish_and_tells_the_client() {
    let (mut upstream, proxy, mut client) = scene_speaking(Http::Two).await;
    let get = client.send(request(Method::GET, "/api/v1/namespaces/ns/pods/one"));
    let get_call = upstream.call().await;
    let watch = client.send(request(Method::GET, "/api/v1/pods?watch=1"));
    let events = upstream.call().await.watch();
    events.send("{\"type\":\"ADDED\",\"object\":{}}\n").await;
    let mut watch = watch.await.unwrap();
    chunk(&mut watch).await.unwrap().unwrap();

    upstream.go_away(0).await;
    let told = refused_request(&mut client, &mut upstream).await;
    assert!(told.contains("GoAway") || told.contains("REFUSED_STREAM"), "{told}");
    let told = refused_request(&mut client, &mut upstream).await;
    assert!(told.contains("GoAway") || told.contains("Canceled"), "{told}");
    assert!(client.is_closed(), "this client knows that it must dial again");
    get_call.json(200, "{\"x\":1}");
    assert_eq!(client::text(get.await.unwrap()).await, (200, "{\"x\":1}".into()));
    events.send("{\"type\":\"MODIFIED\",\"object\":{}}\n").await;
    assert!(chunk(&mut watch).await.unwrap().unwrap().starts_with(b"{\"type\":\"MOD"));
    events.end();
    assert!(chunk(&mut watch).await.is_none(), "a clean end");
    client.ended().await.unwrap();
    upstream.open_connections(0).await;
    proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
    let lost = [("reason", "upstream_lost")];
    assert_eq!(proxy.metric("ctrlmesh_closed_connections_total", &lost).await.to_string(), "0");
}

#[tokio::test]
async fn t69_an_upstream_that_closes_http1_ends_the_clients_connection_after_the_answer() {
    let (mut upstream, proxy, mut client) = scene_speaking(Http::One).await;
    let get = client.send(request(Method::GET, "/api/v1/namespaces/ns/pods/one"));
    let call = upstream.call().await;
    upstream.go_away(0).await;
    call.json(200, "{\"x\":1}");
    assert_eq!(client::text(get.await.unwrap()).await, (200, "{\"x\":1}".into()));
    let _ = client.ended().await;
    upstream.open_connections(0).await;
    proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
}

#[tokio::test]
async fn t73_a_client_that_leaves_cancels_upstream_within_a_second() {
    for http in Http::BOTH {
        let mut upstream = Upstream::speaking(http).await;
        let proxy = Proxy::start(&upstream).await;
        // The client leaves before the response.
        let mut client = Client::new(&proxy, http).await;
        let pending = client.send(request(Method::GET, "/api/v1/pods"));
        let mut call = upstream.call().await;
        let left = Instant::now();
        drop((client, pending));
        call.given_up().await;
        assert!(left.elapsed() < Duration::from_secs(1), "{http:?}: {:?}", left.elapsed());
        // The client leaves in the middle of the response.
        let mut client = Client::new(&proxy, http).await;
        let pending = client.send(request(Method::GET, &format!("{CONFIGMAPS}?watch=1")));
        let events = upstream.call().await.watch();
        let response = pending.await.unwrap();
        let left = Instant::now();
        drop((client, response));
        events.given_up().await;
        assert!(left.elapsed() < Duration::from_secs(1), "{http:?}: {:?}", left.elapsed());
        upstream.open_connections(0).await;
        proxy.until_metric("ctrlmesh_streams", &[], 0.0).await;
        proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
    }
}

#[tokio::test]
async fn t73_a_cancelled_stream_cancels_its_own_upstream_stream_alone() {
    let (mut upstream, proxy, mut client) = scene_speaking(Http::Two).await;
    let first = client.send(request(Method::GET, "/api/v1/pods?watch=1"));
    let first_events = upstream.call().await.watch();
    let second = client.send(request(Method::GET, "/api/v1/nodes?watch=1"));
    let second_events = upstream.call().await.watch();
    let (first, mut second) = (first.await.unwrap(), second.await.unwrap());
    drop(first);
    first_events.given_up().await;
    second_events.send("{\"type\":\"ADDED\",\"object\":{}}\n").await;
    chunk(&mut second).await.unwrap().unwrap();
    proxy.until_metric("ctrlmesh_streams", &[], 1.0).await;
    // A stream without a response yet.
    let mut pending = Box::pin(client.send(request(Method::GET, "/api/v1/pods")));
    let mut call = tokio::select! {
        call = upstream.call() => call,
        answer = &mut pending => panic!("{answer:?}"),
    };
    drop(pending);
    call.given_up().await;
}

#[tokio::test]
async fn t73_a_thousand_connections_leak_nothing() {
    let mut upstream = Upstream::start().await;
    let mut watches = Vec::new();
    upstream.serve(move |call| {
        if call.target().contains("watch") {
            watches.retain(|events: &Stream| !events.is_given_up());
            watches.push(call.watch());
        } else {
            call.json(200, "{}");
        }
    });
    let proxy = Proxy::start(&upstream).await;
    let trust = proxy.files.mesh_ca_pem();
    for n in 0..1000 {
        let http = Http::BOTH[n % 2];
        let mut client = Client::to(proxy.addr, &trust, http).await;
        match n % 5 {
            0 => drop(client.get("/api/v1/pods").await),
            1 => drop(client.get("/api/v1/pods?watch=1").await),
            2 => drop(client.send(request(Method::GET, "/api/v1/pods?watch=1"))),
            3 => drop(client::text(client.get(CONFIGMAPS).await).await),
            _ => {}
        }
    }
    proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
    proxy.until_metric("ctrlmesh_streams", &[], 0.0).await;
    upstream.open_connections(0).await;
    assert_eq!(upstream.accepted(), 1000);
    assert_eq!(proxy.metric("ctrlmesh_panics_total", &[]).await.to_string(), "0");
    assert!(proxy.admin_page("/debug/streams").await.1.contains("\"streams\": []"));
}

#[tokio::test]
async fn t74_unread_watches_block_nobody_and_are_bounded() {
    let mut upstream = Upstream::speaking(Http::Two).await;
    let proxy = Proxy::start(&upstream).await;
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    let tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    let mut client = Client::over(tls, Http::Two, 64 << 10).await;
    let taken = Arc::new(AtomicUsize::new(0));
    let mut floods = JoinSet::new();
    let event =
        format!("{{\"type\":\"ADDED\",\"object\":{{\"x\":\"{}\"}}}}\n", "x".repeat(16 << 10));
    let mut unread = Vec::new();
    for _ in 0..5 {
        let pending = client.send(request(Method::GET, "/api/v1/pods?watch=1"));
        let events = upstream.call().await.watch();
        floods.spawn(events.flood(Bytes::from(event.clone()), Arc::clone(&taken)));
        unread.push(pending.await.unwrap());
    }
    let pending = client.send(request(Method::GET, "/api/v1/nodes?watch=1"));
    let sixth = upstream.call().await.watch();
    let mut read = pending.await.unwrap();
    // Wait until the windows are full.
    stand_still(&taken).await;
    for n in 0..20 {
        let pending = client
            .send(request(Method::GET, "/apis/coordination.k8s.io/v1/namespaces/ns/leases/op"));
        upstream.call().await.json(200, "{}");
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200, "{n}");
        sixth.send("{\"type\":\"ADDED\",\"object\":{}}\n").await;
        chunk(&mut read).await.unwrap().unwrap();
    }
    let held = taken.load(SeqCst);
    assert!(held < 5 << 20, "5 unread watches hold {held} bytes");
    drop(unread);
    while floods.join_next().await.is_some() {}
    proxy.until_metric("ctrlmesh_streams", &[], 1.0).await;
}

/// A pair may have 32 responses that its client leaves unread for longer than 10 s.
#[tokio::test]
async fn t74_of_too_many_unread_responses_the_oldest_are_reset() {
    const TOO_MANY: usize = 2;
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let event =
        format!("{{\"type\":\"ADDED\",\"object\":{{\"x\":\"{}\"}}}}\n", "x".repeat(16 << 10));
    let mut open = Vec::new();
    for _ in 0..32 + TOO_MANY {
        let pending = client.send(request(Method::GET, "/api/v1/namespaces/unread/pods?watch=1"));
        let events = upstream.call().await.watch();
        let response = pending.await.unwrap();
        // The client's window of 64 KiB is full before the next watch begins.
        for _ in 0..6 {
            events.send(event.clone()).await;
        }
        open.push((events, response));
    }
    let later = open.split_off(TOO_MANY);
    let reset = async {
        for (events, _) in &open {
            events.closed().await;
        }
    };
    timeout(3 * PATIENCE, reset).await.expect("they are reset within 15 s");
    proxy.until_metric("ctrlmesh_streams", &[], 32.0).await;
    for (_, mut response) in open {
        while let Some(Ok(_)) = chunk(&mut response).await {}
    }
    for (events, mut response) in later {
        assert!(!events.is_given_up(), "it is one of those that may be unread");
        assert_eq!(bytes(&mut response, 6 * event.len()).await.len(), 6 * event.len());
    }
    assert!(log::contains("reset: the client leaves too much unread"));
    let text = log::text();
    let of_these = text.lines().filter(|line| line.contains(r#"namespace="unread""#));
    let resets = of_these.filter(|line| line.contains(r#"outcome="reset""#)).count();
    assert_eq!(resets, TOO_MANY, "so many access lines say it");
}

/// Both ends of a watch that its client does not read.
type Unread = (Stream, Response<Incoming>);

/// A connection with this many watches, of each of which the client leaves most unread.
async fn unread(proxy: &Proxy, upstream: &mut Upstream, watches: usize) -> (Client, Vec<Unread>) {
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    let tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    let mut client = Client::over(tls, Http::Two, 1 << 10).await;
    let event = format!("{{\"type\":\"ADDED\",\"object\":\"{}\"}}\n", "x".repeat(16 << 10));
    let mut held = Vec::new();
    for _ in 0..watches {
        let pending = client.send(request(Method::GET, "/api/v1/pods?watch=1"));
        let events = upstream.call().await.watch();
        for _ in 0..8 {
            events.send(event.clone()).await;
        }
        held.push((events, pending.await.unwrap()));
    }
    (client, held)
}

#[tokio::test]
async fn t74_unread_watches_of_all_connections_have_one_bound() {
    // No single connection exceeds its own bound.
    let mut upstream = Upstream::speaking(Http::Two).await;
    let proxy = Setup { threads: 2, ..Setup::of(&upstream) };
    let proxy = proxy.start(Files::new(&upstream.ca.pem)).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let pending = client.send(request(Method::GET, "/api/v1/nodes?watch=1"));
    let read = upstream.call().await.watch();
    let mut seen = pending.await.unwrap();
    let _modest = unread(&proxy, &mut upstream, 1).await;
    let mut greedy = Vec::new();
    for _ in 0..6 {
        greedy.push(unread(&proxy, &mut upstream, 30).await);
    }
    let watches = || proxy.metric("ctrlmesh_streams", &[("kind", "watch")]);
    until("unread watches, and one that is read", watches, |count| *count <= 49.0).await;
    assert!(watches().await > 24.0, "no more than the excess is reset");
    assert!(log::contains("reset: the client leaves too much unread"));
    read.send("{\"type\":\"ADDED\",\"object\":{}}\n").await;
    chunk(&mut seen).await.unwrap().unwrap();
}

#[tokio::test]
async fn t74_a_client_that_does_not_read_its_socket_is_bounded() {
    let mut upstream = Upstream::speaking(Http::Two).await;
    let proxy = Proxy::start(&upstream).await;
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    let tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    // Windows that never fill, so that the socket does.
    let (mut sender, mut connection) = h2::client::Builder::new()
        .initial_window_size(1 << 30)
        .initial_connection_window_size(1 << 30)
        .handshake::<_, Bytes>(tls)
        .await
        .unwrap();
    let get = http::Request::get("https://kubernetes/api/v1/pods?watch=1").body(()).unwrap();
    let (pending, _) = sender.send_request(get, true).unwrap();
    let answered = async {
        let events = upstream.call().await.watch();
        (events, pending.await.unwrap())
    };
    let (events, _unread) = tokio::select! {
        ended = &mut connection => panic!("{ended:?}"),
        answered = answered => answered,
    };
    let taken = Arc::new(AtomicUsize::new(0));
    let mut floods = JoinSet::new();
    let event = format!("{{\"type\":\"ADDED\",\"object\":\"{}\"}}\n", "x".repeat(64 << 10));
    floods.spawn(events.flood(Bytes::from(event), Arc::clone(&taken)));
    stand_still(&taken).await;
    // The kernel's buffers of three sockets hold most of it, ours little.
    let held = taken.load(SeqCst);
    assert!(held < 32 << 20, "an unread socket holds {held} bytes");
}

#[tokio::test]
async fn i16_300_watches_of_one_client() {
    let upstream =
        Upstream::with(Behaviour { max_streams: Some(1000), ..Behaviour::default() }).await;
    let (mut upstream, proxy, mut client) = scene_before(upstream, Http::Two).await;
    let mut watches = Vec::new();
    for n in 0..300 {
        let pending = client.send(request(Method::GET, &format!("/api/v1/pods?watch=1&n={n}")));
        let events = upstream.call().await.watch();
        watches.push((events, pending.await.unwrap()));
    }
    proxy.until_metric("ctrlmesh_streams", &[("kind", "watch")], 300.0).await;
    for (n, (events, _)) in watches.iter().enumerate() {
        events.send(format!("{{\"type\":\"ADDED\",\"object\":{{\"n\":{n}}}}}\n")).await;
    }
    for (n, (_, response)) in watches.iter_mut().enumerate() {
        let event = chunk(response).await.unwrap().unwrap();
        assert!(String::from_utf8_lossy(&event).contains(&format!("{{\"n\":{n}}}")));
    }
    assert_eq!(upstream.accepted(), 1);
    let pending = client.send(request(Method::GET, "/version"));
    upstream.call().await.json(200, "{}");
    assert_eq!(pending.await.unwrap().status(), 200);
}

#[tokio::test]
async fn i16_the_upstreams_stream_limit_is_promised_to_the_client() {
    for (limit, promised) in [(Some(100), 100), (Some(7), 7), (None, 250)] {
        let mut upstream =
            Upstream::with(Behaviour { max_streams: limit, ..Behaviour::default() }).await;
        upstream.serve(|call| call.json(200, "{}"));
        let proxy = Proxy::start(&upstream).await;
        let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
        let tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
        let (mut sender, mut connection) = h2::client::handshake(tls).await.unwrap();
        // The response comes after the SETTINGS.
        let (tx, mut answer) = tokio::sync::oneshot::channel();
        let mut tasks = JoinSet::new();
        let get = http::Request::get("https://kubernetes/version").body(()).unwrap();
        let (pending, _) = sender.send_request(get, true).unwrap();
        tasks.spawn(async move {
            let _ = tx.send(pending.await.unwrap().status());
        });
        let seen = soon("the answer", async {
            tokio::select! {
                ended = &mut connection => panic!("{ended:?}"),
                status = &mut answer => assert_eq!(status.unwrap(), 200),
            }
        });
        seen.await;
        assert_eq!(connection.max_concurrent_send_streams(), promised);
    }
}

#[tokio::test]
async fn i16_settings_that_come_late_are_waited_for() {
    let mut upstream =
        Upstream::with(Behaviour { max_streams: Some(3), gate: true, ..Behaviour::default() })
            .await;
    upstream.serve(|call| call.json(200, "{}"));
    let proxy = Proxy::start(&upstream).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let pending = client.send(request(Method::GET, "/version"));
    until("the handshake", || async { upstream.handshakes() }, |count| *count == 1).await;
    upstream.open_gate();
    assert_eq!(pending.await.unwrap().status(), 200);
}

/// A frame with its head fills one TLS record at most, however the upstream cuts its own.
#[tokio::test]
async fn frames_to_the_client_fill_tls_records() {
    const RECORD: usize = 16 << 10;
    const HEAD: usize = 9;
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    let mut random = fastrand::Rng::with_seed(7);
    let few = [vec![1], vec![RECORD - HEAD], vec![RECORD - HEAD + 1], vec![3 * RECORD, 5, 4096]];
    let many: Vec<_> = (0..20).map(|_| cuts(&mut random)).collect();
    for sizes in few.into_iter().chain(many) {
        let sent: Vec<u8> =
            std::iter::repeat_with(|| random.u8(..)).take(sizes.iter().sum()).collect();
        let pending = client.send(request(Method::GET, "/openapi/v2"));
        let stream = upstream.call().await.stream(200, &[]);
        let mut answer = pending.await.unwrap();
        let feed = async {
            let mut rest = sent.as_slice();
            for size in &sizes {
                let (piece, behind) = rest.split_at(*size);
                rest = behind;
                stream.send(piece.to_vec()).await;
            }
            stream.end();
        };
        let read = async {
            let mut read = Vec::new();
            while let Some(frame) = chunk(&mut answer).await {
                let frame = frame.unwrap();
                assert!(frame.len() <= RECORD - HEAD, "{} of {sizes:?}", frame.len());
                read.extend_from_slice(&frame);
            }
            read
        };
        let ((), read) = tokio::join!(feed, read);
        assert!(read == sent, "{sizes:?}");
    }
}

fn cuts(random: &mut fastrand::Rng) -> Vec<usize> {
    let most = random.choice([10, 5000, 20_000]).unwrap();
    let count = random.usize(1..40);
    std::iter::repeat_with(|| random.usize(1..most)).take(count).collect()
}
