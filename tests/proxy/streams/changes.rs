//! Watches that are brought over to another policy while they stay open.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ctrlmesh::wire::media::Encoding;
use http::{HeaderValue, Method, Response, header};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::shared::{CHANGES, SECRETS, ends_clean, event, object, opened, page, resumes, watch};
use crate::support::{
    CONFIGMAPS, TOKEN,
    client::{Client, Http, bytes, chunk, request},
    events::expired,
    policies::moved_policy,
    proxy::{Files, Proxy, Setup},
    soon,
    upstream::{Call, Upstream},
};

/// The watch of an informer that has a list.
pub(super) const GO_ON: &str =
    "watch=1&allowWatchBookmarks=true&resourceVersion=100&timeoutSeconds=300";

/// A policy with both resources in this shard.
fn both(shard: &str) -> String {
    moved_policy(shard).replace("shard: blue", &format!("shard: {shard}"))
}

/// A new pod: no client was ever shown anything.
pub(super) async fn scene_with(http: Http) -> (Upstream, Proxy, Client) {
    let upstream = Upstream::speaking(http).await;
    let files = Files::new(&upstream.ca.pem);
    let state_dir = Some(files.path().to_owned());
    let proxy = Setup { state_dir, ..Setup::of(&upstream) }.start(files).await;
    let client = Client::new(&proxy, http).await;
    (upstream, proxy, client)
}

async fn scene() -> (Upstream, Proxy, Client) {
    scene_with(Http::Two).await
}

/// An item of a list, which has no kind of its own.
pub(super) fn item(name: &str, rv: u64, owners: usize) -> Value {
    let owners: Vec<_> = (0..owners).map(|_| json!({"kind": "Parent", "uid": "p"})).collect();
    let mut meta = object("ns", name, rv)["metadata"].take();
    // An empty list of owners is no owner.
    meta["ownerReferences"] = owners.into();
    json!({"metadata": meta, "data": {"of": name}})
}

/// The next event of a stream: its type, and name or position.
async fn next(response: &mut Response<Incoming>, rest: &mut Vec<u8>) -> (String, String) {
    while !rest.contains(&b'\n') {
        rest.extend(soon("an event", chunk(response)).await.expect("no end").expect("no error"));
    }
    let end = rest.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let line: Vec<u8> = rest.drain(..end).collect();
    let event: Value = serde_json::from_slice(&line).unwrap();
    let object = &event["object"];
    let what = match event["type"].as_str().unwrap() {
        "BOOKMARK" => &object["metadata"]["resourceVersion"],
        "ERROR" => &object["reason"],
        _ => {
            assert_eq!(
                (&object["kind"], &object["apiVersion"]),
                (&json!("ConfigMap"), &json!("v1"))
            );
            &object["metadata"]["name"]
        }
    };
    (event["type"].as_str().unwrap().to_owned(), what.as_str().unwrap().to_owned())
}

pub(super) async fn sees(response: &mut Response<Incoming>, expected: &[(&str, &str)]) {
    let mut rest = Vec::new();
    for expected in expected {
        let (kind, what) = next(response, &mut rest).await;
        assert_eq!((kind.as_str(), what.as_str()), *expected);
    }
    assert_eq!(rest, b"", "nothing more");
}

pub(super) fn is_list(call: &Call, selector: &str, at: &str) {
    assert_eq!(call.query("labelSelector").as_deref(), Some(selector), "{}", call.target());
    assert_eq!(call.query("resourceVersion").as_deref(), Some(at));
    assert_eq!(call.query("resourceVersionMatch").as_deref(), Some("Exact"));
    assert_eq!(call.query("limit").as_deref(), Some("500"));
    for gone in ["watch", "allowWatchBookmarks", "timeoutSeconds", "sendInitialEvents"] {
        assert_eq!(call.query(gone), None, "{}", call.target());
    }
}

