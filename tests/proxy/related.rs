//! Resources that a client watches, that no limit names, and that belong to limited objects.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use crate::support::{
    TOKEN,
    client::{Client, Http, request, request_with},
    policies::{everything_policy, fenced_policy},
    proxy::Proxy,
    upstream::{Behaviour, Call, Upstream},
};

const RELATED: &str = "ctrlmesh_related_resources";
const OWN: &str = "ctrlmesh_own_requests_total";
const SECRETS: &str = "/api/v1/secrets?watch=1";

/// A proxy of a shard with the ConfigMaps of the namespace `a`. It stands before an API server of
/// this HTTP version, whose looks the test answers.
async fn scene(http: Http) -> (Upstream, Proxy, Client) {
    let behaviour = Behaviour { alpn: vec![http.alpn()], has_looks: true, ..Behaviour::default() };
    let upstream = Upstream::with(behaviour).await;
    let proxy = Proxy::with_policy(&upstream, &fenced_policy("[a]", "{mode: Warn}")).await;
    let client = Client::new(&proxy, http).await;
    (upstream, proxy, client)
}

/// A page with one Secret, which belongs to an object of this kind.
fn page(api_version: &str, kind: &str) -> String {
    let owner = json!([{ "apiVersion": api_version, "kind": kind, "name": "parent" }]);
    let meta = json!({ "namespace": "b", "name": "child", "ownerReferences": owner });
    json!({ "metadata": { "resourceVersion": "9" }, "items": [{ "metadata": meta }] }).to_string()
}

fn discovery(kind: &str) -> String {
    let resource = json!({
        "name": "configmaps", "singularName": "", "namespaced": true, "kind": kind, "verbs": [],
    });
    json!({ "kind": "APIResourceList", "groupVersion": "v1", "resources": [resource] }).to_string()
}

/// The look that the proxy sends before a watch.
async fn look(upstream: &mut Upstream) -> Call {
    let call = upstream.call().await;
    assert_eq!(
        call.target(),
        "/api/v1/secrets?limit=500&timeoutSeconds=5",
        "at no version, which would void the limit"
    );
    assert_eq!(call.header("authorization"), Some(format!("Bearer {TOKEN}")));
    call
}

async fn related(proxy: &Proxy) -> (String, bool) {
    let (_, ready) = proxy.admin_page("/readyz").await;
    let is_told = ready.contains("[+]related ok: ");
    let count = proxy.metric(RELATED, &[]).await.to_string();
    assert_eq!(count != "0", is_told, "{ready}");
    (ready, is_told)
}

#[tokio::test]
async fn bad_resource_that_no_limit_names_and_limited_objects_own_is_told() {
    for http in [Http::One, Http::Two] {
        let (mut upstream, proxy, mut client) = scene(http).await;
        let watching = client.send(request(Method::GET, SECRETS));
        look(&mut upstream).await.json(200, &page("v1", "ConfigMap"));
        let call = upstream.call().await;
        assert_eq!(call.target(), "/api/v1");
        call.json(200, &discovery("ConfigMap"));
        let call = upstream.call().await;
        assert_eq!(call.target(), SECRETS);
        let _events = call.watch();
        assert_eq!(watching.await.unwrap().status(), 200);
        let (ready, is_told) = related(&proxy).await;
        assert!(is_told, "{ready}");
        for said in [
            "the controller watches secrets, which no limit names",
            "secrets b/child belongs to ConfigMap parent",
            "add to relateResources of a limit: {apiGroups: [\"\"], resources: [secrets]}",
        ] {
            assert!(ready.contains(said), "{ready}");
        }
        assert_eq!(proxy.metric(OWN, &[("why", "related")]).await.to_string(), "1");
        // Once a policy.
        let mut other = Client::new(&proxy, http).await;
        let watching = other.send(request(Method::GET, SECRETS));
        let _more = upstream.call().await.watch();
        assert_eq!(watching.await.unwrap().status(), 200);
        // A limit that names it is enough.
        proxy
            .change_policy(&everything_policy("namespaces: {names: [a]}, clusterScoped: Exclude"))
            .await;
        let (ready, is_told) = related(&proxy).await;
        assert!(!is_told, "{ready}");
    }
}

#[tokio::test]
async fn bad_resource_that_no_limit_names_and_the_controller_writes_is_told() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let watching = client.send(request(Method::GET, SECRETS));
    // Its owners are not limited.
    look(&mut upstream).await.json(200, &page("example.com/v1", "Widget"));
    let _events = upstream.call().await.watch();
    assert_eq!(watching.await.unwrap().status(), 200);
    let writes = [
        // Neither objects next to the pods nor objects that are not watched count.
        ("/api/v1/namespaces/ns/secrets", false),
        ("/api/v1/namespaces/a/services", false),
        ("/api/v1/namespaces/a/secrets", true),
    ];
    for (target, expected) in writes {
        let pending = client.send(request_with(Method::POST, target, "{}"));
        upstream.call().await.json(201, "{}");
        assert_eq!(pending.await.unwrap().status(), 201);
        let (ready, is_told) = related(&proxy).await;
        assert_eq!(is_told, expected, "{target}: {ready}");
    }
    let (ready, _) = related(&proxy).await;
    assert!(ready.contains("for example: it sends create secrets in namespace a"), "{ready}");
}

