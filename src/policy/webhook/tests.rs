use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::{Checked, Draft, Kind, NamespaceLabels, draft};
use ctrlmesh_wire::review::Reader;

fn config(name: &str, spec: &Value) -> Checked {
    let mut full = json!({
        "selector": {"matchLabels": {"shard": name}},
        "controller": {"leaderElectionName": "op"},
        "webhook": {"certDir": "/certs", "port": 9443},
    });
    for (field, value) in spec.as_object().unwrap() {
        full[field] = value.clone();
    }
    let object = json!({"metadata": {"namespace": "ops", "name": name}, "spec": full});
    draft(Kind::ShardingConfig, &serde_json::from_value(object).unwrap())
}

/// A shard with one limit, of all resources.
fn limited(name: &str, limit: &Value) -> Checked {
    config(name, &json!({"limits": [limit]}))
}

fn of_team(name: &str) -> Checked {
    limited(name, &json!({"selector": {"matchLabels": {"team": name}}}))
}

fn of_namespace(name: &str) -> Checked {
    limited(name, &json!({"namespaces": {"names": [name]}, "clusterScoped": "Exclude"}))
}

/// Two halves of all uids: that of `u-1` is in the upper one.
fn of_uids(name: &str, from: &str, to: &str) -> Checked {
    limited(name, &json!({"hash": {"of": "uid", "ranges": [{"from": from, "to": to}]}}))
}

const MIDDLE: &str = "0x8000000000000000";

fn siblings(configs: &[Checked], known: Option<&NamespaceLabels>) -> ControllerShards {
    let Ok(Draft::Sharding(own)) = &configs[0] else { panic!("{:?}", configs[0]) };
    ControllerShards::of(own, configs, known).unwrap().unwrap()
}

/// A review of a Pod with this object and old object.
fn review(operation: &str, namespace: &str, object: &Value, old: &Value) -> Value {
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "r", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "x", "namespace": namespace, "operation": operation,
            "object": object, "oldObject": old,
        },
    })
}

fn pod(team: &str, uid: &str) -> Value {
    json!({"metadata": {"name": "x", "uid": uid, "labels": {"team": team}}})
}

fn owner<'s>(siblings: &'s ControllerShards, review: &Value) -> Owner<'s> {
    let mut reader = Reader::new();
    reader.feed(review.to_string().as_bytes()).unwrap();
    reader.finish().unwrap();
    siblings.owner(&reader.review().unwrap()).unwrap()
}

const NONE: Value = Value::Null;

#[test]
fn i13_a_create_belongs_to_whom_its_object_will_belong() {
    let teams = [of_team("blue"), of_team("green")];
    let teams = siblings(&teams, None);
    let create = |team: &str| review("CREATE", "a", &pod(team, ""), &NONE);
    assert_eq!(owner(&teams, &create("blue")), Owner::Here(Here::Own));
    assert_eq!(owner(&teams, &create("green")), Owner::Sibling("green"));
    assert_eq!(owner(&teams, &create("red")), Owner::Unowned);
    let spaces = [of_namespace("a"), of_namespace("b")];
    let spaces = siblings(&spaces, None);
    let create = |namespace: &str| review("CREATE", namespace, &pod("x", ""), &NONE);
    assert_eq!(owner(&spaces, &create("a")), Owner::Here(Here::Own));
    assert_eq!(owner(&spaces, &create("b")), Owner::Sibling("b"));
    assert_eq!(owner(&spaces, &create("c")), Owner::Unowned);
    assert_eq!(owner(&spaces, &create("")), Owner::Unowned, "in no namespace");
}

#[test]
fn i13_a_mutating_create_has_no_uid_and_is_answered_where_it_is() {
    let halves = [of_uids("low", "0x0000000000000000", MIDDLE), of_uids("up", MIDDLE, "")];
    let halves = siblings(&halves, None);
    let create = |uid: &str| review("CREATE", "a", &pod("x", uid), &NONE);
    assert_eq!(owner(&halves, &create("")), Owner::Here(Here::FactMissing));
    // A validating review has one.
    let uids: Vec<_> = (0..32).map(|at| format!("{at}-4f1c-9a7e-{at}")).collect();
    let owners: Vec<_> = uids.iter().map(|uid| owner(&halves, &create(uid))).collect();
    assert!(owners.contains(&Owner::Here(Here::Own)) && owners.contains(&Owner::Sibling("up")));
    for (uid, owner) in uids.iter().zip(owners) {
        let is_low = crate::sharding::fnv1a(uid) < 1 << 63;
        assert_eq!(owner == Owner::Here(Here::Own), is_low, "{uid}");
    }
}

