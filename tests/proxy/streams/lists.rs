//! Lists: pages, compressed bodies, and the positions that they give.

use std::io::Write;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ctrlmesh::wire::media::Encoding;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderValue, Method, header};

use super::shared::{ALL, cannot_come_back, resumes, scene_of};
use crate::support::{
    CONFIGMAPS,
    client::{self, Http, request},
    events::{list, too_old},
    policies::{configmaps_policy, everything_policy, moved_policy},
    scene, scene_speaking,
};

#[tokio::test]
async fn t24_a_page_of_a_list_from_before_a_change_is_refused() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let token =
        BASE64_URL_SAFE_NO_PAD.encode("{\"v\":\"meta.k8s.io/v1\",\"rv\":100,\"start\":\"a\"}");
    let page = format!(
        "{{\"kind\":\"ConfigMapList\",\"metadata\":{{\"resourceVersion\":\"100\",\"continue\":\"{token}\"}},\"items\":[]}}"
    );
    let further = format!("{CONFIGMAPS}?limit=1&continue={token}");
    for target in [&format!("{CONFIGMAPS}?limit=1"), &further] {
        let pending = client.send(request(Method::GET, target));
        upstream.call().await.json(200, &page);
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    }
    proxy.change_policy(&moved_policy("green")).await;
    let refused = client.get(&further).await;
    let (code, body) = client::text(refused).await;
    assert_eq!(code, 410, "a list is told by HTTP: {body}");
    assert!(body.contains("\"Expired\""), "{body}");
    assert!(upstream.is_quiet());
}

/// The API server answers the first with 400, and the second with 500.
#[tokio::test]
async fn bad_token_and_bad_version_are_too_old_once_the_scope_has_changed() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    upstream.call().await.json(200, &list(100));
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    proxy.change_policy(&moved_policy("green")).await;
    let (code, body) =
        client::text(client.get(&format!("{CONFIGMAPS}?limit=1&continue=none")).await).await;
    assert!(code == 410 && body.contains("\"Expired\""), "{code} {body}");
    let watch = format!("{CONFIGMAPS}?watch=1&resourceVersion=none");
    let mut sent = request(Method::GET, &watch);
    sent.headers_mut().insert("user-agent", HeaderValue::from_static("kopf/1.37"));
    let (code, body) = client::whole(client.send(sent).await.unwrap()).await.unwrap();
    assert_eq!((code.as_u16(), body), (200, too_old(Encoding::Json).into()));
    proxy.until_metric("ctrlmesh_expired_clients_total", &[("client", "kopf")], 1.0).await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn t42_a_compressed_list_passes_and_is_followed() {
    for torn in [false, true] {
        let (mut upstream, proxy, mut client) = scene(Http::Two).await;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(list(100).as_bytes()).unwrap();
        let mut body = gzip.finish().unwrap();
        let mut sent = request(Method::GET, CONFIGMAPS);
        sent.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let pending = client.send(sent);
        let call = upstream.call().await;
        assert_eq!(call.header("accept-encoding").as_deref(), Some("gzip"));
        let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
        let answer = call.stream(200, &headers);
        if torn {
            body.truncate(body.len() / 2);
        }
        answer.send(body.clone()).await;
        answer.end();
        let got = match pending.await {
            Ok(response) => client::whole(response).await,
            Err(error) => Err(error),
        };
        if torn {
            got.unwrap_err();
            continue;
        }
        assert_eq!(got.unwrap().1, body);
        // The list's position is known: after a change it is too old.
        proxy.change_policy(&moved_policy("green")).await;
        let target = format!("{CONFIGMAPS}?watch=1&resourceVersion=100");
        let event = cannot_come_back(&mut client, &mut upstream, &target).await;
        assert_eq!(event, too_old(Encoding::Json));
    }
}

/// A list that no rule limits passes, whatever it is.
#[tokio::test]
async fn bad_list_that_nothing_limits_passes_unread() {
    let path = "/api/v1/namespaces/ns/pods";
    let json = "application/json";
    let whole = list(100);
    for (kind, compression, body) in [
        (json, None, "[]"),
        (json, None, ""),
        (json, None, "<html>"),
        (json, None, &whole[..20]),
        (json, Some("br"), "not gzip at all"),
        (json, Some("gzip"), "nor is this"),
        ("application/yaml", None, "items: []"),
        ("text/html", None, "<html>"),
    ] {
        for http in Http::BOTH {
            let (mut upstream, proxy, mut client) = scene_speaking(http).await;
            let pending = client.send(request(Method::GET, path));
            let length = body.len().to_string();
            let mut headers = vec![("content-type", kind), ("content-length", &length)];
            headers.extend(compression.map(|name| ("content-encoding", name)));
            let answer = upstream.call().await.stream(200, &headers);
            if !body.is_empty() {
                answer.send(body.to_owned()).await;
            }
            answer.end();
            let response = pending.await.unwrap();
            for (name, value) in &headers {
                assert_eq!(response.headers().get(*name).unwrap(), value);
            }
            assert_eq!(client::text(response).await, (200, body.to_owned()), "{kind} {http:?}");
            if body.is_empty() {
                // The client was shown nothing.
                continue;
            }
            // The client may resume from any position, until its scope is another.
            let watch = format!("{path}?watch=1&resourceVersion=7");
            client.ready().await.unwrap();
            let pending = client.send(request(Method::GET, &watch));
            upstream.call().await.watch().end();
            assert_eq!(client::text(pending.await.unwrap()).await, (200, String::new()));
            proxy.change_policy(&everything_policy("selector: {matchLabels: {a: b}}")).await;
            client.ready().await.unwrap();
            let resumes = resumes(&mut client, &mut upstream, path, 1_000_000).await;
            assert!(!resumes, "{kind} {body}");
        }
    }
}

