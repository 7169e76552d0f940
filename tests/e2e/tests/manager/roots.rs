//! Roots: the configs of the shards that one object draws, and what becomes of them.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Manager, until};
use serde_json::{Value, json};

use crate::manager::deployments::workload;
use crate::manager::scene::{
    Bed, IGNORE, OPERATORS, Place, SOON, cluster, create, get, let_in, manager, pod,
};

const LOT: &str = "ctrlmesh.kusionstack.io/lot";
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const END: u128 = 1 << 64;
/// Longer than a Lease of a leader that was killed lasts, on a busy machine.
const LONG: Duration = Duration::from_secs(90);
/// The delay of everything that etcd says to a manager's API server.
const BEHIND: Duration = Duration::from_millis(500);

/// A root over pods, of shards with one pod each.
pub(crate) fn root(size: u32) -> Value {
    root_in(OPERATORS, size)
}

fn root_in(namespace: &str, size: u32) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "root", "namespace": namespace },
        "spec": {
            "controller": { "leaderElectionName": "op" },
            "root": {
                "prefix": "op",
                "targetStatefulSet": "op",
                "auto": { "shardingSize": size, "everyShardReplicas": 1, "by": "Namespace" },
                "resourceSelector": [
                    { "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }] },
                ],
            },
        },
    })
}

/// The server and namespace of a bed, and the roots in it.
fn parts(bed: &Bed) -> Result<(&ApiServer, Place<'_>, impl Fn(u32) -> Value)> {
    let at = bed.place();
    create(bed.api(), &workload("StatefulSet", at.namespace, 3), &[])?;
    Ok((bed.api(), at, move |size| root_in(at.namespace, size)))
}

fn apply(api: &ApiServer, object: &Value) -> Result<String> {
    api.apply(&serde_json::to_string(object)?)
}

/// The configs of the namespace, by name.
fn configs(at: Place<'_>) -> Result<BTreeMap<String, Value>> {
    let list = get(at.api, &at.configs())?.context("the configs")?;
    let all = list["items"].as_array().context("items")?.iter();
    let name = |config: &Value| config["metadata"]["name"].as_str().map(str::to_owned);
    Ok(all.filter_map(|config| Some((name(config)?, config.clone()))).collect())
}

/// The hash ranges of a child, each with its first and the one after its last.
fn ranges(child: &Value) -> Result<Vec<(u128, u128)>> {
    let hash = &child["spec"]["limits"][0]["hash"];
    ensure!(hash["of"] == "namespace" && hash["function"] == "Fnv1aMixed", "{child}");
    let number = |value: &Value| -> Result<u128> {
        match value.as_str().context("a hash")?.strip_prefix("0x") {
            Some(digits) => Ok(u128::from_str_radix(digits, 16)?),
            None => Ok(END),
        }
    };
    let all = hash["ranges"].as_array().context("ranges")?.iter();
    all.map(|range| Ok((number(&range["from"])?, number(&range["to"])?))).collect()
}

/// How many hashes each child has. Fails if two have one.
fn sizes(configs: &BTreeMap<String, Value>) -> Result<BTreeMap<&str, u128>> {
    let mut taken: Vec<(u128, u128)> = Vec::new();
    let mut sizes = BTreeMap::new();
    for (name, child) in configs.iter().filter(|(name, _)| name.starts_with("op-")) {
        let own = ranges(child)?;
        sizes.insert(name.as_str(), own.iter().map(|(from, to)| to - from).sum());
        taken.extend(own);
    }
    taken.sort_unstable();
    let twice = taken.windows(2).find(|pair| pair[0].1 > pair[1].0);
    ensure!(twice.is_none(), "{twice:x?} of {configs:#?}");
    Ok(sizes)
}

/// Whether these children, and no others, have everything in shares of one size.
fn is_whole(configs: &BTreeMap<String, Value>, names: &[&str]) -> Result<bool> {
    let sizes = sizes(configs)?;
    let even = END / u128::from(u32::try_from(names.len())?);
    let is_even = sizes.values().all(|size| size.abs_diff(even) < END >> 16);
    Ok(sizes.keys().eq(names) && is_even && sizes.values().sum::<u128>() == END)
}