/// Answers the lists of a change from blue to green in which `over` leaves and `new` enters.
pub(super) async fn moves(upstream: &mut Upstream, at: u64, over: &[Value], new: &[Value]) {
    let call = upstream.call().await;
    is_list(&call, "shard=blue,shard!=green", &at.to_string());
    call.json(200, &page(at, "", over));
    let call = upstream.call().await;
    is_list(&call, "shard=green,shard!=blue", &at.to_string());
    call.json(200, &page(at, "", new));
}

#[tokio::test]
async fn t13_t14_a_change_is_told_at_one_position_and_the_watch_goes_on() {
    let (mut upstream, proxy, mut client) = scene().await;
    let query = format!("{GO_ON}&fieldSelector=metadata.name%21%3Dz&labelSelector=a");
    let (events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, &query, Encoding::Json).await;
    events.send(event("ADDED", "ns", 105)).await;
    sees(&mut seen, &[("ADDED", "x")]).await;
    proxy.change_policy(&moved_policy("green")).await;
    events.given_up().await;

    let call = upstream.call().await;
    is_list(&call, "a,shard=blue,shard!=green", "105");
    assert_eq!(call.query("fieldSelector").as_deref(), Some("metadata.name!=z"));
    assert_eq!(call.header("authorization"), Some(format!("Bearer {TOKEN}")));
    call.json(200, &page(105, "more", &[item("one", 7, 0)]));
    let call = upstream.call().await;
    assert_eq!(call.query("continue").as_deref(), Some("more"));
    assert_eq!(call.query("resourceVersion"), None, "the token has it");
    call.json(200, &page(105, "", &[item("two", 8, 0)]));
    let call = upstream.call().await;
    is_list(&call, "a,shard=green,shard!=blue", "105");
    call.json(200, &page(105, "", &[item("three", 9, 0)]));

    let call = upstream.call().await;
    assert_eq!(call.query("watch").as_deref(), Some("1"));
    assert_eq!(call.query("allowWatchBookmarks").as_deref(), Some("true"));
    assert_eq!(call.query("resourceVersion").as_deref(), Some("105"));
    assert_eq!(call.query("labelSelector").as_deref(), Some("a,shard=green"));
    let left: u64 = call.query("timeoutSeconds").unwrap().parse().unwrap();
    assert!((200..=300).contains(&left), "{left}");
    let events = call.stream(200, &[("content-type", "application/json")]);
    events.send(event("MODIFIED", "ns", 106)).await;
    let told = [
        ("DELETED", "one"),
        ("DELETED", "two"),
        ("ADDED", "three"),
        ("BOOKMARK", "105"),
        ("MODIFIED", "x"),
    ];
    sees(&mut seen, &told).await;
    proxy.until_metric(CHANGES, &[("how", "difference")], 1.0).await;
    assert_eq!(proxy.metric(CHANGES, &[("how", "expired")]).await, 0.0);
    proxy.until_metric("ctrlmesh_filter_memory_bytes", &[], 0.0).await;
}

#[tokio::test]
async fn t20_what_is_told_is_the_object_as_it_was_listed() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (_events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    proxy.change_policy(&moved_policy("green")).await;
    moves(&mut upstream, 100, &[], &[item("new", 42, 1)]).await;
    let _events = upstream.call().await.stream(200, &[("content-type", "application/json")]);
    let mut lines = Vec::new();
    while !lines.contains(&b'\n') {
        lines.extend(soon("an event", chunk(&mut seen)).await.expect("no end").expect("no error"));
    }
    let first = lines.split(|byte| *byte == b'\n').next().unwrap();
    let mut told: Value = serde_json::from_slice(first).unwrap();
    let fields = told["object"].as_object_mut().unwrap();
    assert_eq!(fields.remove("kind"), Some(json!("ConfigMap")));
    assert_eq!(fields.remove("apiVersion"), Some(json!("v1")));
    assert_eq!(told, json!({"type": "ADDED", "object": item("new", 42, 1)}));
}