#[tokio::test]
async fn identity_is_no_compression() {
    let (mut upstream, proxy, mut client) = scene_speaking(Http::Two).await;
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    let headers = [("content-type", "application/json"), ("content-encoding", "identity")];
    let answer = upstream.call().await.stream(200, &headers);
    answer.send(list(100)).await;
    answer.end();
    assert_eq!(client::text(pending.await.unwrap()).await, (200, list(100)));
    // The list's position is known: positions beyond it were never shown.
    proxy.change_policy(&moved_policy("green")).await;
    let pending =
        client.send(request(Method::GET, &format!("{CONFIGMAPS}?watch=1&resourceVersion=101")));
    upstream.call().await.watch().end();
    assert_eq!(client::text(pending.await.unwrap()).await, (200, String::new()));
}

#[tokio::test]
async fn t23_a_list_in_yaml_is_no_position_to_resume_from_after_a_change() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let yaml =
        "apiVersion: v1\nitems: []\nkind: ConfigMapList\nmetadata:\n  resourceVersion: \"200\"\n";
    for (kind, body) in [("application/json", list(100)), ("application/yaml", yaml.into())] {
        let pending = client.send(request(Method::GET, CONFIGMAPS));
        upstream.call().await.reply(200, kind, body.clone());
        assert_eq!(client::text(pending.await.unwrap()).await, (200, body));
    }
    proxy.change_policy(&moved_policy("green")).await;
    let resumed = format!("{CONFIGMAPS}?watch=1&resourceVersion=");
    let known = cannot_come_back(&mut client, &mut upstream, &format!("{resumed}100")).await;
    // Of the YAML it is not known what was shown: nothing is listed for it.
    let (_, unread) = client::whole(client.get(&format!("{resumed}200")).await).await.unwrap();
    for event in [known, unread] {
        assert_eq!(event, too_old(Encoding::Json));
    }
}

#[tokio::test]
async fn t01_the_end_of_the_initial_events_is_a_position_to_resume_from() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    // Another collection of the resource was shown at 100 before the change.
    let pending = client.send(request(Method::GET, ALL));
    upstream.call().await.json(200, &list(100));
    client::text(pending.await.unwrap()).await;
    proxy.change_policy(&moved_policy("green")).await;

    let initial = format!(
        "{CONFIGMAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=100&allowWatchBookmarks=true"
    );
    let pending = client.send(request(Method::GET, &initial));
    let events = upstream.call().await.watch();
    let bookmark = "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"ConfigMap\",\"metadata\":{\"resourceVersion\":\"100\",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n";
    events.send(bookmark).await;
    events.end();
    assert_eq!(client::text(pending.await.unwrap()).await, (200, bookmark.into()));

    let resumed = format!("{CONFIGMAPS}?watch=1&resourceVersion=100");
    let pending = client.send(request(Method::GET, &resumed));
    upstream.call().await.watch().end();
    assert_eq!(client::text(pending.await.unwrap()).await, (200, String::new()));
}

/// The API server reads U+017F as an `s`, so that none of these asks for initial events.
#[tokio::test]
async fn t23_a_watch_without_initial_events_in_any_spelling_resumes() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    upstream.call().await.json(200, &list(100));
    client::text(pending.await.unwrap()).await;
    proxy.change_policy(&moved_policy("green")).await;
    for spelling in ["0", "false", "FALSE", "fal%C5%BFe"] {
        let target =
            format!("{CONFIGMAPS}?watch=1&resourceVersion=100&sendInitialEvents={spelling}");
        let event = cannot_come_back(&mut client, &mut upstream, &target).await;
        assert_eq!(event, too_old(Encoding::Json), "{spelling}");
    }
}

#[tokio::test]
async fn a_head_of_a_list_is_answered() {
    let judged = configmaps_policy("namespaces: {names: [ns, other]}, clusterScoped: Exclude");
    let pushed = configmaps_policy("namespaces: {names: [ns]}, clusterScoped: Exclude");
    for (http, policy) in Http::BOTH.into_iter().flat_map(|http| [(http, &judged), (http, &pushed)])
    {
        let (mut upstream, _proxy, mut client) = scene_of(policy, http).await;
        // It asks for no object, so there is none to judge and nothing to push.
        let pending = client.send(request(Method::HEAD, "/api/v1/configmaps"));
        let call = upstream.call().await;
        assert_eq!((&call.head.parts.method, call.target()), (&Method::HEAD, "/api/v1/configmaps"));
        drop(call.stream(200, &[("content-type", "application/json")]));
        let (code, body) = client::text(pending.await.unwrap()).await;
        assert_eq!((code, body), (200, String::new()), "{http:?}");
    }
}
