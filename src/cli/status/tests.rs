use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::{
    owner::{Named, of_namespace, of_object},
    owners,
    state::status,
    text,
};
use crate::{
    golden,
    handover::{
        found::Found,
        tests::{MONDAY, TUESDAY, config, everything, found, lease, pod},
    },
};
use ctrlmesh_policy::{GroupResource, Kind, LabelSet, NamespaceLabels, ObjectRef, draft};

fn namespaces(names: &[&str]) -> NamespaceLabels {
    names.iter().map(|name| ((*name).to_owned(), LabelSet::default())).collect()
}

fn checked(config: &Value) -> ctrlmesh_policy::Checked {
    draft(Kind::ShardingConfig, &serde_json::from_value(config.clone()).unwrap())
}

/// The mesh of the rings with every state of a pod, and what else can be wrong.
fn torn() -> Found {
    let mut found = everything();
    let mut bad = config("bad", TUESDAY, &["Yak"], &json!({}));
    bad["spec"]["selector"] = json!({});
    found.configs.push(checked(&bad));
    let mut lone = config("lone", TUESDAY, &["ant"], &json!({}));
    lone["spec"].as_object_mut().unwrap().remove("ring");
    lone["spec"]["limits"] = json!([]);
    found.configs.push(checked(&lone));
    let meta = ObjectMeta {
        namespace: Some("ns".into()),
        name: Some("root".into()),
        ..ObjectMeta::default()
    };
    let says = "no pod of op-3-normal is ready, so it is not given what others have".to_owned();
    found.unready.push((ObjectRef::new(Kind::ShardingConfig, &meta), says));
    let meta = ObjectMeta { name: Some("blue".into()), ..meta };
    let says = "no pod of the shard has held the lock kube-system/op for half a minute".to_owned();
    found.unready.push((ObjectRef::new(Kind::ShardingConfig, &meta), says));
    found.bare.push(pod("bare-0", "blue"));
    found.others.extend([pod("plain-0", "blue"), pod("other-0", "nobody's")]);
    found.pods.push(pod("lost-0", "nobody's"));
    let mut old = pod("lone-0", "lone");
    old.proxy = Some("ctrlmesh:0".into());
    old.is_ready = false;
    found.pods.extend([old, pod("lone-1", "lone")]);
    found
}

#[test]
fn i15_the_state_reads_as_documented() {
    let known = namespaces(&["ant", "bee", "cow", "dog", "eel", "yak"]);
    let status = status(&torn(), Some(&known));
    golden::check("status.txt", &text(&status));
    let json = serde_json::to_string_pretty(&status).unwrap();
    golden::check("status.json", &format!("{json}\n"));
}

#[test]
fn i15_a_mesh_as_it_should_be_has_no_problems() {
    let blue = config("blue", MONDAY, &["ant"], &json!({}));
    let green = config("green", TUESDAY, &["bee"], &json!({}));
    let leases = vec![lease("blue-0", &blue), lease("green-0", &green)];
    let pods = vec![pod("blue-0", "blue"), pod("green-0", "green")];
    let mesh = found(&[blue, green], leases, pods);
    let known = namespaces(&["ant", "bee"]);
    assert_eq!(
        text(&status(&mesh, Some(&known))),
        "NAMESPACE  SHARD  RING  PODS  READY  IN FORCE  OWNS\n\
         ns         blue   op    1     1      1         pods: namespace in (ant), nothing without a namespace\n\
         ns         green  op    1     1      1         pods: namespace in (bee), nothing without a namespace\n"
    );
    // Who may not list namespaces is notified what that hides.
    let problems = status(&mesh, None).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].of, "namespaces");
    // A pod that has not seen the last spec is not in force.
    let mut behind = mesh;
    behind.leases[0].says.generation = 3;
    assert_eq!(status(&behind, Some(&known)).configs[0].in_force, Some(0));
    let empty = text(&status(&Found::default(), Some(&known)));
    assert_eq!(empty, "there is no ShardingConfig that can be used\n");
}

#[test]
fn i15_the_owners_of_a_namespace_and_of_an_object_are_named() {
    let some = json!({
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
            "selector": { "matchLabels": { "team": "red" } },
            "namespaces": { "names": ["bee"] },
            "clusterScoped": "Exclude",
        }],
    });
    let blue = config("blue", MONDAY, &["ant"], &json!({}));
    let green = config("green", TUESDAY, &[], &some);
    let mesh = found(&[blue, green], Vec::new(), Vec::new());
    let known = namespaces(&["ant", "bee", "cow"]);
    let of = |name: &str| of_namespace(name, &mesh, &known)[0].says.clone();
    assert_eq!(of("ant"), "blue");
    assert_eq!(
        of("bee"),
        "green (team=red; namespace in (bee), nothing without a namespace), no one has one in \
         namespace bee"
    );
    assert_eq!([of("cow"), of("not-there")], ["no one", "no one"]);
    let pods = GroupResource::new("", "pods");
    let object = |namespace: &str, team: &str| {
        let meta = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some("web".to_owned()),
            labels: Some([("team".to_owned(), team.to_owned())].into()),
            ..ObjectMeta::default()
        };
        of_object(&pods, &meta, &mesh, Some(&known))[0].says.clone()
    };
    let told = [("ant", "any"), ("bee", "red"), ("bee", "blue"), ("cow", "red")];
    assert_eq!(told.map(|(at, team)| object(at, team)), ["blue", "green", "no one", "no one"]);
    // What no shard limits is everybody's.
    let secret = of_object(&GroupResource::new("", "secrets"), &ObjectMeta::default(), &mesh, None);
    assert_eq!(secret[0].says, "blue, green");
    assert_eq!(owners(&[]), "no ring limits it: all shards have it\n");
    let table = owners(&of_namespace("ant", &mesh, &known));
    assert_eq!(table, "RING   RESOURCE  OWNER\nns/op  pods      blue\n");
}

#[test]
fn bad_i15_a_name_that_is_none_says_what_to_give() {
    let object = |group: &str, plural: &str, namespace: Option<&str>| Named::Object {
        group: group.to_owned(),
        plural: plural.to_owned(),
        namespace: namespace.map(str::to_owned),
        name: "web".to_owned(),
    };
    for (text, named) in [
        ("ant", Named::Namespace("ant".to_owned())),
        ("nodes/web", object("", "nodes", None)),
        ("deployments.apps/ant/web", object("apps", "deployments", Some("ant"))),
    ] {
        assert_eq!(text.parse::<Named>().unwrap(), named);
    }
    for text in ["", "Ant", "a/b/c/d", "pods//web", "/"] {
        let said = text.parse::<Named>().unwrap_err().to_string();
        assert!(
            said.starts_with(&format!("{text:?} names nothing: give a namespace, or ")),
            "{said}"
        );
    }
}
