//! Shards without labels: lists and watches without the objects of other shards.

use std::{io::Write, time::Duration};

use ctrlmesh::wire::media::Encoding;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderValue, Method, Response, header};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::shared::{ALL, event, object, opened, scene_of};
use crate::support::{
    CONFIGMAPS,
    client::{self, Client, Http, bytes, chunk, request},
    events::expired,
    policies::{POLICY, configmaps_policy},
    proxy::Proxy,
    until,
    upstream::{Stream, Upstream},
};

const FILTERED: &str = "ctrlmesh_filtered_items_total";

/// The shard of these namespaces.
fn policy(namespaces: &str) -> String {
    configmaps_policy(&format!("namespaces: {{names: [{namespaces}]}}, clusterScoped: Exclude"))
}

async fn scene() -> (Upstream, Proxy, Client) {
    scene_of(&policy("ours, ns"), Http::Two).await
}

fn list_of(items: &[Value]) -> String {
    let meta = json!({"resourceVersion": "100", "remainingItemCount": 7, "continue": ""});
    json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": meta, "items": items})
        .to_string()
}

fn ours_and_others() -> String {
    list_of(&[object("ours", "a", 1), object("other", "b", 2), object("ours", "c", 3)])
}

fn names(body: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(body).unwrap();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(name).collect()
}

#[tokio::test]
async fn t49_a_list_has_the_shards_objects_alone() {
    for http in Http::BOTH {
        let (mut upstream, proxy, mut client) = scene_of(&policy("ours"), http).await;
        let pending = client.send(request(Method::GET, &format!("{ALL}?limit=500")));
        let call = upstream.call().await;
        assert_eq!(call.target(), format!("{ALL}?limit=500"), "no selector says it");
        call.json(200, &ours_and_others());
        let (code, body) = client::text(pending.await.unwrap()).await;
        assert_eq!((code, names(&body)), (200, vec!["a".to_owned(), "c".to_owned()]));
        let count = async |kept| {
            proxy.metric(FILTERED, &[("resource", "configmaps"), ("kept", kept)]).await
        };
        assert_eq!((count("true").await, count("false").await), (2.0, 1.0));
        proxy.until_metric("ctrlmesh_filter_memory_bytes", &[], 0.0).await;
    }
}

/// The characters of `ours` are 457 together, and 457 % 32 is 9; `other` is in bucket 2.
#[tokio::test]
async fn i15_labels_that_nobody_stamps_are_computed_from_the_namespace() {
    let by = |prefix: &str, rest: &str| {
        let expression = format!("{{key: {prefix}.kusionstack.io/{rest}}}");
        configmaps_policy(&format!(
            "selector: {{matchLabels: {{team: x}}, matchExpressions: [{expression}]}}"
        ))
    };
    for policy in [
        by("ctrlmesh", "shard-hash, operator: In, values: ['9']"),
        by("kridge", "namespace, operator: In, values: [ours]"),
        by("kridge", "namespace, operator: NotIn, values: [other]"),
    ] {
        let (mut upstream, _proxy, mut client) = scene_of(&policy, Http::Two).await;
        let pending = client.send(request(Method::GET, ALL));
        let call = upstream.call().await;
        assert_eq!(call.query("labelSelector").as_deref(), Some("team=x"), "{policy}");
        call.json(200, &ours_and_others());
        let (code, body) = client::text(pending.await.unwrap()).await;
        assert_eq!((code, names(&body)), (200, vec!["a".to_owned(), "c".to_owned()]), "{policy}");
        // In a namespace of another shard there is nothing.
        let pending = client.send(request(Method::GET, "/api/v1/namespaces/other/configmaps"));
        let selector = upstream.call().await;
        let nothing = "ctrlmesh.kusionstack.io/none,!ctrlmesh.kusionstack.io/none";
        assert_eq!(selector.query("labelSelector").as_deref(), Some(nothing), "{policy}");
        selector.json(200, &list_of(&[]));
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    }
}

