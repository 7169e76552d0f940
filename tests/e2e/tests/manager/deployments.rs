//! Roots of Deployments: the shards that the leader gives to pods once they exist. No controller of Kubernetes
//! runs here, so that the pods are the test's.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Client, Manager, until};
use serde_json::{Value, json};

use crate::manager::{
    roots::run,
    scene::{Bed, OPERATORS, Place, SOON, cluster, create, get, has, manager, pod},
};

pub(crate) const SHARD: &str = "ctrlmesh.kusionstack.io/shard";
const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const HASH: &str = "pod-template-hash";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
/// Longer than a shard has no pod before one is evicted, on a busy machine.
const LONG: Duration = Duration::from_secs(90);

/// A root of the Deployment, by its replicas.
pub(crate) fn root(namespace: &str) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "root", "namespace": namespace },
        "spec": {
            "controller": { "leaderElectionName": "op" },
            "root": {
                "prefix": "op",
                "target": { "kind": "Deployment", "name": "op" },
                "auto": { "everyShardReplicas": 1, "by": "Namespace" },
            },
        },
    })
}

/// A workload of this kind.
pub(crate) fn workload(kind: &str, namespace: &str, replicas: u32) -> Value {
    let labels = json!({ "app": "op" });
    let mut spec = json!({
        "replicas": replicas,
        "selector": { "matchLabels": labels },
        "template": {
            "metadata": { "labels": labels },
            "spec": { "containers": [{ "name": "app", "image": "localhost/app:1" }] },
        },
    });
    if kind == "Deployment" {
        let rolling = json!({ "maxUnavailable": 0, "maxSurge": 1 });
        spec["strategy"] = json!({ "type": "RollingUpdate", "rollingUpdate": rolling });
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": { "name": "op", "namespace": namespace },
        "spec": spec,
    })
}

/// A pod as the ReplicaSet of a template creates it, but for its name.
fn pod_of(namespace: &str, template: &str, name: &str) -> Value {
    let mut pod = pod(namespace, name);
    pod["metadata"]["labels"][HASH] = json!(template);
    pod["metadata"]["labels"]["app"] = json!("op");
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": format!("op-{template}"),
        "uid": format!("uid-of-{template}"),
        "controller": true,
    }]);
    pod
}

fn scale(at: Place<'_>, replicas: u32) -> Result<()> {
    at.kubectl(&["scale", "deployment/op", &format!("--replicas={replicas}")]).map(drop)
}