#[test]
fn i13_an_update_belongs_to_whom_its_old_object_belongs() {
    let teams = [of_team("blue"), of_team("green")];
    let teams = siblings(&teams, None);
    let relabel = |old: &str, new: &str| review("UPDATE", "a", &pod(new, "u"), &pod(old, "u"));
    assert_eq!(owner(&teams, &relabel("green", "blue")), Owner::Sibling("green"));
    assert_eq!(owner(&teams, &relabel("blue", "green")), Owner::Here(Here::Own));
    let mut status = relabel("green", "blue");
    status["request"]["subResource"] = json!("status");
    assert_eq!(owner(&teams, &status), Owner::Sibling("green"));
}

#[test]
fn i13_a_delete_and_each_object_of_a_deletecollection_belong_to_the_old_object() {
    let teams = [of_team("blue"), of_team("green")];
    let teams = siblings(&teams, None);
    let mut delete = review("DELETE", "a", &NONE, &pod("green", "u"));
    assert_eq!(owner(&teams, &delete), Owner::Sibling("green"));
    delete["request"]["name"] = json!("");
    assert_eq!(owner(&teams, &delete), Owner::Sibling("green"));
}

#[test]
fn i13_a_subresource_of_another_kind_has_a_namespace_and_perhaps_a_uid() {
    let of_kind = |group: &str, kind: &str, namespace: &str, uid: &str| {
        let object = pod("green", uid);
        let mut review = review("UPDATE", namespace, &object, &object);
        review["request"]["kind"] = json!({"group": group, "version": "v1", "kind": kind});
        review
    };
    let kinds = [
        ("autoscaling", "Scale"),
        ("policy", "Eviction"),
        ("", "Binding"),
        ("authentication.k8s.io", "TokenRequest"),
    ];
    let teams = [of_team("blue"), of_team("green")];
    let spaces = [of_namespace("a"), of_namespace("b")];
    let halves = [of_uids("low", "0x0000000000000000", MIDDLE), of_uids("up", MIDDLE, "")];
    let (teams, spaces, halves) =
        (siblings(&teams, None), siblings(&spaces, None), siblings(&halves, None));
    for (group, kind) in kinds {
        let of = |namespace: &str, uid: &str| of_kind(group, kind, namespace, uid);
        assert_eq!(owner(&teams, &of("a", "u")), Owner::Here(Here::FactMissing), "{kind}");
        assert_eq!(owner(&spaces, &of("b", "u")), Owner::Sibling("b"), "{kind}");
        assert_eq!(owner(&halves, &of("a", "")), Owner::Here(Here::FactMissing), "{kind}");
        let uid = (0..).map(|at| at.to_string());
        let mut uid = uid.filter(|uid| crate::sharding::fnv1a(uid) >= 1 << 63);
        let uid = uid.next().unwrap();
        assert_eq!(owner(&halves, &of("a", &uid)), Owner::Sibling("up"), "{kind}");
    }
}

#[test]
fn i13_a_connect_has_its_namespace_alone() {
    let options = json!({"kind": "PodExecOptions", "apiVersion": "v1", "command": ["sh"]});
    let connect = |namespace: &str| {
        let mut review = review("CONNECT", namespace, &options, &NONE);
        review["request"]["subResource"] = json!("exec");
        review
    };
    let spaces = [of_namespace("a"), of_namespace("b")];
    assert_eq!(owner(&siblings(&spaces, None), &connect("b")), Owner::Sibling("b"));
    let teams = [of_team("blue"), of_team("green")];
    assert_eq!(owner(&siblings(&teams, None), &connect("a")), Owner::Here(Here::FactMissing));
}

/// A limit by the labels of namespaces.
fn of_tier(name: &str) -> Checked {
    let selector = json!({"matchLabels": {"tier": name}});
    limited(name, &json!({"namespaces": {"selector": selector}, "clusterScoped": "Exclude"}))
}