#[tokio::test]
async fn t42_a_compressed_list_is_judged_and_leaves_as_it_is() {
    let (mut upstream, _proxy, mut client) = scene().await;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(ours_and_others().as_bytes()).unwrap();
    let body = gzip.finish().unwrap();
    for cut in [body.len() / 2, body.len()] {
        let mut sent = request(Method::GET, ALL);
        sent.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let pending = client.send(sent);
        let length = body.len().to_string();
        let headers = [
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
            ("content-length", length.as_str()),
            ("vary", "Accept-Encoding"),
        ];
        let answer = upstream.call().await.stream(200, &headers);
        answer.send(body[..cut].to_vec()).await;
        answer.end();
        let Ok(response) = pending.await else {
            assert!(cut < body.len());
            continue;
        };
        assert_eq!(response.headers().get(header::CONTENT_ENCODING), None);
        assert_eq!(response.headers().get(header::CONTENT_LENGTH), None);
        if cut < body.len() {
            assert_ne!(response.status(), 200, "what is cut off is never a whole list");
        } else {
            assert_eq!(names(&client::text(response).await.1), ["a", "c"]);
        }
    }
}

#[tokio::test]
async fn t44_a_list_that_cannot_be_judged_is_a_status_or_a_broken_body() {
    let (mut upstream, proxy, mut client) = scene().await;
    let unreadable = "{\"metadata\":{\"namespace\":7}}";
    let pending = client.send(request(Method::GET, ALL));
    upstream.call().await.json(200, &format!("{{\"items\":[{unreadable}]}}"));
    let (code, body) = client::text(pending.await.unwrap()).await;
    assert_eq!(code, 500, "nothing has left yet: {body}");
    assert!(body.contains("\"InternalError\"") && body.contains("metadata"), "{body}");
    proxy.until_metric("ctrlmesh_refusals_total", &[("reason", "unreadable_list")], 1.0).await;

    let pending = client.send(request(Method::GET, ALL));
    let answer = upstream.call().await.stream(200, &[("content-type", "application/json")]);
    let first = object("ours", "a", 1).to_string();
    answer.send(format!("{{\"items\":[{first},")).await;
    let mut response = pending.await.unwrap();
    let begun = format!("{{\"items\":[{first}");
    assert_eq!(bytes(&mut response, begun.len()).await, begun.as_bytes());
    answer.send(format!("{unreadable}]}}")).await;
    chunk(&mut response).await.expect("no clean end").expect_err("a broken body");
}

#[tokio::test]
async fn bad_list_in_an_encoding_that_cannot_be_judged() {
    let (mut upstream, proxy, mut client) = scene().await;
    for headers in [
        &[("content-type", "application/yaml")][..],
        &[("content-type", "text/html")],
        &[("content-type", "application/json"), ("content-encoding", "br")],
    ] {
        let pending = client.send(request(Method::GET, ALL));
        let answer = upstream.call().await.stream(200, headers);
        answer.send("items: [{metadata: {namespace: other}}]").await;
        let (code, body) = client::text(pending.await.unwrap()).await;
        assert_eq!(code, 406, "{body}");
    }
    proxy.until_metric("ctrlmesh_refusals_total", &[("reason", "unknown_encoding")], 3.0).await;
}

#[tokio::test]
async fn t39_what_is_no_list_passes_as_it_came() {
    let (mut upstream, _proxy, mut client) = scene().await;
    for code in [403, 410, 500] {
        let pending = client.send(request(Method::GET, ALL));
        upstream.call().await.json(code, "{\"kind\":\"Status\"}");
        let answer = client::text(pending.await.unwrap()).await;
        assert_eq!(answer, (code, "{\"kind\":\"Status\"}".to_owned()));
    }
}

#[tokio::test]
async fn t45_an_upstream_that_dies_in_a_judged_list_breaks_it_off() {
    let (mut upstream, _proxy, mut client) = scene().await;
    let pending = client.send(request(Method::GET, ALL));
    let answer = upstream.call().await.stream(200, &[("content-type", "application/json")]);
    let first = object("ours", "a", 1).to_string();
    answer.send(format!("{{\"items\":[{first}")).await;
    let mut response = pending.await.unwrap();
    chunk(&mut response).await.unwrap().unwrap();
    answer.end();
    chunk(&mut response).await.expect("no clean end").expect_err("a broken body");
}