/// The pods, each with the child that its label names, and its cost.
fn shards(at: Place<'_>) -> Result<BTreeMap<String, (String, String)>> {
    let list = get(at.api, &format!("/api/v1/namespaces/{}/pods", at.namespace))?;
    let list = list.context("pods")?;
    let mut pods = BTreeMap::new();
    for pod in list["items"].as_array().context("items")? {
        let meta = &pod["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let shard = text(&meta["labels"][SHARD]);
        pods.insert(text(&meta["name"]), (shard, text(&meta["annotations"][COST])));
    }
    Ok(pods)
}

/// Waits until each pod has a shard.
fn wait_given(at: Place<'_>) -> Result<BTreeMap<String, (String, String)>> {
    let mut last = BTreeMap::new();
    let given = until("each pod has a shard", SOON, || {
        last = shards(at)?;
        Ok(last.values().all(|(shard, cost)| !shard.is_empty() && !cost.is_empty()).then_some(()))
    });
    given.with_context(|| format!("{last:?}"))?;
    Ok(last)
}

/// The reason and the message of the root's condition, once it is one of these.
fn ready(at: Place<'_>, reasons: &[&str]) -> Result<String> {
    let mut last = Value::Null;
    let found = until("the root's condition", LONG, || {
        let root = get(at.api, &format!("{}/root", at.configs()))?.context("the root")?;
        last = root["status"]["conditions"].clone();
        let mut all = last.as_array().into_iter().flatten();
        let is = |one: &&Value| {
            one["type"] == "Ready" && reasons.iter().any(|reason| one["reason"] == *reason)
        };
        Ok(all.find(is).map(|one| one["message"].as_str().unwrap_or_default().to_owned()))
    });
    found.with_context(|| format!("{reasons:?}: {last}"))
}

fn children(at: Place<'_>) -> Result<BTreeSet<String>> {
    let list = get(at.api, &at.configs())?.context("configs")?;
    let all = list["items"].as_array().context("items")?.iter();
    let names = all.filter_map(|config| config["metadata"]["name"].as_str());
    Ok(names.filter(|name| *name != "root").map(str::to_owned).collect())
}

fn wait_children(at: Place<'_>, wanted: &[&str]) -> Result<()> {
    let wanted: BTreeSet<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
    until("the children", LONG, || Ok((children(at)? == wanted).then_some(())))
        .with_context(|| format!("{wanted:?}: {:?}", children(at)))
}

#[test]
fn twenty_pods_at_once_have_a_shard_each_and_none_is_evicted() -> Result<()> {
    let bed = Bed::new("deployment-pods")?;
    let (api, at) = (bed.api(), bed.place());
    create(api, &workload("Deployment", at.namespace, 20), &[])?;
    create(api, &root(at.namespace), &[])?;
    let path = format!("/api/v1/namespaces/{}/pods", at.namespace);
    let mut slowest = Duration::ZERO;
    for template in ["one", "two", "three"] {
        let pods: Vec<_> = (0..20)
            .map(|n| pod_of(at.namespace, template, &format!("{template}-{n:02}")))
            .collect();
        let begun = Instant::now();
        thread::scope(|scope| -> Result<()> {
            let creates: Vec<_> = pods
                .chunks(5)
                .map(|pods| {
                    scope.spawn(|| -> Result<()> {
                        pods.iter()
                            .try_for_each(|pod| api.client().post(&path, pod)?.json().map(drop))
                    })
                })
                .collect();
            for create in creates {
                create.join().map_err(|_| anyhow::anyhow!("a create panicked"))??;
            }
            Ok(())
        })?;
        let created = begun.elapsed();
        let given = wait_given(at)?;
        slowest = slowest.max(begun.elapsed().saturating_sub(created));
        let names: BTreeSet<_> = given.values().map(|(shard, _)| shard.clone()).collect();
        let wanted: BTreeSet<_> = (1..=20).map(|n| format!("op-{n}-normal")).collect();
        ensure!(names == wanted, "{given:?}");
        for (shard, cost) in given.values() {
            ensure!(*shard == format!("op{cost}-normal"), "{shard} has the cost {cost}");
        }
        at.kubectl(&["delete", "pods", "--all", "--force", "--grace-period=0"])?;
    }
    println!("20 pods have their shards {slowest:?} after the last was created, at most");
    has(&ready(at, &["NoReadyPod"])?, "scale the Deployment")
}

#[test]
fn a_pod_that_comes_alone_has_its_shard_in_a_tenth_of_a_second() -> Result<()> {
    let bed = Bed::new("deployment-one")?;
    let (api, at) = (bed.api(), bed.place());
    create(api, &workload("Deployment", at.namespace, 10), &[])?;
    create(api, &root(at.namespace), &[])?;
    ready(at, &["NoReadyPod"])?;
    let path = format!("/api/v1/namespaces/{}/pods", at.namespace);
    let mut times = Vec::new();
    for n in 0..10 {
        let name = format!("one-{n}");
        let made = api.client().post(&path, &pod_of(at.namespace, "a", &name))?.json()?;
        let version = made["metadata"]["resourceVersion"].as_str().context("a version")?;
        let begun = Instant::now();
        let watch = format!("{path}?fieldSelector=metadata.name={name}&resourceVersion={version}");
        let cost = api.client().watch_until(&watch, SOON, |event| {
            let meta = &event["object"]["metadata"];
            meta["labels"][SHARD].is_string().then(|| meta["annotations"][COST].clone())
        })?;
        ensure!(cost.is_string(), "it has a shard before the cost of its deletion");
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!("a pod has its shard after {:?} (p50), {:?} (the slowest of 10)", times[5], times[9]);
    Ok(())
}

#[test]
fn a_shard_is_what_has_pods_and_goes_with_its_last() -> Result<()> {
    let bed = Bed::new("deployment-scaled")?;
    let (api, at) = (bed.api(), bed.place());
    create(api, &workload("Deployment", at.namespace, 2), &[])?;
    create(api, &root(at.namespace), &[])?;
    wait_children(at, &["op-1-normal", "op-2-normal"])?;
    let run_pod = |name: &str| -> Result<()> {
        create(api, &pod_of(at.namespace, "a", name), &[])?;
        let status = json!({ "status": { "phase": "Running", "conditions": [
            { "type": "Ready", "status": "True" }
        ] } });
        let patch = status.to_string();
        let args = ["patch", "pod", name, "--subresource=status", "--type=merge", "-p", &patch];
        at.kubectl(&args).map(drop)
    };
    run_pod("one")?;
    run_pod("two")?;
    wait_given(at)?;
    ready(at, &["LaidOut"])?;
    scale(at, 4)?;
    run_pod("three")?;
    run_pod("four")?;
    has(
        &ready(at, &["Settling"])?,
        "op-3-normal, op-4-normal gets a part of what others have once",
    )?;
    ready(at, &["LaidOut"])?;
    // The pod of a shard in the middle is the one that goes.
    let pods = wait_given(at)?;
    let gone = pods.iter().find(|(_, (shard, _))| shard == "op-2-normal").context("a pod")?.0;
    scale(at, 3)?;
    at.kubectl(&["delete", "pod", gone, "--force", "--grace-period=0"])?;
    wait_children(at, &["op-1-normal", "op-3-normal", "op-4-normal"])?;
    ready(at, &["LaidOut"])?;
    // The next gets the lowest number that is free.
    scale(at, 4)?;
    run_pod("five")?;
    let pods = wait_given(at)?;
    ensure!(pods["five"].0 == "op-2-normal", "{pods:?}");
    // The condition may still be that of before.
    wait_children(at, &["op-1-normal", "op-2-normal", "op-3-normal", "op-4-normal"])?;
    ready(at, &["LaidOut"])?;
    scale(at, 0)?;
    has(
        &ready(at, &["NoReplicas"])?,
        "has 0 replicas, so its shards stay as they are: scale it up",
    )?;
    // It is deleted and made again: the shards stay meanwhile.
    let before = children(at)?;
    at.kubectl(&["delete", "deployment", "op"])?;
    ready(at, &["NoTarget"])?;
    ensure!(children(at)? == before, "{:?}", children(at)?);
    create(api, &workload("Deployment", at.namespace, 4), &[])?;
    ready(at, &["LaidOut"])?;
    ensure!(children(at)? == before, "{:?}", children(at)?);
    Ok(())
}

#[test]
fn the_shards_of_a_stateful_set_are_as_many_as_its_replicas() -> Result<()> {
    let bed = Bed::new("stateful-scaled")?;
    let (api, at) = (bed.api(), bed.place());
    create(api, &workload("StatefulSet", at.namespace, 2), &[])?;
    let mut root = root(at.namespace);
    root["spec"]["root"]["target"]["kind"] = json!("StatefulSet");
    create(api, &root, &[])?;
    wait_children(at, &["op-1-normal", "op-2-normal"])?;
    run(at, "op-0", true)?;
    run(at, "op-1", true)?;
    ready(at, &["LaidOut"])?;
    let scale = |replicas: &str| at.kubectl(&["scale", "statefulset/op", replicas]);
    scale("--replicas=3")?;
    run(at, "op-2", true)?;
    wait_children(at, &["op-1-normal", "op-2-normal", "op-3-normal"])?;
    ready(at, &["LaidOut"])?;
    // A shard goes with its last pod, and not before.
    scale("--replicas=2")?;
    until("it is seen", SOON, || {
        let pods = at.kubectl(&["get", "shardingconfig", "root", "-o", "yaml"])?;
        Ok(pods.contains("op-3-normal").then_some(()))
    })?;
    at.kubectl(&["delete", "pod", "op-2", "--force", "--grace-period=0"])?;
    wait_children(at, &["op-1-normal", "op-2-normal"])?;
    ready(at, &["LaidOut"]).map(drop)
}

#[test]
fn bad_a_label_that_is_late_lost_copied_or_in_the_template() -> Result<()> {
    let bed = Bed::new("deployment-labels")?;
    let (api, at) = (bed.api(), bed.place());
    create(api, &workload("Deployment", at.namespace, 3), &[])?;
    create(api, &root(at.namespace), &[])?;
    let one = create(api, &pod_of(at.namespace, "a", "one"), &[])?;
    let given = wait_given(at)?["one"].clone();
    ensure!(given == ("op-3-normal".to_owned(), "-3".to_owned()), "{given:?}");

    // A copy is given its own, and an owner of another name none.
    let mut copy = pod_of(at.namespace, "a", "copy");
    copy["metadata"]["labels"][SHARD] = json!("op-3-normal");
    let stored = create(api, &copy, &[])?;
    ensure!(stored["metadata"]["labels"][SHARD].is_null(), "{stored}");
    ensure!(wait_given(at)?["copy"].0 == "op-2-normal", "{:?}", shards(at)?);
    let mut foreign = pod_of(at.namespace, "a", "foreign");
    foreign["metadata"]["ownerReferences"][0]["name"] = json!("other-a");
    create(api, &foreign, &[])?;

    // A template that carries the label makes no pod.
    let mut of_template = pod_of(at.namespace, "b", "x");
    let meta = of_template["metadata"].as_object_mut().context("metadata")?;
    meta.remove("name");
    meta.insert("generateName".to_owned(), json!("op-b-"));
    of_template["metadata"]["labels"][SHARD] = json!("op-1-normal");
    let refused = create(api, &of_template, &[]).err().context("it is created")?;
    has(&format!("{refused:#}"), "the pod template has the label ctrlmesh.kusionstack.io/shard")?;

    // One that loses its label keeps the shard that its proxy says.
    started(at, "one")?;
    lease(at, &one, "op-3-normal")?;
    let lose = json!({ "metadata": { "labels": { (SHARD): null } } }).to_string();
    at.kubectl(&["delete", "pod", "copy", "foreign", "--force", "--grace-period=0"])?;
    at.kubectl(&["patch", "pod", "one", "--type=merge", "-p", &lose])?;
    until("it is given back", SOON, || Ok((shards(at)?["one"].0 == "op-3-normal").then_some(())))?;
    until("an Event says so", SOON, || {
        let args = ["get", "events", "-o", "jsonpath={.items[*].reason}"];
        Ok(at.kubectl(&args)?.contains("ShardLabelLost").then_some(()))
    })?;
    // A cost is put back.
    let cost = json!({ "metadata": { "annotations": { (COST): "7" } } }).to_string();
    at.kubectl(&["patch", "pod", "one", "--type=merge", "-p", &cost])?;
    until("the cost is back", SOON, || Ok((shards(at)?["one"].1 == "-3").then_some(())))
}

/// The kubelet says that a pod's container runs.
fn started(at: Place<'_>, name: &str) -> Result<()> {
    let running = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
    let status = json!({ "status": { "phase": "Running", "containerStatuses": [{
        "name": "app", "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": running,
    }] } });
    let patch = status.to_string();
    at.kubectl(&["patch", "pod", name, "--subresource=status", "--type=merge", "-p", &patch])
        .map(drop)
}

/// The Lease by which the proxy of a pod says that it has a shard.
fn lease(at: Place<'_>, pod: &Value, shard: &str) -> Result<()> {
    let uid = pod["metadata"]["uid"].as_str().context("a uid")?;
    let prefix = "ctrlmesh.kusionstack.io";
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": format!("ctrlmesh-{uid}"),
            "namespace": at.namespace,
            "labels": { (format!("{prefix}/ring")): "op" },
            "annotations": {
                (format!("{prefix}/shard")): shard,
                (format!("{prefix}/ring-name")): "op",
            },
        },
        "spec": { "holderIdentity": pod["metadata"]["name"] },
    });
    create(at.api, &lease, &[]).map(drop)
}

