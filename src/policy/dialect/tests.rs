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
    let kridge = blue.replace("ctrlmesh.k", "kridge.k");
    let file = format!("{broken}{pod}{kridge}{blue}");
    let shard = |name: &str, namespace: Option<&str>| {
        let found = from_documents(file.as_bytes(), name, namespace);
        found.map(|draft| draft.config.object.to_string()).map_err(|why| why.to_string())
    };
    assert_eq!(shard("blue", None).unwrap(), "ShardingConfig own/blue");
    assert_eq!(shard("blue", Some("ns")).unwrap(), "ShardingConfig ns/blue");
    let green = shard("green", None).unwrap_err();
    assert!(green.starts_with("ShardingConfig own/green: spec: "), "{green}");
    let absent = "no ShardingConfig is named \"red\", there is green, blue";
    assert_eq!(shard("red", None).unwrap_err(), absent);
}
