use serde_json::{Value, json};

use super::*;

const KIND: Kind = Kind::ShardingConfig;

fn checked(metadata: &Value, spec: &Value) -> Checked {
    let object = json!({"metadata": metadata, "spec": spec});
    draft(KIND, &serde_json::from_value(object).unwrap())
}

#[test]
fn an_object_is_checked_by_itself_and_keeps_its_identity() {
    let metadata = json!({"namespace": "ops", "name": "blue", "uid": "u-1", "generation": 7});
    let namespace = |name: &str| ObjectRef {
        kind: KIND,
        namespace: name.into(),
        name: "blue".into(),
        uid: Some("u-1".into()),
        generation: Some(7),
    };
    let valid = checked(&metadata, &json!({"selector": {"matchLabels": {"app": "op"}}}));
    assert_eq!(*object_of(&valid), namespace("ops"));
    valid.unwrap();
    for (spec, message) in [
        (json!(null), "spec: is missing: give a selector of the pods"),
        (json!({}), "spec.selector: is empty: give labels that select the pods of this shard"),
        (
            json!({"selector": {}, "controller": {"leaderElectionName": "A"}}),
            "spec.controller.leaderElectionName: \"A\" is not an object name: give lower case \
             letters, digits, '-' and '.', such as \"my-operator\"; spec.selector: is empty: \
             give labels that select the pods of this shard",
        ),
    ] {
        let invalid = checked(&metadata, &spec);
        assert_eq!(*object_of(&invalid), namespace("ops"));
        let text = invalid.unwrap_err().to_string();
        assert_eq!(text, format!("ShardingConfig ops/blue: {message}"));
    }
    let nowhere = json!({"name": "blue", "uid": "u-1", "generation": 7});
    assert_eq!(*object_of(&checked(&nowhere, &json!({}))), namespace("default"));
}

#[test]
fn a_file_names_one_config_and_the_pods_namespace_counts() {
    let config = |name: &str, spec: &str| {
        format!(
            "---\napiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
             metadata: {{name: {name}, namespace: own}}\nspec: {spec}\n"
        )
    };
    let blue = config("blue", "{selector: {matchLabels: {app: op}}}");
    let broken = config("green", "{limits: 7}");
    let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: 7\n";
    let kridge = blue.replace("ctrlmesh.k", "kridge.k").replace("blue", "red");
    let file = format!("{broken}{pod}{kridge}{blue}");
    let shard = |name: &str, namespace: Option<&str>| {
        let found = from_documents(file.as_bytes(), name, namespace);
        found.map(|draft| draft.config.object.to_string()).map_err(|why| why.to_string())
    };
    assert_eq!(shard("blue", None).unwrap(), "ShardingConfig own/blue");
    assert_eq!(shard("blue", Some("ns")).unwrap(), "ShardingConfig ns/blue");
    let green = shard("green", None).unwrap_err();
    assert!(green.starts_with("ShardingConfig own/green: spec: "), "{green}");
    assert_eq!(shard("red", None).unwrap(), "ShardingConfig own/red");
    let absent = "no ShardingConfig is named \"yellow\", there is green, red, blue";
    assert_eq!(shard("yellow", None).unwrap_err(), absent);
}

/// A shard of Kridge in the shape of its documents, and with what a limit has nested.
fn kridge(is_nested: bool) -> Value {
    let resources = json!([{"apiGroups": ["*"], "resources": ["pods", "services"]}]);
    let of = json!({
        "key": "kridge.kusionstack.io/namespace",
        "operator": "In",
        "values": ["ns-a", "ns-b"],
    });
    let limit = json!({"relateResources": resources, "selector": {"matchExpressions": [of]}});
    let limit = if is_nested { json!({"objectSelector": limit}) } else { limit };
    json!({
        "controller": {"leaderElectionName": "operator-leader"},
        "webhook": {"certDir": "/tmp/webhook-certs", "port": 9443},
        "limits": [limit],
        "selector": {"matchLabels": {"statefulset.kubernetes.io/pod-name": "operator-demo-0"}},
    })
}

fn of_kridge(spec: &Value) -> Checked {
    let object = json!({"metadata": {"namespace": "ops", "name": "blue"}, "spec": spec});
    draft(Kind::KridgeShardingConfig, &serde_json::from_value(object).unwrap())
}

#[test]
fn i15_manifests_of_kridge_mean_what_they_meant() {
    // What its documents show is a config of ours, too.
    let ours = checked(&json!({"namespace": "ops", "name": "blue"}), &kridge(false));
    let of_ours = ours.as_ref().unwrap();
    assert!(matches!(of_ours, Draft::Sharding(draft) if draft.webhook.is_some()));
    for is_nested in [false, true] {
        assert_eq!(of_kridge(&kridge(is_nested)), ours, "{is_nested}");
        let spec = serde_json::to_value(translated(&kridge(is_nested)).unwrap()).unwrap();
        assert_eq!(checked(&json!({"namespace": "ops", "name": "blue"}), &spec), ours);
    }
}

#[test]
fn bad_i15_a_config_of_kridge_says_what_would_be_right() {
    let with = |is_nested: bool, pointer: &str, value: Value| {
        let mut spec = kridge(is_nested);
        let (of, field) = pointer.rsplit_once('/').unwrap();
        spec.pointer_mut(of).unwrap()[field] = value;
        of_kridge(&spec).unwrap_err().to_string()
    };
    for (said, expected) in [
        (
            with(false, "/root", json!({"prefix": "a", "size": 2})),
            "spec: root: a root is a ShardingConfig of",
        ),
        (
            with(true, "/limits/0/selector", json!({"matchLabels": {"a": "b"}})),
            "spec: limits[0].objectSelector: is next to relateResources or selector",
        ),
        (
            with(true, "/limits/0/objectSelector/relateResources/0/apiGroups", json!([])),
            "spec.limits[0].objectSelector.relateResources[0].apiGroups: is empty",
        ),
        (
            with(false, "/limits/0/relateResources/0/apiGroups", json!([])),
            "ShardingConfig ops/blue: spec.limits[0].relateResources[0].apiGroups: is empty",
        ),
        (with(false, "/ring", json!("a")), "unknown field `ring`"),
        (with(false, "/selector", json!({})), "spec.selector: is empty"),
    ] {
        assert!(said.contains(expected), "{said}");
    }
}
