//! Requests on their way upstream, and heads of responses on their way to the client.

use std::{collections::BTreeMap, io};

use ctrlmesh::{
    net::tls::{H2, HTTP_11},
    wire::media::Encoding,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::support::{
    CONFIGMAPS, TOKEN,
    client::{self, Client, Http, config, connect, request, request_with},
    policies::everything_policy,
    proxy::Proxy,
    scene, scene_speaking, soon,
    upstream::{Head, Upstream},
};

/// Sends a request, which the upstream answers with `{}`; returns the head that the upstream saw.
async fn seen(client: &mut Client, upstream: &mut Upstream, method: Method, target: &str) -> Head {
    let pending = client.send(request(method, target));
    let mut call = upstream.call().await;
    let _ = call.body().await;
    let head = call.head.clone();
    call.json(200, "{}");
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    head
}

#[tokio::test]
async fn t10_a_watch_is_what_the_api_server_takes_for_one() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let (mut watches, mut lists) = (0.0, 0.0);
    for (query, is_watch) in [
        ("watch=1", true),
        ("watch=true", true),
        ("watch=TRUE", true),
        ("watch=", true),
        ("watch", true),
        ("watch=yes", true),
        ("watch=1&limit=abc", true),
        ("watch=0", false),
        ("watch=false", false),
        ("watch=FALSE", false),
        ("watch=false&watch=true", false),
        ("Watch=true", false),
        ("limit=abc", false),
    ] {
        let target = format!("/api/v1/pods?{query}");
        assert_eq!(seen(&mut client, &mut upstream, Method::GET, &target).await.target(), target);
        *if is_watch { &mut watches } else { &mut lists } += 1.0;
        proxy.until_metric("ctrlmesh_requests_total", &[("verb", "watch")], watches).await;
        proxy.until_metric("ctrlmesh_requests_total", &[("verb", "list")], lists).await;
    }
}

#[tokio::test]
async fn t28_lists_keep_their_position_and_limit() {
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    for query in [
        "limit=1",
        "resourceVersion=0",
        "resourceVersion=5&resourceVersionMatch=Exact",
        "resourceVersion=5&resourceVersionMatch=NotOlderThan&limit=500",
        "timeoutSeconds=7&allowWatchBookmarks=true&unknown=%2f%20",
    ] {
        let free = format!("/api/v1/pods?{query}");
        let call = seen(&mut client, &mut upstream, Method::GET, &free).await;
        assert_eq!(call.target(), free);
        let scoped = format!("{CONFIGMAPS}?{query}");
        let call = seen(&mut client, &mut upstream, Method::GET, &scoped).await;
        assert_eq!(call.target(), format!("{scoped}&labelSelector=shard%3Dblue"));
    }
}

#[tokio::test]
async fn t46_selectors_are_anded_and_never_widen() {
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    for (query, label_selector) in [
        ("", "shard=blue"),
        ("labelSelector=", "shard=blue"),
        ("labelSelector=a%3Db", "a=b,shard=blue"),
        ("labelSelector=a=b", "a=b,shard=blue"),
        ("labelSelector=shard%3Dgreen", "shard=blue,shard=green"),
        ("labelSelector=shard+in+(green,blue)", "shard=blue,shard in (blue,green)"),
        ("labelSelector=a&labelSelector=b", "a,shard=blue"),
        ("labelSelector=&labelSelector=b", "shard=blue"),
        ("%6cabelSelector=a", "a,shard=blue"),
    ] {
        let target = format!("{CONFIGMAPS}?{query}");
        let call = seen(&mut client, &mut upstream, Method::GET, &target).await;
        assert_eq!(
            sorted(&call.query("labelSelector").unwrap()),
            sorted(label_selector),
            "{query}"
        );
        assert_eq!(call.target().matches("abelSelector").count(), 1, "{}", call.target());
    }
    let others = "fieldSelector=metadata.name%21%3Dx&shardSelector=s";
    let call =
        seen(&mut client, &mut upstream, Method::GET, &format!("{CONFIGMAPS}?{others}")).await;
    assert!(call.target().contains(others), "{}", call.target());
}

