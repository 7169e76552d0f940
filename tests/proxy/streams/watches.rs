//! Watches: nothing is held back, nothing is cut, and a change of policy ends what it must.

use std::time::Duration;

use ctrlmesh::wire::media::Encoding;
use http::{HeaderValue, Method, header};
use tokio::time::Instant;

use super::shared::{CHANGES, SECRETS, ends_clean, is_compacted, resumes, watch};
use crate::support::{
    CONFIGMAPS,
    client::{self, Client, Http, bytes, chunk, request},
    events::{ENCODINGS, added, expired, list, too_old},
    policies::{everything_policy, moved_policy},
    proxy::Proxy,
    scene, scene_before, scene_speaking,
    upstream::{Behaviour, Upstream},
};

/// The watch of an informer that has a list.
const GO_ON: &str = "watch=1&allowWatchBookmarks=true&resourceVersion=100";
/// The watch of a client that has none.
const FROM_ANY: &str = "watch=1&allowWatchBookmarks=true";

/// Lists at this position, read to the end.
async fn listed(client: &mut Client, upstream: &mut Upstream, path: &str, rv: u64) {
    let pending = client.send(request(Method::GET, path));
    upstream.call().await.json(200, &list(rv));
    assert_eq!(client::text(pending.await.unwrap()).await, (200, list(rv)));
}

#[tokio::test]
async fn t07_an_event_waits_for_nothing() {
    for http in Http::BOTH {
        let (mut upstream, _proxy, mut client) = scene_speaking(http).await;
        let json = Encoding::Json;
        let (events, mut response) =
            watch(&mut client, &mut upstream, CONFIGMAPS, FROM_ANY, json).await;
        let mut times = Vec::new();
        for rv in 1..=100 {
            let event = added(json, rv);
            let sent = Instant::now();
            events.send(event.clone()).await;
            assert_eq!(bytes(&mut response, event.len()).await, event);
            times.push(sent.elapsed());
        }
        times.sort_unstable();
        // A flush timer would show in every one of them, a late acknowledgement (40 ms) in most;
        // a busy machine delays a few.
        let (quickest, median) = (times[0], times[50]);
        assert!(quickest < Duration::from_millis(5), "{times:?}");
        assert!(median < Duration::from_millis(40), "{times:?}");
        // An event is not held back even for its own end.
        events.send("{\"type\":").await;
        assert_eq!(bytes(&mut response, 8).await, b"{\"type\":");
    }
}

#[tokio::test]
async fn t08_the_end_of_a_watch_is_clean_and_quick() {
    for http in Http::BOTH {
        for encoding in ENCODINGS {
            let (mut upstream, proxy, mut client) = scene_speaking(http).await;
            let (events, mut response) =
                watch(&mut client, &mut upstream, CONFIGMAPS, FROM_ANY, encoding).await;
            let event = added(encoding, 5);
            events.send(event.clone()).await;
            let ended = Instant::now();
            events.end();
            assert_eq!(bytes(&mut response, event.len()).await, event);
            ends_clean(&mut response).await;
            assert!(ended.elapsed() < Duration::from_secs(1));
            proxy.until_metric("ctrlmesh_streams", &[], 0.0).await;
        }
    }
}

#[tokio::test]
async fn bad_upstream_killed_in_mid_watch() {
    for http in Http::BOTH {
        let (mut upstream, proxy, mut client) = scene_speaking(http).await;
        let (events, mut response) =
            watch(&mut client, &mut upstream, CONFIGMAPS, FROM_ANY, Encoding::Json).await;
        events.send(added(Encoding::Json, 5)).await;
        chunk(&mut response).await.unwrap().unwrap();
        upstream.kill(0).await;
        chunk(&mut response).await.expect("no clean end").expect_err("a broken body");
        proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
        if http == Http::Two {
            proxy.until_closed("upstream_lost").await;
        }
    }
}

