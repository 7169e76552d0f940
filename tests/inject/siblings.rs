//! Admission of ShardingConfigs: what the API server asks and is answered.

use std::collections::BTreeMap;

use ctrlmesh::{
    manager::{
        admission::{BadReview, Config, Found, RunningPod, review_config},
        configs::Configs,
    },
    policy::NamespaceLabels,
};
use serde_json::{Value, json};

use super::reviews::configs;

/// A shard of the operator that has the pods of these namespaces.
fn shard(name: &str, namespaces: &Value) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "namespace": "ns", "name": name },
        "spec": {
            "selector": { "matchLabels": { "shard": name } },
            "controller": { "leaderElectionName": "operator" },
            "limits": [{
                "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
                "namespaces": namespaces,
                "clusterScoped": "Exclude",
            }],
        },
    })
}

fn named(name: &str, namespaces: &[&str]) -> Value {
    shard(name, &json!({ "names": namespaces }))
}

fn asked(operation: &str, object: &Value, old: &Value) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "5b1a9f5e",
            "kind": {
                "group": "ctrlmesh.kusionstack.io",
                "version": "v1alpha1",
                "kind": "ShardingConfig",
            },
            "namespace": "ns",
            "operation": operation,
            "object": object,
            "oldObject": old,
        },
    });
    review.to_string().into_bytes()
}

fn namespaces() -> NamespaceLabels {
    let tier = |tier: &str| BTreeMap::from([("tier".to_owned(), tier.to_owned())]);
    let all = [("ant", tier("gold")), ("bee", tier("tin")), ("default", BTreeMap::new())];
    all.map(|(name, labels)| (name.to_owned(), labels.into())).into()
}

fn answered(operation: &str, object: &Value, old: &Value, there: &Configs) -> (Config, Value) {
    answered_with(operation, object, old, there, None)
}

fn answered_with(
    operation: &str,
    object: &Value,
    old: &Value,
    there: &Configs,
    pods: Option<&[RunningPod]>,
) -> (Config, Value) {
    let asked = asked(operation, object, old);
    let found = Found { pods, ..Found::default() };
    let answer = review_config(&asked, there, &namespaces(), found).unwrap();
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["apiVersion"], "admission.k8s.io/v1");
    let response = body["response"].take();
    assert_eq!(response["uid"], "5b1a9f5e");
    assert_eq!(response["allowed"], json!(answer.refused.is_none()));
    (answer, response)
}

fn created(object: &Value, there: &Configs) -> (Config, Value) {
    answered("CREATE", object, &Value::Null, there)
}

#[test]
fn bad_i15_a_config_that_owns_what_its_sibling_owns_is_refused_with_an_object() {
    let there = configs(&[named("blue", &["ant", "bee"])]);
    let (answer, response) = created(&named("green", &["cat", "bee"]), &there);
    assert_eq!(answer.config, "ns/green");
    let message = "spec.limits: ShardingConfig ns/blue of the same ring owns some of the same pods, \
                   such as one in namespace bee: take them out of it first, and then apply \
                   ShardingConfig ns/green again, as by kubectl apply -f FILE; or overlap on purpose with the \
                   label ctrlmesh.kusionstack.io/ignore-validate";
    assert_eq!(answer.refused.as_deref(), Some(message));
    assert_eq!(response["status"]["message"], message);
    assert_eq!(
        (&response["status"]["code"], &response["status"]["reason"]),
        (&json!(422), &json!("Invalid"))
    );
    // A config is in the namespace of the request, if it does not say so itself.
    let mut bare = named("green", &["bee"]);
    bare["metadata"].as_object_mut().unwrap().remove("namespace");
    assert!(created(&bare, &there).0.refused.is_some());
    // Of those of a pattern and of labels too, in a namespace that is there, or is not yet.
    for (namespaces, witness) in [
        (json!({ "pattern": "^be" }), "one in namespace bee:"),
        (json!({ "selector": { "matchLabels": { "tier": "gold" } } }), "one in namespace ant:"),
    ] {
        let refused = created(&shard("green", &namespaces), &there).0.refused.unwrap();
        assert!(refused.contains(witness), "{refused}");
    }
    let there = configs(&[shard("blue", &json!({ "pattern": "^new-" }))]);
    let refused = created(&shard("green", &json!({ "pattern": "-team$" })), &there).0.refused;
    assert!(refused.as_ref().unwrap().contains("one in namespace new-team"), "{refused:?}");
}