fn tiers(all: &[(&str, &str)]) -> NamespaceLabels {
    let labels = |tier: &str| BTreeMap::from([("tier".to_owned(), tier.to_owned())]);
    all.iter().map(|(name, tier)| ((*name).to_owned(), labels(tier).into())).collect()
}

#[test]
fn i13_a_namespace_counts_as_what_it_names_and_has_the_labels_of_the_review() {
    let of = |operation: &str, name: &str, new: &str, old: &str| {
        let object = |tier: &str| json!({"metadata": {"name": name, "labels": {"tier": tier}}});
        let mut review = review(operation, name, &object(new), &object(old));
        review["request"]["kind"]["kind"] = json!("Namespace");
        review["request"]["resource"]["resource"] = json!("namespaces");
        review
    };
    let spaces = [of_namespace("a"), of_namespace("b")];
    let spaces = siblings(&spaces, None);
    assert_eq!(owner(&spaces, &of("CREATE", "b", "x", "x")), Owner::Sibling("b"));
    assert_eq!(owner(&spaces, &of("CREATE", "c", "x", "x")), Owner::Unowned);
    let by_tier = [of_tier("gold"), of_tier("tin")];
    let known = tiers(&[("old", "gold")]);
    let by_tier = siblings(&by_tier, Some(&known));
    assert_eq!(owner(&by_tier, &of("CREATE", "new", "tin", "")), Owner::Sibling("tin"));
    // What was known of it does not count: the review has the stored data.
    assert_eq!(owner(&by_tier, &of("UPDATE", "old", "gold", "tin")), Owner::Sibling("tin"));
    assert_eq!(owner(&by_tier, &of("DELETE", "old", "", "gold")), Owner::Here(Here::Own));
}

#[test]
fn bad_i13_a_namespace_that_is_not_known_yet_is_a_fact_that_is_missing() {
    let by_tier = [of_tier("gold"), of_tier("tin")];
    let known = tiers(&[("g", "gold"), ("t", "tin"), ("i", "iron")]);
    let by_tier = siblings(&by_tier, Some(&known));
    let create = |namespace: &str| review("CREATE", namespace, &pod("x", ""), &NONE);
    assert_eq!(owner(&by_tier, &create("g")), Owner::Here(Here::Own));
    assert_eq!(owner(&by_tier, &create("t")), Owner::Sibling("tin"));
    assert_eq!(owner(&by_tier, &create("i")), Owner::Unowned);
    assert_eq!(owner(&by_tier, &create("new")), Owner::Here(Here::FactMissing));
}

#[test]
fn i13_what_no_shard_limits_is_answered_where_it_is() {
    let limit = json!({
        "relateResources": [{"apiGroups": [""], "resources": ["secrets"]}],
        "selector": {"matchLabels": {"team": "blue"}},
    });
    let both = [limited("blue", &limit), limited("green", &limit)];
    let both = siblings(&both, None);
    let create = review("CREATE", "a", &pod("green", ""), &NONE);
    assert_eq!(owner(&both, &create), Owner::Here(Here::Unlimited));
    // A shard without a limit has all of a resource.
    let all = [
        limited("blue", &json!({"selector": {"matchLabels": {"team": "x"}}})),
        config("all", &json!({})),
    ];
    assert_eq!(owner(&siblings(&all, None), &create), Owner::Sibling("all"));
}

#[test]
fn i13_of_several_owners_the_own_shard_is_first_and_then_by_name() {
    let same = |name: &str| limited(name, &json!({"selector": {"matchLabels": {"team": "x"}}}));
    let create = review("CREATE", "a", &pod("x", ""), &NONE);
    let own = [same("c"), same("b"), same("a")];
    assert_eq!(owner(&siblings(&own, None), &create), Owner::Here(Here::Own));
    let others = [of_team("own"), same("c"), same("b")];
    assert_eq!(owner(&siblings(&others, None), &create), Owner::Sibling("b"));
}

#[test]
fn i13_a_fact_that_no_owner_needs_is_not_missed() {
    let limit = |name: &str, uids: &str| {
        json!({
            "namespaces": {"names": [name]}, "clusterScoped": "Exclude",
            "hash": {"of": "uid", "ranges": [{"from": uids, "to": ""}]},
        })
    };
    let both = [limited("a", &limit("a", MIDDLE)), of_namespace("b")];
    let both = siblings(&both, None);
    let create = |namespace: &str| review("CREATE", namespace, &pod("x", ""), &NONE);
    assert_eq!(owner(&both, &create("b")), Owner::Sibling("b"));
    assert_eq!(owner(&both, &create("c")), Owner::Unowned);
    assert_eq!(owner(&both, &create("a")), Owner::Here(Here::FactMissing));
}

