//! The Lease in which a pod says what it may write.

use std::{
    slice,
    time::{Duration, Instant},
};

use http::{Method, Response};
use hyper::body::Incoming;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    CONFIGMAPS,
    client::{self, Client, Http, request, request_with},
    cluster::{Cluster, FORBIDDEN, config, configs},
    scrape, soon,
    upstream::{Call, Stream},
};

const UID: &str = "3f9c";
const NAME: &str = "ctrlmesh-3f9c";
const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
const CONFLICT: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","message":"another version","code":409}"#;
const GONE: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Success","code":200}"#;
const ABSENT: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"no such Lease","code":404}"#;
const OURS: &str = "ctrlmesh.kusionstack.io";

/// A pod, and the API server that its configs and its Lease are in.
struct Pod {
    cluster: Cluster,
    configs: String,
    /// Watches of ShardingConfigs.
    watches: Vec<Stream>,
    /// Open watches of Leases.
    followed: Vec<Stream>,
}

/// The config `blue` in the ring `op`, limited to ConfigMaps with this value of the label `shard`.
fn in_ring(shard: &str) -> String {
    let config = config("blue", "op");
    let config = config.replace("{\"shard\":\"blue\"}", &format!("{{\"shard\":\"{shard}\"}}"));
    config
        .replace("\"spec\":{", "\"spec\":{\"controller\":{\"leaderElectionName\":\"op\"},")
        .replace("\"name\":\"blue\",", "\"name\":\"blue\",\"uid\":\"c-1\",\"generation\":3,\"creationTimestamp\":\"2026-01-02T03:04:05Z\",")
}

fn annotation<'a>(lease: &'a Value, name: &str) -> &'a str {
    lease["metadata"]["annotations"][format!("{OURS}/{name}")].as_str().unwrap_or_default()
}

/// The Lease as the API server stores it.
fn stored(lease: &Value, version: &str) -> Value {
    let mut lease = lease.clone();
    lease["apiVersion"] = "coordination.k8s.io/v1".into();
    lease["kind"] = "Lease".into();
    lease["metadata"]["resourceVersion"] = version.into();
    lease["metadata"]["uid"] = "l-1".into();
    lease
}

fn list_of(leases: &[Value]) -> String {
    let list = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "LeaseList",
        "metadata": { "resourceVersion": "50" },
        "items": leases,
    });
    list.to_string()
}

impl Pod {
    async fn start(config: String) -> Self {
        let cluster = Cluster::of_pod(UID).await;
        let configs = configs(&[config]);
        Self { cluster, configs, watches: Vec::new(), followed: Vec::new() }
    }

    /// The next call about Leases; those about configs are answered. A watch of Leases stays open.
    async fn lease_call(&mut self) -> Call {
        loop {
            let call = self.cluster.upstream.call().await;
            if call.path().starts_with("/apis/coordination.k8s.io/") {
                if call.query("watch").is_none() {
                    return call;
                }
                self.follow(call);
            } else if call.query("watch").is_some() {
                self.watches.push(call.watch());
            } else {
                call.json(200, &self.configs);
            }
        }
    }

    /// Answers a watch of Leases: of the ring from the list on, or of the own one.
    fn follow(&mut self, call: Call) {
        assert_eq!(call.query("labelSelector"), Some(format!("{OURS}/ring=op")));
        let is_of_list = call.query("resourceVersion").as_deref() == Some("50");
        match call.query("fieldSelector") {
            None => assert!(is_of_list, "{}", call.target()),
            Some(own) => assert!(!is_of_list && own == format!("metadata.name={NAME}")),
        }
        self.followed.push(call.watch());
    }

    /// Answers the next call, which is a consistent list.
    async fn list(&mut self, leases: &[Value]) {
        let call = self.lease_call().await;
        assert_eq!((call.parts.method.as_str(), call.path()), ("GET", PATH), "{}", call.target());
        assert_eq!(call.query("labelSelector"), Some(format!("{OURS}/ring=op")));
        for key in ["resourceVersion", "resourceVersionMatch", "limit"] {
            assert_eq!(call.query(key), None, "{}", call.target());
        }
        self.followed.clear();
        call.json(200, &list_of(leases));
        if leases.iter().any(|lease| lease["metadata"]["name"] == NAME) {
            return;
        }
        // It may be in another ring.
        let call = self.lease_call().await;
        assert_eq!((call.parts.method.as_str(), call.path()), ("GET", &*format!("{PATH}/{NAME}")));
        call.json(404, ABSENT);
    }

    /// The next call, which is a write, and its body.
    async fn write(&mut self, method: &Method) -> (Call, Value) {
        let mut call = self.lease_call().await;
        assert_eq!(call.parts.method, method, "{}", call.target());
        let body = call.body().await.unwrap();
        (call, serde_json::from_slice(&body).unwrap())
    }

    /// Answers a write with the stored data by it.
    async fn store(&mut self, method: &Method, version: &str) -> Value {
        let (call, lease) = self.write(method).await;
        let code = if *method == Method::POST { 201 } else { 200 };
        let stored = stored(&lease, version);
        call.json(code, &stored.to_string());
        stored
    }

    /// The log to the end of the process, which deletes its Lease of this version.
    async fn end(mut self, version: &str) -> String {
        self.cluster.process.signal(Signal::SIGTERM);
        let (call, only) = self.write(&Method::DELETE).await;
        assert_eq!(call.path(), format!("{PATH}/{NAME}"));
        assert_eq!(only["preconditions"], json!({ "resourceVersion": version }));
        call.json(200, GONE);
        let (code, log) = self.cluster.process.end().await;
        assert_eq!(code, Some(0), "{log}");
        log
    }

    /// The next call about Leases, which is a watch.
    async fn next_watch(&mut self) -> Call {
        loop {
            let call = self.cluster.upstream.call().await;
            assert!(call.query("watch").is_some(), "{}", call.target());
            if call.path().contains("leases") {
                return call;
            }
            self.watches.push(call.watch());
        }
    }