#[tokio::test]
async fn bad_look_that_fails_delays_no_watch_and_is_repeated() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let not_a_list = json!({ "items": 5 }).to_string();
    let answers = [(503, "{}"), (500, "{}"), (429, "{}"), (403, "{}")];
    let mut all = Vec::new();
    for (code, body) in answers {
        let watching = client.send(request(Method::GET, SECRETS));
        look(&mut upstream).await.json(code, body);
        all.push(upstream.call().await.watch());
        assert_eq!(watching.await.unwrap().status(), 200, "after {code}");
    }
    // An answer that will be the same is not asked for again.
    let watching = client.send(request(Method::GET, SECRETS));
    all.push(upstream.call().await.watch());
    assert_eq!(watching.await.unwrap().status(), 200);
    // Another resource is another matter.
    let watching = client.send(request(Method::GET, "/api/v1/pods?watch=1"));
    let call = upstream.call().await;
    assert_eq!(call.target(), "/api/v1/pods?limit=500&timeoutSeconds=5");
    call.json(200, &not_a_list);
    all.push(upstream.call().await.watch());
    assert_eq!(watching.await.unwrap().status(), 200);
    assert!(!related(&proxy).await.1);
}

#[tokio::test]
async fn bad_look_that_is_never_answered_delays_a_watch_for_seconds_alone() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let began = Instant::now();
    let watching = client.send(request(Method::GET, SECRETS));
    let held = look(&mut upstream).await;
    let call = upstream.call().await;
    assert_eq!(call.target(), SECRETS);
    let _events = call.watch();
    assert_eq!(watching.await.unwrap().status(), 200);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(held);
    assert!(!related(&proxy).await.1);
    // It is asked for again.
    let watching = client.send(request(Method::GET, SECRETS));
    look(&mut upstream).await.json(200, &page("example.com/v1", "Widget"));
    let _more = upstream.call().await.watch();
    assert_eq!(watching.await.unwrap().status(), 200);
}

#[tokio::test]
async fn what_cannot_be_limited_or_is_one_object_is_not_looked_at() {
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    let mut all = Vec::new();
    for target in [
        "/apis/coordination.k8s.io/v1/leases?watch=1",
        "/api/v1/events?watch=1",
        "/api/v1/namespaces?watch=1",
        "/api/v1/configmaps?watch=1",
        "/api/v1/namespaces/a/secrets?watch=1&fieldSelector=metadata.name%3Dx",
        "/api/v1/namespaces/a/pods/x/log?follow=true",
    ] {
        let pending = client.send(request(Method::GET, target));
        let call = upstream.call().await;
        assert!(call.target().starts_with(target), "{}", call.target());
        all.push(call.watch());
        assert_eq!(pending.await.unwrap().status(), 200, "{target}");
    }
    let list = client.send(request(Method::GET, "/api/v1/secrets"));
    let call = upstream.call().await;
    assert_eq!(call.target(), "/api/v1/secrets");
    call.json(200, &Value::Object(Default::default()).to_string());
    assert_eq!(list.await.unwrap().status(), 200);
}

#[tokio::test]
async fn what_a_controller_has_asked_is_told_by_resource_and_verb() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    for (method, target) in [
        (Method::GET, "/api/v1/configmaps"),
        (Method::GET, "/api/v1/namespaces/a/configmaps/x"),
        (Method::POST, "/api/v1/namespaces/a/secrets"),
        (Method::POST, "/api/v1/namespaces/a/secrets"),
        (Method::DELETE, "/apis/example.com/v1/namespaces/a/widgets/x"),
        (Method::GET, "/version"),
    ] {
        let pending = client.send(request_with(method, target, "{}"));
        upstream.call().await.json(200, "{}");
        pending.await.unwrap();
    }
    let (code, page) = proxy.admin_page("/observed").await;
    assert_eq!(code, 200);
    let page: Value = serde_json::from_str(&page).unwrap();
    let one = |group: &str, resource: &str, verbs: &[&str], is_limited: bool| json!({ "group": group, "resource": resource, "verbs": verbs, "isLimited": is_limited });
    let expected = json!([
        one("", "configmaps", &["get", "list"], true),
        one("", "secrets", &["create"], false),
        one("example.com", "widgets", &["delete"], false),
    ]);
    assert_eq!(page["resources"], expected);
    assert_eq!(page["elections"]["held"], json!([]));
}