#[test]
fn bad_i13_a_sibling_that_cannot_be_read_may_own_what_nobody_has() {
    let broken = |spec: Value| config("red", &spec);
    let limits = json!([{"relateResources": [{"apiGroups": ["A"], "resources": ["pods"]}]}]);
    let unreadable = broken(json!({"limits": limits}));
    assert!(unreadable.is_err());
    let all = [of_team("blue"), of_team("green"), unreadable];
    let all = siblings(&all, None);
    let create = |team: &str| review("CREATE", "a", &pod(team, ""), &NONE);
    assert_eq!(owner(&all, &create("blue")), Owner::Here(Here::Own));
    assert_eq!(owner(&all, &create("green")), Owner::Sibling("green"));
    assert_eq!(owner(&all, &create("red")), Owner::Unknown);
    assert_eq!(all.unreadable().len(), 1);
    assert!(all.unreadable()[0].why.contains("apiGroups"), "{:?}", all.unreadable());
    // One that says that it is of another controller, or has no webhook, is no sibling.
    let other = json!({"leaderElectionName": "other"});
    for spec in
        [json!({"limits": limits, "controller": other}), json!({"limits": limits, "webhook": null})]
    {
        let all = [of_team("blue"), broken(spec)];
        assert_eq!(owner(&siblings(&all, None), &create("red")), Owner::Unowned);
    }
    let nameless = [of_team("blue"), broken(json!({"controller": 7}))];
    assert_eq!(owner(&siblings(&nameless, None), &create("red")), Owner::Unknown);
    // The labels of namespaces are not known.
    let tier = [of_team("blue"), of_tier("gold")];
    assert_eq!(owner(&siblings(&tier, None), &create("red")), Owner::Unknown);
}

#[test]
fn i13_siblings_have_the_same_lock_and_a_webhook() {
    let names = |configs: &[Checked]| {
        siblings(configs, None).names().map(str::to_owned).collect::<Vec<_>>()
    };
    let lock = |name: &str, lock: Value| {
        config(name, &json!({"controller": {"leaderElectionName": lock}}))
    };
    let lockless = |name: &str| config(name, &json!({"controller": null}));
    let silent = config("silent", &json!({"webhook": null}));
    let other = lock("other", json!("other"));
    let all = [of_team("m"), other, lockless("z"), silent.clone(), of_team("z"), of_team("a")];
    assert_eq!(names(&all), ["m", "a", "z"]);
    assert_eq!(names(&[lockless("m"), of_team("a"), lockless("b")]), ["m", "b"]);
    let Ok(Draft::Sharding(own)) = &silent else { panic!("{silent:?}") };
    assert_eq!(ControllerShards::of(own, &all, None).unwrap(), None);
    let mut elsewhere = [of_team("m"), of_team("a")];
    if let Ok(Draft::Sharding(draft)) = &mut elsewhere[1] {
        draft.config.object.namespace = "elsewhere".into();
    }
    assert_eq!(names(&elsewhere), ["m"]);
}

#[test]
fn i13_a_pod_is_of_the_one_shard_that_selects_it() {
    let selecting = |name: &str, selector: &Value| config(name, &json!({"selector": selector}));
    let all = [
        selecting("blue", &json!({"matchLabels": {"color": "blue"}})),
        selecting("green", &json!({"matchLabels": {"color": "green"}})),
        selecting("tall", &json!({"matchLabels": {"size": "tall"}})),
        config("other", &json!({"controller": {"leaderElectionName": "other"}})),
        selecting("broken", &json!({"matchLabel": {}})),
    ];
    let siblings = siblings(&all, None);
    let shard = |labels: &[(&str, &str)]| {
        let own = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        siblings.shard_of(&own.collect()).map(str::to_owned)
    };
    assert_eq!(shard(&[("color", "blue"), ("app", "op")]).as_deref(), Some("blue"));
    assert_eq!(shard(&[("color", "green"), ("size", "short")]).as_deref(), Some("green"));
    assert_eq!(shard(&[("color", "green"), ("size", "tall")]), None, "two select it");
    assert_eq!(shard(&[("color", "red")]), None);
    assert_eq!(shard(&[("shard", "other")]), None, "of another controller");
    assert_eq!(shard(&[]), None);
}

