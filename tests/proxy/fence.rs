//! Writes into namespaces of other shards.

use std::time::Duration;

use http::{Method, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    PATIENCE,
    client::{self, Client, Http, request, request_with},
    policies::{fenced_policy, locked_policy, outside_policy},
    proxy::{Files, Proxy, Setup},
    scene, soon,
    upstream::{Call, Stream, Upstream},
};

const FENCE: &str = "ctrlmesh_fence_total";
const REFUSALS: &str = "ctrlmesh_refusals_total";
const FOREIGN: &str = "/api/v1/namespaces/b/secrets";
const NAMED: &str = r#"{"metadata":{"name":"x"}}"#;

/// A proxy of the shard `blue`, which has ConfigMaps of these namespaces, under this fence.
async fn fenced(http: Http, namespaces: &str, fence: &str) -> (Upstream, Proxy, Client) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::with_policy(&upstream, &fenced_policy(namespaces, fence)).await;
    let client = Client::new(&proxy, http).await;
    (upstream, proxy, client)
}

/// Sends a write, and returns the code and the Status of its refusal.
async fn refused(client: &mut Client, method: Method, target: &str) -> (u16, Value) {
    // The path counts, whatever the body says.
    let body = r#"{"metadata":{"name":"x","namespace":"a"}}"#;
    let response = client.send(request_with(method, target, body)).await.unwrap();
    assert_eq!(response.headers().get("retry-after"), None);
    let (code, body) = client::text(response).await;
    (code, serde_json::from_str(&body).unwrap())
}

/// Sends a write that reaches the upstream, which has not answered yet.
async fn passes(client: &mut Client, upstream: &mut Upstream, method: Method, target: &str) {
    let pending = client.send(request_with(method, target, "{}"));
    let mut call = upstream.call().await;
    assert_eq!(call.target(), target);
    assert_eq!(call.body().await.unwrap(), "{}");
    call.json(200, "{}");
    assert_eq!(pending.await.unwrap().status(), 200);
}

#[tokio::test]
async fn bad_write_into_another_shards_namespace_is_refused_and_sent_nowhere() {
    for http in [Http::One, Http::Two] {
        let (mut upstream, proxy, mut client) = fenced(http, "[a]", "{mode: Enforce}").await;
        for (method, target) in [
            (Method::POST, FOREIGN.to_owned()),
            (Method::DELETE, format!("{FOREIGN}/x")),
            (Method::DELETE, FOREIGN.to_owned()),
            (Method::PATCH, format!("{FOREIGN}/x?dryRun=All")),
            (Method::PUT, "/api/v1/namespaces/b".to_owned()),
            (Method::POST, "/api/v1/namespaces/b/pods/x/eviction".to_owned()),
        ] {
            let (code, status) = refused(&mut client, method, &target).await;
            assert_eq!((code, &status["reason"]), (403, &json!("NotInShard")), "{target}");
            let message = status["message"].as_str().unwrap();
            assert!(message.contains("not in shard blue by spec.limits"), "{message}");
            assert!(message.contains("spec.fence.except: {apiGroups: [\"\"]"), "{message}");
        }
        assert!(upstream.is_quiet());
        let refused_all = proxy.metric(REFUSALS, &[("reason", "not_in_shard")]).await;
        assert_eq!(refused_all.to_string(), "6");
        let of = |resource| [("resource", resource), ("verdict", "refused")];
        assert_eq!(proxy.metric(FENCE, &of("secrets")).await.to_string(), "4");
        assert_eq!(proxy.metric(FENCE, &of("pods")).await.to_string(), "1");
        let (_, ready) = proxy.admin_page("/readyz").await;
        assert!(
            ready.contains("[+]writes ok: writes into namespaces of other shards were refused"),
            "{ready}"
        );
        passes(&mut client, &mut upstream, Method::POST, "/api/v1/namespaces/a/secrets").await;
        passes(&mut client, &mut upstream, Method::POST, "/api/v1/namespaces/ns/secrets").await;
        passes(&mut client, &mut upstream, Method::POST, "/api/v1/nodes").await;
        let target = "/api/v1/namespaces/b/pods/x/exec?command=sh";
        passes(&mut client, &mut upstream, Method::POST, target).await;
    }
}