#[test]
fn i15_a_config_beside_its_siblings_comes_in() {
    let there = configs(&[named("blue", &["ant"]), named("red", &["cow"])]);
    let (answer, response) = created(&named("green", &["bee"]), &there);
    assert_eq!((answer.refused, answer.is_warned), (None, false));
    assert_eq!(response["warnings"], Value::Null);
    // Its own older version is no sibling.
    let update =
        answered("UPDATE", &named("blue", &["ant", "bee"]), &named("blue", &["ant"]), &there);
    assert_eq!(update.0.refused, None);
    // Another controller may own the same, and so may one in another namespace.
    let mut other = named("green", &["ant"]);
    other["spec"]["controller"]["leaderElectionName"] = json!("another");
    assert_eq!(created(&other, &there).0.refused, None);
    let mut elsewhere = named("blue", &["ant"]);
    elsewhere["metadata"]["namespace"] = json!("elsewhere");
    let there = configs(&[elsewhere]);
    assert_eq!(created(&named("green", &["ant"]), &there).0.refused, None);
}

#[test]
fn i15_what_is_not_proven_is_a_warning() {
    let gold = json!({ "selector": { "matchLabels": { "tier": "gold" } } });
    let prod = json!({ "selector": { "matchLabels": { "stage": "prod" } } });
    let there = configs(&[shard("blue", &gold)]);
    let (answer, response) = created(&shard("green", &prod), &there);
    assert!(answer.refused.is_none() && answer.is_warned);
    assert_eq!(
        response["warnings"],
        json!([
            "ShardingConfig ns/blue of the same ring may own some of the same pods: a namespace \
                that gets other labels may be in both"
        ])
    );
    let mut without = named("green", &["bee"]);
    without["spec"]["limits"] = json!([]);
    assert_eq!(
        created(&without, &there).1["warnings"],
        json!(["of this and ShardingConfig ns/blue of the same ring only one limits pods"])
    );
}

#[test]
fn bad_i15_a_value_that_no_namespace_has_is_a_warning() {
    let mut config = named("green", &["bee"]);
    config["spec"].as_object_mut().unwrap().remove("controller");
    config["spec"]["limits"] = json!([{
        "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
        "selector": { "matchExpressions": [{
            "key": "ctrlmesh.kusionstack.io/shard-hash",
            "operator": "In",
            "values": ["7", "32"],
        }] },
    }]);
    let (answer, response) = created(&config, &Configs::default());
    assert!(answer.refused.is_none() && answer.is_warned);
    assert_eq!(
        response["warnings"],
        json!([
            "spec.limits[0].selector: no namespace has ctrlmesh.kusionstack.io/shard-hash=\"32\": \
                there is 0 to 31"
        ])
    );
}

#[test]
fn i15_an_update_that_leaves_the_spec_or_ends_the_config_is_not_compared() {
    let there = configs(&[named("blue", &["ant"]), named("green", &["ant"])]);
    let old = named("green", &["ant"]);
    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({ "team": "ant" });
    assert_eq!(answered("UPDATE", &labelled, &old, &there).0.refused, None);
    let wider = named("green", &["ant", "bee"]);
    assert!(answered("UPDATE", &wider, &old, &there).0.refused.is_some());
    let mut going = wider;
    going["metadata"]["deletionTimestamp"] = json!("2026-11-23T08:00:00Z");
    assert_eq!(answered("UPDATE", &going, &old, &there).0.refused, None);
}