#[tokio::test]
async fn t23_t75_a_change_ends_just_the_affected_watches() {
    for http in Http::BOTH {
        for encoding in ENCODINGS {
            let mut upstream = Upstream::speaking(http).await;
            let proxy = Proxy::start(&upstream).await;
            // HTTP/1.1 carries one watch per connection.
            let mut clients = [Client::new(&proxy, http).await, Client::new(&proxy, http).await];
            let (moved, mut moved_seen) =
                watch(&mut clients[0], &mut upstream, CONFIGMAPS, FROM_ANY, encoding).await;
            let (other, mut other_seen) =
                watch(&mut clients[1], &mut upstream, SECRETS, FROM_ANY, encoding).await;
            let event = added(encoding, 5);
            for (events, seen) in [(&moved, &mut moved_seen), (&other, &mut other_seen)] {
                events.send(event.clone()).await;
                assert_eq!(bytes(seen, event.len()).await, event);
            }

            let began = Instant::now();
            proxy.change_policy(&moved_policy("green")).await;
            let last = expired(encoding);
            assert_eq!(bytes(&mut moved_seen, last.len()).await, last, "{encoding:?}");
            // The policy file is read twice a second.
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
            ends_clean(&mut moved_seen).await;
            moved.given_up().await;

            other.send(event.clone()).await;
            assert_eq!(bytes(&mut other_seen, event.len()).await, event, "it was not touched");
            proxy.until_metric(CHANGES, &[("how", "expired")], 1.0).await;
            proxy.until_metric("ctrlmesh_streams", &[], 1.0).await;
        }
    }
}

#[tokio::test]
async fn t75_a_change_in_mid_event_waits_for_its_end() {
    for encoding in ENCODINGS {
        let (mut upstream, proxy, mut client) = scene(Http::Two).await;
        let (events, mut seen) =
            watch(&mut client, &mut upstream, CONFIGMAPS, FROM_ANY, encoding).await;
        let (first, second) = (added(encoding, 5), added(encoding, 6));
        let half = first.len() / 2;
        events.send(first[..half].to_vec()).await;
        assert_eq!(bytes(&mut seen, half).await, &first[..half]);

        proxy.change_policy(&moved_policy("green")).await;
        proxy.until_metric(CHANGES, &[("how", "expired")], 1.0).await;
        // Bytes behind the event, in the very same chunk, are not shown any more.
        events.send([&first[half..], &second].concat()).await;
        let expected = [&first[half..], &expired(encoding)].concat();
        assert_eq!(bytes(&mut seen, expected.len()).await, expected, "{encoding:?}");
        ends_clean(&mut seen).await;
    }
}

#[tokio::test]
async fn t75_an_event_that_never_ends_is_broken_off() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let (events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, FROM_ANY, Encoding::Json).await;
    events.send("{\"type\":").await;
    bytes(&mut seen, 8).await;
    proxy.change_policy(&moved_policy("green")).await;
    chunk(&mut seen).await.expect("no clean end").expect_err("a broken body");
    events.given_up().await;
}

#[tokio::test]
async fn t75_300_watches_hear_of_one_change() {
    let upstream =
        Upstream::with(Behaviour { max_streams: Some(1000), ..Behaviour::default() }).await;
    let (mut upstream, proxy, mut client) = scene_before(upstream, Http::Two).await;
    let mut watches = Vec::new();
    for n in 0..300 {
        let path = format!("/api/v1/namespaces/ns-{n}/configmaps");
        watches.push(watch(&mut client, &mut upstream, &path, FROM_ANY, Encoding::Json).await);
    }
    proxy.change_policy(&moved_policy("green")).await;
    let last = expired(Encoding::Json);
    for (_, seen) in &mut watches {
        assert_eq!(bytes(seen, last.len()).await, last);
        ends_clean(seen).await;
    }
    proxy.until_metric(CHANGES, &[("how", "expired")], 300.0).await;
}