/// The requirements of a selector, sorted.
fn sorted(selector: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut depth = 0;
    for part in selector.split_inclusive(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    }) {
        parts.push(part.trim_end_matches(',').to_owned());
    }
    parts.sort();
    parts
}

#[tokio::test]
async fn bad_selector_that_the_api_server_drops() {
    let (mut upstream, _proxy, mut client) = scene(Http::One).await;
    for query in ["labelSelector=%zz", "labelSelector=a;b", "labelSelector=%", "%zz=1"] {
        let target = format!("{CONFIGMAPS}?{query}&limit=1");
        let call = seen(&mut client, &mut upstream, Method::GET, &target).await;
        let sent = format!("{CONFIGMAPS}?limit=1&labelSelector=shard%3Dblue");
        assert_eq!(call.target(), sent, "{query}");
    }
}

#[tokio::test]
async fn t54_what_shards_share_is_not_scoped() {
    let mut upstream = Upstream::start().await;
    let all = everything_policy("selector: {matchLabels: {shard: blue}}");
    let proxy = Proxy::with_policy(&upstream, &all).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    for path in [
        "/apis/coordination.k8s.io/v1/namespaces/ns/leases",
        "/api/v1/events",
        "/apis/events.k8s.io/v1/events",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/api",
        "/apis",
        "/apis/apps/v1",
        "/openapi/v3",
        "/healthz",
        "/version",
    ] {
        assert_eq!(seen(&mut client, &mut upstream, Method::GET, path).await.target(), path);
    }
    for path in [
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "/apis/authentication.k8s.io/v1/tokenreviews",
    ] {
        assert_eq!(seen(&mut client, &mut upstream, Method::POST, path).await.target(), path);
    }
    let scoped = seen(&mut client, &mut upstream, Method::GET, "/apis/apps/v1/deployments").await;
    assert_eq!(scoped.query("labelSelector").as_deref(), Some("shard=blue"));
}

#[tokio::test]
async fn t56_deletecollection_carries_the_shards_selector() {
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    let target = format!("{CONFIGMAPS}?labelSelector=a%3Db");
    let call = seen(&mut client, &mut upstream, Method::DELETE, &target).await;
    assert_eq!(call.query("labelSelector").as_deref(), Some("a=b,shard=blue"));
    let one = format!("{CONFIGMAPS}/one");
    assert_eq!(seen(&mut client, &mut upstream, Method::DELETE, &one).await.target(), one);
}