#[test]
fn bad_i15_a_config_that_cannot_be_used_is_refused_with_all_its_problems() {
    let mut bad = named("green", &["Bee"]);
    bad["spec"]["selector"] = json!({});
    let refused = created(&bad, &Configs::default()).0.refused.unwrap();
    for part in ["spec.selector: is empty", "spec.limits[0].namespaces.names[0]: \"Bee\" is not"] {
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn bad_i15_a_body_that_is_no_review_of_a_config_is_none() {
    let review =
        |body: &[u8]| review_config(body, &Configs::default(), &namespaces(), Found::default());
    assert!(matches!(review(b"{}"), Err(BadReview::Malformed(_))));
    let deletion = asked("DELETE", &Value::Null, &named("blue", &["ant"]));
    let said = review(&deletion).unwrap_err().to_string();
    assert_eq!(
        said,
        "DELETE of ctrlmesh.kusionstack.io/v1alpha1 ShardingConfig: only the creation or update of a \
         ShardingConfig of ctrlmesh.kusionstack.io/v1alpha1, or of kridge.kusionstack.io/v1alpha1, is \
         reviewed here"
    );
    let nothing = asked("CREATE", &json!("text"), &Value::Null);
    assert!(matches!(review(&nothing), Err(BadReview::Malformed(_))));
}

/// A root with a canary of this many pods.
fn root(name: &str, prefix: &str, canary: u32) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "namespace": "ns", "name": name, "uid": name },
        "spec": {
            "controller": { "leaderElectionName": "operator" },
            "root": {
                "prefix": prefix,
                "targetStatefulSet": "op",
                "canary": { "replicas": canary, "inNamespaces": ["ant"] },
                "auto": { "shardingSize": 2, "everyShardReplicas": 2 },
                "resourceSelector": [
                    { "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }] },
                ],
            },
        },
    })
}

#[test]
fn bad_i15_a_root_beside_configs_that_are_not_its_children_is_refused() {
    let root = root("root", "op", 1);
    assert_eq!(created(&root, &Configs::default()).0.refused, None);
    let mut child = named("op-1-normal", &["ant"]);
    let refused = created(&root, &configs(&[child.clone()])).0;
    assert!(refused.is_by_sibling, "a watch may be behind");
    let message = "spec.root.prefix: ShardingConfig ns/op-1-normal has the name of a child and is not \
                   its own: give another prefix, or delete it";
    assert_eq!(refused.refused.as_deref(), Some(message));
    let owned = |uid: &str| {
        json!([{
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
            "kind": "ShardingConfig",
            "name": "root",
            "uid": uid,
            "controller": true,
        }])
    };
    child["metadata"]["ownerReferences"] = owned("root");
    assert_eq!(created(&root, &configs(&[child.clone()])).0.refused, None, "its own");
    child["metadata"]["ownerReferences"] = owned("other");
    assert!(created(&root, &configs(&[child])).0.refused.is_some(), "another root's");
    // What the children have between them is everything.
    let other = configs(&[named("blue", &["bee"])]);
    let refused = created(&root, &other).0.refused.unwrap();
    let message = "spec.root.resourceSelector: ShardingConfig ns/blue of the same ring owns some of \
                   the same pods, such as one in namespace bee: ";
    assert!(refused.starts_with(message), "{refused}");
    let mut elsewhere = named("blue", &["bee"]);
    elsewhere["spec"]["controller"]["leaderElectionName"] = json!("another");
    assert_eq!(created(&root, &configs(&[elsewhere])).0.refused, None);
}

#[test]
fn bad_two_roots_of_one_workload_are_refused() {
    let (one, mut two) = (root("root", "op", 1), root("two", "other", 1));
    two["spec"]["controller"]["leaderElectionName"] = json!("another");
    let there = configs(std::slice::from_ref(&one));
    let refused = created(&two, &there).0;
    assert!(refused.is_by_sibling);
    let message = "spec.root.target: ShardingConfig ns/root shards the pods of StatefulSet op, too: delete \
                   it, or give another workload";
    assert_eq!(refused.refused.as_deref(), Some(message));
    assert_eq!(created(&one, &there).0.refused, None, "itself");
    two["spec"]["root"].as_object_mut().unwrap().remove("targetStatefulSet");
    two["spec"]["root"]["target"] = json!({ "kind": "Deployment", "name": "op" });
    assert_eq!(created(&two, &there).0.refused, None, "of another kind");
    let mut disabled = one;
    disabled["spec"]["root"]["disable"] = json!(true);
    two["spec"]["root"]["target"]["kind"] = json!("StatefulSet");
    assert_eq!(created(&two, &configs(&[disabled])).0.refused, None);
}

