//! ShardingConfigs of Kridge, and their translations.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, until};
use serde_json::{Value, json};

use crate::manager::scene::{Bed, OPERATORS, Place, SOON, cluster, create, get, manager};

const DEFINITION: &str = "shardingconfigs.kridge.kusionstack.io";

/// A shard in the shape of Kridge's demo.
fn kridge(name: &str, namespaces: &Value) -> Value {
    kridge_in(OPERATORS, name, namespaces)
}

fn kridge_in(namespace: &str, name: &str, namespaces: &Value) -> Value {
    let of = json!({
        "key": "kridge.kusionstack.io/namespace", "operator": "In", "values": namespaces,
    });
    let pods = json!({
        "key": "statefulset.kubernetes.io/pod-name", "operator": "In", "values": [name],
    });
    json!({
        "apiVersion": "kridge.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "controller": { "leaderElectionName": "operator-leader" },
            "limits": [{ "objectSelector": {
                "relateResources": [{ "apiGroups": ["*"], "resources": ["pods", "services"] }],
                "selector": { "matchExpressions": [of] },
            } }],
            "selector": { "matchExpressions": [pods] },
        },
    })
}

fn apply(api: &ApiServer, object: &Value) -> Result<String> {
    api.apply(&serde_json::to_string(object)?)
}

/// The path of a config of Kridge.
fn path(at: Place<'_>, name: &str) -> String {
    let group = "/apis/kridge.kusionstack.io/v1alpha1";
    format!("{group}/namespaces/{}/shardingconfigs/{name}", at.namespace)
}

/// The path of a translation.
fn translated(at: Place<'_>, name: &str) -> String {
    format!("{}/{name}", at.configs())
}

/// Waits until the translation of a config draws these namespaces, and returns it.
fn translation(at: Place<'_>, name: &str, namespaces: &Value) -> Result<Value> {
    let mut last = None;
    let found = until("the translation", SOON, || {
        last = get(at.api, &translated(at, name))?;
        let is = |one: &&Value| {
            one.pointer("/spec/limits/0/selector/matchExpressions/0/values") == Some(namespaces)
        };
        Ok(last.as_ref().filter(is).cloned())
    });
    found.with_context(|| format!("{name}: {last:?}"))
}

/// Waits until the condition of a config of Kridge has this reason, and returns its message.
fn ready(at: Place<'_>, name: &str, reason: &str) -> Result<String> {
    let mut last = None;
    let found = until("the condition of a config of Kridge", SOON, || {
        last = get(at.api, &path(at, name))?;
        let one = last.as_ref().and_then(|one| one.pointer("/status/conditions/0"));
        let one = one.filter(|one| one["type"] == "Ready" && one["reason"] == reason);
        Ok(one.map(|one| one["message"].as_str().unwrap_or_default().to_owned()))
    });
    found.with_context(|| format!("{reason}: {last:?}"))
}

/// Has the manager translate a config, and say so.
pub(crate) fn come_in(api: &ApiServer) -> Result<()> {
    let at = Place::operators(api);
    apply(api, &kridge("demo", &json!(["ns-a"])))?;
    translation(at, "demo", &json!(["ns-a"]))?;
    ready(at, "demo", "Translated").map(drop)
}