/// Waits until these children have everything in equal shares.
fn wait_whole(at: Place<'_>, names: &[&str]) -> Result<BTreeMap<String, Value>> {
    let mut last = BTreeMap::new();
    let found = until("the children have everything", LONG, || {
        last = configs(at)?;
        // One may be as someone else wrote it.
        Ok(is_whole(&last, names).is_ok_and(|is| is).then(|| last.clone()))
    });
    found.with_context(|| format!("{names:?}: {last:#?}"))
}

/// Waits until a child is there, and returns all. The root's condition may be stored before it is.
fn wait_child(at: Place<'_>, name: &str) -> Result<BTreeMap<String, Value>> {
    until("the child is there", SOON, || {
        let all = configs(at)?;
        Ok(all.contains_key(name).then_some(all))
    })
}

/// The status of the root.
fn status(at: Place<'_>) -> Result<Value> {
    Ok(get(at.api, &format!("{}/root", at.configs()))?.context("the root")?["status"].take())
}

/// Waits until the root's condition has this reason, and returns its message.
fn ready(at: Place<'_>, reason: &str) -> Result<String> {
    let mut last = Value::Null;
    let found = until("the root's condition", LONG, || {
        last = status(at)?;
        let mut all = last["conditions"].as_array().into_iter().flatten();
        let is = |one: &&Value| one["type"] == "Ready" && one["reason"] == reason;
        Ok(all.find(is).map(|one| one["message"].as_str().unwrap_or_default().to_owned()))
    });
    found.with_context(|| format!("{reason}: {last}"))
}

/// Creates a pod of the StatefulSet, which is ready or not.
pub(crate) fn run(at: Place<'_>, name: &str, is_ready: bool) -> Result<()> {
    let mut pod = pod(at.namespace, name);
    pod["metadata"]["labels"][POD_NAME] = json!(name);
    create(at.api, &pod, &[])?;
    if is_ready { make_ready(at, name) } else { Ok(()) }
}

fn make_ready(at: Place<'_>, name: &str) -> Result<()> {
    let status = json!({ "status": { "phase": "Running", "conditions": [
        { "type": "Ready", "status": "True" }
    ] } });
    let patch = status.to_string();
    let args = ["patch", "pod", name, "--subresource=status", "--type=merge", "-p", &patch];
    at.kubectl(&args).map(drop)
}

/// Has the manager write children, put one back, and delete them.
pub(crate) fn come_and_go(api: &ApiServer) -> Result<()> {
    let at = Place::operators(api);
    apply(api, &let_in(root(2)))?;
    wait_whole(at, &TWO)?;
    let patch = json!({ "metadata": { "annotations": { LOT: null } } }).to_string();
    at.kubectl(&["patch", "shardingconfig", "op-1-normal", "--type=merge", "-p", &patch])?;
    until("it is put back", SOON, || {
        let all = configs(at)?;
        Ok(all["op-1-normal"]["metadata"]["annotations"][LOT].is_string().then_some(()))
    })?;
    let mut disabled = let_in(root(2));
    disabled["spec"]["root"]["disable"] = json!(true);
    apply(api, &disabled)?;
    until("the children are gone", SOON, || {
        Ok(TWO
            .iter()
            .all(|name| configs(at).is_ok_and(|all| !all.contains_key(*name)))
            .then_some(()))
    })
}

const TWO: [&str; 2] = ["op-1-normal", "op-2-normal"];
const THREE: [&str; 3] = ["op-1-normal", "op-2-normal", "op-3-normal"];