#[test]
fn bad_a_root_whose_workload_is_not_there_or_deletes_pods_too_early_says_so() -> Result<()> {
    let bed = Bed::new("deployment-target")?;
    let (api, at) = (bed.api(), bed.place());
    let apply = |object: &Value| -> Result<String> {
        let file = api.directory().join(format!("{}.json", at.namespace));
        fs::write(&file, object.to_string())?;
        let mut command = api.kubectl_client().command();
        let said = command.args(["apply", "--dry-run=server", "-f"]).arg(file).output()?;
        ensure!(said.status.success(), "{said:?}");
        Ok(String::from_utf8(said.stderr)?)
    };
    has(&apply(&root(at.namespace))?, "there is no Deployment deployment-target/op: create it")?;
    create(api, &root(at.namespace), &[])?;
    has(
        &ready(at, &["NoTarget"])?,
        "there is no Deployment deployment-target/op: create it, or give",
    )?;
    create(api, &workload("StatefulSet", at.namespace, 2), &[])?;
    let other = "deployment-target/op is a StatefulSet, and spec.root names a Deployment: give";
    until("it names the other kind", SOON, || {
        Ok(ready(at, &["NoTarget"])?.contains(other).then_some(()))
    })?;
    ensure!(children(at)?.is_empty(), "{:?}", children(at)?);
    // Both of one name: the kind tells them apart.
    let mut early = workload("Deployment", at.namespace, 8);
    early["spec"]["strategy"] = json!({ "type": "RollingUpdate" });
    create(api, &early, &[])?;
    let wanted = ["1", "2", "3", "4", "5", "6", "7", "8"].map(|n| format!("op-{n}-normal"));
    wait_children(at, &wanted.each_ref().map(String::as_str))?;
    let warned = "deletes 2 of its old pods in a rollout before new ones are ready";
    let mut other = root(at.namespace);
    other["spec"]["root"]["auto"]["balance"] = json!("Keep");
    has(&apply(&other)?, warned)
}

