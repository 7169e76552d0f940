//! Shards by the labels of namespaces: when these are watched, and which policy is in force while
//! they change, or cannot be read.

use std::time::Instant;

use http::Method;
use serde_json::{Value, json};

use crate::support::{
    client::{Client, Http, request},
    cluster::{Cluster, FORBIDDEN, config, configs},
    pki::Ca,
    policies::POLICY,
    process::{Process, flags, run},
    proxy::Files,
    scrape, soon, until,
    upstream::{Call, Stream, Upstream},
};

const NAMESPACES: &str = "/api/v1/namespaces";
/// ConfigMaps of one namespace: requested unchanged if in the shard, else with a contradiction.
const CONFIGMAPS_OF_ONE: &str = "/api/v1/namespaces/one/configmaps";
const NOT_KNOWN: &str = "ShardingConfig ns/blue: spec.limits[0].namespaces.selector needs the \
                         labels of namespaces, which are not known yet";

/// A ShardingConfig whose ConfigMaps are those of the namespaces with the label `tier: gold`.
fn gold() -> String {
    let mut config: Value = serde_json::from_str(&config("blue", "op")).unwrap();
    let limit = &mut config["spec"]["limits"][0];
    limit.as_object_mut().unwrap().remove("selector");
    limit["namespaces"] = json!({ "selector": { "matchLabels": { "tier": "gold" } } });
    limit["clusterScoped"] = "Exclude".into();
    config.to_string()
}

fn namespace(name: &str, tier: &str) -> Value {
    let labels = json!({ "tier": tier });
    let metadata = json!({ "name": name, "labels": labels, "resourceVersion": "6" });
    json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata })
}