#[test]
fn i15_a_root_draws_shards_and_one_more_gets_its_share_once_its_pod_is_ready() -> Result<()> {
    let bed = Bed::new("root-draws")?;
    let (api, at, root) = parts(&bed)?;
    create(api, &root(2), &[])?;
    let before = wait_whole(at, &TWO)?;
    let child = &before["op-1-normal"];
    ensure!(child["metadata"]["ownerReferences"][0]["name"] == "root", "{child}");
    ensure!(child["spec"]["controller"]["leaderElectionName"] == "op", "{child}");
    ensure!(child["spec"]["limits"][0]["clusterScoped"] == "Include", "{child}");
    ensure!(
        before["op-2-normal"]["spec"]["limits"][0]["clusterScoped"] == "Exclude",
        "{before:#?}"
    );
    let message = ready(at, "NoReadyPod")?;
    let idle = "no pod of op-1-normal, op-2-normal is ready, so no one";
    ensure!(message.starts_with(idle), "{message}");
    let status = status(at)?;
    ensure!(status["root"]["childShardingConfigs"] == json!(TWO), "{status}");
    run(at, "op-0", true)?;
    run(at, "op-1", true)?;
    ready(at, "LaidOut")?;
    run(at, "op-2", false)?;
    let message = ready(at, "Surplus")?;
    ensure!(
        message.starts_with("pod op-2 is in no shard: scale the StatefulSet down"),
        "{message}"
    );
    at.kubectl(&["delete", "pod", "op-2", "--force"])?;

    // One more has nothing before it has a pod.
    apply(api, &root(3))?;
    let message = ready(at, "NotReady")?;
    ensure!(message.starts_with("no pod of op-3-normal is ready, so it is not given"), "{message}");
    let held = wait_child(at, "op-3-normal")?;
    ensure!(ranges(&held["op-3-normal"])?.is_empty(), "{held:#?}");
    ensure!(TWO.iter().all(|name| held[*name]["spec"] == before[*name]["spec"]), "{held:#?}");
    run(at, "op-2", false)?;
    until("an Event says so", SOON, || {
        let args = ["get", "events", "-o", "jsonpath={.items[*].reason}"];
        Ok(at.kubectl(&args)?.contains("NotReady").then_some(()))
    })?;
    ensure!(ranges(&configs(at)?["op-3-normal"])?.is_empty(), "before its pod is ready");
    make_ready(at, "op-2")?;
    let after = wait_whole(at, &THREE)?;
    // Each kept what it could.
    for name in TWO {
        let own = ranges(&before[name])?;
        let is_kept = |(from, to): &(u128, u128)| own.iter().any(|(a, b)| a <= from && to <= b);
        ensure!(ranges(&after[name])?.iter().all(is_kept), "{name}: {after:#?}");
    }
    apply(api, &root(2))?;
    wait_whole(at, &TWO)?;
    ready(at, "Surplus")?;
    let shown = at.kubectl(&["get", "shard", "root"])?;
    let cells: Vec<_> = shown.split_whitespace().collect();
    ensure!(cells[..6] == ["NAME", "PODS", "HANDOVER", "OWNS", "READY", "AGE"], "{shown}");
    ensure!(cells[6..8] == ["root", "False"], "{shown}");
    let shown = at.kubectl(&["get", "shard", "op-1-normal", "--no-headers"])?;
    let cells: Vec<_> = shown.split_whitespace().collect();
    ensure!(shown.contains(", cluster-scoped ") && cells[..2] == ["op-1-normal", "1"], "{shown}");
    ensure!(cells[cells.len() - 2] == "True", "{shown}");

    // No finalizer keeps it. Its children are the garbage collector's, which does not run here.
    at.kubectl(&["delete", "shardingconfig", "root", "--wait=false"])?;
    ensure!(get(api, &format!("{}/root", at.configs()))?.is_none(), "the root stays");
    Ok(())
}