#[tokio::test]
async fn a_namespace_of_the_shard_is_not_looked_at_and_one_of_others_is_empty() {
    let (mut upstream, proxy, mut client) = scene().await;
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    let call = upstream.call().await;
    assert_eq!(call.target(), CONFIGMAPS);
    // The response is not parsed, whatever it contains.
    call.json(200, &ours_and_others());
    assert_eq!(client::text(pending.await.unwrap()).await, (200, ours_and_others()));
    let pending = client.send(request(Method::GET, "/api/v1/namespaces/other/configmaps?watch=1"));
    let call = upstream.call().await;
    let selector = call.query("labelSelector").unwrap();
    let (one, none) = selector.split_once(",!").unwrap();
    assert_eq!(one, none, "a contradiction");
    call.watch().end();
    client::text(pending.await.unwrap()).await;
    assert_eq!(proxy.metric(FILTERED, &[]).await, 0.0);
}

#[tokio::test]
async fn t40_a_table_is_asked_for_with_its_objects() {
    let (mut upstream, _proxy, mut client) = scene().await;
    let pending = client.send(request(Method::GET, &format!("{ALL}?includeObject=None&limit=5")));
    let call = upstream.call().await;
    assert_eq!(call.query("includeObject").as_deref(), Some("Metadata"));
    let row = |ns: &str| json!({"cells": [ns], "object": object(ns, ns, 1)});
    let table = json!({"kind": "Table", "columnDefinitions": [{"name": "Name"}],
        "rows": [row("other"), row("ours")]});
    call.json(200, &table.to_string());
    let (_, body) = client::text(pending.await.unwrap()).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["rows"], json!([row("ours")]));
}

/// Opens a watch of all namespaces; returns both ends of it.
async fn watch(
    client: &mut Client,
    upstream: &mut Upstream,
    query: &str,
) -> (Stream, Response<Incoming>) {
    let sent = request(Method::GET, &format!("{ALL}?watch=1{query}"));
    opened(client, upstream, sent, Encoding::Json).await
}

/// Lists at position 100, to resume from there.
async fn listed(client: &mut Client, upstream: &mut Upstream) {
    let pending = client.send(request(Method::GET, ALL));
    upstream.call().await.json(200, &list_of(&[]));
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
}

async fn sees(response: &mut Response<Incoming>, text: &str) {
    let seen = bytes(response, text.len()).await;
    assert_eq!(String::from_utf8_lossy(&seen), text);
}

fn bookmark(rv: u64) -> String {
    format!(
        "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\
         \"metadata\":{{\"resourceVersion\":\"{rv}\"}}}}}}\n"
    )
}

#[tokio::test]
async fn t15_events_of_others_are_silent_and_ours_are_the_same_bytes() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (events, mut seen) = watch(&mut client, &mut upstream, "").await;
    let ours = event("ADDED", "ours", 3);
    let (half, rest) = ours.split_at(ours.len() / 2);
    events.send(format!("{}{half}", event("ADDED", "other", 2))).await;
    events.send(format!("{rest}{}", event("MODIFIED", "other", 4))).await;
    events.send(event("DELETED", "ours", 5)).await;
    sees(&mut seen, &(ours + &event("DELETED", "ours", 5))).await;
    events.end();
    assert!(chunk(&mut seen).await.is_none(), "a clean end");
    assert_eq!(proxy.metric(FILTERED, &[("kept", "false")]).await, 2.0);
}

#[tokio::test]
async fn t05_the_clients_position_follows_the_stream() {
    let (mut upstream, _proxy, mut client) = scene().await;
    listed(&mut client, &mut upstream).await;
    let query = "&allowWatchBookmarks=true&resourceVersion=100";
    let (events, mut seen) = watch(&mut client, &mut upstream, query).await;
    events.send(event("ADDED", "other", 106) + &event("MODIFIED", "other", 107)).await;
    sees(&mut seen, &bookmark(107)).await;
    events.send(event("ADDED", "other", 108) + &event("ADDED", "ours", 109)).await;
    sees(&mut seen, &event("ADDED", "ours", 109)).await;
}

#[tokio::test]
async fn t05_initial_events_come_in_no_order_and_make_no_bookmark() {
    let (mut upstream, _proxy, mut client) = scene().await;
    let query = "&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersion=5";
    let (events, mut seen) = watch(&mut client, &mut upstream, query).await;
    events.send(event("ADDED", "other", 4)).await;
    timeout(Duration::from_millis(500), chunk(&mut seen)).await.expect_err("nothing");
    let end = format!(
        "{}\n",
        json!({"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata":
            {"resourceVersion": "6", "annotations": {"k8s.io/initial-events-end": "true"}}}})
    );
    events.send(end.clone()).await;
    sees(&mut seen, &end).await;
    events.send(event("ADDED", "other", 7)).await;
    sees(&mut seen, &bookmark(7)).await;
}