    /// Waits until such a watch is open; nothing else is asked for.
    async fn until_watched(&mut self, open: impl Fn(&Self) -> &Vec<Stream>) {
        while open(self).is_empty() {
            let call = self.cluster.upstream.call().await;
            assert!(call.query("watch").is_some(), "{}", call.target());
            let is_of_leases = call.path().contains("leases");
            let watches = if is_of_leases { &mut self.followed } else { &mut self.watches };
            watches.push(call.watch());
        }
    }

    /// Has the watch of configs show one.
    async fn edit(&mut self, config: &str) {
        self.until_watched(|pod| &pod.watches).await;
        let event = format!("{{\"type\":\"MODIFIED\",\"object\":{config}}}\n");
        self.watches.last().unwrap().send(event).await;
    }
}

#[tokio::test]
async fn i14_a_lease_says_what_the_pod_may_write_and_goes_last() {
    let mut pod = Pod::start(in_ring("a")).await;
    let (call, lease) = pod.write(&Method::POST).await;
    assert_eq!(call.path(), PATH);
    let metadata = &lease["metadata"];
    assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!(NAME), &json!("ns")));
    assert_eq!(metadata["labels"][format!("{OURS}/ring")], "op");
    // A Lease that went with its pod would free what a force-deleted pod still writes.
    assert_eq!(metadata["ownerReferences"], Value::Null);
    assert_eq!(metadata["resourceVersion"], Value::Null);
    assert_eq!(lease["spec"]["holderIdentity"], "op-0");
    let said = ["ring-name", "shard", "config-uid", "generation", "under-way", "speaks"];
    assert_eq!(said.map(|name| annotation(&lease, name)), ["op", "blue", "c-1", "3", "0", "1"]);
    let claim: Value = serde_json::from_str(annotation(&lease, "claim")).unwrap();
    let piece = json!({ "group": "", "resource": "configmaps", "labels": "shard=a" });
    assert_eq!(claim, json!({ "pieces": [piece] }));
    let first = stored(&lease, "7");
    call.json(201, &first.to_string());
    // The claim is compared with the claims that others have since then.
    pod.list(&[first]).await;
    pod.edit(&in_ring("b")).await;
    let (call, lease) = pod.write(&Method::PATCH).await;
    assert_eq!(call.header("content-type").as_deref(), Some("application/merge-patch+json"));
    assert_eq!(lease["metadata"]["resourceVersion"], "7");
    assert!(annotation(&lease, "claim").contains("shard=b"), "{lease}");
    call.json(200, &stored(&lease, "8").to_string());
    pod.list(&[stored(&lease, "8")]).await;
    pod.end("8").await;
}

#[tokio::test]
async fn i14_a_write_whose_answer_is_lost_is_read_before_another() {
    let (mut pod, _) = begun(in_ring("a"), &[]).await;
    pod.edit(&in_ring("b")).await;
    let (call, lease) = pod.write(&Method::PATCH).await;
    call.reset();
    // It was stored.
    pod.list(&[stored(&lease, "8")]).await;
    let (call, again) = pod.write(&Method::PATCH).await;
    assert_eq!(again["metadata"]["resourceVersion"], "8");
    // This one was not, and someone else has written meanwhile.
    call.json(409, CONFLICT);
    pod.list(&[stored(&lease, "9")]).await;
    let last = pod.store(&Method::PATCH, "10").await;
    assert_eq!(annotation(&last, "claim"), annotation(&lease, "claim"));
    pod.list(&[last]).await;
    pod.end("10").await;
}

#[tokio::test]
async fn i14_a_new_process_keeps_the_claim_of_the_last() {
    let mut pod = Pod::start(in_ring("a")).await;
    let before = pod.store(&Method::POST, "7").await;
    pod.cluster.process.signal(Signal::SIGKILL);
    let mut pod = Pod::start(in_ring("b")).await;
    pod.write(&Method::POST).await.0.json(409, CONFLICT);
    pod.list(slice::from_ref(&before)).await;
    // Requests of the last process may still take effect.
    let kept = pod.store(&Method::PATCH, "8").await;
    assert_eq!(kept["metadata"]["resourceVersion"], "8");
    assert_eq!(annotation(&kept, "claim"), annotation(&before, "claim"));
    assert_eq!(annotation(&kept, "under-way"), "1");
}

#[tokio::test]
async fn i14_a_pod_that_leaves_its_ring_gives_up_its_lease() {
    let mut pod = Pod::start(in_ring("a")).await;
    let lease = pod.store(&Method::POST, "7").await;
    pod.list(&[lease]).await;
    pod.edit(&config("blue", "op")).await;
    let (call, _) = pod.write(&Method::DELETE).await;
    call.json(200, GONE);
    // Then it enters another.
    pod.edit(&in_ring("a").replace("\"spec\":{", "\"spec\":{\"ring\":\"next\",")).await;
    let (_, lease) = pod.write(&Method::POST).await;
    assert_eq!(lease["metadata"]["labels"][format!("{OURS}/ring")], "next");
}

#[tokio::test]
async fn i14_a_pod_in_no_ring_has_no_lease() {
    let mut pod = Pod::start(config("blue", "op")).await;
    pod.cluster.upstream.call().await.json(200, &pod.configs);
    let call = pod.cluster.upstream.call().await;
    assert!(call.path().ends_with("/shardingconfigs") && call.query("watch").is_some());
    let _watch = call.watch();
    pod.cluster.until_ready_says(200, "blue epoch 1").await;
    pod.cluster.process.signal(Signal::SIGTERM);
    let (code, log) = pod.cluster.process.end().await;
    assert_eq!(code, Some(0), "{log}");
    assert!(pod.cluster.upstream.is_quiet());
}