#[test]
fn a_root_without_resources_is_drawn_by_namespaces_and_shares_what_is_in_none() -> Result<()> {
    let bed = Bed::new("root-whole")?;
    let (api, at, root) = parts(&bed)?;
    let mut whole = root(2);
    let of_root = whole["spec"]["root"].as_object_mut().context("the root")?;
    of_root.remove("resourceSelector");
    create(api, &whole, &[])?;
    let children = until("the children have everything", LONG, || {
        let all = configs(at)?;
        let sizes = sizes(&all)?;
        Ok((sizes.len() == 2 && sizes.values().sum::<u128>() == END).then_some(all.clone()))
    })?;
    for (name, outside) in [("op-1-normal", "Include"), ("op-2-normal", "Exclude")] {
        let spec = &children[name]["spec"];
        let limits = spec["limits"].as_array().context("limits")?;
        ensure!(limits.len() == 1 && limits[0]["relateResources"] == Value::Null, "{limits:?}");
        ensure!(limits[0]["clusterScoped"] == outside, "{limits:?}");
        let shared = spec["shared"].as_array().context("shared")?;
        let shown: Vec<_> = shared.iter().map(|one| (&one["namespaces"], &one["write"])).collect();
        let [beside, none] = [json!([at.namespace]), json!([""])];
        let [all, owner] = [json!("All"), json!("Owner")];
        ensure!(shown == [(&beside, &all), (&none, &all), (&none, &owner)], "{shared:?}");
    }
    run(at, "op-0", true)?;
    run(at, "op-1", true)?;
    ready(at, "LaidOut")?;
    until("no object is in two shards, or in none", SOON, || {
        let all = configs(at)?;
        let is = |kind: &str| {
            let mut conditions = all["op-2-normal"]["status"]["conditions"].as_array()?.iter();
            conditions.find(|one| one["type"] == kind).map(|one| one["status"] == "True")
        };
        Ok((is("NoOverlap") == Some(true) && is("NoGaps") == Some(true)).then_some(()))
    })?;
    // Objects are counted by the names of resources, and there are none.
    whole["spec"]["root"]["auto"]["weight"] = json!("Objects");
    let refused = apply(api, &whole).err().context("it weighs objects")?;
    ensure!(
        format!("{refused:#}").contains("Objects needs spec.root.resourceSelector"),
        "{refused:#}"
    );
    Ok(())
}

#[test]
fn bad_i15_children_changed_by_hand_are_put_back_and_nobody_elses_is_touched() -> Result<()> {
    let bed = Bed::new("children-changed")?;
    let (api, at, root) = parts(&bed)?;
    create(api, &root(2), &[])?;
    let whole = wait_whole(at, &TWO)?;
    let edit = |name: &str, patch: &Value| {
        let patch = patch.to_string();
        at.kubectl(&["patch", "shardingconfig", name, "--type=merge", "-p", &patch])
    };
    let label = json!({ "metadata": { "labels": { IGNORE: "" } } });
    edit("op-1-normal", &label)?;
    for patch in [
        json!({ "spec": { "limits": [] } }),
        json!({ "spec": { "handover": { "mode": "Immediate" } } }),
        json!({ "metadata": { "annotations": { LOT: null } } }),
        json!({ "metadata": { "annotations": { LOT: "{}" } } }),
        json!({ "metadata": { "ownerReferences": null } }),
    ] {
        edit("op-1-normal", &patch)?;
        until("it is put back", SOON, || {
            let now = &configs(at)?["op-1-normal"];
            let then = &whole["op-1-normal"];
            let same = |at: &str| now.pointer(at) == then.pointer(at);
            let parts = ["/spec", "/metadata/annotations", "/metadata/ownerReferences/0/name"];
            Ok(parts.iter().all(|at| same(at)).then_some(()))
        })
        .with_context(|| patch.to_string())?;
    }
    at.kubectl(&["delete", "shardingconfig", "op-2-normal"])?;
    wait_whole(at, &TWO)?;

    // A config of another is in the way of a third shard.
    let mut third = let_in(root(1));
    third["metadata"]["name"] = json!("op-3-normal");
    third["spec"] = json!({ "selector": { "matchLabels": { "app": "other" } } });
    create(api, &third, &[])?;
    until("a root is refused that has its name", SOON, || {
        let error = apply(api, &root(3)).err().map(|error| format!("{error:#}"));
        Ok(error.is_some_and(|error| error.contains("op-3-normal has the name")).then_some(()))
    })?;
    apply(api, &let_in(root(3)))?;
    let message = ready(at, "Foreign")?;
    ensure!(message.starts_with("ShardingConfig op-3-normal has the name of a child"), "{message}");
    ensure!(configs(at)?["op-3-normal"]["spec"] == third["spec"], "it was written");

    // A pod that runs keeps its shard.
    apply(api, &root(2))?;
    run(at, "op-0", true)?;
    run(at, "op-1", true)?;
    ready(at, "LaidOut")?;
    let mut moved = root(2);
    moved["spec"]["root"]["canary"] = json!({ "replicas": 1, "inNamespaces": ["default"] });
    let refused = apply(api, &moved).err().context("a pod was moved")?;
    ensure!(
        format!("{refused:#}").contains("pod op-0 runs in the shard op-1-normal"),
        "{refused:#}"
    );
    apply(api, &let_in(moved))?;
    let message = ready(at, "PodsWouldMove")?;
    ensure!(message.starts_with("pod op-0, op-1 would be of another shard"), "{message}");
    at.kubectl(&["delete", "pod", "op-0", "op-1", "--force"])?;
    until("there is a canary", SOON, || {
        let all = configs(at)?;
        Ok(all.contains_key("op-0-canary").then_some(()))
    })
}

