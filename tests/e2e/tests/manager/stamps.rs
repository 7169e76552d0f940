//! The labels of KusionStack on the objects of kinds that its ConfigMap names.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Manager, until};
use serde_json::{Value, json};

use crate::manager::scene::{Bed, SOON, at, cluster, get, has, manager};

const HASH: &str = "ctrlmesh.kusionstack.io/shard-hash";
const CONTROL: &str = "ctrlmesh.kusionstack.io/control";
/// The delay of everything that etcd says to the API server that is behind: a write takes several times
/// as long.
const BEHIND: Duration = Duration::from_millis(200);
/// The time in which all are stamped: a Lease must expire before, and each is a write.
const LONG: Duration = Duration::from_secs(120);
/// The label of the namespace, by a name that flags give.
const NAMESPACE: &str = "shards.example.com/of";

/// Names the kinds in the ConfigMap.
fn name_kinds(api: &ApiServer, config: &str) -> Result<()> {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "ctrlmesh-sharding-resource", "namespace": Manager::NAMESPACE },
        "data": { "resource-config": config },
    });
    api.apply(&map.to_string()).map(drop)
}

/// Gives the manager the right to stamp.
fn permit(api: &ApiServer) -> Result<()> {
    let verbs = ["--verb=list,watch,patch", "--resource=configmaps,namespaces"];
    api.kubectl(&[&["create", "clusterrole", "stamper"], &verbs[..]].concat())?;
    let bound = ["--clusterrole=stamper", "--serviceaccount=ctrlmesh-system:ctrlmesh-manager"];
    api.kubectl(&[&["create", "clusterrolebinding", "stamper"], &bound[..]].concat()).map(drop)
}

fn make(api: &ApiServer, name: &str, labels: &Value) -> Result<()> {
    make_in(api, "ant", name, labels)
}

fn make_in(api: &ApiServer, namespace: &str, name: &str, labels: &Value) -> Result<()> {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": namespace, "labels": labels },
        "data": { "of": "no interest" },
    });
    api.apply(&map.to_string()).map(drop)
}

fn labels(api: &ApiServer, name: &str) -> Result<Value> {
    let map = get(api, &at("ant", "configmaps", name))?.context("the ConfigMap")?;
    ensure!(map["data"]["of"] == "no interest", "{map}");
    Ok(map["metadata"]["labels"].clone())
}

fn wait_stamped(api: &ApiServer, name: &str) -> Result<()> {
    // The sum of a, n and t, modulo 32.
    let wanted = json!({ (NAMESPACE): "ant", (HASH): "3", (CONTROL): "true" });
    until(&format!("{name} is stamped"), SOON, || Ok((labels(api, name)? == wanted).then_some(())))
}

fn foreign(manager: &Manager) -> Result<f64> {
    manager.metric("ctrlmesh_manager_stamps_total{result=\"foreign\"}")
}

#[test]
fn i15_objects_of_named_kinds_get_the_labels_of_their_namespace() -> Result<()> {
    let api = cluster()?;
    api.kubectl(&["create", "namespace", "ant"])?;
    make(&api, "old", &json!({}))?;
    let theirs = json!({ (CONTROL): "false" });
    make(&api, "theirs", &theirs)?;
    let manager = manager(&api, &["--label-namespace=shards.example.com/of"])?;
    name_kinds(&api, "groupVersionKinds: {v1: [ConfigMap, Node, Gadget]}")?;
    until("it says what it may not", SOON, || {
        Ok(manager.log()?.contains("the chart's value `stamped`").then_some(()))
    })?;
    has(&manager.log()?, "v1 Node: it is in no namespace")?;
    has(&manager.log()?, "v1 Gadget: the API server serves no such kind")?;
    ensure!(labels(&api, "old")?.is_null(), "without a right");
    permit(&api)?;
    // The right is looked for once a minute, and whenever the kinds change.
    name_kinds(&api, "groupVersionKinds: {v1: [ConfigMap, Namespace]}")?;
    wait_stamped(&api, "old")?;
    until("a namespace has the labels of itself", SOON, || {
        let namespace = get(&api, "/api/v1/namespaces/ant")?.context("the namespace")?;
        Ok((namespace["metadata"]["labels"][NAMESPACE] == "ant").then_some(()))
    })?;
    until("what is someone else's is counted", SOON, || {
        Ok((foreign(&manager)? > 0.0).then_some(()))
    })?;
    ensure!(labels(&api, "theirs")? == theirs, "{}", labels(&api, "theirs")?);
    until("it is named", SOON, || {
        Ok(manager.log()?.contains("ant/theirs: ctrlmesh.kusionstack.io/control").then_some(()))
    })?;

    // What comes, and what loses a label.
    make(&api, "new", &json!({}))?;
    wait_stamped(&api, "new")?;
    api.kubectl(&["label", "configmap", "new", "-n", "ant", &format!("{HASH}-")])?;
    wait_stamped(&api, "new")?;
    let before = foreign(&manager)?;
    let taken = format!("{CONTROL}=mine");
    api.kubectl(&["label", "--overwrite", "configmap", "new", "-n", "ant", &taken])?;
    until("it is someone else's now", SOON, || Ok((foreign(&manager)? > before).then_some(())))?;
    ensure!(labels(&api, "new")?[CONTROL] == "mine", "{}", labels(&api, "new")?);

    // A ConfigMap that cannot be used changes nothing.
    name_kinds(&api, "groupVersionKinds: [ConfigMap]")?;
    until("it says what would be right", SOON, || {
        Ok(manager.log()?.contains("it needs `groupVersionKinds: {apps/v1:").then_some(()))
    })?;
    make(&api, "later", &json!({}))?;
    wait_stamped(&api, "later")
}