#[test]
fn i15_a_config_of_kridge_is_translated_and_follows_its_changes() -> Result<()> {
    let api = cluster()?;
    let at = Place::operators(&api);
    let definition = api.kubectl(&["get", "crd", DEFINITION, "-o", "json"])?;
    api.kubectl(&["delete", "crd", DEFINITION])?;
    // A cluster without the definition is none to complain of.
    let manager = manager(&api, &[])?;
    let log = manager.log()?;
    ensure!(!log.contains("shardingconfigs of Kridge"), "{log}");
    let mut definition: Value = serde_json::from_str(&definition)?;
    definition["metadata"] = json!({
        "name": DEFINITION, "annotations": definition["metadata"]["annotations"],
    });
    create(&api, &definition, &[])?;
    api.kubectl(&["wait", "crd", DEFINITION, "--for=condition=Established"])?;
    come_in(&api)?;
    let ours = translation(at, "demo", &json!(["ns-a"]))?;
    let kridge_uid = get(&api, &path(at, "demo"))?.context("it")?["metadata"]["uid"].take();
    let owner = &ours["metadata"]["ownerReferences"][0];
    ensure!(owner["uid"] == kridge_uid && owner["controller"] == true, "{ours}");
    ensure!(ours["spec"]["controller"]["leaderElectionName"] == "operator-leader", "{ours}");

    apply(&api, &kridge("demo", &json!(["ns-a", "ns-b"])))?;
    translation(at, "demo", &json!(["ns-a", "ns-b"]))?;
    // The manager reverts changes by hand.
    let patch = json!({ "spec": { "limits": [] } }).to_string();
    let args = ["patch", "shardingconfigs.ctrlmesh.kusionstack.io", "demo", "-n", OPERATORS];
    api.kubectl(&[&args[..], &["--type=merge", "-p", &patch]].concat())?;
    translation(at, "demo", &json!(["ns-a", "ns-b"]))?;
    let args = ["delete", "shardingconfigs.ctrlmesh.kusionstack.io", "demo", "-n", OPERATORS];
    api.kubectl(&args)?;
    translation(at, "demo", &json!(["ns-a", "ns-b"]))?;

    // Another shard of the same controller owns nothing of it.
    let refused = apply(&api, &kridge("other", &json!(["ns-b", "ns-c"]))).err();
    let refused = format!("{:#}", refused.context("an overlap came in")?);
    ensure!(
        refused.contains("ShardingConfig operators/demo of the same ring owns some"),
        "{refused}"
    );
    apply(&api, &kridge("other", &json!(["ns-c"])))?;
    translation(at, "other", &json!(["ns-c"]))?;
    Ok(())
}

#[test]
fn bad_i15_a_config_of_kridge_takes_nobody_elses_name() -> Result<()> {
    let bed = Bed::new("kridge-taken")?;
    let (api, at) = (bed.api(), bed.place());
    let kridge = |name: &str, namespaces: &Value| kridge_in(at.namespace, name, namespaces);
    let mut ours = kridge("taken", &json!(["ns-z"]));
    ours["apiVersion"] = json!("ctrlmesh.kusionstack.io/v1alpha1");
    ours["spec"]["limits"][0] = ours["spec"]["limits"][0]["objectSelector"].take();
    create(api, &ours, &[])?;
    let taken = kridge("taken", &json!(["ns-a"]));
    let says = |object: &Value| -> Result<String> {
        let refused = apply(api, object).err();
        Ok(format!("{:#}", refused.with_context(|| format!("it came in: {object}"))?))
    };
    let mut refused = String::new();
    until("the manager knows the other", SOON, || {
        refused = says(&taken)?;
        Ok(refused.contains("has the name taken: give another").then_some(()))
    })
    .with_context(|| refused.clone())?;
    let mut let_in = taken;
    let_in["metadata"]["labels"] = json!({ "kridge.kusionstack.io/ignore-validate": "" });
    apply(api, &let_in)?;
    let message = ready(at, "taken", "Foreign")?;
    ensure!(message.contains("has this name and is not its translation"), "{message}");
    let kept = get(api, &translated(at, "taken"))?.context("ours")?;
    ensure!(kept["metadata"]["ownerReferences"].is_null(), "{kept}");
    ensure!(kept["spec"]["limits"] == ours["spec"]["limits"], "{kept}");

    // What cannot be used keeps its last translation.
    let mut good = kridge("good", &json!(["ns-b"]));
    apply(api, &good)?;
    translation(at, "good", &json!(["ns-b"]))?;
    good["spec"]["limits"][0]["objectSelector"]["relateResources"][0]["resources"] = json!(["A"]);
    let refused = says(&good)?;
    let field =
        "spec.limits[0].objectSelector.relateResources[0]: resources: \"A\" is not a resource";
    ensure!(refused.contains(field), "{refused}");
    good["metadata"]["labels"] = json!({ "ctrlmesh.kusionstack.io/ignore-validate": "" });
    apply(api, &good)?;
    let message = ready(at, "good", "Invalid")?;
    ensure!(message.contains(field), "{message}");
    translation(at, "good", &json!(["ns-b"]))?;
    good["spec"]["root"] = json!({ "prefix": "a" });
    let refused = says(&good)?;
    ensure!(refused.contains("unknown field \"spec.root\""), "{refused}");
    Ok(())
}
