//! One name over all namespaces: a collection, unless the resource is cluster-scoped.

use http::Method;
use serde_json::{Value, json};

use super::shared::{cannot_come_back, scene_of};
use crate::support::{
    TOKEN,
    client::{self, Http, request},
    events::{added, list, too_old},
    policies::{POLICY, configmaps_policy, moved_policy},
    upstream::{Call, Upstream},
};
use ctrlmesh::wire::media::Encoding;

const ONE: &str = "/api/v1/configmaps?fieldSelector=metadata.name%3Dx";
const BY_LABEL: Option<&str> = Some("shard=blue");

fn namespaces() -> String {
    configmaps_policy("namespaces: {names: [ours]}, clusterScoped: Exclude")
}

/// Discovery of the core group, in which ConfigMaps are namespaced or not.
fn served(is_namespaced: bool) -> String {
    let one = |name, namespaced| json!({"name": name, "kind": "X", "namespaced": namespaced});
    let resources = [one("configmaps/status", !is_namespaced), one("configmaps", is_namespaced)];
    json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources}).to_string()
}

/// The discovery of a resource, requested in the client's name.
async fn asked(upstream: &mut Upstream) -> Call {
    let call = upstream.call().await;
    assert_eq!((call.parts.method.as_str(), call.target()), ("GET", "/api/v1"));
    assert_eq!(call.header("accept").as_deref(), Some("application/json"));
    assert_eq!(call.header("authorization"), Some(format!("Bearer {TOKEN}")));
    call
}

fn list_of(namespaces: &[&str]) -> String {
    let item = |namespace: &&str| {
        let mut meta = json!({"name": "x", "uid": namespace, "resourceVersion": "7"});
        if !namespace.is_empty() {
            meta["namespace"] = json!(namespace);
        }
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta})
    };
    let items: Vec<_> = namespaces.iter().map(item).collect();
    json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "100"},
        "items": items})
    .to_string()
}