#[test]
fn i13_what_is_answered_is_what_the_shard_that_got_it_says() {
    let limits = json!([{"selector": {"matchLabels": {"team": "blue"}}}]);
    let with = |field: &str, value: &str| {
        let webhook = json!({"certDir": "/certs", "port": 9443, field: value});
        let broken = config("red", &json!({"limits": 7}));
        let configs = [
            config("blue", &json!({"limits": limits, "webhook": webhook})),
            of_team("green"),
            broken,
        ];
        siblings(&configs, None)
    };
    let red = review("CREATE", "a", &pod("red", ""), &NONE);
    let green = review("CREATE", "a", &pod("green", ""), &NONE);
    let any = with("route", "Any");
    assert_eq!(owner(&any, &green), Owner::Here(Here::Route));
    for (field, value, of_unowned, of_unknown) in [
        ("route", "Owner", Answerer::Here, Answerer::Fail),
        ("unowned", "Any", Answerer::Here, Answerer::Fail),
        ("unowned", "Allow", Answerer::Allow, Answerer::Fail),
        ("unowned", "Deny", Answerer::Deny, Answerer::Fail),
        ("ownerDown", "Fail", Answerer::Here, Answerer::Fail),
        ("ownerDown", "Any", Answerer::Here, Answerer::Here),
    ] {
        let siblings = with(field, value);
        assert_eq!(siblings.answerer(Owner::Unowned), of_unowned, "{field}: {value}");
        assert_eq!(siblings.answerer(owner(&siblings, &red)), of_unknown, "{field}: {value}");
        let green = siblings.answerer(owner(&siblings, &green));
        assert_eq!(green, Answerer::Sibling("green"), "{field}: {value}");
    }
}

#[test]
fn i13_an_owner_is_told_as_soon_as_nothing_to_come_can_change_it() {
    let head = |namespace: &str| {
        let whole = review("UPDATE", namespace, &json!({}), &pod("green", "u")).to_string();
        // The request's facts, in front of its objects.
        let request = json!({
            "uid": "r", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": namespace, "operation": "UPDATE",
        });
        assert!(whole.contains("oldObject"));
        let head = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":"#;
        format!("{head}{}", request.to_string().trim_end_matches('}'))
    };
    let told = |siblings: &ControllerShards, namespace: &str, behind: &str| {
        let mut reader = Reader::new();
        // The two braces that end the last map in front are there again.
        let front = head(namespace);
        let front = if front.ends_with('"') { front } else { front + "}" };
        reader.feed(front.as_bytes()).unwrap();
        reader.feed(behind.as_bytes()).unwrap();
        let review = reader.review().unwrap();
        siblings.owner(&review).map(|owner| format!("{owner:?}"))
    };
    let spaces = [of_namespace("a"), of_namespace("b")];
    let spaces = siblings(&spaces, None);
    assert_eq!(told(&spaces, "a", "").unwrap(), "Here(Own)");
    assert_eq!(told(&spaces, "b", "").unwrap(), "Sibling(\"b\")");
    let teams = [of_team("blue"), of_team("green")];
    let teams = siblings(&teams, None);
    assert_eq!(told(&teams, "a", ""), None);
    let old =
        |rest: &str| format!(r#","oldObject":{{"metadata":{{"labels":{{"team":"green"}}{rest}"#);
    assert_eq!(told(&teams, "a", &old("")), None, "more metadata may come");
    assert_eq!(told(&teams, "a", &old("}")).unwrap(), "Sibling(\"green\")");
    // A namespace that no shard has needs no labels.
    let both = json!({
        "namespaces": {"names": ["a"]}, "clusterScoped": "Exclude",
        "selector": {"matchLabels": {"team": "x"}},
    });
    let both = [limited("blue", &both), limited("green", &both)];
    let both = siblings(&both, None);
    assert_eq!(told(&both, "c", "").unwrap(), "Unowned");
    assert_eq!(told(&both, "a", ""), None);
}