/// A client with the manager's own rights.
fn as_manager(api: &ApiServer) -> Result<Client> {
    Ok(api.client().with_token(&api.token(Manager::NAMESPACE, "ctrlmesh-manager")?))
}

#[test]
fn the_manager_may_patch_one_label_and_one_annotation_of_pods_of_deployments_alone() -> Result<()> {
    let bed = Bed::new("deployment-rights")?;
    let (api, at) = (bed.api(), bed.place());
    create(api, &workload("Deployment", at.namespace, 2), &[])?;
    create(api, &pod_of(at.namespace, "a", "one"), &[])?;
    create(api, &pod(at.namespace, "lone"), &[])?;
    let client = as_manager(api)?;
    let patch = |name: &str, kind: &str, body: &Value| -> Result<(u16, String)> {
        let path = at.at("pods", name);
        let answer = client.request("PATCH", &path, kind, serde_json::to_vec(body)?)?;
        Ok((answer.status, answer.text))
    };
    let labels = |key: &str| json!({ "metadata": { "labels": { (key): "op-1-normal" } } });
    let annotations = |key: &str| json!({ "metadata": { "annotations": { (key): "-1" } } });
    for (name, body, refusal) in [
        ("one", labels(SHARD), None),
        ("one", annotations(COST), None),
        ("one", labels("app"), Some("no label of a pod")),
        ("one", labels("other"), Some("no label of a pod")),
        ("one", annotations("other"), Some("no annotation of a pod")),
        (
            "one",
            json!({ "metadata": { "finalizers": ["a.example/b"] } }),
            Some("no field of a pod"),
        ),
        ("one", json!({ "spec": { "activeDeadlineSeconds": 5 } }), Some("no field of a pod")),
        ("lone", labels(SHARD), Some("no pod but an injected one of a Deployment")),
    ] {
        let (code, text) = patch(name, MERGE, &body)?;
        match refusal {
            None => ensure!(code == 200, "{body}: {code} {text}"),
            Some(why) => ensure!(code == 403 && text.contains(why), "{body}: {code} {text}"),
        }
    }
    let take = json!([{ "op": "remove", "path": "/metadata/labels/app" }]);
    let (code, text) = patch("one", JSON_PATCH, &take)?;
    ensure!(code == 403, "{code} {text}");
    Ok(())
}