/// The Lease of another pod, of the shard `green`, that claims the ConfigMaps with this label.
fn of_green(label: &str) -> Value {
    let piece =
        json!({ "group": "", "resource": "configmaps", "labels": format!("shard={label}") });
    let of = |name: &str| format!("{OURS}/{name}");
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "ctrlmesh-beef",
            "namespace": "ns",
            "resourceVersion": "3",
            "labels": { of("ring"): "op" },
            "annotations": {
                of("ring-name"): "op",
                of("shard"): "green",
                of("claim"): json!({ "pieces": [piece] }).to_string(),
            },
        },
        "spec": { "holderIdentity": "op-9" },
    })
}

/// The start of a pod up to its own Lease, which is stored in version 7.
async fn begun(config: String, others: &[Value]) -> (Pod, Value) {
    let mut pod = Pod::start(config).await;
    let lease = pod.store(&Method::POST, "7").await;
    pod.list(&[others, slice::from_ref(&lease)].concat()).await;
    (pod, lease)
}

#[tokio::test]
async fn i14_a_first_start_waits_until_the_leases_of_the_ring_are_read() {
    let mut pod = Pod::start(in_ring("a")).await;
    let (call, _) = pod.write(&Method::POST).await;
    pod.cluster.until_ready_says(503, "the Leases of the ring are written and read").await;
    let mut client =
        Client::to(pod.cluster.process.addr, &pod.cluster.files.mesh_ca_pem(), Http::One).await;
    assert_eq!(client.get(CONFIGMAPS).await.status(), 503);
    call.json(500, GONE);
    pod.list(&[]).await;
    let lease = pod.store(&Method::POST, "7").await;
    pod.list(&[lease]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
}

#[tokio::test]
async fn i14_what_another_claims_is_waited_for_and_what_nobody_claims_is_not() {
    let (pod, _) = begun(in_ring("a"), &[of_green("b")]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;

    let (mut pod, _) = begun(in_ring("a"), &[of_green("a")]).await;
    let says = "policy: other pods have what this shard gains, by their Leases: ctrlmesh-beef of \
                green; delete the Lease of a pod that is gone";
    let says = says.strip_prefix("policy: ").unwrap();
    pod.cluster.until_ready_says(200, says).await;
    // Meanwhile nothing of it is shown.
    let mut client =
        Client::to(pod.cluster.process.addr, &pod.cluster.files.mesh_ca_pem(), Http::One).await;
    let listed = client.send(request(Method::GET, CONFIGMAPS));
    pod.until_watched(|pod| &pod.followed).await;
    let gone = json!({ "type": "DELETED", "object": of_green("a") });
    let call = pod.cluster.upstream.call().await;
    let nothing = "ctrlmesh.kusionstack.io/none,!ctrlmesh.kusionstack.io/none";
    assert_eq!(call.query("labelSelector").as_deref(), Some(nothing), "{}", call.target());
    call.json(200, r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[]}"#);
    assert_eq!(listed.await.unwrap().status(), 200);
    pod.followed.last().unwrap().send(format!("{gone}\n")).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 2\n").await;
}

#[tokio::test]
async fn i14_a_claim_is_given_back_when_all_requests_under_it_have_ended() {
    let (mut pod, lease) = begun(in_ring("a"), &[]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    pod.until_watched(|pod| &pod.watches).await;
    pod.until_watched(|pod| &pod.followed).await;
    let mut client =
        Client::to(pod.cluster.process.addr, &pod.cluster.files.mesh_ca_pem(), Http::One).await;
    let create = |name: &str| {
        let body = format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}");
        let mut create = request_with(Method::POST, CONFIGMAPS, body);
        create.headers_mut().insert("content-type", "application/json".parse().unwrap());
        create
    };
    let sent = client.send(create("slow"));
    let slow = pod.cluster.upstream.call().await;
    assert_eq!(slow.parts.method, Method::POST);
    pod.edit(&in_ring("b")).await;
    pod.cluster.until_ready_says(200, "1 requests of the boundary before are under way").await;
    // The Lease is renewed meanwhile, with what it said.
    let renewed = pod.store(&Method::PATCH, "8").await;
    assert_eq!(annotation(&renewed, "claim"), annotation(&lease, "claim"));
    assert_eq!(annotation(&renewed, "under-way"), "1");
    slow.json(201, "{}");
    assert_eq!(sent.await.unwrap().status(), 201);
    let moved = pod.store(&Method::PATCH, "9").await;
    assert!(annotation(&moved, "claim").contains("shard=b"), "{moved}");
    pod.list(&[moved]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 3\n").await;

    // Where the API server's answer leaves it open, the claim stays.
    let sent = client.send(create("lost"));
    let lost = loop {
        let call = pod.cluster.upstream.call().await;
        if call.parts.method == Method::POST {
            break call;
        }
        pod.followed.push(call.watch());
    };
    pod.edit(&in_ring("c")).await;
    pod.cluster.until_ready_says(200, "1 requests of the boundary before are under way").await;
    lost.json(504, "{}");
    assert_eq!(sent.await.unwrap().status(), 504);
    let renewed = pod.store(&Method::PATCH, "10").await;
    assert!(annotation(&renewed, "claim").contains("shard=b"), "{renewed}");
}

/// A controller that ends amid a write: its end is that of the API server's answer.
#[tokio::test]
async fn a_write_goes_on_without_its_client_so_that_its_end_is_known() {
    for http in [Http::Two, Http::One] {
        let (mut pod, _) = begun(in_ring("a"), &[]).await;
        pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
        let mut client =
            Client::to(pod.cluster.process.addr, &pod.cluster.files.mesh_ca_pem(), http).await;
        let mut create = request_with(Method::POST, CONFIGMAPS, "{\"metadata\":{\"name\":\"x\"}}");
        create.headers_mut().insert("content-type", "application/json".parse().unwrap());
        let sent = client.send(create);
        let write = loop {
            let call = pod.cluster.upstream.call().await;
            if call.parts.method == Method::POST {
                break call;
            }
            pod.followed.push(call.watch());
        };
        drop((sent, client));
        pod.edit(&in_ring("b")).await;
        pod.cluster.until_ready_says(200, "1 requests of the boundary before are under way").await;
        write.json(201, "{}");
        let moved = loop {
            let stored = pod.store(&Method::PATCH, "9").await;
            if annotation(&stored, "under-way") == "0" {
                break stored;
            }
        };
        assert!(annotation(&moved, "claim").contains("shard=b"), "{moved}");
    }
}

/// An event about the ConfigMap `x` of this version.
fn shown(kind: &str, version: u64) -> String {
    let meta = json!({ "name": "x", "namespace": "ns", "uid": "x", "resourceVersion": version.to_string() });
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta });
    format!("{}\n", json!({ "type": kind, "object": object }))
}

/// A watch of ConfigMaps, at the position 105.
async fn watched(pod: &mut Pod) -> (Stream, Client, Response<Incoming>) {
    pod.until_watched(|pod| &pod.watches).await;
    pod.until_watched(|pod| &pod.followed).await;
    let mut client =
        Client::to(pod.cluster.process.addr, &pod.cluster.files.mesh_ca_pem(), Http::Two).await;
    let from =
        "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let sent = client.send(request(Method::GET, &format!("{CONFIGMAPS}?{from}")));
    let call = pod.cluster.upstream.call().await;
    assert_eq!(call.query("labelSelector").as_deref(), Some("shard=a"), "{}", call.target());
    let events = call.stream(200, &[("content-type", "application/json")]);
    let mut seen = sent.await.unwrap();
    events.send(shown("ADDED", 105)).await;
    let end = json!({ "k8s.io/initial-events-end": "true" });
    let meta = json!({ "resourceVersion": "105", "annotations": end });
    let mark = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta });
    events.send(format!("{}\n", json!({ "type": "BOOKMARK", "object": mark }))).await;
    until_seen(&mut seen, "BOOKMARK").await;
    (events, client, seen)
}

