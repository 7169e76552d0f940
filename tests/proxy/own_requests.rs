//! Requests of the proxy's own on a client's behalf, and counts by resource.

use http::Method;
use serde_json::{Value, json};

use ctrlmesh::proxy::config::Pushdown;

use crate::support::{
    CONFIGMAPS,
    client::{self, Client, Http, request},
    log,
    policies::{configmaps_policy, moved_policy},
    proxy::{Files, Proxy, Setup},
    upstream::Upstream,
};

const OWN: &str = "ctrlmesh_own_requests_total";
/// The objects whose uid hashes (FNV-1a) into the lower half: "ab", and not "abc".
const HALF: &str =
    "hash: {of: uid, ranges: [{from: \"0x0000000000000000\", to: \"0x8000000000000000\"}]}";

async fn scene(policy: &str, pushdown: Pushdown) -> (Upstream, Proxy, Client) {
    let upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    files.put_policy(policy);
    let state_dir = Some(files.path().to_owned());
    let proxy = Setup { pushdown, state_dir, ..Setup::of(&upstream) }.start(files).await;
    let client = Client::new(&proxy, Http::Two).await;
    (upstream, proxy, client)
}

fn list(kind: &str, uids: &[&str]) -> String {
    let item = |uid: &&str| json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid, "resourceVersion": "7"}});
    let items: Vec<Value> = uids.iter().map(item).collect();
    let meta = json!({"resourceVersion": "100"});
    json!({"kind": kind, "apiVersion": "v1", "metadata": meta, "items": items}).to_string()
}

async fn counted(proxy: &Proxy, why: &str, class: &str) -> f64 {
    proxy.metric(OWN, &[("why", why), ("code_class", class)]).await
}

fn is_logged(why: &str) -> bool {
    let line = format!("why=\"{why}\"");
    log::text().lines().any(|said| said.contains("own request") && said.contains(&line))
}

#[tokio::test]
async fn proofs_of_pushdown_are_counted() {
    let (mut upstream, proxy, mut client) = scene(&configmaps_policy(HALF), Pushdown::Auto).await;
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    let probe = upstream.call().await;
    assert_eq!(probe.query("limit").as_deref(), Some("1"));
    // The probe gets no response at all.
    probe.reset();
    upstream.call().await.json(200, &list("ConfigMapList", &[]));
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    assert_eq!(counted(&proxy, "pushdown", "none").await, 1.0);

    let pending = client.send(request(Method::GET, CONFIGMAPS));
    upstream.call().await.json(400, "{}");
    upstream.call().await.json(200, &list("ConfigMapList", &[]));
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    assert_eq!(counted(&proxy, "pushdown", "4xx").await, 1.0);
    assert_eq!(proxy.metric(OWN, &[]).await, 2.0, "what the client asked for is not ours");
    assert!(is_logged("pushdown"));
}

/// A list that says that it was selected by the hashes.
fn selected(selector: &str) -> String {
    let meta = json!({"resourceVersion": "100", "shardInfo": {"selector": selector}});
    json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": meta, "items": []}).to_string()
}

#[tokio::test]
async fn what_one_connection_proves_is_known_to_all_until_it_is_refused() {
    let (mut upstream, proxy, mut client) = scene(&configmaps_policy(HALF), Pushdown::Auto).await;
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    let probe = upstream.call().await;
    let selector = probe.query("shardSelector").unwrap();
    probe.json(200, &selected(&selector));
    upstream.call().await.json(200, &selected(&selector));
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);

    // One list a request from here on, whatever the version of HTTP.
    for (http, code) in [(Http::One, 200), (Http::Two, 200), (Http::One, 400)] {
        let mut next = Client::new(&proxy, http).await;
        let pending = next.send(request(Method::GET, CONFIGMAPS));
        let call = upstream.call().await;
        assert_eq!(
            (call.query("limit"), call.query("shardSelector").as_ref()),
            (None, Some(&selector))
        );
        call.json(code, &selected(&selector));
        assert_eq!(client::text(pending.await.unwrap()).await.0, code);
    }
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    let probe = upstream.call().await;
    assert_eq!(probe.query("limit").as_deref(), Some("1"), "asked again");
    probe.json(400, "{}");
    let call = upstream.call().await;
    assert_eq!(call.query("shardSelector"), None);
    call.json(200, &list("ConfigMapList", &[]));
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
}

#[tokio::test]
async fn what_a_judged_deletecollection_asks_for_is_counted() {
    let (mut upstream, proxy, mut client) = scene(&configmaps_policy(HALF), Pushdown::Off).await;
    let pending = client.send(request(Method::DELETE, CONFIGMAPS));
    let served = json!({"name": "configmaps", "namespaced": true, "verbs": ["deletecollection"]});
    upstream.call().await.json(200, &json!({ "resources": [served] }).to_string());
    upstream.call().await.json(200, &list("ConfigMapList", &["ab", "abc"]));
    let delete = upstream.call().await;
    assert_eq!(delete.path(), format!("{CONFIGMAPS}/ab"));
    delete.json(403, "{\"kind\":\"Status\",\"code\":403}");
    assert_eq!(client::text(pending.await.unwrap()).await.0, 403);
    for (class, count) in [("2xx", 2.0), ("4xx", 1.0)] {
        assert_eq!(counted(&proxy, "deletecollection", class).await, count, "{class}");
    }
    assert!(is_logged("deletecollection"));
}

#[tokio::test]
async fn lists_and_watches_of_a_change_are_counted() {
    let (mut upstream, proxy, mut client) = scene(&moved_policy("blue"), Pushdown::Off).await;
    let go_on = "watch=1&allowWatchBookmarks=true&resourceVersion=100";
    let mut sent = request(Method::GET, &format!("{CONFIGMAPS}?{go_on}"));
    sent.headers_mut().insert("accept", "application/json".parse().unwrap());
    let pending = client.send(sent);
    let _events = upstream.call().await.watch();
    let _seen = pending.await.unwrap();
    proxy.change_policy(&moved_policy("green")).await;
    for _ in ["what leaves", "what comes"] {
        upstream.call().await.json(200, &list("ConfigMapList", &[]));
    }
    let _events = upstream.call().await.watch();
    proxy.until_metric(OWN, &[("why", "difference"), ("code_class", "2xx")], 2.0).await;
    proxy.until_metric(OWN, &[("why", "watch"), ("code_class", "2xx")], 1.0).await;
    assert!(is_logged("difference") && is_logged("watch"));
}

#[tokio::test]
async fn a_resource_that_a_policy_names_is_counted_by_its_name() {
    const FILTERED: &str = "ctrlmesh_filtered_items_total";
    const REQUESTS: &str = "ctrlmesh_requests_total";
    let policy = configmaps_policy(HALF).replace("[\"\"]", "[example.com]");
    let policy = policy.replace("[configmaps]", "[widgets]");
    let (mut upstream, proxy, mut client) = scene(&policy, Pushdown::Off).await;
    for (resource, items) in [("widgets", ["ab", "abc"]), ("inventions", ["ab", "abc"])] {
        let path = format!("/apis/example.com/v1/namespaces/ns/{resource}");
        let pending = client.send(request(Method::GET, &path));
        upstream.call().await.json(200, &list("SomeList", &items));
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    }
    for (resource, requests) in [("widgets", 1.0), ("inventions", 0.0), ("other", 1.0)] {
        proxy.until_metric(REQUESTS, &[("resource", resource)], requests).await;
    }
    for kept in ["true", "false"] {
        let labels = [("resource", "widgets"), ("kept", kept)];
        assert_eq!(proxy.metric(FILTERED, &labels).await, 1.0);
    }
}