#[tokio::test]
async fn t06_who_asked_for_no_bookmarks_gets_none() {
    let (mut upstream, proxy, mut client) = scene().await;
    listed(&mut client, &mut upstream).await;
    let (events, mut seen) = watch(&mut client, &mut upstream, "&resourceVersion=100").await;
    events.send(event("ADDED", "other", 106)).await;
    proxy.until_metric(FILTERED, &[("kept", "false")], 1.0).await;
    timeout(Duration::from_millis(500), chunk(&mut seen)).await.expect_err("nothing");
    events.send(event("ADDED", "ours", 107)).await;
    sees(&mut seen, &event("ADDED", "ours", 107)).await;
}

#[tokio::test]
async fn t04_a_deletion_is_silent_where_the_object_was() {
    let (mut upstream, _proxy, mut client) = scene().await;
    let (events, mut seen) = watch(&mut client, &mut upstream, "").await;
    let last = event("DELETED", "ours", 9);
    events.send(format!("{}{last}", event("DELETED", "other", 7))).await;
    sees(&mut seen, &last).await;
}

/// A judged watch does not drop it either, but ends: t44.
#[tokio::test]
async fn t11_an_event_of_a_type_that_nobody_knows_is_not_dropped() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::with_policy(&upstream, POLICY).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let (events, mut seen) = watch(&mut client, &mut upstream, "").await;
    let unknown = event("RENAMED", "other", 8);
    events.send(unknown.clone()).await;
    sees(&mut seen, &unknown).await;
}

#[tokio::test]
async fn t12_a_streamed_list_that_cannot_be_judged_is_refused() {
    let (mut upstream, _proxy, mut client) = scene().await;
    let query =
        "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let pending = client.send(request(Method::GET, &format!("{ALL}?{query}")));
    let call = upstream.call().await;
    let _events = call.stream(200, &[("content-type", "application/yaml")]);
    let (code, body) = client::text(pending.await.unwrap()).await;
    assert!(code == 406 && body.contains("\"Status\""), "{code} {body}");
}

#[tokio::test]
async fn t16_what_left_while_nobody_watched_is_deleted_after_all() {
    let (mut upstream, proxy, mut client) = scene().await;
    listed(&mut client, &mut upstream).await;
    let go_on = "&allowWatchBookmarks=true&resourceVersion=";
    let (events, mut seen) = watch(&mut client, &mut upstream, &format!("{go_on}100")).await;
    events.send(event("ADDED", "ours", 103)).await;
    sees(&mut seen, &event("ADDED", "ours", 103)).await;
    events.end();
    assert!(chunk(&mut seen).await.is_none());
    // The proxy remembers nothing of what the client was shown, and need not.
    let mut client = Client::new(&proxy, Http::Two).await;
    let (events, mut seen) = watch(&mut client, &mut upstream, &format!("{go_on}103")).await;
    events.send(event("DELETED", "ours", 104)).await;
    sees(&mut seen, &event("DELETED", "ours", 104)).await;
}

#[tokio::test]
async fn t27_an_expired_token_comes_with_a_new_one() {
    let (mut upstream, _proxy, mut client) = scene().await;
    let status = json!({"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired",
        "metadata": {"continue": "a new token"}})
    .to_string();
    let pending = client.send(request(Method::GET, &format!("{ALL}?limit=500")));
    upstream.call().await.json(410, &status);
    assert_eq!(client::text(pending.await.unwrap()).await, (410, status));
}

#[tokio::test]
async fn t31_a_position_goes_to_whichever_api_server_as_it_came() {
    let (mut upstream, proxy, mut client) = scene().await;
    listed(&mut client, &mut upstream).await;
    let mut other = Client::new(&proxy, Http::Two).await;
    let pending = other.send(request(Method::GET, &format!("{ALL}?watch=1&resourceVersion=101")));
    let call = upstream.call().await;
    assert_eq!(call.query("resourceVersion").as_deref(), Some("101"));
    // An API server that is behind reports so itself.
    let status = json!({"kind": "Status", "code": 504, "reason": "Timeout"}).to_string();
    call.json(504, &status);
    assert_eq!(client::text(pending.await.unwrap()).await, (504, status));
}