#[tokio::test]
async fn t19_what_cannot_be_listed_as_of_the_position_is_told_to_list_anew() {
    let good = page(100, "", &[item("one", 7, 0)]);
    let nameless = json!({"kind": "ConfigMapList", "apiVersion": "v1",
        "metadata": {"resourceVersion": "100"}, "items": [{"data": {}}]});
    let mut huge = item("huge", 8, 0);
    huge["data"] = json!({"more than is held": "x".repeat(17 << 20)});
    let bad = [
        (200, page(100, "", &[huge])),
        (410, page(100, "", &[])),
        (403, "{}".to_owned()),
        (200, page(101, "", &[item("one", 7, 0)])),
        (200, page(100, "", &[]).replace("ConfigMapList", "Table")),
        (200, nameless.to_string()),
        (200, good[..good.len() - 5].to_owned()),
    ];
    for (code, body) in bad {
        let (mut upstream, proxy, mut client) = scene().await;
        let (_events, mut seen) =
            watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
        proxy.change_policy(&moved_policy("green")).await;
        upstream.call().await.json(200, &good);
        upstream.call().await.json(code, &body);
        let end = expired(Encoding::Json);
        assert_eq!(bytes(&mut seen, end.len()).await, end, "and nothing of the first list");
        ends_clean(&mut seen).await;
        assert!(upstream.is_quiet(), "nothing more was asked: {code} {body}");
        proxy.until_metric(CHANGES, &[("how", "expired")], 1.0).await;
        assert_eq!(proxy.metric(CHANGES, &[("how", "difference")]).await, 0.0);
    }
}

#[tokio::test]
async fn t23_a_watch_without_a_position_of_its_own_is_told_to_list_anew() {
    let queries = [
        "watch=1",
        "watch=1&resourceVersion=0",
        "watch=1&allowWatchBookmarks=true",
        "watch=1&allowWatchBookmarks=true&resourceVersion=0",
        "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
    ];
    for query in queries {
        let (mut upstream, proxy, mut client) = scene().await;
        let (events, mut seen) =
            watch(&mut client, &mut upstream, CONFIGMAPS, query, Encoding::Json).await;
        events.send(event("ADDED", "ns", 50)).await;
        sees(&mut seen, &[("ADDED", "x")]).await;
        proxy.change_policy(&moved_policy("green")).await;
        sees(&mut seen, &[("ERROR", "Expired")]).await;
        ends_clean(&mut seen).await;
        assert!(upstream.is_quiet(), "{query}");
    }
}