#[test]
fn i15_a_root_that_is_disabled_has_no_children() -> Result<()> {
    let bed = Bed::new("root-disabled")?;
    let (api, at, root) = parts(&bed)?;
    // As KusionStack's manager leaves it.
    let mut theirs = root(2);
    theirs["metadata"]["finalizers"] = json!(["finalizer.ctrlmesh.kusionstack.io/protected"]);
    let mut child = root(1);
    child["metadata"] = json!({
        "name": "op-1-normal",
        "namespace": at.namespace,
        "labels": { "ctrlmesh.kusionstack.io/auto-sharding-root": "root", "own": "label" },
    });
    child["spec"] = json!({
        "selector": { "matchLabels": { POD_NAME: "op-0" } },
        "limits": [{ "selector": { "matchLabels": { "ctrlmesh.kusionstack.io/shard-hash": "1" } } }],
    });
    create(api, &child, &[])?;
    create(api, &theirs, &[])?;
    let adopted = wait_whole(at, &TWO)?;
    ensure!(adopted["op-1-normal"]["metadata"]["labels"]["own"] == "label", "{adopted:#?}");
    until("the finalizer is off", SOON, || {
        Ok(configs(at)?["root"]["metadata"]["finalizers"].is_null().then_some(()))
    })?;
    let mut disabled = root(2);
    disabled["spec"]["root"]["disable"] = json!(true);
    apply(api, &disabled)?;
    until("the children are gone", SOON, || Ok((configs(at)?.len() == 1).then_some(())))?;
    ready(at, "Disabled").map(drop)
}

/// A change of a spec.
type Change<'a> = &'a dyn Fn(&mut Value);

#[test]
fn bad_i15_the_schema_refuses_what_is_no_shard_and_no_root() -> Result<()> {
    let bed = Bed::new("schema-refuses")?;
    let (api, _, root) = parts(&bed)?;
    // With the label they come to no manager.
    let refused = |change: Change<'_>| -> Result<String> {
        let mut config = let_in(root(2));
        change(&mut config["spec"]);
        let error = create(api, &config, &[]).err().context("it came in")?;
        Ok(format!("{error:#}"))
    };
    let resources = "/root/resourceSelector/0/relateResources/0";
    let cases: [(Change<'_>, &str); 13] = [
        (&|spec| drop(spec.as_object_mut().map(|spec| spec.remove("root"))), "spec.selector"),
        (&|spec| *spec = json!({ "selector": {} }), "give labels that select the pods"),
        (
            &|spec| *spec = json!({ "selector": { "matchLabels": {}, "matchExpressions": [] } }),
            "spec.selector",
        ),
        (&|spec| spec["limits"] = json!([{}]), "give root.resourceSelector"),
        (&|spec| spec["root"]["prefix"] = json!("A"), "spec.root.prefix"),
        (&|spec| spec["root"]["auto"]["shardingSize"] = json!(33), "shardingSize"),
        (
            &|spec| spec["root"]["auto"]["by"] = json!("Name"),
            "supported values: \"Label\", \"Namespace\", \"Uid\"",
        ),
        (&|spec| spec["root"]["canary"] = json!({ "replicas": 1 }), "give inNamespaces"),
        (
            &|spec| spec["controller"]["leaderElectionName"] = json!("My Lock"),
            "spec.controller.leaderElectionName",
        ),
        (
            &|spec| spec["controller"]["leaderElectionName"] = json!("a..b"),
            "spec.controller.leaderElectionName",
        ),
        (
            &|spec| spec.pointer_mut(resources).map_or((), |at| at["apiGroups"] = json!([])),
            "apiGroups in body should have at least 1 items",
        ),
        (
            &|spec| spec.pointer_mut(resources).map_or((), |at| at["resources"] = json!([])),
            "resources in body should have at least 1 items",
        ),
        (
            &|spec| {
                spec["root"]["resourceSelector"][0]["hash"] =
                    json!({ "of": "uid", "function": "Fnv1aMixed", "ranges": [] })
            },
            "uids need no mixing",
        ),
    ];
    for (change, expected) in cases {
        let error = refused(change)?;
        ensure!(error.contains(expected), "{expected}: {error}");
    }
    let mut long = let_in(root(2));
    long["metadata"]["name"] = json!("a".repeat(64));
    let error = create(api, &long, &[]).err().context("a long name came in")?;
    ensure!(format!("{error:#}").contains("the name is too long"), "{error:#}");
    long["metadata"]["name"] = json!("a".repeat(63));
    create(api, &long, &[])?;
    create(api, &let_in(root(2)), &[]).map(drop)
}