fn running(name: &str, labels: &[(&str, &str)]) -> RunningPod {
    let pod = json!({
        "name": name,
        "labels": labels.iter().copied().collect::<BTreeMap<_, _>>(),
        "annotations": { "ctrlmesh.kusionstack.io/injected": "iptables" },
    });
    RunningPod::of(serde_json::from_value(pod).unwrap()).unwrap()
}

#[test]
fn bad_i15_a_change_by_which_a_running_pod_would_be_of_another_shard_is_refused() {
    // By a root.
    let (old, new) = (root("root", "op", 1), root("root", "op", 2));
    let there = Configs::default();
    let (asks, _) = answered("UPDATE", &new, &old, &there);
    assert!(asks.asks_for_pods && asks.refused.is_none());
    let of_set = |name| running(name, &[("statefulset.kubernetes.io/pod-name", name)]);
    let refused = |old: &Value, new: &Value, there: &Configs, pods: &[RunningPod]| {
        let (answer, _) = answered_with("UPDATE", new, old, there, Some(pods));
        assert!(!answer.asks_for_pods && !answer.is_by_sibling);
        answer.refused
    };
    let message = "spec: pod op-1 runs in the shard op-1-normal and would be of op-0-canary, and 1 more \
                   pods move: a pod that runs gets no other lock and no other objects; end these pods \
                   first, or move them on purpose with the label \
                   ctrlmesh.kusionstack.io/ignore-validate";
    let pods = [of_set("op-0"), of_set("op-1"), of_set("op-2"), of_set("op-3"), of_set("other-1")];
    assert_eq!(refused(&old, &new, &there, &pods).as_deref(), Some(message));
    let stay =
        [of_set("op-0"), of_set("op-2"), of_set("op-4"), of_set("op-99"), running("op-1", &[])];
    assert_eq!(refused(&old, &new, &there, &stay), None);
    let mut larger = old.clone();
    larger["spec"]["root"]["auto"]["shardingSize"] = json!(3);
    assert_eq!(refused(&old, &larger, &there, &pods), None, "a shard more moves no pod");
}

#[test]
fn bad_i15_a_selector_that_lets_go_of_a_running_pod_is_refused() {
    let (old, mut new) = (named("blue", &["ant"]), named("blue", &["ant"]));
    new["spec"]["selector"] = json!({ "matchLabels": { "app": "op" } });
    let there = configs(&[old.clone(), named("green", &["bee"])]);
    let refused = |new: &Value, pods: &[RunningPod]| {
        answered_with("UPDATE", new, &old, &there, Some(pods)).0.refused
    };
    let blue = [running("a", &[("shard", "blue")])];
    let message = refused(&new, &blue).unwrap();
    assert!(
        message.starts_with("spec: pod a runs in the shard blue and would be of none alone: "),
        "{message}"
    );
    for stays in [
        running("a", &[("shard", "green")]),
        running("a", &[("shard", "blue"), ("app", "op")]),
        running("a", &[]),
    ] {
        assert_eq!(refused(&new, std::slice::from_ref(&stays)), None, "{stays:?}");
    }
    // Who selects more than it did takes no pod of another: two would select it.
    let green = "spec: pod a runs in the shard green and would be of none alone: ";
    let mut wide = old.clone();
    wide["spec"]["selector"] = json!({ "matchExpressions": [
        { "key": "shard", "operator": "Exists" },
    ] });
    assert!(refused(&wide, &[running("a", &[("shard", "green")])]).unwrap().starts_with(green));
    assert_eq!(refused(&wide, &blue), None);
    let bare = json!({ "name": "a" });
    assert!(RunningPod::of(serde_json::from_value(bare).unwrap()).is_none(), "not injected");
    let (same, _) = answered("UPDATE", &wide, &wide, &there);
    assert!(!same.asks_for_pods);
}