#[tokio::test]
async fn a_refused_write_ends_neither_its_connection_nor_what_is_beside_it() {
    let (mut upstream, _proxy, mut client) = fenced(Http::One, "[a]", "{mode: Enforce}").await;
    // A body that no one reads, larger than any buffer.
    let big = vec![b' '; 8 << 20];
    let response = client.send(request_with(Method::POST, FOREIGN, big)).await;
    // In HTTP/1.1 the connection may end with the body unread: the answer comes first.
    assert_eq!(response.unwrap().status(), 403);
    let (mut upstream_two, _proxy, mut client) = fenced(Http::Two, "[a]", "{mode: Enforce}").await;
    let watching = client.send(request(Method::GET, "/api/v1/pods?watch=1"));
    let _events = upstream_two.call().await.watch();
    let mut seen = watching.await.unwrap();
    // More than a connection may have had reset by default in HTTP/2 (h2: 1,024).
    for _ in 0..1500 {
        let (code, _) = refused(&mut client, Method::DELETE, &format!("{FOREIGN}/x")).await;
        assert_eq!(code, 403);
    }
    assert!(upstream_two.is_quiet() && upstream.is_quiet());
    tokio::time::timeout(Duration::from_millis(1), client::chunk(&mut seen)).await.unwrap_err();
}

#[tokio::test]
async fn a_fence_that_warns_lets_pass_and_says_so() {
    let (mut upstream, proxy, mut client) = fenced(Http::Two, "[a]", "{}").await;
    passes(&mut client, &mut upstream, Method::POST, FOREIGN).await;
    let warned = [("resource", "secrets"), ("verdict", "warned")];
    assert_eq!(proxy.metric(FENCE, &warned).await.to_string(), "1");
    let (code, ready) = proxy.admin_page("/readyz").await;
    assert_eq!(code, 200, "{ready}");
    assert!(ready.contains("create secrets in namespace b"), "{ready}");
    // A change of the fence alone changes no boundary.
    let except =
        "{mode: Enforce, except: [{apiGroups: [''], resources: [secrets], namespaces: [b]}]}";
    proxy.change_fence(&fenced_policy("[a]", except), "Enforce").await;
    passes(&mut client, &mut upstream, Method::POST, FOREIGN).await;
    assert_eq!(refused(&mut client, Method::POST, "/api/v1/namespaces/c/secrets").await.0, 403);
    assert_eq!(proxy.metric("ctrlmesh_policy_epoch", &[]).await.to_string(), "1");
}

#[tokio::test]
async fn bad_proxy_default_of_the_fence_decides_where_the_config_does_not() {
    let upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    files.put_policy(&fenced_policy("[a]", "{}"));
    let fence = "Enforce".parse().unwrap();
    let proxy = Setup { fence, ..Setup::of(&upstream) }.start(files).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    assert_eq!(refused(&mut client, Method::POST, FOREIGN).await.0, 403);
}

#[tokio::test]
async fn bad_write_on_the_view_before_a_move_is_a_conflict() {
    let (mut upstream, proxy, mut client) = new_pod("[a, b]").await;
    // It is not brought over until the API server answers.
    let (seen, _events) = watching(&mut client, &mut upstream, "b").await;
    passes(&mut client, &mut upstream, Method::POST, FOREIGN).await;

    proxy.change_policy(&fenced_policy("[a]", "{mode: Enforce}")).await;
    let list = soon("the list of the change", upstream.call()).await;
    assert!(list.query("resourceVersionMatch").is_some(), "{}", list.target());
    for target in [FOREIGN, "/api/v1/namespaces/b/configmaps"] {
        let (code, status) = refused(&mut client, Method::POST, target).await;
        assert_eq!((code, &status["reason"]), (409, &json!("Conflict")), "{status}");
        assert!(
            status["message"].as_str().unwrap().contains("has just left shard blue"),
            "{status}"
        );
    }
    proxy.until_metric(REFUSALS, &[("reason", "namespace_moved")], 2.0).await;
    let moved = [("resource", "configmaps"), ("verdict", "moved")];
    assert_eq!(proxy.metric(FENCE, &moved).await.to_string(), "1");
    // What was never the shard's is no conflict.
    assert_eq!(refused(&mut client, Method::POST, "/api/v1/namespaces/c/secrets").await.0, 403);
    let _events = answer_change(vec![list], &mut upstream).await;
    let _seen = until_shown(seen, "DELETED").await;
    let start = Instant::now();
    while refused(&mut client, Method::POST, FOREIGN).await.0 == 409 {
        assert!(start.elapsed() < PATIENCE, "the move is shown, and still a conflict");
    }
    assert_eq!(refused(&mut client, Method::POST, FOREIGN).await.0, 403);
}

