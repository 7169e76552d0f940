//! The rights of proxies, by the role that is bound to them.

use serde_json::{Value, json};

use super::{
    super::judge,
    scene::{binding, config, found, healthy, object, one, right, role},
};
use crate::doctor::{
    Check, Facts,
    Severity::{Error, Ok as Good, Warning},
};

#[test]
fn i13_the_role_that_is_bound_lets_proxies_watch_pods() {
    let check = Check::PodsRight;
    let of_cluster =
        |role: Option<Value>| move |f: &mut Facts| f.manager().proxy_role = Ok(role.map(object));
    one(check, Good, "ClusterRole ctrlmesh-proxy: lets proxies watch", |_| {});
    one(check, Error, "is not there, and is bound", of_cluster(None));
    one(check, Error, "does not let proxies list and watch", of_cluster(Some(role(&["list"]))));
    one(check, Good, "lets proxies", of_cluster(Some(role(&["*"]))));
    let mut one_pod = role(&["list", "watch"]);
    one_pod["rules"][0]["resourceNames"] = json!(["op-0"]);
    one(check, Error, "does not let", of_cluster(Some(one_pod)));
    let mut of_apps = role(&["list", "watch"]);
    of_apps["rules"][0]["apiGroups"] = json!(["apps"]);
    one(check, Error, "does not let", of_cluster(Some(of_apps)));
    // `ctrlmesh inject` prints a Role.
    let of_namespace = |roles: Vec<Value>| {
        move |f: &mut Facts| {
            let mut own = binding("ctrlmesh-proxy-robot", "ctrlmesh-proxy", "robot");
            own["roleRef"]["kind"] = json!("Role");
            f.namespace().bindings = Ok(vec![object(own)]);
            f.namespace().roles = Ok(roles.into_iter().map(object).collect());
            f.manager().proxy_role = Ok(None);
        }
    };
    one(check, Good, "Role operators/ctrlmesh-proxy: lets", of_namespace(vec![role(&["*"])]));
    one(check, Error, "Role operators/ctrlmesh-proxy: is not there", of_namespace(vec![]));
    one(check, Error, "does not let", of_namespace(vec![role(&["get"])]));
    one(check, Warning, "cannot look", |f| {
        of_namespace(vec![])(f);
        f.namespace().roles = right();
    });
    // An account that is not bound at all is reported once.
    let unbound = |f: &mut Facts| f.namespace().bindings = Ok(vec![]);
    assert_eq!(found(check, unbound), []);
}

/// A config whose pods keep Leases.
pub(super) fn in_ring(name: &str) -> Value {
    let mut config = config(name, name);
    config["spec"]["controller"] = json!({ "leaderElectionName": "op" });
    config
}

#[test]
fn i14_the_role_that_is_bound_lets_pods_of_a_ring_keep_leases() {
    let check = Check::LeasesRight;
    let with = |configs: Vec<Value>, verbs: &'static [&'static str]| {
        move |f: &mut Facts| {
            f.namespace().configs = Ok(configs.into_iter().map(object).collect());
            let leases = json!({
                "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs,
            });
            let mut role = role(&["list", "watch"]);
            role["rules"].as_array_mut().unwrap().push(leases);
            f.manager().proxy_role = Ok(Some(object(role)));
        }
    };
    let all = &["get", "list", "watch", "create", "update", "patch", "delete"][..];
    one(check, Good, "lets proxies keep and watch the Leases", with(vec![in_ring("blue")], all));
    one(check, Error, "does not let proxies get, list", with(vec![in_ring("blue")], &all[..5]));
    // With `leases.strict` of the chart.
    let strict = &["get", "list", "watch", "create", "patch", "delete"][..];
    one(check, Good, "lets proxies keep", with(vec![in_ring("blue")], strict));
    one(check, Error, "so that a new pod of a ring waits", with(vec![in_ring("blue")], &[]));
    // No pod keeps one.
    let mut at_once = in_ring("blue");
    at_once["spec"]["handover"] = json!({ "mode": "Immediate" });
    assert_eq!(found(check, with(vec![at_once], &[])), []);
    assert_eq!(found(check, with(vec![config("blue", "blue")], &[])), []);
}

#[test]
fn an_account_that_may_not_renew_the_locks_of_its_shards_is_told_by_which_role_it_may() {
    let check = Check::LocksRight;
    let leases = |verbs: &[&str], names: &[&str]| {
        json!({
            "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs,
            "resourceNames": names,
        })
    };
    // The role of a chart with `leases.strict`, and one of the namespace with this rule.
    let with = |lock: &'static str, rule: Option<Value>| {
        move |f: &mut Facts| {
            let mut blue = config("blue", "blue");
            blue["spec"]["controller"] = json!({ "locks": [{ "name": lock }] });
            f.namespace().configs = Ok(vec![object(blue)]);
            let mut role = role(&["list", "watch"]);
            let all = leases(&["get", "list", "watch", "create", "patch", "delete"], &[]);
            role["rules"].as_array_mut().unwrap().push(all);
            f.manager().proxy_role = Ok(Some(object(role)));
            if let Some(rule) = rule.clone() {
                let own = json!({ "metadata": { "name": "locks" }, "rules": [rule] });
                let mut bound = binding("locks", "locks", "robot");
                bound["roleRef"]["kind"] = json!("Role");
                f.namespace().roles = Ok(vec![object(own)]);
                f.namespace().bindings.as_mut().unwrap().push(object(bound));
            }
        }
    };
    let update = |names: &[&str]| Some(leases(&["update"], names));
    one(check, Warning, "none of them leads: op---blue", with("op", None));
    one(check, Warning, "op---blue", with("op", update(&["op---green"])));
    one(check, Good, "may renew", with("op", update(&["op---green", "op---blue"])));
    one(check, Good, "may renew", with("op", update(&[])));
    let fix = |change: &dyn Fn(&mut Facts)| {
        let mut facts = healthy();
        change(&mut facts);
        let found = judge(&facts).into_iter().find(|finding| finding.check == check);
        found.and_then(|finding| finding.fix).unwrap()
    };
    let role = fix(&with("op", None));
    assert!(role.contains("--verb=get,update,patch"), "{role}");
    assert!(role.contains("--resource-name=op---blue"), "{role}");
    assert!(role.contains("--serviceaccount=operators:robot"), "{role}");
    let beginning = fix(&with("op-*", None));
    assert!(beginning.contains("name the lock whole"), "{beginning}");
    // The role of the chart as it is by default.
    one(check, Good, "may renew", |f: &mut Facts| {
        with("op", None)(f);
        let role = role_of_all_leases();
        f.manager().proxy_role = Ok(Some(object(role)));
    });
}

fn role_of_all_leases() -> Value {
    let rule = json!({
        "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"],
    });
    let mut role = role(&["list", "watch"]);
    role["rules"].as_array_mut().unwrap().push(rule);
    role
}