#[tokio::test]
async fn t23_a_watch_from_before_a_change_is_told_to_list() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    listed(&mut client, &mut upstream, CONFIGMAPS, 100).await;
    listed(&mut client, &mut upstream, SECRETS, 100).await;
    assert!(resumes(&mut client, &mut upstream, CONFIGMAPS, 100).await);

    proxy.change_policy(&moved_policy("green")).await;
    assert!(!resumes(&mut client, &mut upstream, CONFIGMAPS, 100).await);
    assert!(!resumes(&mut client, &mut upstream, CONFIGMAPS, 7).await);
    assert!(resumes(&mut client, &mut upstream, SECRETS, 100).await, "its scope is as before");
    let refused = [("reason", "expired")];
    proxy.until_metric("ctrlmesh_refusals_total", &refused, 2.0).await;

    // Nothing was written meanwhile: the new list is at the old position.
    listed(&mut client, &mut upstream, CONFIGMAPS, 100).await;
    assert!(resumes(&mut client, &mut upstream, CONFIGMAPS, 100).await, "its own list");
    let mut other = Client::new(&proxy, Http::Two).await;
    assert!(!resumes(&mut other, &mut upstream, CONFIGMAPS, 100).await, "not another client's");
    listed(&mut client, &mut upstream, CONFIGMAPS, 101).await;
    assert!(resumes(&mut other, &mut upstream, CONFIGMAPS, 101).await, "beyond the floor");
}

/// Two informers of one process share a connection, and nothing is written between their lists.
#[tokio::test]
async fn t23_the_list_of_another_client_of_the_connection_is_no_base() {
    for http in Http::BOTH {
        let (mut upstream, proxy, mut client) = scene_speaking(http).await;
        listed(&mut client, &mut upstream, CONFIGMAPS, 100).await;
        proxy.change_policy(&moved_policy("green")).await;
        listed(&mut client, &mut upstream, CONFIGMAPS, 100).await;
        let mut resume = async || resumes(&mut client, &mut upstream, CONFIGMAPS, 100).await;
        assert!(!resume().await, "the first has the old shard");
        assert!(!resume().await, "the second cannot be distinguished from it");
        listed(&mut client, &mut upstream, CONFIGMAPS, 100).await;
        assert!(resumes(&mut client, &mut upstream, CONFIGMAPS, 100).await, "neither has it now");
    }
}

#[tokio::test]
async fn t23_a_list_under_way_during_a_change_is_no_base() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    let body = list(100);
    let answer = upstream.call().await.stream(200, &[("content-type", "application/json")]);
    answer.send(body[..20].to_owned()).await;
    let response = pending.await.unwrap();
    proxy.change_policy(&moved_policy("green")).await;
    answer.send(body[20..].to_owned()).await;
    answer.end();
    assert_eq!(client::text(response).await, (200, body));
    assert!(!resumes(&mut client, &mut upstream, CONFIGMAPS, 100).await);
}

/// A watch without a position of its own cannot be brought over.
#[tokio::test]
async fn t23_a_watch_that_is_answered_after_a_change_is_told_to_list() {
    for (http, query) in [(Http::One, "watch=1"), (Http::Two, "watch=1")] {
        let (mut upstream, proxy, mut client) = scene_speaking(http).await;
        listed(&mut client, &mut upstream, CONFIGMAPS, 100).await;
        let pending = client.send(request(Method::GET, &format!("{CONFIGMAPS}?{query}")));
        let call = upstream.call().await;
        assert_eq!(call.query("labelSelector").as_deref(), Some("shard=blue"));
        proxy.change_policy(&moved_policy("green")).await;
        let events = call.watch();
        let mut seen = pending.await.unwrap();
        let last = expired(Encoding::Json);
        assert_eq!(bytes(&mut seen, last.len()).await, last, "and nothing of the old shard");
        ends_clean(&mut seen).await;
        events.given_up().await;
        assert!(upstream.is_quiet(), "nothing is listed for it");
    }
}