async fn until_seen(seen: &mut Response<Incoming>, what: &str) {
    let mut text = String::new();
    while !text.contains(what) {
        let bytes = soon(what, client::chunk(seen)).await.expect("no end").expect("no error");
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
}

#[tokio::test]
async fn i14_a_claim_is_given_back_when_the_watches_no_longer_show_it() {
    let (mut pod, _) = begun(in_ring("a"), &[]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    let (_events, _client, mut seen) = watched(&mut pod).await;
    pod.edit(&in_ring("b")).await;
    let leaving = pod.cluster.upstream.call().await;
    assert_eq!(leaving.query("labelSelector").as_deref(), Some("shard=a"), "{}", leaving.target());
    pod.cluster.until_ready_says(200, "watches of the boundary before are brought over").await;
    let page = json!({
        "apiVersion": "v1", "kind": "ConfigMapList", "metadata": { "resourceVersion": "105" },
        "items": [{ "metadata": { "name": "x", "namespace": "ns", "uid": "x", "resourceVersion": "99" } }],
    });
    leaving.json(200, &page.to_string());
    // Until it has an answer to the watch that follows, the proxy may have to list again.
    let mut following = pod.cluster.upstream.call().await;
    while following.path().contains("leases") {
        pod.followed.push(following.watch());
        following = pod.cluster.upstream.call().await;
    }
    assert_eq!((following.path(), following.query("watch").is_some()), (CONFIGMAPS, true));
    let _follows = following.stream(200, &[("content-type", "application/json")]);
    until_seen(&mut seen, "DELETED").await;
    let moved = pod.store(&Method::PATCH, "8").await;
    assert!(annotation(&moved, "claim").contains("shard=b"), "{moved}");
}

/// A watch of ConfigMaps that the API server has cut, and a boundary that moves then.
async fn cut(pod: &mut Pod) -> (Client, Value) {
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    let (events, client, mut seen) = watched(pod).await;
    events.tear().await;
    assert!(soon("the end", client::chunk(&mut seen)).await.expect("no clean end").is_err());
    pod.edit(&in_ring("b")).await;
    let waits = "watches of the boundary before are brought over, or their clients are not back";
    pod.cluster.until_ready_says(200, waits).await;
    let renewed = pod.store(&Method::PATCH, "8").await;
    assert!(annotation(&renewed, "claim").contains("shard=a"), "{renewed}");
    (client, renewed)
}

/// The time until the claim is given back, with renewals until then.
async fn until_given_back(pod: &mut Pod) -> Duration {
    let began = Instant::now();
    for version in 9.. {
        let written = pod.store(&Method::PATCH, &version.to_string()).await;
        if annotation(&written, "claim").contains("shard=b") {
            break;
        }
    }
    began.elapsed()
}

/// The client lists again, and the claim is given back soon after.
async fn comes_back(pod: &mut Pod, client: &mut Client) {
    let sent = client.send(request(Method::GET, CONFIGMAPS));
    let mut list = pod.cluster.upstream.call().await;
    while list.path() != CONFIGMAPS {
        pod.followed.push(list.watch());
        list = pod.cluster.upstream.call().await;
    }
    let page = json!({
        "apiVersion": "v1", "kind": "ConfigMapList", "metadata": { "resourceVersion": "106" },
        "items": [],
    });
    list.json(200, &page.to_string());
    assert_eq!(client::whole(sent.await.unwrap()).await.unwrap().0, 200);
    let began = Instant::now();
    let moved = pod.store(&Method::PATCH, "9").await;
    assert!(annotation(&moved, "claim").contains("shard=b"), "{moved}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn i14_a_claim_is_given_back_when_the_client_of_a_cut_watch_is_back() {
    let (mut pod, _) = begun(in_ring("a"), &[]).await;
    let (mut client, _) = cut(&mut pod).await;
    comes_back(&mut pod, &mut client).await;
}

#[tokio::test]
async fn i14_a_pod_that_ends_while_a_boundary_moves_waits_for_no_client() {
    let (mut pod, _) = begun(in_ring("a"), &[]).await;
    let (_client, _) = cut(&mut pod).await;
    pod.end("8").await;
}

#[tokio::test]
async fn bad_client_that_does_not_come_back_keeps_the_claim_for_a_minute() {
    let (mut pod, _) = begun(in_ring("a"), &[]).await;
    let (_client, _) = cut(&mut pod).await;
    let waited = until_given_back(&mut pod).await;
    assert!((55..67).contains(&waited.as_secs()), "{waited:?}");
}

#[tokio::test]
async fn bad_watch_that_cannot_be_brought_over_ends_and_its_client_is_waited_for() {
    let (mut pod, lease) = begun(in_ring("a"), &[]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    let (_events, mut client, mut seen) = watched(&mut pod).await;
    pod.edit(&in_ring("b")).await;
    let _leaving = pod.cluster.upstream.call().await;
    let renewed = pod.store(&Method::PATCH, "8").await;
    assert_eq!(annotation(&renewed, "claim"), annotation(&lease, "claim"));
    assert_eq!(annotation(&renewed, "under-way"), "0");
    until_seen(&mut seen, "\"code\":410").await;
    comes_back(&mut pod, &mut client).await;
}

#[tokio::test]
async fn bad_client_that_reads_nothing_keeps_the_claim_for_fifteen_seconds() {
    let (mut pod, _) = begun(in_ring("a"), &[]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    let (events, _client, mut seen) = watched(&mut pod).await;
    // More than the client's window of 64 KiB.
    for version in 106..112 {
        let filled =
            shown("MODIFIED", version).replace("\"x\"", &format!("\"{}\"", "x".repeat(8 << 10)));
        events.send(filled).await;
    }
    pod.edit(&in_ring("b")).await;
    let began = Instant::now();
    pod.cluster.until_ready_says(200, "watches of the boundary before are brought over").await;
    until_given_back(&mut pod).await;
    let waited = began.elapsed();
    assert!((14..20).contains(&waited.as_secs()), "{waited:?}");
    // It is notified once it reads.
    until_seen(&mut seen, "\"code\":410").await;
}

#[tokio::test]
async fn i14_what_is_written_otherwise_is_no_change() {
    let (mut pod, _) = begun(in_ring("a"), &[]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    let otherwise =
        "\"matchExpressions\":[{\"key\":\"shard\",\"operator\":\"In\",\"values\":[\"a\",\"b\"]}],";
    let otherwise = in_ring("a")
        .replace(
            "{\"matchLabels\":{\"shard\"",
            &format!("{{{otherwise}\"matchLabels\":{{\"shard\""),
        )
        .replace("\"generation\":3", "\"generation\":4");
    pod.edit(&otherwise).await;
    let renewed = pod.store(&Method::PATCH, "8").await;
    assert_eq!(annotation(&renewed, "generation"), "4");
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
}

#[tokio::test]
async fn i14_a_pod_whose_last_write_was_cut_off_leaves_its_claim_behind() {
    let (mut pod, _) = begun(in_ring("a"), &[]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    let mut client =
        Client::to(pod.cluster.process.addr, &pod.cluster.files.mesh_ca_pem(), Http::One).await;
    let sent =
        client.send_within(Duration::from_secs(60), request_with(Method::POST, CONFIGMAPS, "{}"));
    let mut cut = loop {
        let call = pod.cluster.upstream.call().await;
        if call.parts.method == Method::POST {
            break call;
        }
        pod.followed.push(call.watch());
    };
    pod.cluster.process.signal(Signal::SIGTERM);
    // At the drain's deadline. It may take effect later.
    assert!(sent.await.is_err());
    cut.given_up().await;
    let (code, log) = pod.cluster.process.end().await;
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("the pod's Lease is not deleted"), "{log}");
    while !pod.cluster.upstream.is_quiet() {
        let call = pod.cluster.upstream.call().await;
        assert_ne!(call.parts.method, Method::DELETE);
    }
}

#[tokio::test]
async fn i14_with_mode_immediate_a_policy_is_in_force_at_once_and_there_is_no_lease() {
    let now = "\"spec\":{\"handover\":{\"mode\":\"Immediate\"},";
    let mut pod = Pod::start(in_ring("a").replace("\"spec\":{", now)).await;
    pod.cluster.upstream.call().await.json(200, &pod.configs);
    let call = pod.cluster.upstream.call().await;
    assert!(call.path().ends_with("/shardingconfigs") && call.query("watch").is_some());
    let _watch = call.watch();
    pod.cluster.until_ready_says(200, "blue epoch 1").await;
    assert!(pod.cluster.upstream.is_quiet());
}

#[tokio::test]
async fn bad_write_that_never_ends_while_the_boundary_moves() {
    let (mut pod, _) = begun(in_ring("a"), &[]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    pod.until_watched(|pod| &pod.watches).await;
    let mut client =
        Client::to(pod.cluster.process.addr, &pod.cluster.files.mesh_ca_pem(), Http::One).await;
    let create = request_with(Method::POST, CONFIGMAPS, "{}");
    let sent = client.send_within(Duration::from_secs(90), create);
    let mut never = loop {
        let call = pod.cluster.upstream.call().await;
        if call.parts.method == Method::POST {
            break call;
        }
        pod.followed.push(call.watch());
    };
    pod.edit(&in_ring("b")).await;
    let renewals = async {
        for version in 8.. {
            let (call, lease) = pod.write(&Method::PATCH).await;
            assert!(annotation(&lease, "claim").contains("shard=a"), "{lease}");
            call.json(200, &stored(&lease, &version.to_string()).to_string());
        }
    };
    let response = tokio::select! {
        response = sent => response.unwrap(),
        () = renewals => unreachable!("versions have no end"),
    };
    let (code, text) = client::text(response).await;
    assert_eq!(code, 504, "{text}");
    assert!(text.contains("it is unknown whether this took effect"), "{text}");
    never.given_up().await;
    let (_, metrics) = scrape::page(pod.cluster.process.admin, "/metrics").await;
    let refused = [("reason", "handed_over")];
    assert_eq!(scrape::sample(&metrics, "ctrlmesh_refusals_total", &refused).to_string(), "1");
}

/// The same config, limited to ConfigMaps of these namespaces.
fn of_namespaces(names: &str) -> String {
    let by_namespace =
        format!("\"namespaces\":{{\"names\":{names}}},\"clusterScoped\":\"Exclude\"");
    in_ring("a").replace("\"selector\":{\"matchLabels\":{\"shard\":\"a\"}}", &by_namespace)
}

/// The move waits for the writes of a namespace that leaves, of any resource. It does not wait for
/// a session, which may last for hours.
#[tokio::test]
async fn a_write_of_a_resource_without_a_limit_holds_the_move_and_a_session_does_not() {
    for (path, is_waited_for) in [
        ("/api/v1/namespaces/b/secrets", true),
        ("/api/v1/namespaces/b/pods/x/proxy/upload", false),
        ("/api/v1/namespaces/c/secrets", false),
    ] {
        let (mut pod, _) = begun(of_namespaces("[\"a\",\"b\"]"), &[]).await;
        pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
        pod.until_watched(|pod| &pod.watches).await;
        let mut client =
            Client::to(pod.cluster.process.addr, &pod.cluster.files.mesh_ca_pem(), Http::One).await;
        let pending = client.send(request_with(Method::POST, path, "{}"));
        let under_way = loop {
            let call = pod.cluster.upstream.call().await;
            if call.parts.method == Method::POST {
                break call;
            }
            pod.followed.push(call.watch());
        };
        if path.contains("/c/") {
            let told = pod.store(&Method::PATCH, "8").await;
            assert!(annotation(&told, "foreign-writes").contains("warned"), "{told}");
        }
        pod.edit(&of_namespaces("[\"a\"]")).await;
        let (call, lease) = pod.write(&Method::PATCH).await;
        let has_b = annotation(&lease, "claim").contains("\"b\"");
        assert_eq!(has_b, is_waited_for, "{path}: {lease}");
        call.json(200, &stored(&lease, "9").to_string());
        under_way.json(200, "{}");
        assert_eq!(pending.await.unwrap().status(), 200);
        if is_waited_for {
            let (_, lease) = pod.write(&Method::PATCH).await;
            assert!(!annotation(&lease, "claim").contains("\"b\""), "{lease}");
        }
    }
}

#[tokio::test]
async fn bad_refused_write_is_told_in_the_lease_at_once() {
    let config = of_namespaces("[\"a\"]")
        .replace("\"spec\":{", "\"spec\":{\"fence\":{\"mode\":\"Enforce\"},");
    let (mut pod, lease) = begun(config, &[]).await;
    assert_eq!(annotation(&lease, "foreign-writes"), "{}");
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    pod.until_watched(|pod| &pod.watches).await;
    let mut client =
        Client::to(pod.cluster.process.addr, &pod.cluster.files.mesh_ca_pem(), Http::One).await;
    let began = Instant::now();
    let refused = client.send(request_with(Method::POST, "/api/v1/namespaces/b/secrets", "{}"));
    assert_eq!(refused.await.unwrap().status(), 403);
    let (call, lease) = pod.write(&Method::PATCH).await;
    // Sooner than it is renewed.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let said: Value = serde_json::from_str(annotation(&lease, "foreign-writes")).unwrap();
    assert_eq!(said["example"], "create secrets in namespace b");
    assert_eq!(said["refused"][0]["namespaces"], json!(["b"]));
    call.json(200, &stored(&lease, "8").to_string());
    pod.cluster.until_ready_says(200, "[+]writes ok: writes into namespaces of other shards").await;
}

#[tokio::test]
async fn bad_lease_calls() {
    let failure = |code: u16, reason: &str| {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "reason": reason, "message": "not now", "code": code,
        });
        (code, status.to_string())
    };
    let failures = [
        (403, FORBIDDEN.to_owned()),
        failure(429, "TooManyRequests"),
        failure(500, "InternalError"),
        failure(504, "Timeout"),
    ];
    let mut pod = Pod::start(in_ring("a")).await;
    pod.write(&Method::POST).await.0.json(403, FORBIDDEN);
    let says = "may not create leases (ClusterRole or Role ctrlmesh-proxy): who are you";
    pod.cluster.until_ready_says(503, says).await;
    for (code, status) in &failures {
        pod.lease_call().await.json(*code, status);
        if *code == 403 {
            let says = "may not list leases (ClusterRole or Role ctrlmesh-proxy): who are you";
            pod.cluster.until_ready_says(503, says).await;
        }
    }
    pod.list(&[]).await;
    for (code, status) in failures {
        let (call, _) = pod.write(&Method::POST).await;
        call.json(code, &status);
        pod.list(&[]).await;
    }
    let lease = pod.store(&Method::POST, "7").await;
    pod.list(&[lease]).await;
    let log = pod.end("7").await;
    for verb in ["list", "create"] {
        let says = format!(
            "the pod's ServiceAccount may not {verb} leases (ClusterRole or Role ctrlmesh-proxy): \
             who are you"
        );
        assert!(log.contains(&says), "{log}");
    }
}

/// No call about Leases is answered for two minutes, and the boundary moves meanwhile.
#[tokio::test]
async fn bad_lease_api_that_says_nothing_for_two_minutes() {
    const SILENCE: Duration = Duration::from_secs(120);
    const OFTEN: Duration = Duration::from_secs(5);
    let (mut pod, mut lease) = begun(in_ring("a"), &[]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    pod.until_watched(|pod| &pod.followed).await;
    pod.edit(&in_ring("b")).await;
    let began = Instant::now();
    let mut unanswered = vec![pod.lease_call().await];
    pod.cluster.until_ready_says(200, "the pod's Lease is not kept").await;
    let mut client =
        Client::to(pod.cluster.process.addr, &pod.cluster.files.mesh_ca_pem(), Http::One).await;
    // What it has lost is not shown, nor is what it has not gained. The rest goes on.
    let empty = r#"{"kind":"List","apiVersion":"v1","metadata":{},"items":[]}"#;
    while let Some(left) = SILENCE.checked_sub(began.elapsed()) {
        let sent = client.send(request(Method::GET, CONFIGMAPS));
        let listed = loop {
            let call = pod.cluster.upstream.call().await;
            if call.path() == CONFIGMAPS {
                break call;
            }
            unanswered.push(call);
        };
        let nothing = "ctrlmesh.kusionstack.io/none,!ctrlmesh.kusionstack.io/none";
        assert_eq!(listed.query("labelSelector").as_deref(), Some(nothing));
        listed.json(200, empty);
        assert_eq!(client::whole(sent.await.unwrap()).await.unwrap().0, 200);
        unanswered.extend(timeout(left.min(OFTEN), pod.lease_call()).await.ok());
    }
    // Each is given up after 5 s, and the next comes after a pause.
    assert!((4..=24).contains(&unanswered.len()), "{} calls", unanswered.len());
    for version in 8.. {
        let mut call = loop {
            // A pause takes up to sixteen seconds.
            if let Ok(call) = timeout(OFTEN, pod.lease_call()).await {
                break call;
            }
        };
        if call.parts.method == Method::GET {
            call.json(200, &list_of(slice::from_ref(&lease)));
            continue;
        }
        let written = serde_json::from_slice(&call.body().await.unwrap()).unwrap();
        lease = stored(&written, &version.to_string());
        call.json(200, &lease.to_string());
        if annotation(&lease, "claim").contains("shard=b") {
            break;
        }
    }
    pod.list(&[lease]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 3\n").await;
}

#[tokio::test]
async fn bad_two_configs_of_a_ring_want_the_same() {
    let green = in_ring("a").replace("\"name\":\"blue\"", "\"name\":\"green\"");
    let green = green.replace("{\"app\":\"op\"}", "{\"app\":\"other\"}").replace("c-1", "b-1");
    let mut pod = Pod::start(in_ring("a")).await;
    pod.configs = configs(&[in_ring("a"), green.clone()]);
    pod.list(&[of_green("a")]).await;
    let lease = pod.store(&Method::POST, "7").await;
    assert!(!annotation(&lease, "claim").contains("shard=a"), "{lease}");
    pod.list(&[of_green("a"), lease]).await;
    let says = "stays in force: another ShardingConfig of the ring wants some of the same objects, and \
                has them (configmaps of green): draw the two apart";
    pod.cluster.until_ready_says(200, says).await;
    // They are.
    pod.edit(&green.replace("{\"shard\":\"a\"}", "{\"shard\":\"b\"}")).await;
    let moved = pod.store(&Method::PATCH, "8").await;
    assert!(annotation(&moved, "claim").contains("shard=a"), "{moved}");
    pod.list(&[of_green("b"), moved]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 2\n").await;
}

#[tokio::test]
async fn bad_lease_without_its_label() {
    let mut pod = Pod::start(in_ring("a")).await;
    let mut lease = pod.store(&Method::POST, "7").await;
    pod.list(slice::from_ref(&lease)).await;
    pod.until_watched(|pod| &pod.followed).await;
    lease["metadata"]["labels"] = Value::Null;
    lease["metadata"]["resourceVersion"] = "8".into();
    // The Lease leaves the watch.
    let gone = json!({ "type": "DELETED", "object": lease });
    pod.followed.last().unwrap().send(format!("{gone}\n")).await;
    let call = pod.lease_call().await;
    assert_eq!(call.path(), PATH, "{}", call.target());
    call.json(200, &list_of(&[]));
    let call = pod.lease_call().await;
    assert_eq!(call.path(), format!("{PATH}/{NAME}"));
    call.json(200, &lease.to_string());
    let (call, again) = pod.write(&Method::PATCH).await;
    assert_eq!(again["metadata"]["resourceVersion"], "8");
    assert_eq!(again["metadata"]["labels"][format!("{OURS}/ring")], "op");
    call.json(200, &stored(&again, "9").to_string());
    pod.list(&[stored(&again, "9")]).await;
    pod.end("9").await;
}

#[tokio::test]
async fn bad_watch_of_leases_that_is_refused_is_tried_once_a_second() {
    // Who waits for another has the Leases listed as well.
    for others in [&[][..], &[of_green("a")]] {
        let (mut pod, lease) = begun(in_ring("a"), others).await;
        let leases = [others, slice::from_ref(&lease)].concat();
        let (mut lists, mut watches) = (0, Vec::new());
        while watches.len() < 4 {
            let call = pod.cluster.upstream.call().await;
            if !call.path().contains("leases") {
                pod.watches.push(call.watch());
            } else if call.query("watch").is_some() {
                assert_eq!(call.query("fieldSelector").is_some(), others.is_empty());
                watches.push(Instant::now());
                call.json(403, FORBIDDEN);
            } else {
                lists += 1;
                call.json(200, &list_of(&leases));
            }
        }
        let least = watches.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
        assert!(least >= Duration::from_millis(900), "{least:?}");
        assert_eq!(lists, if others.is_empty() { 0 } else { 3 });
    }
}

/// The number of Leases that a pod is shown does not grow with its ring.
#[tokio::test]
async fn i14_a_pod_that_waits_for_nobody_watches_its_own_lease_alone() {
    let (mut pod, _) = begun(in_ring("a"), &[of_green("b")]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    let own = pod.next_watch().await;
    assert_eq!(own.query("fieldSelector"), Some(format!("metadata.name={NAME}")));
    assert_eq!(own.query("resourceVersion").as_deref(), Some("7"));
    pod.follow(own);
    // Someone has what it gains: it follows him until he has given it up.
    pod.edit(&in_ring("b")).await;
    let moved = pod.store(&Method::PATCH, "8").await;
    pod.list(&[of_green("b"), moved]).await;
    let ring = pod.next_watch().await;
    assert_eq!(ring.query("fieldSelector"), None);
    pod.follow(ring);
    let gone = json!({ "type": "DELETED", "object": of_green("b") });
    pod.followed.last().unwrap().send(format!("{gone}\n")).await;
    let own = pod.next_watch().await;
    assert_eq!(own.query("fieldSelector"), Some(format!("metadata.name={NAME}")));
    assert_eq!(own.query("resourceVersion").as_deref(), Some("8"));
    // One that ends begins again, from the last version, and nothing is listed.
    own.json(200, "");
    let own = pod.next_watch().await;
    assert_eq!(own.query("resourceVersion").as_deref(), Some("8"));
}

#[tokio::test]
async fn bad_lease_deleted_by_hand() {
    let mut pod = Pod::start(in_ring("a")).await;
    let lease = pod.store(&Method::POST, "7").await;
    pod.list(slice::from_ref(&lease)).await;
    pod.until_watched(|pod| &pod.followed).await;
    let gone = json!({ "type": "DELETED", "object": lease });
    pod.followed.last().unwrap().send(format!("{gone}\n")).await;
    pod.list(&[]).await;
    let again = pod.store(&Method::POST, "9").await;
    pod.list(&[again]).await;
    pod.end("9").await;
}

/// The Lease as the app of the pod has rewritten it, with its own right.
fn forged(lease: &Value, claim: &str, version: &str) -> Value {
    let mut forged = stored(lease, version);
    forged["metadata"]["annotations"][format!("{OURS}/claim")] = claim.into();
    forged
}

#[tokio::test]
async fn bad_lease_forged_by_the_app_of_its_pod() {
    for claim in [r#"{"pieces":[]}"#, r#"{"all":true}"#, "torn"] {
        let (mut pod, lease) = begun(in_ring("a"), &[]).await;
        pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
        // The next renewal is of a version that is there no more.
        let (call, _) = pod.write(&Method::PATCH).await;
        call.json(409, CONFLICT);
        let forged = forged(&lease, claim, "99");
        pod.list(slice::from_ref(&forged)).await;
        let (call, again) = pod.write(&Method::PATCH).await;
        assert_eq!(again["metadata"]["resourceVersion"], "99");
        assert_eq!(annotation(&again, "claim"), annotation(&lease, "claim"));
        let again = stored(&again, "100");
        call.json(200, &again.to_string());
        pod.list(&[again]).await;
        pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    }
}

#[tokio::test]
async fn bad_ring_renamed_while_its_shard_is_live() {
    let (mut pod, lease) = begun(in_ring("a"), &[]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    pod.until_watched(|pod| &pod.followed).await;
    pod.edit(&in_ring("a").replace("\"spec\":{", "\"spec\":{\"ring\":\"next\",")).await;
    // First it gives up what it has in the old one.
    let given_up = pod.store(&Method::PATCH, "8").await;
    assert_eq!(annotation(&given_up, "ring-name"), "op");
    assert_eq!(annotation(&given_up, "claim"), r#"{"pieces":[]}"#);
    assert_ne!(annotation(&given_up, "claim"), annotation(&lease, "claim"));
    let claimed = loop {
        let mut call = pod.lease_call().await;
        match call.parts.method {
            Method::PATCH => {
                // It would show that the Lease leaves the old ring, before the answer comes.
                soon("the end of the old ring's watch", pod.followed[0].closed()).await;
                let body = call.body().await.unwrap();
                let claimed = stored(&serde_json::from_slice(&body).unwrap(), "9");
                call.json(200, &claimed.to_string());
                break claimed;
            }
            _ => {
                assert_eq!(call.query("labelSelector"), Some(format!("{OURS}/ring=next")));
                call.json(200, &list_of(slice::from_ref(&given_up)));
            }
        }
    };
    assert_eq!(annotation(&claimed, "ring-name"), "next");
    assert_eq!(annotation(&claimed, "claim"), annotation(&lease, "claim"));
}

#[tokio::test]
async fn bad_forty_edits_a_second_are_few_writes_and_the_last_one_counts() {
    let (mut pod, _) = begun(in_ring("a"), &[]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    pod.until_watched(|pod| &pod.watches).await;
    let began = Instant::now();
    for edit in 0..40 {
        pod.edit(&in_ring(&format!("edit-{edit}"))).await;
    }
    let (mut writes, mut version) = (0, 7);
    let mut last = Value::Null;
    while !annotation(&last, "claim").contains("shard=edit-39") {
        let mut call = pod.lease_call().await;
        if call.parts.method == Method::PATCH {
            writes += 1;
            version += 1;
            let body = call.body().await.unwrap();
            last = stored(&serde_json::from_slice(&body).unwrap(), &version.to_string());
            call.json(200, &last.to_string());
        } else {
            call.json(200, &list_of(slice::from_ref(&last)));
        }
    }
    // A pod rests for 50 ms between two writes.
    let most = 2 + began.elapsed().as_millis() / 50;
    assert!(writes <= most, "{writes} writes in {:?}", began.elapsed());
    loop {
        let call = pod.lease_call().await;
        if call.parts.method == Method::GET {
            call.json(200, &list_of(slice::from_ref(&last)));
            break;
        }
    }
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch").await;
}

#[tokio::test]
async fn bad_clock_of_another_pod_that_is_wrong_by_years() {
    for renewed in ["1999-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"] {
        let mut green = of_green("a");
        green["spec"]["renewTime"] = renewed.into();
        let (pod, _) = begun(in_ring("a"), &[green]).await;
        let says = "other pods have what this shard gains, by their Leases: ctrlmesh-beef of green";
        pod.cluster.until_ready_says(200, says).await;
    }
}

#[tokio::test]
async fn bad_claim_of_a_pod_of_the_same_shard_stands_in_nobodys_way() {
    let mut beside = of_green("a");
    beside["metadata"]["annotations"][format!("{OURS}/shard")] = "blue".into();
    let (pod, _) = begun(in_ring("a"), &[beside]).await;
    pod.cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
}