/// The root changes again and again while its manager is killed at any moment: no two children ever have
/// an object in common, as each read of all of them shows, and at the end they have everything.
#[test]
fn bad_i15_the_manager_is_killed_again_and_again_while_the_root_changes() -> Result<()> {
    let api = cluster()?;
    let at = Place::operators(&api);
    create(&api, &workload("StatefulSet", OPERATORS, 3), &[])?;
    let mut manager = manager(&api, &[])?;
    create(&api, &let_in(root(2)), &[])?;
    wait_whole(at, &TWO)?;
    for name in ["op-0", "op-1", "op-2"] {
        run(at, name, true)?;
    }
    for round in 0..4_u32 {
        apply(&api, &let_in(root(2 + (round + 1) % 2)))?;
        // From the first writes to after the last.
        let writes = manager.metric("ctrlmesh_manager_writes_total")?;
        let before = configs(at)?;
        until("something is written", LONG, || {
            let all = configs(at)?;
            sizes(&all)?;
            let is_written = manager.metric("ctrlmesh_manager_writes_total")? > writes;
            Ok((is_written || all != before).then_some(()))
        })?;
        manager.kill()?;
        sizes(&configs(at)?)?;
        manager.start_again()?;
        manager.receive_reviews(&api)?;
        manager.wait_ready()?;
    }
    apply(&api, &let_in(root(3)))?;
    wait_whole(at, &THREE)?;
    ready(at, "LaidOut").map(drop)
}

/// The manager hears of roots and of its own writes half a second late, while the root changes faster.
#[test]
fn bad_i15_a_manager_that_is_behind_gives_nothing_twice() -> Result<()> {
    let api = cluster()?;
    let at = Place::operators(&api);
    create(&api, &workload("StatefulSet", OPERATORS, 3), &[])?;
    let slow = api.beside()?;
    let manager = Manager::start_at(&api, &slow.url(), "manager-0", &[])?;
    manager.receive_reviews(&api)?;
    manager.wait_ready()?;
    create(&api, &let_in(root(2)), &[])?;
    wait_whole(at, &TWO)?;
    for name in ["op-0", "op-1", "op-2"] {
        run(at, name, true)?;
    }
    slow.fall_behind(BEHIND)?;
    let lots = |all: &BTreeMap<String, Value>| -> Vec<Value> {
        all.values().map(|child| child["metadata"]["annotations"][LOT].clone()).collect()
    };
    for size in [3, 2, 3, 1, 3, 2, 1, 3] {
        let before = lots(&configs(at)?);
        apply(&api, &let_in(root(size)))?;
        until("a child is written", LONG, || {
            let all = configs(at)?;
            sizes(&all)?;
            let names = &THREE[..usize::try_from(size)?];
            Ok((lots(&all) != before || is_whole(&all, names)?).then_some(()))
        })?;
    }
    wait_whole(at, &THREE)?;
    ready(at, "LaidOut").map(drop)
}

/// A root over ConfigMaps, balanced by their number.
fn weighed(size: u32) -> Value {
    let mut root = root(size);
    root["spec"]["root"]["auto"]["weight"] = json!("Objects");
    root["spec"]["root"]["resourceSelector"][0]["relateResources"][0]["resources"] =
        json!(["configmaps"]);
    root
}