#[tokio::test]
async fn bad_delete_in_a_namespace_that_has_just_come_is_a_conflict() {
    let (mut upstream, proxy, mut client) = new_pod("[a]").await;
    let (seen, _events) = watching(&mut client, &mut upstream, "a").await;
    proxy.change_policy(&fenced_policy("[a, b]", "{mode: Enforce}")).await;
    let list = soon("the list of the change", upstream.call()).await;
    let deletes = [
        (Method::DELETE, format!("{FOREIGN}/x")),
        (Method::DELETE, "/api/v1/namespaces/b/configmaps".to_owned()),
        (Method::POST, "/api/v1/namespaces/b/pods/x/eviction".to_owned()),
    ];
    for (method, target) in &deletes {
        let (code, status) = refused(&mut client, method.clone(), target).await;
        assert_eq!((code, &status["reason"]), (409, &json!("Conflict")), "{target}: {status}");
        assert!(
            status["message"].as_str().unwrap().contains("has just come to shard blue"),
            "{status}"
        );
    }
    let gained = [("resource", "configmaps"), ("verdict", "gained")];
    assert_eq!(proxy.metric(FENCE, &gained).await.to_string(), "1");
    // It may write what it can see to be its own already, and delete what was its own before.
    let mut held = vec![list];
    for (method, target, body) in [
        (Method::POST, FOREIGN, NAMED),
        (Method::PUT, "/api/v1/namespaces/b/secrets/x", "{}"),
        (Method::DELETE, "/api/v1/namespaces/a/secrets/x", "{}"),
    ] {
        held.extend(passes_beside(&mut client, &mut upstream, method, target, body).await);
    }
    let began = Instant::now();
    let _events = answer_change(held, &mut upstream).await;
    let _seen = until_shown(seen, "ADDED").await;
    let (code, _) = refused(&mut client, Method::DELETE, &format!("{FOREIGN}/x")).await;
    assert_eq!(code, 409, "it works off what it was shown");
    let mut upstream = upstream;
    upstream.serve(|call| call.json(200, "{}"));
    while refused(&mut client, Method::DELETE, &format!("{FOREIGN}/x")).await.0 == 409 {
        assert!(began.elapsed() < PATIENCE, "the move is worked off, and still a conflict");
    }
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn bad_create_without_a_name_in_a_namespace_that_has_just_come_is_a_conflict() {
    let (mut upstream, proxy, mut client) = new_pod("[a]").await;
    let (seen, _events) = watching(&mut client, &mut upstream, "a").await;
    proxy.change_policy(&fenced_policy("[a, b]", "{mode: Enforce}")).await;
    let list = soon("the list of the change", upstream.call()).await;
    let nameless = [
        r#"{"metadata":{"generateName":"x-"}}"#,
        r#"{"metadata":{"generateName":"x-","name":""}}"#,
        r#"{"metadata":{"generateName":"x-","name":null}}"#,
        r#"{"metadata":{"name":"x"},"metadata":{"generateName":"x-"}}"#,
        "no object",
    ];
    for body in nameless {
        let response = client.send(request_with(Method::POST, FOREIGN, body)).await.unwrap();
        assert_eq!(response.headers().get("retry-after"), None);
        let (code, status) = client::text(response).await;
        let status: Value = serde_json::from_str(&status).unwrap();
        assert_eq!((code, &status["reason"]), (409, &json!("Conflict")), "{body}: {status}");
        let message = status["message"].as_str().unwrap();
        let expected = "cannot create secrets in namespace b without metadata.name now";
        assert!(message.contains(expected), "{message}");
    }
    let gained = [("resource", "secrets"), ("verdict", "gained")];
    assert_eq!(proxy.metric(FENCE, &gained).await.to_string(), "5");
    // What has a name is not made twice; what was the shard's before needs none.
    let mut held = vec![list];
    let [own, binding] = ["/api/v1/namespaces/a/secrets", "/api/v1/namespaces/b/pods/x/binding"];
    for (target, body) in [(FOREIGN, NAMED), (own, nameless[0]), (binding, "{}")] {
        held.extend(passes_beside(&mut client, &mut upstream, Method::POST, target, body).await);
    }
    let began = Instant::now();
    let _events = answer_change(held, &mut upstream).await;
    let _seen = until_shown(seen, "ADDED").await;
    upstream.serve(|call| call.json(201, "{}"));
    while client::text(client.send(request_with(Method::POST, FOREIGN, "{}")).await.unwrap())
        .await
        .0
        == 409
    {
        assert!(began.elapsed() < PATIENCE, "the move is worked off, and still a conflict");
    }
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_fence_that_warns_refuses_nothing_in_a_move() {
    let (mut upstream, proxy, mut client) = new_pod("[a]").await;
    let (_seen, _events) = watching(&mut client, &mut upstream, "a").await;
    proxy.change_policy(&fenced_policy("[a, b]", "{mode: Warn}")).await;
    let _list = soon("the list of the change", upstream.call()).await;
    passes(&mut client, &mut upstream, Method::DELETE, &format!("{FOREIGN}/x")).await;
    passes(&mut client, &mut upstream, Method::POST, FOREIGN).await;
}

#[tokio::test]
async fn bad_kill_before_a_move_is_shown_and_the_next_process_knows_what_came_and_went() {
    let (mut upstream, proxy, mut client) = new_pod("[a]").await;
    let (_seen, _events) = watching(&mut client, &mut upstream, "a").await;
    let files = proxy.kill();
    files.put_policy(&fenced_policy("[b]", "{mode: Enforce}"));
    let state_dir = Some(files.path().to_owned());
    let proxy = Setup { state_dir, ..Setup::of(&upstream) }.start(files).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let (code, status) = refused(&mut client, Method::DELETE, &format!("{FOREIGN}/x")).await;
    assert_eq!(code, 409, "{status}");
    let (code, status) = refused(&mut client, Method::POST, "/api/v1/namespaces/a/secrets").await;
    assert_eq!((code, &status["reason"]), (409, &json!("Conflict")), "{status}");
    assert_eq!(refused(&mut client, Method::POST, "/api/v1/namespaces/c/secrets").await.0, 403);
    // With the same policy nothing has come.
    let files = proxy.kill();
    let state_dir = Some(files.path().to_owned());
    let proxy = Setup { state_dir, ..Setup::of(&upstream) }.start(files).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    passes_beside(&mut client, &mut upstream, Method::POST, FOREIGN, "{}").await;
}

/// A new pod, no client of which was ever shown anything, with ConfigMaps of these namespaces.
async fn new_pod(namespaces: &str) -> (Upstream, Proxy, Client) {
    let upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    files.put_policy(&fenced_policy(namespaces, "{mode: Enforce}"));
    let state_dir = Some(files.path().to_owned());
    let proxy = Setup { state_dir, ..Setup::of(&upstream) }.start(files).await;
    let client = Client::new(&proxy, Http::Two).await;
    (upstream, proxy, client)
}

/// A watch that has seen an object of a namespace.
async fn watching(
    client: &mut Client,
    upstream: &mut Upstream,
    namespace: &str,
) -> (Response<Incoming>, Stream) {
    let target = "/api/v1/configmaps?watch=1&resourceVersion=5&allowWatchBookmarks=true";
    let watching = client.send(request(Method::GET, target));
    let events = upstream.call().await.watch();
    let mut seen = watching.await.unwrap();
    events.send(event("ADDED", namespace, "6")).await;
    client::chunk(&mut seen).await.unwrap().unwrap();
    (seen, events)
}

/// Waits until a watch shows an event of this type, and returns it.
async fn until_shown(mut seen: Response<Incoming>, kind: &str) -> Response<Incoming> {
    loop {
        let chunk = soon("an event", client::chunk(&mut seen)).await.unwrap().unwrap();
        if String::from_utf8_lossy(&chunk).contains(kind) {
            return seen;
        }
    }
}

/// The same as [`passes`], while calls of the proxy's own may come before.
async fn passes_beside(
    client: &mut Client,
    upstream: &mut Upstream,
    method: Method,
    target: &str,
    body: &'static str,
) -> Vec<Call> {
    let pending = client.send(request_with(method.clone(), target, body));
    // Those are held: an answer would be one of the API server's.
    let mut held = Vec::new();
    loop {
        let call = soon("the write", upstream.call()).await;
        if call.parts.method == method {
            let mut call = call;
            assert_eq!(call.target(), target);
            assert_eq!(call.body().await.unwrap(), body);
            call.json(200, "{}");
            break;
        }
        held.push(call);
    }
    assert_eq!(pending.await.unwrap().status(), 200);
    held
}

fn event(kind: &str, namespace: &str, version: &str) -> String {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "x", "namespace": namespace, "uid": "u", "resourceVersion": version },
    });
    format!("{}\n", json!({ "type": kind, "object": object }))
}