#[tokio::test]
async fn t23_the_refusal_is_in_the_clients_encoding() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    listed(&mut client, &mut upstream, CONFIGMAPS, 100).await;
    proxy.change_policy(&moved_policy("green")).await;
    for encoding in ENCODINGS {
        let target = format!("{CONFIGMAPS}?watch=1&resourceVersion=100");
        let mut sent = request(Method::GET, &target);
        let kind = HeaderValue::from_static(encoding.stream_content_type());
        sent.headers_mut().insert(header::ACCEPT, kind.clone());
        let pending = client.send(sent);
        is_compacted(upstream.call().await, 100);
        let response = pending.await.unwrap();
        assert_eq!(response.headers()[header::CONTENT_TYPE], kind);
        assert_eq!(
            client::whole(response).await.unwrap(),
            (http::StatusCode::OK, too_old(encoding).into())
        );
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn bad_watch_in_an_encoding_that_cannot_be_followed() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let text = vec![("content-type", "text/plain")];
    let packed = vec![("content-type", "application/json"), ("content-encoding", "gzip")];
    for (count, headers) in (1..).zip([text, packed]) {
        let mut sent = request(Method::GET, &format!("{CONFIGMAPS}?watch=1"));
        sent.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let pending = client.send(sent);
        let call = upstream.call().await;
        assert_eq!(call.header("accept-encoding"), None, "its events are looked at one by one");
        let events = call.stream(200, &headers);
        let (code, body) = client::text(pending.await.unwrap()).await;
        assert_eq!(code, 406, "{headers:?}: {body}");
        events.given_up().await;
        let refused = [("reason", "unknown_encoding")];
        proxy.until_metric("ctrlmesh_refusals_total", &refused, f64::from(count)).await;
    }
}

/// A watch that no rule limits passes, whatever it is, until a rule limits it.
#[tokio::test]
async fn bad_watch_that_nothing_limits_passes_unread() {
    let path = "/api/v1/namespaces/ns/pods";
    for (kind, body) in [
        ("text/plain", "no event at all"),
        ("application/json;stream=watch", "<html>"),
        ("application/json;stream=watch", "{\"type\":\"ADDED\",\"object\":7}\n]"),
    ] {
        for http in Http::BOTH {
            let (mut upstream, proxy, mut client) = scene_speaking(http).await;
            let pending = client.send(request(Method::GET, &format!("{path}?{GO_ON}")));
            let events = upstream.call().await.stream(200, &[("content-type", kind)]);
            let mut seen = pending.await.unwrap();
            assert_eq!(seen.headers()[header::CONTENT_TYPE], kind);
            events.send(body).await;
            assert_eq!(bytes(&mut seen, body.len()).await, body.as_bytes(), "{kind}");
            // A change for another resource does not count.
            proxy.change_policy(&moved_policy("green")).await;
            events.send(body).await;
            assert_eq!(bytes(&mut seen, body.len()).await, body.as_bytes(), "{kind}");
            let own = everything_policy("selector: {matchLabels: {shard: blue}}");
            proxy.change_policy(&own).await;
            chunk(&mut seen).await.expect("no clean end").expect_err("a broken body");
            // The positions that its client holds are unknown.
            let mut client = Client::new(&proxy, http).await;
            assert!(!resumes(&mut client, &mut upstream, path, 1 << 40).await, "{kind}");
        }
    }
}

#[tokio::test]
async fn bad_watch_that_is_no_json_is_broken_off() {
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    let (events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, FROM_ANY, Encoding::Json).await;
    events.send("<html>").await;
    chunk(&mut seen).await.expect("no clean end").expect_err("a broken body");
    events.given_up().await;
}

#[tokio::test]
async fn errors_of_the_api_server_pass_as_they_are() {
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    for (code, body) in [(410, "{\"reason\":\"Expired\"}"), (500, "boom"), (403, "<no>")] {
        for target in [CONFIGMAPS.to_owned(), format!("{CONFIGMAPS}?watch=1")] {
            let pending = client.send(request(Method::GET, &target));
            upstream.call().await.reply(code, "text/plain", body);
            assert_eq!(client::text(pending.await.unwrap()).await, (code, body.into()));
        }
    }
}