/// The mixed hash of a namespace's name, and the child that has it.
fn child_of(configs: &BTreeMap<String, Value>, namespace: &str) -> Result<String> {
    let plain = namespace.bytes().fold(14_695_981_039_346_656_037_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
    });
    let round = |hash: u64, factor: u64| (hash ^ (hash >> 33)).wrapping_mul(factor);
    let hash = round(round(plain, 0xff51_afd7_ed55_8ccd), 0xc4ce_b9fe_1a85_ec53);
    let hash = u128::from(hash ^ (hash >> 33));
    for (name, child) in configs.iter().filter(|(name, _)| name.starts_with("op-")) {
        if ranges(child)?.iter().any(|(from, to)| (*from..*to).contains(&hash)) {
            return Ok(name.clone());
        }
    }
    anyhow::bail!("{namespace} is no one's: {configs:#?}")
}

/// Creates so many ConfigMaps in a namespace, which is created, too.
fn fill(api: &ApiServer, namespace: &str, count: usize) -> Result<()> {
    let mut objects = vec![json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace },
    })];
    objects.extend((0..count).map(|at| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": format!("data-{at}"), "namespace": namespace },
        })
    }));
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
    api.kubectl_client().run_with_input(&["create", "-f", "-"], &list).map(drop)
}

#[test]
fn i15_a_root_is_balanced_by_the_number_of_objects_and_a_large_namespace_moves_nothing_twice()
-> Result<()> {
    let api = cluster()?;
    let at = Place::operators(&api);
    create(&api, &workload("StatefulSet", OPERATORS, 3), &[])?;
    // More than two pages in one namespace, and in each of the others a little.
    fill(&api, "large", 1100)?;
    let small: Vec<_> = (0..12).map(|at| format!("small-{at}")).collect();
    small.iter().try_for_each(|namespace| fill(&api, namespace, 40))?;
    let manager = manager(&api, &["--balance-interval=2"])?;
    apply(&api, &let_in(weighed(2)))?;
    let even = wait_whole(at, &TWO)?;
    for name in ["op-0", "op-1"] {
        run(at, name, true)?;
    }
    let message = ready(at, "Uncounted")?;
    let why = "configmaps cannot be counted: the manager may not list them: name the resource in the chart's";
    ensure!(message.starts_with(why), "{message}");
    let bound = ["--clusterrole=counter", "--serviceaccount=ctrlmesh-system:ctrlmesh-manager"];
    let role = ["create", "clusterrole", "counter", "--verb=list", "--resource=configmaps"];
    api.kubectl(&role)?;
    api.kubectl(&[&["create", "clusterrolebinding", "counter"], &bound[..]].concat())?;
    let large = child_of(&even, "large")?;
    let beside = |configs: &BTreeMap<String, Value>| -> Result<usize> {
        let owners = small.iter().map(|namespace| child_of(configs, namespace));
        let owners = owners.collect::<Result<Vec<_>>>()?;
        Ok(owners.iter().filter(|owner| **owner == large).count())
    };
    ensure!(beside(&even)? > 0, "nothing is to move: {even:#?}");
    let moved = until("the small ones leave the shard of the large one", LONG, || {
        let all = configs(at)?;
        sizes(&all)?;
        // In a moment between two writes no one has some.
        Ok(beside(&all).is_ok_and(|count| count == 0).then_some(all))
    })?;
    ensure!(child_of(&moved, "large")? == large, "the large one moved: {moved:#?}");
    ready(at, "LaidOut")?;
    let specs = |all: &BTreeMap<String, Value>| -> Vec<Value> {
        all.values().map(|config| config["spec"].clone()).collect()
    };
    let settled = specs(&configs(at)?);
    let lists =
        || -> Result<f64> { manager.metric("ctrlmesh_manager_counts_total{result=\"ok\"}") };
    let counts = lists()?;
    until("it is counted three times more", LONG, || Ok((lists()? >= counts + 3.0).then_some(())))?;
    ensure!(specs(&configs(at)?) == settled, "something moved twice");
    Ok(())
}