/// Has the leader give shards, one of them back, and evict a pod.
pub(crate) fn give_and_evict(api: &ApiServer) -> Result<()> {
    let at = Place::operators(api);
    let name = |root: &mut Value| {
        root["metadata"]["name"] = json!("deployed");
        root["spec"]["root"]["prefix"] = json!("dep");
        root["spec"]["controller"]["leaderElectionName"] = json!("dep");
    };
    let mut root = root(OPERATORS);
    name(&mut root);
    create(api, &workload("Deployment", OPERATORS, 2), &[])?;
    create(api, &root, &[])?;
    let mut of_set = root;
    of_set["metadata"]["name"] = json!("of-set");
    of_set["spec"]["root"]["prefix"] = json!("of-set");
    of_set["spec"]["root"]["target"]["kind"] = json!("StatefulSet");
    of_set["spec"]["controller"]["leaderElectionName"] = json!("of-set");
    create(api, &of_set, &["--dry-run=server"])?;
    let pods = ["dep-one", "dep-two"];
    for name in pods {
        create(api, &pod_of(OPERATORS, "a", name), &[])?;
    }
    let given = |wanted: &dyn Fn(&str) -> bool| {
        until("both have a shard", SOON, || {
            let all = shards(at)?;
            let is = |name: &&str| all.get(*name).is_some_and(|(shard, _)| wanted(shard));
            Ok(pods.iter().all(is).then_some(()))
        })
    };
    given(&|shard| shard.starts_with("dep-"))?;
    // One that has started is asked by its Lease, and has none.
    started(at, "dep-one")?;
    let lose = json!({ "metadata": { "labels": { (SHARD): null } } }).to_string();
    at.kubectl(&["patch", "pod", "dep-one", "--type=merge", "-p", &lose])?;
    given(&|shard| shard.starts_with("dep-"))?;
    let same = json!({ "metadata": { "labels": { (SHARD): "dep-1-normal" } } }).to_string();
    for name in pods {
        at.kubectl(&["patch", "pod", name, "--type=merge", "-p", &same])?;
    }
    until("one of two is evicted", LONG, || {
        let is_going = |name: &str| -> Result<bool> {
            let pod = get(api, &at.at("pods", name))?;
            Ok(pod.is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null()))
        };
        let going = pods.iter().filter(|name| is_going(name).unwrap_or(false)).count();
        ensure!(going < 2, "both are");
        Ok((going == 1).then_some(()))
    })
}