fn namespaces(all: &[Value]) -> String {
    json!({
        "apiVersion": "meta.k8s.io/v1",
        "kind": "PartialObjectMetadataList",
        "metadata": { "resourceVersion": "6" },
        "items": all,
    })
    .to_string()
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

fn modified(config: &str) -> String {
    format!("{{\"type\":\"MODIFIED\",\"object\":{config}}}\n")
}

/// Two of our own calls: the one for namespaces is second.
async fn namespaces_last(upstream: &mut Upstream) -> (Call, Call) {
    let (one, other) = (upstream.call().await, upstream.call().await);
    if one.path() == NAMESPACES { (other, one) } else { (one, other) }
}

/// A cluster with a policy in force, `one: gold` and `two: tin`, and both watches.
async fn started() -> (Cluster, Stream, Stream) {
    let mut cluster = Cluster::start().await;
    cluster.upstream.call().await.json(200, &configs(&[gold()]));
    let (configs, list) = namespaces_last(&mut cluster.upstream).await;
    list.json(200, &namespaces(&[namespace("one", "gold"), namespace("two", "tin")]));
    let namespaces = cluster.upstream.call().await;
    assert!(namespaces.target().contains("watch=true"), "{}", namespaces.target());
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    (cluster, configs.watch(), namespaces.watch())
}

/// Whether the objects of namespace `one` are in the shard.
async fn has_one(cluster: &mut Cluster) -> bool {
    let mut client =
        Client::to(cluster.process.addr, &cluster.files.mesh_ca_pem(), Http::One).await;
    let pending = client.send(request(Method::GET, CONFIGMAPS_OF_ONE));
    let call = cluster.upstream.call().await;
    assert_eq!(call.path(), CONFIGMAPS_OF_ONE);
    let contradiction = call.query("labelSelector");
    call.json(200, "{}");
    assert_eq!(pending.await.unwrap().status(), 200);
    contradiction.is_none()
}

async fn metric(cluster: &Cluster, name: &str) -> f64 {
    let (_, text) = scrape::page(cluster.process.admin, "/metrics").await;
    scrape::sample(&text, name, &[])
}

#[tokio::test]
async fn namespaces_are_watched_while_a_rule_needs_it_and_no_longer() {
    let mut cluster = Cluster::start().await;
    cluster.upstream.call().await.json(200, &configs(&[config("blue", "op")]));
    let changes = cluster.upstream.call().await.watch();
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    assert!(cluster.upstream.is_quiet(), "nothing needs namespaces");

    changes.send(modified(&gold())).await;
    let list = cluster.upstream.call().await;
    assert_eq!(list.path(), NAMESPACES);
    assert!(list.header("accept").unwrap().contains("PartialObjectMetadataList"));
    assert!(list.header("user-agent").unwrap().starts_with("ctrlmesh/"));
    cluster.until_ready_says(200, &format!("blue epoch 1 stays in force: {NOT_KNOWN}\n")).await;
    assert_eq!(metric(&cluster, "ctrlmesh_policy_rejected_total").await.to_string(), "0");
    list.json(200, &namespaces(&[namespace("one", "gold")]));
    let events = cluster.upstream.call().await.watch();
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 2\n").await;
    assert!(has_one(&mut cluster).await);

    changes.send(modified(&config("blue", "op"))).await;
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 3\n").await;
    soon("the end of the watch", events.given_up()).await;
}

#[tokio::test]
async fn t63_our_own_calls_carry_our_own_token_whatever_clients_sent() {
    const OWN: Option<&str> = Some("Bearer own");
    let mut cluster = Cluster::start().await;
    cluster.upstream.call().await.json(200, &configs(&[config("blue", "op")]));
    let changes = cluster.upstream.call().await.watch();
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    assert!(!has_one(&mut cluster).await, "a client's token has passed");

    changes.send(modified(&gold())).await;
    let list = cluster.upstream.call().await;
    assert_eq!((list.path(), list.header("authorization").as_deref()), (NAMESPACES, OWN));
    list.json(200, &namespaces(&[namespace("one", "gold")]));
    let watch = cluster.upstream.call().await;
    assert_eq!((watch.path(), watch.header("authorization").as_deref()), (NAMESPACES, OWN));
    let events = watch.watch();
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 2\n").await;
    assert!(has_one(&mut cluster).await);

    // The same holds when they begin again: after a break, and after a refusal.
    drop(events);
    let again = cluster.upstream.call().await;
    assert_eq!((again.path(), again.header("authorization").as_deref()), (NAMESPACES, OWN));
    again.json(403, FORBIDDEN);
    let list = cluster.upstream.call().await;
    assert_eq!((list.path(), list.header("authorization").as_deref()), (NAMESPACES, OWN));
    drop(changes);
    let configs = cluster.upstream.call().await;
    assert!(configs.path().ends_with("/namespaces/ns/shardingconfigs"), "{}", configs.path());
    assert_eq!(configs.header("authorization").as_deref(), OWN);
}

#[tokio::test]
async fn a_relabelled_namespace_changes_the_policy_where_it_matters() {
    let (mut cluster, _configs, events) = started().await;
    assert!(has_one(&mut cluster).await);
    events.send(event("MODIFIED", &namespace("one", "tin"))).await;
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 2\n").await;
    assert!(!has_one(&mut cluster).await);
    // Neither of these namespaces is the shard's, before or after.
    events.send(event("MODIFIED", &namespace("two", "lead"))).await;
    events.send(event("ADDED", &namespace("three", "lead"))).await;
    events.send(event("DELETED", &namespace("two", "lead"))).await;
    events.send(event("ADDED", &namespace("four", "gold"))).await;
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 3\n").await;
    events.send(event("DELETED", &namespace("four", "gold"))).await;
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 4\n").await;
    events.send(event("MODIFIED", &namespace("one", "gold"))).await;
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 5\n").await;
    assert!(has_one(&mut cluster).await);
}

#[tokio::test]
async fn many_changes_at_once_are_few_policies() {
    let (cluster, _configs, events) = started().await;
    let begin = Instant::now();
    for at in 0..500 {
        events.send(event("ADDED", &namespace(&format!("tenant-{at}"), "gold"))).await;
    }
    events.send(event("MODIFIED", &namespace("one", "tin"))).await;
    // The last change is not lost.
    let config = || async { scrape::page(cluster.process.admin, "/debug/config").await.1 };
    until("all are known", config, |text| {
        text.matches("\"tenant-").count() == 500 && !text.contains("\"one\"")
    })
    .await;
    let epoch = metric(&cluster, "ctrlmesh_policy_epoch").await;
    let most = 2.0 + begin.elapsed().as_secs_f64() / 0.1;
    assert!(epoch <= most, "epoch {epoch}, at most {most} are due");
}

#[tokio::test]
async fn bad_namespaces_may_not_be_watched() {
    let mut cluster = Cluster::start().await;
    cluster.upstream.call().await.json(200, &configs(&[gold()]));
    let (_configs, list) = namespaces_last(&mut cluster.upstream).await;
    cluster.until_ready_says(503, &format!("[-]policy failed: {NOT_KNOWN}\n")).await;
    list.json(403, FORBIDDEN);
    for part in [
        "ShardingConfig ns/blue: spec.limits[0].namespaces.selector needs the labels of namespaces: ",
        "may not list and watch namespaces (ClusterRole ctrlmesh-proxy-namespaces, ",
        "`ctrlmesh inject --namespace-labels`",
        "who are you",
    ] {
        cluster.until_ready_says(503, part).await;
    }
    let mut client =
        Client::to(cluster.process.addr, &cluster.files.mesh_ca_pem(), Http::One).await;
    let refused = client.send(request(Method::GET, CONFIGMAPS_OF_ONE)).await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(metric(&cluster, "ctrlmesh_policy_rejected_total").await.to_string(), "1");
    // The proxy lists again, and recovers by itself.
    cluster.upstream.call().await.json(200, &namespaces(&[namespace("one", "gold")]));
    let _events = cluster.upstream.call().await.watch();
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    assert!(has_one(&mut cluster).await);
}

#[tokio::test]
async fn bad_namespace_watch_outage() {
    let (mut cluster, configs, events) = started().await;
    drop(events);
    // The watch is resumed where it was, and refused: rights can be withdrawn.
    cluster.upstream.call().await.json(403, FORBIDDEN);
    let stays = "[+]policy ok: blue epoch 1 stays in force: the pod's ServiceAccount may not list \
                 and watch namespaces (ClusterRole";
    cluster.until_ready_says(200, stays).await;
    cluster.until_ready_says(200, "the labels that were known last count").await;
    assert_eq!(metric(&cluster, "ctrlmesh_policy_rejected_total").await.to_string(), "1");
    let list = cluster.upstream.call().await;
    assert!(has_one(&mut cluster).await);
    // Another rule for the same labels is resolved by those known last.
    configs.send(modified(&gold().replace("gold", "tin"))).await;
    cluster.until_ready_says(200, "blue epoch 2 stays in force: the pod's").await;
    assert!(!has_one(&mut cluster).await);
    list.json(200, &namespaces(&[namespace("one", "tin"), namespace("two", "tin")]));
    let _events = cluster.upstream.call().await.watch();
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 3\n").await;
    assert!(has_one(&mut cluster).await);
}

#[tokio::test]
async fn an_outage_of_namespaces_is_over_once_the_pods_labels_choose_a_policy_without_them() {
    let mut cluster = Cluster::start().await;
    let both = [gold(), config("green", "other")];
    cluster.upstream.call().await.json(200, &configs(&both));
    let (configs, list) = namespaces_last(&mut cluster.upstream).await;
    let _configs = configs.watch();
    list.json(200, &namespaces(&[namespace("one", "gold")]));
    let events = cluster.upstream.call().await.watch();
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    drop(events);
    cluster.upstream.call().await.json(403, FORBIDDEN);
    cluster.until_ready_says(200, "the labels that were known last count").await;
    let mut asked_again = cluster.upstream.call().await;

    cluster.files.put_pod_labels("app=\"other\"\n");
    cluster.until_ready_says(200, "[+]policy ok: green epoch 2\n").await;
    soon("the end of the list", asked_again.given_up()).await;
    // A policy that needs them later lists again: with neither the old labels nor the old outage.
    cluster.files.put_pod_labels("app=\"op\"\n");
    cluster.until_ready_says(200, &format!("green epoch 2 stays in force: {NOT_KNOWN}\n")).await;
    cluster.upstream.call().await.json(200, &namespaces(&[namespace("one", "tin")]));
    let _events = cluster.upstream.call().await.watch();
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 3\n").await;
    assert!(!has_one(&mut cluster).await);
}

#[tokio::test]
async fn bad_config_change_does_not_hide_the_labels() {
    let (mut cluster, configs, events) = started().await;
    configs.send(modified(&gold().replace("Exclude", "Both"))).await;
    cluster
        .until_ready_says(200, "blue epoch 1 stays in force: ShardingConfig ns/blue: spec")
        .await;
    // The policy in force selects by labels, so it follows them.
    events.send(event("MODIFIED", &namespace("one", "tin"))).await;
    cluster
        .until_ready_says(200, "blue epoch 2 stays in force: ShardingConfig ns/blue: spec")
        .await;
    assert!(!has_one(&mut cluster).await);
    configs.send(modified(&gold())).await;
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 2\n").await;
}

#[tokio::test]
async fn bad_policy_file_by_labels_without_a_cluster() {
    let files = Files::new(&Ca::new("any").pem);
    files.put_policy(&gold());
    let (code, said) = run(&flags(&files, "127.0.0.1:6443")).await;
    assert_eq!(code, 64, "{said}");
    let why = "the policy: ShardingConfig ns/blue: spec.limits[0].namespaces.selector needs the \
               labels of namespaces";
    assert!(said.contains(why) && said.contains("because: "), "{said}");

    // The same file later is a change that is refused.
    files.put_policy(POLICY);
    let process = Process::start(&flags(&files, "127.0.0.1:6443")).await;
    files.put_policy(&gold());
    let ready = || async { soon("readyz", scrape::page(process.admin, "/readyz")).await };
    let why = "blue epoch 1 stays in force: ShardingConfig ns/blue: \
               spec.limits[0].namespaces.selector needs the labels of namespaces: cannot watch \
               namespaces: ";
    until("readyz", ready, |(code, body)| *code == 200 && body.contains(why)).await;
    files.put_policy(POLICY);
    until("readyz", ready, |(_, body)| body.contains("[+]policy ok: blue epoch 1\n")).await;
}

#[tokio::test]
async fn a_policy_file_by_labels_asks_the_cluster() {
    let mut upstream = Upstream::speaking(Http::One).await;
    let files = Files::new(&upstream.ca.pem);
    files.put_policy(&gold());
    let kubeconfig = files.put_kubeconfig(&upstream.addr.to_string());
    let env = [("KUBECONFIG", kubeconfig.display().to_string())];
    let process = Process::start_with(&flags(&files, &upstream.addr.to_string()), &env).await;
    let list = upstream.call().await;
    assert_eq!(list.path(), NAMESPACES);
    let ready = || async { soon("readyz", scrape::page(process.admin, "/readyz")).await };
    until("readyz", ready, |(code, body)| *code == 503 && body.contains(NOT_KNOWN)).await;
    list.json(200, &namespaces(&[namespace("one", "gold")]));
    until("readyz", ready, |(_, body)| body.contains("[+]policy ok: blue epoch 1\n")).await;
    let events = upstream.call().await.watch();
    events.send(event("MODIFIED", &namespace("one", "tin"))).await;
    until("readyz", ready, |(_, body)| body.contains("[+]policy ok: blue epoch 2\n")).await;
}