#[tokio::test]
async fn t44_an_event_that_cannot_be_judged_makes_the_client_list() {
    let unknown = event("SHINY", "ours", 4);
    for unreadable in ["{\"type\":\"ADDED\",\"object\":{\"metadata\":7}}\n", &unknown] {
        let (mut upstream, _proxy, mut client) = scene().await;
        let (events, seen) = watch(&mut client, &mut upstream, "").await;
        let ours = event("ADDED", "ours", 3);
        events.send(format!("{ours}{unreadable}")).await;
        let (_, body) = client::text(seen).await;
        let last = body.strip_prefix(&ours).expect("the event before");
        let last: Value = serde_json::from_str(last).unwrap();
        assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(410)));
        events.given_up().await;
    }
}

#[tokio::test]
async fn t45_an_upstream_that_ends_within_an_event_breaks_a_judged_watch_off() {
    let (mut upstream, _proxy, mut client) = scene().await;
    let (events, mut seen) = watch(&mut client, &mut upstream, "").await;
    let (ours, half) = (event("ADDED", "ours", 3), event("ADDED", "ours", 4));
    events.send(format!("{ours}{}", &half[..half.len() / 2])).await;
    sees(&mut seen, &ours).await;
    events.end();
    chunk(&mut seen).await.expect("no clean end").expect_err("a broken body");
}

#[tokio::test]
async fn t18_a_boundary_that_moves_reaches_a_judged_watch_in_mid_event() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (events, mut seen) = watch(&mut client, &mut upstream, "").await;
    let ours = event("ADDED", "ours", 3);
    events.send(format!("{ours}{{\"type\":")).await;
    sees(&mut seen, &ours).await;
    proxy.change_policy(&policy("ours, ns, more")).await;
    let last = expired(Encoding::Json);
    assert_eq!(bytes(&mut seen, last.len()).await, last);
    assert!(chunk(&mut seen).await.is_none(), "a clean end");
    events.given_up().await;
}

#[tokio::test]
async fn a_policy_without_boundaries_judges_nothing() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::with_policy(&upstream, POLICY).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let pending = client.send(request(Method::GET, ALL));
    upstream.call().await.json(200, "{\"entries\":[]}");
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    assert_eq!(proxy.metric(FILTERED, &[]).await, 0.0);
}

/// Large objects that never become whole: some streams break off, and the others go on.
#[tokio::test]
async fn bad_unfinished_objects_share_one_room() {
    let (mut upstream, proxy, mut client) = scene().await;
    let mut large = object("ours", "x", 5);
    large["data"] = json!({ "text": "x".repeat(1 << 20) });
    let whole = format!("{}\n", json!({"type": "ADDED", "object": large}));
    let (begun, rest) = whole.split_at(whole.len() - 10);
    let mut watches = Vec::new();
    for _ in 0..40 {
        let sent = request(Method::GET, &format!("{ALL}?watch=1"));
        let (events, seen) = opened(&mut client, &mut upstream, sent, Encoding::Json).await;
        events.send(begun.to_owned()).await;
        watches.push((events, seen));
    }
    let broken = || async { watches.iter().filter(|(events, _)| events.is_given_up()).count() };
    until("there is room for the others", broken, |count| *count >= 8).await;
    let held = proxy.metric("ctrlmesh_filter_memory_bytes", &[]).await;
    // Each may hold 64 KiB besides.
    assert!(held <= f64::from((32 << 20) + 40 * (64 << 10)), "{held}");
    let mut went_on = 0;
    for (events, mut seen) in watches {
        if events.is_given_up() {
            continue;
        }
        events.send(rest.to_owned()).await;
        assert_eq!(bytes(&mut seen, whole.len()).await, whole.as_bytes());
        went_on += 1;
    }
    // A buffer that grows has up to twice its content.
    assert!(went_on >= 15, "{went_on}");
    proxy.until_metric("ctrlmesh_filter_memory_bytes", &[], 0.0).await;
}