/// An object that is gone is not created by the write of a label: the write names its uid.
#[test]
fn bad_i15_an_object_that_is_gone_is_not_created_by_its_labels() -> Result<()> {
    let bed = Bed::new("stamp-gone")?;
    let (api, at) = (bed.api(), bed.place());
    make_in(api, at.namespace, "gone", &json!({}))?;
    let gone = get(api, &at.at("configmaps", "gone"))?.context("the ConfigMap")?;
    at.kubectl(&["delete", "configmap", "gone"])?;
    let applied = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "gone", "namespace": at.namespace, "uid": gone["metadata"]["uid"],
            "labels": { "a": "b" },
        },
    });
    let args = ["apply", "--server-side", "--field-manager=ctrlmesh-stamps", "-f", "-"];
    let refused = api.kubectl_client().run_with_input(&args, &applied.to_string()).err();
    has(&format!("{:#}", refused.context("it was created")?), "uid mismatch")?;
    ensure!(get(api, &at.at("configmaps", "gone"))?.is_none(), "it was created");
    Ok(())
}

/// The labels of the ConfigMaps of a round, by name.
fn of_round(api: &ApiServer, round: u32) -> Result<BTreeMap<String, Value>> {
    let mut list = api.client().get("/api/v1/namespaces/ant/configmaps")?.json()?;
    let mut all = BTreeMap::new();
    for map in list["items"].as_array_mut().context("ConfigMaps")? {
        let name = map["metadata"]["name"].as_str().context("a name")?.to_owned();
        if name.starts_with(&format!("of-{round}-")) {
            all.insert(name, map["metadata"]["labels"].take());
        }
    }
    Ok(all)
}

/// Objects come, go, come again and are taken, while the manager hears of that late and is killed.
#[test]
fn bad_i15_a_manager_that_is_behind_and_killed_stamps_all_and_takes_none() -> Result<()> {
    const ROUNDS: u32 = 3;
    const OBJECTS: usize = 24;
    let api = cluster()?;
    api.kubectl(&["create", "namespace", "ant"])?;
    permit(&api)?;
    name_kinds(&api, "groupVersionKinds: {v1: [ConfigMap]}")?;
    let slow = api.beside()?;
    let mut manager = Manager::start_at(&api, &slow.url(), "manager-0", &["--stamp-rate=50"])?;
    manager.receive_reviews(&api)?;
    manager.wait_ready()?;
    slow.fall_behind(BEHIND)?;
    let stamped = json!({
        "ctrlmesh.kusionstack.io/namespace": "ant", (HASH): "3", (CONTROL): "true",
    });
    for round in 0..ROUNDS {
        let name = |at: usize| format!("of-{round}-{at:02}");
        (0..OBJECTS).try_for_each(|at| make(&api, &name(at), &json!({})))?;
        until("some are stamped", LONG, || {
            Ok(of_round(&api, round)?.values().any(|labels| *labels == stamped).then_some(()))
        })?;
        for at in 0..3 {
            let taken = format!("{CONTROL}=mine");
            let args = ["label", "--overwrite", "configmap", &name(at), "-n", "ant", &taken];
            api.kubectl(&args)?;
        }
        for at in 3..9 {
            api.kubectl(&["delete", "configmap", &name(at), "-n", "ant"])?;
        }
        (3..6).try_for_each(|at| make(&api, &name(at), &json!({})))?;
        manager.kill()?;
        manager.start_again()?;
        manager.receive_reviews(&api)?;
    }
    for round in 0..ROUNDS {
        let name = |at: usize| format!("of-{round}-{at:02}");
        until(&format!("those of round {round} are stamped"), LONG, || {
            let labels = of_round(&api, round)?;
            let mut others = labels.iter().filter(|(map, _)| **map >= name(3));
            Ok(others.all(|(_, labels)| *labels == stamped).then_some(()))
        })?;
        let labels = of_round(&api, round)?;
        ensure!(labels.len() == OBJECTS - 3, "one is back that was deleted: {labels:#?}");
        for at in 0..3 {
            ensure!(labels[&name(at)][CONTROL] == "mine", "{at} was taken back: {labels:#?}");
        }
    }
    Ok(())
}