#[tokio::test]
async fn t17_a_streamed_list_has_a_position_once_it_has_ended() {
    let (mut upstream, proxy, mut client) = scene().await;
    let query =
        "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let (events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, query, Encoding::Json).await;
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let meta = json!({"resourceVersion": "120", "annotations": annotations});
    let end = json!({"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta}});
    events.send(format!("{}{end}\n", event("ADDED", "ns", 50))).await;
    sees(&mut seen, &[("ADDED", "x"), ("BOOKMARK", "120")]).await;
    proxy.change_policy(&moved_policy("green")).await;
    moves(&mut upstream, 120, &[item("one", 7, 0)], &[]).await;
    let call = upstream.call().await;
    for gone in ["sendInitialEvents", "resourceVersionMatch"] {
        assert_eq!(call.query(gone), None, "{}", call.target());
    }
    let _events = call.stream(200, &[("content-type", "application/json")]);
    sees(&mut seen, &[("DELETED", "one"), ("BOOKMARK", "120")]).await;
}

#[tokio::test]
async fn bad_lock_that_changes_under_a_pod_stays_and_readyz_says_so() {
    let (mut upstream, proxy, mut client) = scene().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    let query = format!("{GO_ON}&fieldSelector=metadata.name%3Dop");
    let (events, mut seen) =
        watch(&mut client, &mut upstream, leases, &query, Encoding::Json).await;
    // With what the rest of the policy changes.
    let other = "locks: [{name: op, namespace: kube-system}]";
    let other = moved_policy("green").replace("leaderElectionName: op", other);
    proxy.change_policy(&other).await;
    events.send(event("MODIFIED", "ns", 130)).await;
    sees(&mut seen, &[("MODIFIED", "x")]).await;
    let pending = client.send(request(Method::GET, &format!("{leases}/op")));
    let call = upstream.call().await;
    assert_eq!(call.path(), format!("{leases}/op---blue"));
    call.json(200, "{}");
    assert_eq!(crate::support::client::text(pending.await.unwrap()).await.0, 200);
    let (code, said) = proxy.admin_page("/readyz").await;
    assert!(code == 200 && said.contains("(ns/op): restart the pods"), "{code} {said}");
}

#[tokio::test]
async fn t75_a_change_during_a_change_waits_for_its_end() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (_events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    proxy.change_policy(&moved_policy("green")).await;
    let call = upstream.call().await;
    // Two more changes meanwhile are one change afterwards.
    proxy.change_policy(&moved_policy("red")).await;
    proxy.change_policy(&moved_policy("grey")).await;
    is_list(&call, "shard=blue,shard!=green", "100");
    call.json(200, &page(100, "", &[item("one", 7, 0)]));
    upstream.call().await.json(200, &page(100, "", &[]));
    let _green = upstream.call().await.stream(200, &[("content-type", "application/json")]);
    let call = upstream.call().await;
    is_list(&call, "shard=green,shard!=grey", "100");
    call.json(200, &page(100, "", &[]));
    let call = upstream.call().await;
    is_list(&call, "shard=grey,shard!=green", "100");
    call.json(200, &page(100, "", &[item("two", 8, 0)]));
    let events = upstream.call().await.stream(200, &[("content-type", "application/json")]);
    let told = [("DELETED", "one"), ("BOOKMARK", "100"), ("ADDED", "two"), ("BOOKMARK", "100")];
    sees(&mut seen, &told).await;
    events.send(event("ADDED", "ns", 130)).await;
    sees(&mut seen, &[("ADDED", "x")]).await;
    assert!(upstream.is_quiet());
}

/// The old policy has decided the watch.
#[tokio::test]
async fn t23_a_watch_that_is_answered_after_a_change_is_brought_over() {
    let (mut upstream, proxy, mut client) = scene().await;
    let mut sent = request(Method::GET, &format!("{CONFIGMAPS}?{GO_ON}"));
    sent.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    let pending = client.send(sent);
    let call = upstream.call().await;
    assert_eq!(call.query("labelSelector").as_deref(), Some("shard=blue"));
    proxy.change_policy(&moved_policy("green")).await;
    let _events = call.stream(200, &[("content-type", "application/json")]);
    let mut seen = pending.await.unwrap();
    moves(&mut upstream, 100, &[item("one", 7, 0)], &[item("two", 8, 0)]).await;
    let call = upstream.call().await;
    assert_eq!(call.query("labelSelector").as_deref(), Some("shard=green"));
    let _events = call.stream(200, &[("content-type", "application/json")]);
    sees(&mut seen, &[("DELETED", "one"), ("ADDED", "two"), ("BOOKMARK", "100")]).await;
}

#[tokio::test]
async fn t14_a_watchs_time_goes_on_over_a_change() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (_events, _seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    // This is no synchronisation: the test is about the time that has passed.
    sleep(Duration::from_millis(1100)).await;
    proxy.change_policy(&moved_policy("green")).await;
    moves(&mut upstream, 100, &[], &[]).await;
    let left: u64 = upstream.call().await.query("timeoutSeconds").unwrap().parse().unwrap();
    assert!((200..300).contains(&left), "{left}");
}

#[tokio::test]
async fn t63_what_changes_hands_is_asked_for_with_each_watchs_own_token() {
    let (mut upstream, proxy, mut client) = scene().await;
    let mut held = Vec::new();
    for (path, token) in [(CONFIGMAPS, "Bearer one"), (SECRETS, "Bearer two")] {
        let mut sent = request(Method::GET, &format!("{path}?{GO_ON}"));
        sent.headers_mut().insert(header::AUTHORIZATION, HeaderValue::from_static(token));
        let pending = client.send(sent);
        held.push((upstream.call().await.watch(), pending.await.unwrap()));
    }
    proxy.change_policy(&both("green")).await;
    // Two lists and a watch for each.
    for _ in 0..6 {
        let call = upstream.call().await;
        let own = if call.path() == CONFIGMAPS { "Bearer one" } else { "Bearer two" };
        assert_eq!(call.header("authorization").as_deref(), Some(own), "{}", call.target());
        match call.query("watch") {
            None => call.json(200, &page(100, "", &[])),
            Some(_) => drop(call.watch()),
        }
    }
}

#[tokio::test]
async fn t75_there_and_back_is_no_change() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    let half = event("ADDED", "ns", 101);
    events.send(half[..20].to_owned()).await;
    assert_eq!(bytes(&mut seen, 20).await, half.as_bytes()[..20], "an event has begun");
    proxy.change_policy(&moved_policy("green")).await;
    proxy.change_policy(&moved_policy("blue")).await;
    let rest = format!("{}{}", &half[20..], event("ADDED", "ns", 102));
    events.send(rest.clone()).await;
    assert_eq!(bytes(&mut seen, rest.len()).await, rest.as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn t08_a_drain_waits_for_the_end_of_a_change() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (_events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    proxy.change_policy(&moved_policy("green")).await;
    let call = upstream.call().await;
    proxy.drain(Duration::from_secs(10));
    call.json(200, &page(100, "", &[item("one", 7, 0)]));
    upstream.call().await.json(200, &page(100, "", &[]));
    let _events = upstream.call().await.stream(200, &[("content-type", "application/json")]);
    sees(&mut seen, &[("DELETED", "one"), ("BOOKMARK", "100")]).await;
    ends_clean(&mut seen).await;
}

#[tokio::test]
async fn t08_a_drain_comes_after_a_change_that_waits_for_the_end_of_an_event() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (_idle, mut idle) = watch(&mut client, &mut upstream, SECRETS, GO_ON, Encoding::Json).await;
    let (events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    let whole = event("ADDED", "ns", 101);
    events.send(whole[..20].to_owned()).await;
    let mut begun = bytes(&mut seen, 20).await;
    assert_eq!(begun, whole.as_bytes()[..20]);
    proxy.change_policy(&moved_policy("green")).await;
    proxy.drain(Duration::from_secs(10));
    // The drain has reached all watches once it has ended this one.
    ends_clean(&mut idle).await;
    events.send(whole[20..].to_owned()).await;
    moves(&mut upstream, 101, &[item("one", 7, 0)], &[]).await;
    let _events = upstream.call().await.watch();
    for expected in [("ADDED", "x"), ("DELETED", "one"), ("BOOKMARK", "101")] {
        let (kind, what) = next(&mut seen, &mut begun).await;
        assert_eq!((kind.as_str(), what.as_str()), expected);
    }
    ends_clean(&mut seen).await;
}

#[tokio::test]
async fn t23_a_bookmark_that_was_sent_may_not_have_been_read() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (_events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    proxy.change_policy(&moved_policy("green")).await;
    moves(&mut upstream, 100, &[item("one", 7, 0)], &[]).await;
    let events = upstream.call().await.stream(200, &[("content-type", "application/json")]);
    sees(&mut seen, &[("DELETED", "one"), ("BOOKMARK", "100")]).await;
    // A client that resumes from it may have the store of before. No list of ours ever showed it:
    // it is the position that the client itself came with.
    assert!(!resumes(&mut client, &mut upstream, CONFIGMAPS, 100).await);
    events.send(event("ADDED", "ns", 101)).await;
    sees(&mut seen, &[("ADDED", "x")]).await;
    assert!(resumes(&mut client, &mut upstream, CONFIGMAPS, 101).await);
}

#[tokio::test]
async fn t21_children_come_before_their_parents_in_all_watches() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (_a, mut maps) = watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    let (_b, mut secrets) = watch(&mut client, &mut upstream, SECRETS, GO_ON, Encoding::Json).await;
    proxy.change_policy(&both("green")).await;
    let mut held = None;
    let mut streams = Vec::new();
    for _ in 0..5 {
        let call = upstream.call().await;
        let is_leaving = call.query("labelSelector").is_some_and(|s| s.ends_with("shard!=green"));
        match (call.path() == CONFIGMAPS, call.query("watch").is_some(), is_leaving) {
            (_, true, _) => streams.push(call.stream(200, &[("content-type", "application/json")])),
            (true, _, true) => {
                call.json(200, &page(100, "", &[item("m-old", 7, 0), item("m-oldchild", 7, 1)]))
            }
            (true, _, false) => {
                call.json(200, &page(100, "", &[item("m-new", 8, 0), item("m-child", 8, 2)]))
            }
            (false, _, true) => call.json(200, &page(100, "", &[item("s-oldchild", 7, 1)])),
            (false, _, false) => held = Some(call),
        }
    }
    // Objects without an owner leave at once; those with one wait until all others are known.
    sees(&mut maps, &[("DELETED", "m-old")]).await;
    let early = timeout(Duration::from_millis(200), chunk(&mut maps)).await;
    assert!(early.is_err(), "{early:?}");
    held.expect("a list").json(200, &page(100, "", &[item("s-child", 9, 1)]));
    streams.push(upstream.call().await.stream(200, &[("content-type", "application/json")]));
    let told =
        [("DELETED", "m-oldchild"), ("ADDED", "m-child"), ("ADDED", "m-new"), ("BOOKMARK", "100")];
    sees(&mut maps, &told).await;
    let told = [("DELETED", "s-oldchild"), ("ADDED", "s-child"), ("BOOKMARK", "100")];
    sees(&mut secrets, &told).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_waited_for_long() {
    let (mut upstream, proxy, mut client) = scene().await;
    let (_a, mut maps) = watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    let (_b, _secrets) = watch(&mut client, &mut upstream, SECRETS, GO_ON, Encoding::Json).await;
    proxy.change_policy(&both("green")).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let call = upstream.call().await;
        let is_leaving = call.query("labelSelector").is_some_and(|s| s.ends_with("shard!=green"));
        match (call.path() == CONFIGMAPS, call.query("watch").is_some(), is_leaving) {
            (false, ..) => held.push(call),
            (_, true, _) => {
                let events = call.stream(200, &[("content-type", "application/json")]);
                events.send(event("ADDED", "ns", 101)).await;
            }
            (_, _, true) => call.json(200, &page(100, "", &[])),
            (_, _, false) => call.json(200, &page(100, "", &[item("new", 8, 0)])),
        }
    }
    sees(&mut maps, &[("ADDED", "new"), ("BOOKMARK", "100"), ("ADDED", "x")]).await;
}

/// Headers that a GET does not need do not count.
#[tokio::test]
async fn a_watch_that_asked_at_length_is_told_to_list_anew() {
    for (name, how) in [("x-padding", "difference"), ("impersonate-user", "expired")] {
        let (mut upstream, proxy, mut client) = scene().await;
        let mut sent = request(Method::GET, &format!("{CONFIGMAPS}?{GO_ON}"));
        sent.headers_mut().insert(name, HeaderValue::from_str(&"x".repeat(17 << 10)).unwrap());
        let pending = client.send(sent);
        let _events = upstream.call().await.watch();
        let mut seen = pending.await.unwrap();
        proxy.change_policy(&moved_policy("green")).await;
        if how == "difference" {
            moves(&mut upstream, 100, &[], &[item("new", 7, 0)]).await;
            let _new = upstream.call().await.watch();
            sees(&mut seen, &[("ADDED", "new"), ("BOOKMARK", "100")]).await;
        } else {
            sees(&mut seen, &[("ERROR", "Expired")]).await;
            ends_clean(&mut seen).await;
            assert!(upstream.is_quiet());
        }
        proxy.until_metric(CHANGES, &[("how", how)], 1.0).await;
    }
}

#[tokio::test]
async fn over_http_1_a_watch_goes_on_over_another_connection() {
    let (mut upstream, proxy, mut client) = scene_with(Http::One).await;
    let (events, mut seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    proxy.change_policy(&moved_policy("green")).await;
    events.given_up().await;
    moves(&mut upstream, 100, &[item("one", 7, 0)], &[item("two", 8, 0)]).await;
    let call = upstream.call().await;
    assert_eq!((call.connection, call.query("watch").as_deref()), (1, Some("1")));
    let events = call.watch();
    sees(&mut seen, &[("DELETED", "one"), ("ADDED", "two"), ("BOOKMARK", "100")]).await;
    upstream.open_connections(1).await;
    events.send(event("MODIFIED", "ns", 106)).await;
    sees(&mut seen, &[("MODIFIED", "x")]).await;
    proxy.change_policy(&moved_policy("blue")).await;
    for (selector, items) in
        [("shard=green,shard!=blue", &[item("two", 8, 0)][..]), ("shard=blue,shard!=green", &[])]
    {
        let call = upstream.call().await;
        is_list(&call, selector, "106");
        call.json(200, &page(106, "", items));
    }
    let call = upstream.call().await;
    assert_eq!(call.connection, 2);
    let events = call.watch();
    sees(&mut seen, &[("DELETED", "two"), ("BOOKMARK", "106")]).await;
    events.end();
    ends_clean(&mut seen).await;

    // The client's connection goes on, and so does the last upstream.
    let pending = client.send(request(Method::GET, "/version"));
    let call = upstream.call().await;
    assert_eq!(call.connection, 2);
    call.json(200, "{}");
    assert_eq!(pending.await.unwrap().status(), 200);
    upstream.open_connections(1).await;
    proxy.until_metric(CHANGES, &[("how", "difference")], 2.0).await;
}

#[tokio::test]
async fn over_http_1_a_change_that_fails_is_told_to_list_anew() {
    for lists in [0, 1] {
        let (mut upstream, proxy, mut client) = scene_with(Http::One).await;
        let (_events, mut seen) =
            watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
        proxy.change_policy(&moved_policy("green")).await;
        for _ in 0..lists {
            upstream.call().await.json(200, &page(100, "", &[item("one", 7, 0)]));
        }
        upstream.call().await.reset();
        sees(&mut seen, &[("ERROR", "Expired")]).await;
        ends_clean(&mut seen).await;
        proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
        upstream.open_connections(0).await;
    }
}

#[tokio::test]
async fn bad_a_client_over_http_1_that_leaves_during_a_change() {
    let (mut upstream, proxy, mut client) = scene_with(Http::One).await;
    let (_events, seen) =
        watch(&mut client, &mut upstream, CONFIGMAPS, GO_ON, Encoding::Json).await;
    proxy.change_policy(&moved_policy("green")).await;
    let mut call = upstream.call().await;
    drop((seen, client));
    call.given_up().await;
    proxy.until_metric("ctrlmesh_connections", &[], 0.0).await;
    upstream.open_connections(0).await;
}

#[tokio::test]
async fn bad_a_hundred_watches_over_http_1_move_at_once() {
    const WATCHES: usize = 100;
    let (mut upstream, proxy, client) = scene_with(Http::One).await;
    drop(client);
    let open = Arc::new(Mutex::new(Vec::new()));
    let streams = Arc::clone(&open);
    upstream.serve(move |call| match call.query("watch") {
        Some(_) => streams.lock().unwrap().push(call.watch()),
        None => call.json(200, &page(100, "", &[item("one", 7, 0)])),
    });
    let mut clients = Vec::new();
    for _ in 0..WATCHES {
        let mut client = Client::new(&proxy, Http::One).await;
        let sent = request(Method::GET, &format!("{CONFIGMAPS}?{GO_ON}"));
        let seen = client.send(sent).await.unwrap();
        clients.push((client, seen));
    }
    proxy.change_policy(&moved_policy("green")).await;
    for (_, seen) in &mut clients {
        sees(seen, &[("DELETED", "one"), ("ADDED", "one"), ("BOOKMARK", "100")]).await;
    }
    upstream.open_connections(WATCHES).await;
    proxy.until_metric(CHANGES, &[("how", "difference")], WATCHES as f64).await;
    drop(clients);
    upstream.open_connections(0).await;
}

#[tokio::test]
async fn a_client_without_bookmarks_is_brought_over_from_those_that_it_is_not_shown() {
    let bookmark = |rv: u64| {
        let meta = json!({"resourceVersion": rv.to_string()});
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta});
        format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
    };
    for query in ["watch=1", "watch=1&resourceVersion=100"] {
        let (mut upstream, proxy, mut client) = scene().await;
        let pending = client.send(request(Method::GET, &format!("{CONFIGMAPS}?{query}")));
        let call = upstream.call().await;
        assert_eq!(call.query("allowWatchBookmarks").as_deref(), Some("true"));
        let events = call.watch();
        let mut seen = pending.await.unwrap();
        let (first, second) = (event("ADDED", "ns", 105), event("MODIFIED", "ns", 160));
        events.send(format!("{first}{}{second}{}", bookmark(150), bookmark(200))).await;
        sees(&mut seen, &[("ADDED", "x"), ("MODIFIED", "x")]).await;
        proxy.change_policy(&moved_policy("green")).await;
        moves(&mut upstream, 200, &[item("one", 7, 0)], &[item("two", 8, 0)]).await;
        let call = upstream.call().await;
        assert_eq!(call.query("allowWatchBookmarks").as_deref(), Some("true"));
        assert_eq!(call.query("resourceVersion").as_deref(), Some("200"));
        let events = call.watch();
        sees(&mut seen, &[("DELETED", "one"), ("ADDED", "two")]).await;
        events.send(format!("{}{}", bookmark(250), event("MODIFIED", "ns", 260))).await;
        sees(&mut seen, &[("MODIFIED", "x")]).await;
        proxy.until_metric(CHANGES, &[("how", "difference")], 1.0).await;
    }
}

#[tokio::test]
async fn what_leaves_is_deleted_at_the_position_and_for_kopf_with_a_time() {
    for (agent, shows_deletion) in [("Go-http-client/2.0", false), ("kopf/1.45.2", true)] {
        let (mut upstream, proxy, mut client) = scene().await;
        let mut sent = request(Method::GET, &format!("{CONFIGMAPS}?{GO_ON}"));
        sent.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(agent));
        let (_events, mut seen) = opened(&mut client, &mut upstream, sent, Encoding::Json).await;
        proxy.change_policy(&moved_policy("green")).await;
        moves(&mut upstream, 100, &[item("one", 7, 0)], &[item("two", 8, 0)]).await;
        let _events = upstream.call().await.watch();
        let mut lines = Vec::new();
        while lines.iter().filter(|byte| **byte == b'\n').count() < 2 {
            lines
                .extend(soon("events", chunk(&mut seen)).await.expect("no end").expect("no error"));
        }
        let mut told = lines.split(|byte| *byte == b'\n');
        let mut meta = || {
            let event: Value = serde_json::from_slice(told.next().unwrap()).unwrap();
            (event["type"].clone(), event["object"]["metadata"].clone())
        };
        let (kind, gone) = meta();
        assert_eq!((kind, &gone["resourceVersion"]), (json!("DELETED"), &json!("100")));
        assert_eq!(gone["deletionTimestamp"].is_string(), shows_deletion, "{gone}");
        assert_eq!(gone["deletionGracePeriodSeconds"] == json!(0), shows_deletion, "{gone}");
        let (kind, came) = meta();
        assert_eq!((kind, came), (json!("ADDED"), item("two", 8, 0)["metadata"].clone()));
    }
}
