use std::fmt::Write as _;

use serde_json::{Value, json};

use super::*;
use crate::explain::ExplainError;
use ctrlmesh_policy::{Draft, all_of, from_documents, object_of};

const CONFIGS: &str = r#"
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: blue, namespace: ops}
spec:
  selector: {matchLabels: {shard: blue}}
  webhook: {certDir: /certs, port: 9443}
  limits:
  - relateResources: [{apiGroups: [apps], resources: [deployments]}]
    selector: {matchLabels: {team: blue}}
---
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: green, namespace: ops}
spec:
  selector: {matchLabels: {shard: green}}
  webhook: {certDir: /certs, port: 9443}
  limits:
  - relateResources: [{apiGroups: [apps], resources: [deployments]}]
    selector: {matchLabels: {team: green}}
"#;

fn review(operation: &str, team: &str) -> Value {
    let object = json!({"metadata": {"name": "web", "uid": "u", "labels": {"team": team}}});
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "r", "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
            "name": "web", "namespace": "team-a", "operation": operation,
            "object": object, "oldObject": object,
        },
    })
}

fn explained(configs: &str, review: &Value) -> String {
    let own = from_documents(configs.as_bytes(), "blue", None).unwrap();
    let all = all_of(configs.as_bytes(), "blue", None).unwrap();
    let siblings = ControllerShards::of(&own, &all, None).unwrap();
    let reader = read(&mut review.to_string().as_bytes()).unwrap();
    explanation(&own.config.object, siblings.as_ref(), &reader.review().unwrap())
}

/// Each answer, as people read it.
fn all() -> String {
    let scale = |uid: &str| {
        let mut review = review("UPDATE", "green");
        let request = &mut review["request"];
        request["subResource"] = json!("scale");
        request["kind"] = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        request["oldObject"] = json!({"metadata": {"name": "web", "uid": uid}});
        review
    };
    let with = |setting: &str| CONFIGS.replacen("port: 9443", &format!("port: 9443, {setting}"), 1);
    let broken = format!("{CONFIGS}---{}", CONFIGS.rsplit_once("---").unwrap().1)
        .replacen("name: green", "name: red", 1)
        .replacen("team: green", "team: 'r e d'", 1);
    let pods = review("CREATE", "green").to_string().replace("deployments", "pods");
    let pods: Value = serde_json::from_str(&pods.replace("\"apps\"", "\"\"")).unwrap();
    let mut exec = review("CONNECT", "green");
    exec["request"]["subResource"] = json!("exec");
    let mut nothing = review("DELETE", "green");
    nothing["request"]["oldObject"] = Value::Null;
    let cases = [
        ("the shard has it", CONFIGS.to_owned(), review("CREATE", "blue")),
        ("another has it", CONFIGS.to_owned(), review("UPDATE", "green")),
        ("another has it, which may be away", with("ownerDown: Any"), review("UPDATE", "green")),
        ("no one has it", CONFIGS.to_owned(), review("DELETE", "red")),
        ("no one has it, allowed", with("unowned: Allow"), review("DELETE", "red")),
        ("no one has it, denied", with("unowned: Deny"), review("DELETE", "red")),
        ("no one who can be read has it", broken, review("CREATE", "red")),
        ("no shard limits it", CONFIGS.to_owned(), pods),
        ("the labels are not in it", CONFIGS.to_owned(), scale("u")),
        ("nor is a uid", CONFIGS.to_owned(), scale("")),
        ("a connection", CONFIGS.to_owned(), exec),
        ("an object that is missing", CONFIGS.to_owned(), nothing),
        ("the pod answers all", with("route: Any"), review("CREATE", "green")),
        (
            "there is no webhook",
            CONFIGS.replacen("webhook: {certDir: /certs, port: 9443}", "limits: []", 1).replacen(
                "  limits:\n  - relateResources: [{apiGroups: [apps], resources: [deployments]}]\n    selector: {matchLabels: {team: blue}}\n",
                "",
                1,
            ),
            review("CREATE", "green"),
        ),
    ];
    let mut text = String::new();
    for (name, configs, review) in cases {
        write!(text, "# {name}\n{}\n", explained(&configs, &review)).unwrap();
    }
    text
}

#[test]
fn each_answer_says_why() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/explain-review.txt");
    let all = all();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &all).unwrap();
    }
    assert_eq!(all, std::fs::read_to_string(path).unwrap());
}

#[test]
fn bad_i13_what_is_no_review_says_why_and_who_answers() {
    let config = from_documents(CONFIGS.as_bytes(), "blue", None).unwrap().config.object;
    for (body, why) in [
        ("kind: AdmissionReview", "it is not JSON: not an object"),
        ("", "it ends in the middle"),
        (r#"{"kind":"ConversionReview"}"#, "its kind is not AdmissionReview"),
    ] {
        let error = read(&mut body.as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "is not an AdmissionReview in JSON, so the pod that gets it answers it"
        );
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), why);
    }
    let absent = explain(&config, None, Path::new("/absent/review.json")).unwrap_err();
    assert_eq!(absent.to_string(), "cannot be read");
    let absent = ExplainError::Review("/absent/review.json".into(), absent);
    assert_eq!((absent.exit_code(), absent.to_string()), (64, "/absent/review.json".to_owned()));
}

#[test]
fn many_shards_are_counted() {
    let one = CONFIGS.rsplit_once("---").unwrap().1;
    let more: String =
        (0..12).map(|at| format!("---{}", one.replace("green", &format!("g{at:02}")))).collect();
    let text = explained(&format!("{CONFIGS}{more}"), &review("UPDATE", "g03"));
    assert!(text.contains("shard     and 4 more\n"), "{text}");
    assert!(text.contains("owner     g03\n"), "{text}");
}

#[test]
fn siblings_in_a_file_are_those_of_the_shards_own_namespace() {
    let configs = format!("{CONFIGS}---{}", CONFIGS.rsplit_once("---").unwrap().1).replacen(
        "name: green, namespace: ops",
        "name: red, namespace: elsewhere",
        1,
    );
    let names = |namespace: Option<&str>| {
        let all = all_of(configs.as_bytes(), "blue", namespace).unwrap();
        let name = |checked: &_| object_of(checked).to_string();
        all.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(None), ["ShardingConfig ops/blue", "ShardingConfig ops/green"]);
    assert_eq!(names(Some("ns")), ["ShardingConfig ns/blue", "ShardingConfig ns/green"]);
    let all = all_of(configs.as_bytes(), "blue", None).unwrap();
    assert!(all.iter().all(|checked| matches!(checked, Ok(Draft::Sharding(_)))));
}
