//! The chart and its documentation match the program and each other.

use std::{collections::BTreeSet, fs, path::Path};

use ctrlmesh::cli::yaml;
use serde_json::Value;

use crate::support::{golden, process::run};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)).unwrap()
}

fn document(path: &str) -> Value {
    yaml::parse(&read(path)).unwrap().unwrap()
}

/// The chart's definitions are the generated ones, kept by Helm.
#[tokio::test]
async fn the_chart_has_the_custom_resource_definitions() {
    let (code, said) = run(&["crds".to_owned()]).await;
    assert_eq!(code, 0, "{said}");
    let kept = "\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n";
    assert!(!said.contains("{{"), "Helm would read it as its own: {said}");
    let text = said.replace("\nmetadata:\n", kept);
    assert_eq!(text.matches(kept).count(), said.matches("kind: CustomResourceDefinition").count());
    golden::check_file("deploy/chart/templates/crds.yaml", &text);
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = document("chart/Chart.yaml");
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
    let tagged = format!("REGISTRY/ctrlmesh:{} ", env!("CARGO_PKG_VERSION"));
    assert!(read("chart/README.md").contains(&tagged), "the README tags another version");
}

/// The keys of the schema that values.yaml does not show.
fn untold(schema: &Value, whole: &Value, values: &Value, path: &str, found: &mut Vec<String>) {
    let name = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/definitions/"));
    let schema = name.map_or(schema, |name| &whole["definitions"][name]);
    for (key, part) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        match values.get(key) {
            None => found.push(path),
            // An empty object stands for a structure of Kubernetes.
            Some(value) if *value == serde_json::json!({}) => {}
            Some(value) => untold(part, whole, value, &path, found),
        }
    }
}

#[test]
fn every_value_of_the_schema_is_explained() {
    let schema: Value = serde_json::from_str(&read("chart/values.schema.json")).unwrap();
    let mut found = Vec::new();
    untold(&schema, &schema, &document("chart/values.yaml"), "", &mut found);
    assert_eq!(found, [".global"], "missing in values.yaml");
}

/// The rules of the manager, in the words of the table.
fn rules() -> BTreeSet<String> {
    let mut rules = BTreeSet::new();
    for text in yaml::documents(&read("base/ctrlmesh.yaml")) {
        let role = yaml::parse(&text).unwrap().unwrap();
        let scope = match (role["kind"].as_str(), role["metadata"]["namespace"].as_str()) {
            (Some("ClusterRole"), _) if role["metadata"]["name"] == "ctrlmesh-manager" => "cluster",
            (Some("Role"), Some("ctrlmesh-system")) => "release",
            (Some("Role"), Some(namespace)) => namespace,
            _ => continue,
        };
        for rule in role["rules"].as_array().unwrap() {
            let list = |field: &str| {
                let items = rule[field].as_array().into_iter().flatten();
                items.map(|item| item.as_str().unwrap().to_owned()).collect::<Vec<_>>()
            };
            let (groups, resources) = (list("apiGroups"), list("resources"));
            let ([group], [resource]) = (&groups[..], &resources[..]) else {
                panic!("a row is for one resource: {rule}")
            };
            // As kubectl writes it: the subresource is behind the group.
            let (plural, rest) = resource.split_at(resource.find('/').unwrap_or(resource.len()));
            let dot = if group.is_empty() { "" } else { "." };
            let names = list("resourceNames").into_iter().map(|name| format!("`{name}`"));
            let names = names.collect::<Vec<_>>().join(", ");
            let verbs = list("verbs").join(", ");
            rules.insert(format!("{scope} | `{plural}{dot}{group}{rest}` | {names} | {verbs}"));
        }
    }
    rules
}

#[test]
fn every_right_of_the_manager_is_told_with_its_reason() {
    let readme = read("chart/README.md");
    let (_, table) = readme.split_once("\n| where | resource |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let told: BTreeSet<_> = rows
        .map(|row| {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [scope, resource, names, verbs, why] = cells[..] else { panic!("a row: {row}") };
            assert!(!why.is_empty(), "no reason: {row}");
            format!("{scope} | {resource} | {names} | {verbs}")
        })
        .collect();
    assert_eq!(told, rules());
}