fn uids(body: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(body).unwrap();
    let uid = |item: &Value| item["metadata"]["uid"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(uid).collect()
}

#[tokio::test]
async fn t29_one_name_over_all_namespaces_is_narrowed() {
    for http in Http::BOTH {
        let (mut upstream, proxy, mut client) = scene_of(POLICY, http).await;
        for (query, is_first) in [("", true), ("&watch=1", false)] {
            let pending = client.send(request(Method::GET, &format!("{ONE}{query}")));
            if is_first {
                asked(&mut upstream).await.json(200, &served(true));
            }
            let call = upstream.call().await;
            assert_eq!(call.query("labelSelector").as_deref(), BY_LABEL, "{query}");
            call.json(200, if is_first { "{\"metadata\":{},\"items\":[]}" } else { "" });
            assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
        }
        let own = [("why", "discovery"), ("code_class", "2xx")];
        assert_eq!(proxy.metric("ctrlmesh_own_requests_total", &own).await, 1.0);
    }
}

#[tokio::test]
async fn t29_one_name_over_all_namespaces_is_judged() {
    let (mut upstream, _proxy, mut client) = scene_of(&namespaces(), Http::Two).await;
    let pending = client.send(request(Method::GET, ONE));
    asked(&mut upstream).await.json(200, &served(true));
    upstream.call().await.json(200, &list_of(&["ours", "other"]));
    assert_eq!(uids(&client::text(pending.await.unwrap()).await.1), ["ours"]);

    let pending = client.send(request(Method::GET, &format!("{ONE}&watch=1")));
    let events = upstream.call().await.watch();
    let event = |namespace: &str| {
        let list: Value = serde_json::from_str(&list_of(&[namespace])).unwrap();
        format!("{}\n", json!({"type": "ADDED", "object": list["items"][0]}))
    };
    events.send(event("other")).await;
    events.send(event("ours")).await;
    events.end();
    assert_eq!(client::text(pending.await.unwrap()).await, (200, event("ours")));
}

#[tokio::test]
async fn t29_one_name_of_what_is_in_no_namespace_passes() {
    for policy in [POLICY, &namespaces()] {
        let (mut upstream, proxy, mut client) = scene_of(policy, Http::Two).await;
        let pending = client.send(request(Method::GET, ONE));
        asked(&mut upstream).await.json(200, &served(false));
        let call = upstream.call().await;
        assert_eq!(call.target(), ONE);
        call.json(200, &list_of(&[""]));
        assert_eq!(uids(&client::text(pending.await.unwrap()).await.1), [""]);

        let pending = client.send(request(Method::GET, &format!("{ONE}&watch=1")));
        let call = upstream.call().await;
        assert_eq!(call.query("labelSelector"), None);
        let events = call.watch();
        let response = pending.await.unwrap();
        // A change of the boundary does not concern it, now or later.
        proxy.change_policy(&moved_policy("green")).await;
        events.end();
        assert_eq!(client::text(response).await, (200, String::new()));
        let pending =
            client.send(request(Method::GET, &format!("{ONE}&watch=1&resourceVersion=100")));
        upstream.call().await.watch().end();
        assert_eq!(client::text(pending.await.unwrap()).await, (200, String::new()));
    }
}

/// Fail closed: it may be namespaced.
#[tokio::test]
async fn t29_one_name_is_narrowed_where_nobody_tells_what_it_is_of() {
    let (mut upstream, _proxy, mut client) = scene_of(POLICY, Http::Two).await;
    let other = "{\"resources\":[{\"name\":\"pods\",\"namespaced\":false}]}";
    for (code, body) in [(403, "{}"), (503, "{}"), (200, "no JSON"), (200, other)] {
        let pending = client.send(request(Method::GET, ONE));
        asked(&mut upstream).await.json(code, body);
        let call = upstream.call().await;
        assert_eq!(call.query("labelSelector").as_deref(), BY_LABEL, "{code} {body}");
        call.json(200, &list(100));
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    }
}

/// The decision comes before the request is in flight, so no move waits for it.
#[tokio::test]
async fn a_policy_that_comes_while_discovery_is_awaited_decides() {
    let (mut upstream, proxy, mut client) = scene_of(POLICY, Http::Two).await;
    let pending = client.send(request(Method::GET, ONE));
    let discovery = asked(&mut upstream).await;
    proxy.change_policy(&moved_policy("green")).await;
    discovery.json(200, &served(true));
    let call = upstream.call().await;
    assert_eq!(call.query("labelSelector").as_deref(), Some("shard=green"));
    call.json(200, &list(100));
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
}

#[tokio::test]
async fn t29_one_name_over_all_namespaces_follows_the_boundary() {
    let (mut upstream, proxy, mut client) = scene_of(POLICY, Http::Two).await;
    let pending = client.send(request(Method::GET, &format!("{ONE}&watch=1")));
    asked(&mut upstream).await.json(200, &served(true));
    let events = upstream.call().await.watch();
    let mut response = pending.await.unwrap();
    events.send(added(Encoding::Json, 100)).await;
    client::chunk(&mut response).await.unwrap().unwrap();
    // The watch has no position of its own without bookmarks.
    proxy.change_policy(&moved_policy("green")).await;
    let (code, body) = client::whole(response).await.unwrap();
    assert_eq!(
        (code.as_u16(), String::from_utf8_lossy(&body).contains("\"Expired\"")),
        (200, true)
    );
    drop(events);
    let resumed = format!("{ONE}&watch=1&resourceVersion=100");
    let body = cannot_come_back(&mut client, &mut upstream, &resumed).await;
    assert_eq!(body, too_old(Encoding::Json));
}

#[tokio::test]
async fn t29_one_name_in_one_namespace_is_asked_about_by_nobody() {
    let (mut upstream, _proxy, mut client) = scene_of(POLICY, Http::Two).await;
    for target in [
        "/api/v1/namespaces/ns/configmaps?fieldSelector=metadata.name%3Dx",
        "/api/v1/configmaps?fieldSelector=metadata.name%3Dx,metadata.namespace%3Dns",
        "/api/v1/services?fieldSelector=metadata.name%3Dx",
    ] {
        let pending = client.send(request(Method::GET, target));
        let call = upstream.call().await;
        assert_eq!(call.target(), target);
        call.json(200, &list(100));
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    }
}