#[test]
fn bad_a_pod_is_evicted_where_its_budget_lets_it_and_one_a_minute() -> Result<()> {
    let api = cluster()?;
    let replica = manager(&api, &[])?;
    let at = Place::operators(&api);
    create(&api, &workload("Deployment", OPERATORS, 3), &[])?;
    create(&api, &root(OPERATORS), &[])?;
    let pods = ["one", "two", "three"];
    for name in pods {
        create(&api, &pod_of(OPERATORS, "a", name), &[])?;
    }
    wait_given(at)?;
    // It forbids all: no controller says how many it lets go.
    let budget = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": { "name": "op", "namespace": OPERATORS },
        "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": "op" } } },
    });
    create(&api, &budget, &[])?;
    for name in pods {
        started(at, name)?;
        let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        let patch = status.to_string();
        at.kubectl(&["patch", "pod", name, "--subresource=status", "--type=merge", "-p", &patch])?;
    }
    let same = json!({ "metadata": { "labels": { (SHARD): "op-1-normal" } } }).to_string();
    for name in pods {
        at.kubectl(&["patch", "pod", name, "--type=merge", "-p", &same])?;
    }
    until("it is refused", LONG, || {
        Ok(replica.log()?.contains("evicted: its shard has too many pods").then_some(()))
    })?;
    ensure!(shards(at)?.len() == 3, "{:?}", shards(at)?);
    Ok(())
}