fn headers(given: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn listed(headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in headers {
        all.entry(name.to_string()).or_default().push(value.to_str().unwrap().to_owned());
    }
    all
}

#[tokio::test]
async fn t63_the_credential_is_each_requests_own() {
    for http in Http::BOTH {
        let (mut upstream, _proxy, mut client) = scene(http).await;
        for token in [Some("Bearer one"), Some("Bearer two"), None, Some("Bearer three")] {
            let mut sent = request(Method::GET, CONFIGMAPS);
            sent.headers_mut().remove(header::AUTHORIZATION);
            if let Some(token) = token {
                sent.headers_mut().insert(header::AUTHORIZATION, token.parse().unwrap());
            }
            let pending = client.send(sent);
            let call = upstream.call().await;
            assert_eq!(call.header("authorization").as_deref(), token);
            call.json(200, "{}");
            client::text(pending.await.unwrap()).await;
        }
    }
}

#[tokio::test]
async fn t63_t68_headers_arrive_as_they_were_sent_and_no_others() {
    let up = [
        ("accept", "application/json"),
        ("audit-id", "a-1"),
        ("impersonate-extra-scopes", "view"),
        ("impersonate-group", "g1"),
        ("impersonate-group", "g2"),
        ("impersonate-user", "someone"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("user-agent", "op/v1"),
        ("x-anything", "else"),
    ];
    let down = [
        ("audit-id", "a-1"),
        ("content-type", "application/json"),
        ("retry-after", "3"),
        ("warning", "299 - \"one\""),
        ("warning", "299 - \"two\""),
        ("x-kubernetes-pf-flowschema-uid", "f"),
        ("x-kubernetes-pf-prioritylevel-uid", "p"),
    ];
    for http in Http::BOTH {
        let (mut upstream, _proxy, mut client) = scene(http).await;
        let mut sent = request(Method::GET, CONFIGMAPS);
        sent.headers_mut().extend(headers(&up));
        let pending = client.send(sent);
        let call = upstream.call().await;
        let mut expected = listed(&headers(&up));
        expected.insert("authorization".into(), vec![format!("Bearer {TOKEN}")]);
        if http == Http::One {
            expected.insert("host".into(), vec!["kubernetes".into()]);
        }
        assert_eq!(listed(&call.parts.headers), expected);
        drop(call.stream(429, &down));
        let mut answer = listed(pending.await.unwrap().headers());
        // These headers frame the message on one connection, or are the scripted server's own.
        for own in ["date", "content-length", "transfer-encoding"] {
            answer.remove(own);
        }
        assert_eq!(answer, listed(&headers(&down)));
    }
}

#[tokio::test]
async fn t67_connection_strips_nothing_but_what_is_the_connections() {
    let (mut upstream, _proxy, mut client) = scene(Http::One).await;
    let mut sent = request(Method::GET, CONFIGMAPS);
    sent.headers_mut().extend(headers(&[
        ("connection", "Authorization, Impersonate-User"),
        ("impersonate-user", "someone"),
        ("keep-alive", "timeout=5"),
    ]));
    let pending = client.send(sent);
    let call = upstream.call().await;
    assert_eq!(call.header("authorization"), Some(format!("Bearer {TOKEN}")));
    assert_eq!(call.header("impersonate-user").as_deref(), Some("someone"));
    assert_eq!((call.header("connection"), call.header("keep-alive")), (None, None));
    call.json(200, "{}");
    assert_eq!(pending.await.unwrap().status(), 200);
}

/// Sends a request that must be refused; checks the response in every encoding.
async fn refused(method: Method, target: &str, code: u16, reason: &str, label: &str) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut count = 0.0;
    for http in Http::BOTH {
        let mut client = Client::new(&proxy, http).await;
        for encoding in [Encoding::Json, Encoding::Protobuf, Encoding::Cbor, Encoding::Yaml] {
            let mut sent = request(method.clone(), target);
            let kind = HeaderValue::from_static(encoding.content_type());
            sent.headers_mut().insert(header::ACCEPT, kind.clone());
            let response = client.send(sent).await.unwrap();
            assert_eq!(response.headers()[header::CONTENT_TYPE], kind, "{target}");
            let (status, body) = client::whole(response).await.unwrap();
            assert_eq!(status, code, "{target}");
            let body = String::from_utf8_lossy(&body).into_owned();
            assert!(body.contains(reason) && body.contains("ctrlmesh: "), "{target}: {body}");
            count += 1.0;
        }
    }
    proxy.until_metric("ctrlmesh_refusals_total", &[("reason", label)], count).await;
    assert!(upstream.is_quiet(), "{target}");
}

#[tokio::test]
async fn bad_t70_paths_that_servers_read_differently() {
    for target in [
        "//api/v1/pods",
        "/api//v1/pods",
        "/api/v1/namespaces//pods",
        "/api/v1/../v1/pods",
        "/api/v1/./pods",
        "/api/v1/namespaces/%2e%2e/pods",
        "/api/v1/namespaces/ns%2fpods",
        "/api/v1/namespaces/ns/pods/a%2Fb",
        "/api/v1/pods/%zz",
        "/api/v1/pods/%",
        "/api/v1/pods/a%00b",
    ] {
        refused(Method::GET, target, 400, "BadRequest", "bad_request_line").await;
    }
}

#[tokio::test]
async fn t70_trailing_slash_and_case_go_as_they_came() {
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    let call = seen(&mut client, &mut upstream, Method::GET, "/api/v1/configmaps/").await;
    assert_eq!(call.target(), "/api/v1/configmaps/?labelSelector=shard%3Dblue");
    for target in ["/API/v1/configmaps", "/api/v1/ConfigMaps", "/metrics?x=%2f"] {
        assert_eq!(seen(&mut client, &mut upstream, Method::GET, target).await.target(), target);
    }
}

#[tokio::test]
async fn bad_t46_selector_that_cannot_be_read() {
    for selector in ["a=b=c", "a%20in%20(", "=x", "a%20of%20(b)", "-"] {
        let target = format!("{CONFIGMAPS}?labelSelector={selector}");
        refused(Method::GET, &target, 400, "BadRequest", "bad_selector").await;
    }
    let target = format!("{CONFIGMAPS}?labelSelector=a=b=c");
    refused(Method::DELETE, &target, 400, "BadRequest", "bad_selector").await;
}

#[tokio::test]
async fn bad_too_many_parameters() {
    let target = format!("{CONFIGMAPS}?{}", "a&".repeat(2000));
    refused(Method::GET, &target, 400, "BadRequest", "bad_request_line").await;
}

#[tokio::test]
async fn bad_headers_2000_are_fine() {
    for http in Http::BOTH {
        for count in [600, 2_000] {
            let (mut upstream, _proxy, mut client) = scene(http).await;
            let mut sent = request(Method::GET, CONFIGMAPS);
            for n in 0..count {
                let name = HeaderName::try_from(format!("x-{n}")).unwrap();
                sent.headers_mut().insert(name, HeaderValue::from_static("1"));
            }
            let pending = client.send(sent);
            let call = upstream.call().await;
            let is_ours = |name: &&HeaderName| name.as_str().starts_with("x-");
            assert_eq!(call.parts.headers.keys().filter(is_ours).count(), count);
            let many: Vec<_> = (0..count).map(|n| (format!("y-{n}"), "1")).collect();
            let many: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            call.stream(200, &many).end();
            let answer = pending.await.unwrap();
            assert!(answer.status() == 200 && answer.headers().len() >= count, "{http:?}");
        }
    }
}

#[tokio::test]
async fn bad_headers_in_more_lines_than_are_taken() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut head = "GET /api/v1/pods HTTP/1.1\r\nHost: kubernetes\r\n".to_owned();
    for n in 0..2_100 {
        head.push_str(&format!("x-{n}: 1\r\n"));
    }
    let answer = raw(&proxy, format!("{head}\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    proxy.until_closed("protocol").await;
    assert!(upstream.is_quiet());
}

/// A request that was converted from HTTP/1.1 names its host in `Host` (RFC 9113 section 8.3.1).
#[tokio::test]
async fn bad_t70_http2_without_an_authority() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let own = upstream.addr.to_string();
    for (host, expected) in
        [(Some("kubernetes.default:443"), "kubernetes.default:443"), (None, &own)]
    {
        for target in ["/version", CONFIGMAPS] {
            let mut sent = request(Method::GET, target);
            if let Some(host) = host {
                sent.headers_mut().insert(header::HOST, HeaderValue::from_str(host).unwrap());
            }
            let pending = client.send_without_authority(sent);
            let call = upstream.call().await;
            assert_eq!(call.parts.uri.authority().map(|name| name.as_str()), Some(expected));
            assert_eq!(call.header("host"), None, "it says the same");
            call.json(200, "{}");
            assert_eq!(pending.await.unwrap().status(), 200);
        }
    }
    let mut sent = request(Method::GET, "/version");
    sent.headers_mut().insert(header::HOST, HeaderValue::from_static("a b"));
    assert_eq!(client.send_without_authority(sent).await.unwrap().status(), 400);
    proxy.until_metric("ctrlmesh_refusals_total", &[("reason", "bad_request_line")], 1.0).await;
    assert!(upstream.is_quiet());
}

/// Writes these bytes and returns all that arrives until the end.
async fn raw(proxy: &Proxy, bytes: &[u8]) -> String {
    let trust = config(&proxy.files.mesh_ca_pem(), &[HTTP_11]);
    let tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    let (mut read, mut write) = tokio::io::split(tls);
    let mut answer = Vec::new();
    // Either may fail once the other side has closed.
    let writing = async {
        let _ = write.write_all(bytes).await;
        let _ = write.flush().await;
    };
    let reading = read.read_to_end(&mut answer);
    let _ = soon("the end of the connection", async { tokio::join!(writing, reading) }).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Go's server would keep it open.
#[tokio::test]
async fn a_connection_of_http_1_0_ends_with_its_first_answer() {
    let mut upstream = Upstream::speaking(Http::One).await;
    let proxy = Proxy::start(&upstream).await;
    upstream.serve(|call| call.json(200, "{}"));
    let head = "GET /version HTTP/1.0\r\nHost: kubernetes\r\nConnection: keep-alive\r\n\r\n";
    let answer = raw(&proxy, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.") && answer.ends_with("{}"), "{answer}");
}

#[tokio::test]
async fn bad_headers_over_a_mebibyte_in_http1() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut head = "GET /api/v1/pods HTTP/1.1\r\nHost: kubernetes\r\n".to_owned();
    while head.len() < 1_200_000 {
        head.push_str(&format!("x-{}: {}\r\n", head.len(), "x".repeat(30_000)));
    }
    let answer = raw(&proxy, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    proxy.until_closed("protocol").await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn bad_headers_over_a_mebibyte_in_http2() {
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    let mut sent = request(Method::GET, CONFIGMAPS);
    for n in 0..40 {
        let name = HeaderName::try_from(format!("x-{n}")).unwrap();
        let value = HeaderValue::from_str(&"x".repeat(30_000)).unwrap();
        sent.headers_mut().insert(name, value);
    }
    let answer = client.send(sent).await;
    assert_eq!(answer.unwrap().status(), 431);
    // Only the stream was refused.
    seen(&mut client, &mut upstream, Method::GET, CONFIGMAPS).await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn bad_http_that_is_none() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let answer = raw(&proxy, b"this is no HTTP\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
    proxy.until_closed("protocol").await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn t72_the_lock_is_renamed_in_the_path() {
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    for method in [Method::GET, Method::DELETE] {
        let call = seen(&mut client, &mut upstream, method, &format!("{lease}/op")).await;
        assert_eq!(call.target(), format!("{lease}/op---blue"));
    }
    let other = format!("{lease}/other");
    assert_eq!(seen(&mut client, &mut upstream, Method::GET, &other).await.target(), other);
}

#[tokio::test]
async fn writes_arrive_whole() {
    for http in Http::BOTH {
        let (mut upstream, _proxy, mut client) = scene(http).await;
        let body: Vec<u8> = (0..1_500_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let pending =
            client.send(request_with(Method::POST, "/api/v1/namespaces/ns/pods", body.clone()));
        let mut call = upstream.call().await;
        assert!(call.body().await.unwrap() == body);
        call.json(201, "{}");
        assert_eq!(pending.await.unwrap().status(), 201);
    }
}

#[tokio::test]
async fn bad_headers_just_under_a_mebibyte_are_fine() {
    for http in Http::BOTH {
        let (mut upstream, _proxy, mut client) = scene(http).await;
        let mut sent = request(Method::GET, CONFIGMAPS);
        for n in 0..33 {
            let name = HeaderName::try_from(format!("x-{n}")).unwrap();
            let value = HeaderValue::from_str(&"x".repeat(30_000)).unwrap();
            sent.headers_mut().insert(name, value);
        }
        let pending = client.send(sent);
        let call = upstream.call().await;
        assert_eq!(call.header("x-32").unwrap().len(), 30_000);
        call.json(200, "{}");
        assert_eq!(pending.await.unwrap().status(), 200, "{http:?}");
    }
}

#[tokio::test]
async fn bad_body_larger_than_the_api_server_takes() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let sent = request_with(Method::POST, CONFIGMAPS, vec![b'x'; (3 << 20) + 1]);
    let (code, body) = client::text(client.send(sent).await.unwrap()).await;
    assert_eq!(code, 413, "{body}");
    assert!(body.contains("3 MiB"), "{body}");
    let refused = [("reason", "body_too_large")];
    proxy.until_metric("ctrlmesh_refusals_total", &refused, 1.0).await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn bad_http2_that_is_none() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    let mut tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    // The preface, settings, and a DATA frame on stream 0.
    tls.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\0x")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = soon("the close", tls.read_to_end(&mut answer)).await;
    proxy.until_closed("protocol").await;
    assert!(upstream.is_quiet());
}

/// A client that cancels what it has asked for keeps its connection, as at Go's server.
#[tokio::test]
async fn requests_that_are_cancelled_at_once_end_no_connection() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    let mut tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for stream in (1..=399).step_by(2) {
        sent.extend(get_frame(stream, "/version"));
        sent.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    }
    sent.extend(get_frame(401, "/livez"));
    tls.write_all(&sent).await.unwrap();
    let mut call = upstream.call().await;
    while call.target() != "/livez" {
        call = upstream.call().await;
    }
    call.json(200, "{}");
    let answer = async {
        loop {
            let (kind, stream, _) = next_frame(&mut tls).await.unwrap();
            assert_ne!(kind, 7, "GOAWAY");
            if (kind, stream) == (1, 401) {
                break;
            }
        }
    };
    soon("the answer to the last", answer).await;
}

/// A client that has not read its GOAWAY yet sends on: a reset might take the GOAWAY from it.
#[tokio::test]
async fn bytes_that_come_after_the_end_of_a_connection_reset_nothing() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    let mut tls = connect(proxy.addr, trust, "kubernetes").await.unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    tls.write_all(preface).await.unwrap();
    tls.write_all(&get_frame(1, "/version")).await.unwrap();
    upstream.call().await.json(200, "{}");
    upstream.go_away(0).await;
    while let Ok((kind, _, payload)) = soon("the end", next_frame(&mut tls)).await {
        if kind == 6 {
            tls.write_all(&frame(6, 1, 0, &payload)).await.unwrap();
        }
    }
    for _ in 0..50 {
        tls.write_all(&get_frame(3, "/version")).await.unwrap();
        tls.flush().await.unwrap();
    }
}

/// One frame of HTTP/2 (RFC 9113 section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// The next frame: its type, its stream and its payload.
async fn next_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    from.read_exact(&mut head).await?;
    let [_, high, low, kind, _, stream @ ..] = head;
    let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
    from.read_exact(&mut payload).await?;
    Ok((kind, u32::from_be_bytes(stream), payload))
}

/// The HEADERS of a whole GET, with literal fields (RFC 7541 section 6.2.2).
fn get_frame(stream: u32, path: &str) -> Vec<u8> {
    let mut fields = vec![0x82, 0x87];
    for (name, value) in [(1, "kubernetes"), (4, path)] {
        fields.extend([name, u8::try_from(value.len()).unwrap()]);
        fields.extend(value.bytes());
    }
    frame(1, 0x5, stream, &fields)
}

#[tokio::test]
async fn an_http1_connection_is_used_again_on_both_legs() {
    let (mut upstream, _proxy, mut client) = scene_speaking(Http::One).await;
    for n in 0..5 {
        client.ready().await.unwrap();
        let call = seen(&mut client, &mut upstream, Method::GET, "/api/v1/pods").await;
        assert_eq!(call.connection, 0, "{n}");
    }
    assert_eq!(upstream.accepted(), 1);
}