/// Answers the lists of a change by the one object of `b`, and takes the watch that follows.
async fn answer_change(held: Vec<Call>, upstream: &mut Upstream) -> Stream {
    let list = json!({
        "apiVersion": "v1", "kind": "ConfigMapList", "metadata": { "resourceVersion": "6" },
        "items": [{ "metadata": { "name": "x", "namespace": "b", "uid": "u", "resourceVersion": "6" } }],
    });
    let mut held = held.into_iter();
    loop {
        let call = match held.next() {
            Some(call) => call,
            None => soon("the next call of the change", upstream.call()).await,
        };
        if call.query("watch").is_some() {
            return call.watch();
        }
        call.json(200, &list.to_string());
    }
}

#[tokio::test]
async fn a_create_that_may_be_of_a_lock_is_judged_by_its_body() {
    let upstream_policy =
        locked_policy("[a]", "{mode: Enforce}", "[{name: op, namespace: kube-system}]");
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::with_policy(&upstream, &upstream_policy).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let body = |name: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } });
    let target = "/api/v1/namespaces/kube-system/configmaps";
    let pending = client.send(request_with(Method::POST, target, body("op").to_string()));
    let mut call = upstream.call().await;
    let sent: Value = serde_json::from_slice(&call.body().await.unwrap()).unwrap();
    assert_eq!(sent["metadata"]["name"], "op---blue");
    call.json(201, "{}");
    assert_eq!(pending.await.unwrap().status(), 201);
    let other = client.send(request_with(Method::POST, target, body("other").to_string()));
    assert_eq!(other.await.unwrap().status(), 403);
    assert!(upstream.is_quiet());
    let (_, ready) = proxy.admin_page("/readyz").await;
    assert!(ready.contains("create configmaps in namespace kube-system"), "{ready}");
}

#[tokio::test]
async fn bad_write_of_what_all_shards_are_shown_is_refused_to_all_but_its_owner() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::with_policy(&upstream, &outside_policy()).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let class = "/apis/example.com/v1/classes/x";
    let (code, status) = refused(&mut client, Method::PATCH, class).await;
    assert_eq!((code, &status["reason"]), (403, &json!("NotInShard")), "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains(
            "cannot patch classes.example.com \"x\" in no namespace: such an object is not"
        ),
        "{message}"
    );
    assert!(upstream.is_quiet());
    let (_, ready) = proxy.admin_page("/readyz").await;
    let entry =
        "{apiGroups: [example.com], resources: [classes], namespaces: [\"\"], verbs: [patch]}";
    assert!(ready.contains(entry), "{ready}");
    passes(&mut client, &mut upstream, Method::POST, "/api/v1/namespaces/a/secrets").await;
    passes(&mut client, &mut upstream, Method::GET, class).await;
}

#[tokio::test]
async fn the_usual_policy_has_no_fence_by_namespace() {
    let (mut upstream, _proxy, mut client) = scene(Http::Two).await;
    passes(&mut client, &mut upstream, Method::POST, FOREIGN).await;
}
