use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Comparisons, OfShard, Rings, Roots, SelectedPods, Unheld, Verdict};
use crate::{
    configs::ConfigFacts,
    reconcile::{
        leases::{PodOfRing, Said},
        observed::PodFacts,
        problem::About,
    },
};
use ctrlmesh_api::{
    Except,
    lease::{Elections, ForeignWrites, RelatedResource, RelatedResources},
};
use ctrlmesh_policy::{Draft, LabelSet, NamespaceLabels, ShardingDraft};

/// The object to apply, where there is no root.
fn due(
    key: &str,
    config: &ConfigFacts,
    pods: &SelectedPods<'_>,
    rings: &Rings<'_>,
    now: Timestamp,
) -> Option<Value> {
    let shard = OfShard { pods, injected: Verdict::Unknown, namespaces: None };
    super::due(key, config, shard, rings, &Roots::default(), now)
}

const MONDAY: &str = "2026-11-23T08:00:00Z";
const TUESDAY: &str = "2026-11-24T08:00:00Z";

fn config(spec: &Value, status: &Value) -> ConfigFacts {
    let object = json!({
        "metadata": { "namespace": "ns", "name": "blue", "generation": 7 },
        "spec": spec,
        "status": status,
    });
    ConfigFacts::of(&serde_json::from_value(object).unwrap())
}

fn with_webhook() -> Value {
    json!({
        "selector": { "matchLabels": { "shard": "blue" } },
        "webhook": { "certDir": "/certs", "port": 9443 },
    })
}

/// A pod as injection leaves it: in this mode, with these arguments of the proxy.
fn pod(mode: &str, args: &[&str]) -> PodFacts {
    let pod = json!({
        "metadata": { "annotations": { "ctrlmesh.kusionstack.io/injected": mode } },
        "spec": { "containers": [
            { "name": "manager", "args": ["--webhook-port=9443"] },
            { "name": "ctrlmesh-proxy", "args": args },
        ] },
    });
    PodFacts::of(serde_json::from_value(pod).unwrap())
}

fn pods<'a>(env: &[&'a str], redirected: &[&'a str]) -> SelectedPods<'a> {
    let mut pods = SelectedPods::default();
    let config = config(&with_webhook(), &Value::Null);
    env.iter().for_each(|name| pods.add(name, &pod("env", &[]), sharding(&config), None));
    let with_rules = pod("iptables", &["proxy", "--webhook-port=9443"]);
    redirected.iter().for_each(|name| pods.add(name, &with_rules, sharding(&config), None));
    pods
}

#[test]
fn i13_a_config_says_that_pods_are_older_than_its_webhook() {
    for args in [&["proxy"][..], &["proxy", "--webhook-port=8443"]] {
        let mut pods = pods(&[], &["op-1"]);
        let new = config(&with_webhook(), &Value::Null);
        pods.add("op-0", &pod("iptables", args), sharding(&new), None);
        let written = due_at(MONDAY, &new, &pods).unwrap();
        let condition = &written["status"]["conditions"][0];
        assert_eq!(condition["status"], "False", "{args:?}");
        assert_eq!(condition["reason"], "OtherRules");
        let message = condition["message"].as_str().unwrap();
        assert!(
            message.starts_with("spec.webhook has no effect on pod op-0: port 9443 "),
            "{message}"
        );
        assert!(message.ends_with("create the pods again"), "{message}");
    }
}

fn due_at(time: &str, config: &ConfigFacts, pods: &SelectedPods<'_>) -> Option<Value> {
    due("ns/blue", config, pods, &Rings::default(), time.parse().unwrap())
}

#[test]
fn i13_a_config_says_that_reviews_do_not_come_to_pods_in_env_mode() {
    let new = config(&with_webhook(), &Value::Null);
    let written = due_at(MONDAY, &new, &pods(&["op-1", "op-0"], &["op-2"])).unwrap();
    assert_eq!(written["metadata"], json!({ "namespace": "ns", "name": "blue" }));
    let [condition, ready] = written["status"]["conditions"].as_array().unwrap().as_slice() else {
        panic!("{written}")
    };
    assert_eq!(ready["type"], "Ready");
    assert_eq!(condition["type"], "WebhookRedirected");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("EnvMode")));
    assert_eq!(condition["observedGeneration"], 7);
    assert_eq!(condition["lastTransitionTime"], MONDAY);
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.starts_with("spec.webhook has no effect on pod op-0 and others: "),
        "{message}"
    );
    assert!(message.ends_with("or remove spec.webhook"), "{message}");

    // It is not written again, whatever the time and however many there are.
    let told = config(&with_webhook(), &written["status"]);
    assert_eq!(due_at(TUESDAY, &told, &pods(&["op-0", "op-1"], &["op-3"])), None);
    // Another message is, with the time of its status.
    let one = due_at(TUESDAY, &told, &pods(&["op-1"], &[])).unwrap();
    assert_eq!(one["status"]["conditions"][0]["lastTransitionTime"], MONDAY);
    // All have rules now.
    let mended = due_at(TUESDAY, &told, &pods(&[], &["op-0"])).unwrap();
    let condition = &mended["status"]["conditions"][0];
    assert_eq!(
        (&condition["status"], &condition["lastTransitionTime"]),
        (&json!("True"), &json!(TUESDAY))
    );
}

#[test]
fn i13_a_config_without_a_webhook_or_pods_says_nothing() {
    let mut without = with_webhook();
    without.as_object_mut().unwrap().remove("webhook");
    let types = |written: Option<Value>| types(&written.unwrap()["status"]);
    let new = config(&without, &Value::Null);
    assert_eq!(types(due_at(MONDAY, &new, &pods(&["op-0"], &[]))), ["Ready"]);
    let new = config(&with_webhook(), &Value::Null);
    assert_eq!(types(due_at(MONDAY, &new, &SelectedPods::default())), ["Ready"]);
    let said = due_at(MONDAY, &new, &pods(&["op-0"], &[])).unwrap();
    // Its pods are gone for a while: the condition stays.
    let told = config(&with_webhook(), &said["status"]);
    let gone = due_at(MONDAY, &told, &SelectedPods::default());
    assert_eq!(types(gone), ["WebhookRedirected", "Ready"]);
    // A bad edit changes nothing: the last good config is in force.
    let mut bad = with_webhook();
    bad["webhook"]["port"] = json!(5441);
    assert_eq!(due_at(MONDAY, &config(&bad, &said["status"]), &pods(&[], &["op-0"])), None);
    // No webhook any more: what it said goes.
    let removed = due_at(MONDAY, &config(&without, &said["status"]), &SelectedPods::default());
    assert_eq!(types(removed), ["Ready"]);
}

/// The types of the conditions in a status.
fn types(status: &Value) -> Vec<String> {
    let all = status["conditions"].as_array().unwrap().iter();
    all.map(|one| one["type"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn i15_a_config_says_how_many_pods_it_has_and_what_they_go_by() {
    let new = in_ring("blue", MONDAY, &["ant"], &Value::Null);
    let with = |pods: &[(&'static str, bool, Option<i64>)], config: &ConfigFacts| {
        let mut selected = SelectedPods::default();
        for (name, is_ready, generation) in pods {
            let is_ready = if *is_ready { "True" } else { "False" };
            let pod =
                json!({ "status": { "conditions": [{ "type": "Ready", "status": is_ready }] } });
            let pod = PodFacts::of(serde_json::from_value(pod).unwrap());
            selected.add(name, &pod, sharding(config), *generation);
        }
        due_at(TUESDAY, config, &selected)
    };
    let said = |pods: &[(&'static str, bool, Option<i64>)]| {
        let written = with(pods, &new).unwrap();
        let conditions = written["status"]["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|one| one["type"] == "Ready").unwrap();
        let ready =
            ["status", "reason", "message"].map(|key| ready[key].as_str().unwrap().to_owned());
        (written["status"]["pods"].clone(), ready)
    };
    let none = json!({ "selected": 0, "ready": 0 });
    let no_pods = ["False", "NoPods", "spec.selector selects no injected pod"].map(str::to_owned);
    assert_eq!(said(&[]), (none, no_pods));
    let mixed =
        [("b", false, Some(6)), ("a", false, None), ("c", true, Some(7)), ("d", true, Some(7))];
    let pods = json!({
        "selected": 4, "ready": 2,
        "generations": [{ "generation": 6, "pods": 1 }, { "generation": 7, "pods": 2 }],
    });
    let unready = ["False", "PodsNotReady", "pod a and others is not ready"].map(str::to_owned);
    assert_eq!(said(&mixed), (pods, unready));
    let ready = [("a", true, Some(7))];
    assert_eq!(said(&ready).1, ["True", "PodsReady", ""].map(str::to_owned));

    // The same is not written again, and one pod more is.
    let written = with(&ready, &new).unwrap();
    assert_eq!(written["status"]["owns"], "ant");
    assert_eq!(written["status"]["resources"], "pods");
    let told = in_ring("blue", MONDAY, &["ant"], &written["status"]);
    assert_eq!(with(&ready, &told), None);
    assert!(with(&[ready[0], ("b", true, Some(7))], &told).is_some());
    assert!(with(&[("a", true, Some(8))], &told).is_some());
    let other = in_ring("blue", MONDAY, &["bee"], &written["status"]);
    assert!(with(&ready, &other).is_some(), "another scope");
}

#[test]
fn bad_i15_what_a_config_owns_stays_while_the_labels_of_namespaces_are_unknown() {
    let config = |status: &Value| {
        let object = json!({
            "metadata": { "namespace": "ns", "name": "blue" },
            "spec": {
                "selector": { "matchLabels": { "shard": "blue" } },
                "limits": [{
                    "namespaces": { "selector": { "matchLabels": { "tier": "gold" } } },
                    "clusterScoped": "Include",
                }],
            },
            "status": status,
        });
        ConfigFacts::of(&serde_json::from_value(object).unwrap())
    };
    let owns = |config: &ConfigFacts, namespaces| {
        let shard =
            OfShard { pods: &SelectedPods::default(), injected: Verdict::Unknown, namespaces };
        let now = MONDAY.parse().unwrap();
        let due = super::due("ns/blue", config, shard, &Rings::default(), &Roots::default(), now);
        due.map(|due| due["status"].clone())
    };
    let new = config(&Value::Null);
    assert_eq!(owns(&new, None).unwrap().get("owns"), None);
    let known = namespaces(&["ant"]);
    let said = owns(&new, Some(&known)).unwrap();
    assert_eq!(
        (&said["owns"], &said["resources"]),
        (&json!("labels tier=gold, cluster-scoped"), &json!("*.*"))
    );
    assert_eq!(owns(&config(&said), None), None);
}

/// A config of a ring, whose shard has the pods of these namespaces.
fn in_ring(name: &str, born: &str, namespaces: &[&str], status: &Value) -> ConfigFacts {
    let object = json!({
        "metadata": {
            "namespace": "ns", "name": name, "uid": format!("uid-{name}"), "generation": 7,
            "creationTimestamp": born,
        },
        "spec": {
            "selector": { "matchLabels": { "shard": name } },
            "ring": "op",
            "limits": [{
                "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
                "namespaces": { "names": namespaces },
                "clusterScoped": "Exclude",
            }],
        },
        "status": status,
    });
    ConfigFacts::of(&serde_json::from_value(object).unwrap())
}

fn sharding(config: &ConfigFacts) -> &ShardingDraft {
    let Ok(Draft::Sharding(draft)) = &config.checked else { panic!("{config:?}") };
    draft
}

/// The ring of two configs, with pods of the first.
fn ring<'a>(configs: [&'a ConfigFacts; 2], pods: &[(&'a str, PodOfRing)]) -> Rings<'a> {
    let mut rings = Rings::default();
    configs.iter().for_each(|config| rings.add_config("ns", config, None));
    for (pod, is) in pods {
        rings.add_pod("ns", sharding(configs[0]), pod, *is, Said::default());
    }
    rings.compare(&mut Comparisons::default(), None);
    rings
}

/// Each condition of the first config: its type, status, reason and message.
fn conditions(configs: [&ConfigFacts; 2], pods: &[(&str, PodOfRing)]) -> Vec<[String; 4]> {
    let rings = ring(configs, pods);
    let due = due("ns/blue", configs[0], &SelectedPods::default(), &rings, MONDAY.parse().unwrap());
    let Some(due) = due else { return Vec::new() };
    let all = due["status"]["conditions"].as_array().unwrap();
    let text = |condition: &Value, key: &str| condition[key].as_str().unwrap().to_owned();
    let of_ring = all.iter().filter(|one| one["type"] != "Ready");
    of_ring.map(|one| ["type", "status", "reason", "message"].map(|key| text(one, key))).collect()
}

#[test]
fn i14_a_config_says_whether_its_ring_is_as_it_should_be() {
    use PodOfRing::{Heard, Silent, Unheard, Unreadable, WithoutLease, Young};
    let none = Value::Null;
    let blue = in_ring("blue", MONDAY, &["ant"], &none);
    let green = in_ring("green", TUESDAY, &["bee"], &none);
    let of = |pods: &[(&str, PodOfRing)]| {
        let all = conditions([&blue, &green], pods).into_iter();
        all.map(|[kind, status, reason, _]| format!("{kind}={status} {reason}")).collect::<Vec<_>>()
    };
    assert_eq!(
        of(&[("a", Heard)]),
        ["HandoverActive=True Claimed", "NoOverlap=True Proven", "LeasesRenewed=True Renewed"]
    );
    assert_eq!(of(&[("a", Heard), ("b", Silent)])[2], "LeasesRenewed=False NotRenewed");
    assert_eq!(of(&[("a", Heard), ("b", WithoutLease)])[0], "HandoverActive=False NoLease");
    assert_eq!(of(&[("a", Heard), ("b", Unreadable)])[0], "HandoverActive=False Unreadable");
    // A condition that is still unknown stays as it is.
    assert_eq!(
        of(&[("a", Heard), ("b", Young)]),
        ["NoOverlap=True Proven", "LeasesRenewed=True Renewed"]
    );
    assert_eq!(
        of(&[("a", Heard), ("b", Unheard)]),
        ["HandoverActive=True Claimed", "NoOverlap=True Proven"]
    );
    assert_eq!(of(&[]), ["NoOverlap=True Proven"]);
    let named = &conditions([&blue, &green], &[("b", WithoutLease), ("a", WithoutLease)])[0][3];
    assert!(named.starts_with("pod a and others has no Lease, so no one waits for it"), "{named}");
}

fn of_elections(elections: Option<&Elections>) -> Said<'_> {
    Said { elections, ..Said::default() }
}

#[test]
fn bad_writes_that_were_refused_are_told_with_the_entry_that_lets_them_pass() {
    let spec = json!({ "selector": { "matchLabels": { "shard": "blue" } }, "ring": "op" });
    let config = config(&spec, &Value::Null);
    let entry = |namespace: &str| {
        let entry = json!({
            "apiGroups": [""], "resources": ["secrets"], "namespaces": [namespace], "verbs": ["delete"],
        });
        serde_json::from_value::<Except>(entry).unwrap()
    };
    let refused = |namespace: &str| ForeignWrites {
        refused: vec![entry(namespace)],
        example: format!("one in {namespace}"),
        ..ForeignWrites::default()
    };
    let warned = ForeignWrites {
        warned: vec![entry("w")],
        example: "one in w".to_owned(),
        ..ForeignWrites::default()
    };
    let verdict = |pods: &[(&str, Option<&ForeignWrites>)]| {
        let mut rings = Rings::default();
        rings.add_config("ns", &config, None);
        for (pod, foreign_writes) in pods {
            let said = Said { foreign_writes: *foreign_writes, ..Said::default() };
            rings.add_pod("ns", sharding(&config), pod, PodOfRing::Heard, said);
        }
        let [.., writes, _] = rings.verdicts("ns", sharding(&config));
        writes
    };
    let none = ForeignWrites::default();
    assert_eq!(verdict(&[]), Verdict::Unknown);
    assert_eq!(verdict(&[("a", None)]), Verdict::Unknown, "an older proxy");
    assert_eq!(verdict(&[("a", Some(&none)), ("b", None)]), Verdict::Unknown);
    assert_eq!(verdict(&[("a", Some(&none))]), Verdict::No("NoForeignWrites", String::new()));
    let [b, c] = ["b", "c"].map(refused);
    let pods = [("y", Some(&c)), ("x", Some(&b)), ("w", Some(&warned)), ("z", None)];
    let Verdict::Yes("NotInShard", message) = verdict(&pods) else { panic!() };
    assert_eq!(
        message,
        "pod x: writes into namespaces of other shards were refused, for example: one in b; name the resource \
         in a limit, or let them pass by spec.fence.except: \
         [{apiGroups: [\"\"], resources: [secrets], namespaces: [b, c], verbs: [delete]}]"
    );
    let mut turned = pods;
    turned.reverse();
    assert_eq!(verdict(&turned), verdict(&pods), "whatever the order");
    let Verdict::No("Warned", message) = verdict(&[("w", Some(&warned))]) else { panic!() };
    assert!(message.contains("since spec.fence.mode is Warn, for example: one in w"), "{message}");
}

#[test]
fn bad_related_resources_that_no_limit_names_are_told_with_the_entries_that_limit_them() {
    let spec = json!({ "selector": { "matchLabels": { "shard": "blue" } }, "ring": "op" });
    let config = config(&spec, &Value::Null);
    let of = |names: &[&str]| {
        let related = |name: &&str| RelatedResource {
            resource: (*name).to_owned(),
            because: format!("{name} a/x belongs to Kibana y"),
            ..RelatedResource::default()
        };
        RelatedResources { resources: names.iter().map(related).collect() }
    };
    let verdict = |pods: &[(&str, Option<&RelatedResources>)]| {
        let mut rings = Rings::default();
        rings.add_config("ns", &config, None);
        for (pod, related) in pods {
            let said = Said { related: *related, ..Said::default() };
            rings.add_pod("ns", sharding(&config), pod, PodOfRing::Heard, said);
        }
        let problems = rings.problems("ns/blue", sharding(&config)).len();
        let [.., related] = rings.verdicts("ns", sharding(&config));
        (related, problems)
    };
    let [none, one, other] = [of(&[]), of(&["secrets"]), of(&["configmaps", "secrets"])];
    assert_eq!(verdict(&[]).0, Verdict::Unknown);
    assert_eq!(verdict(&[("a", None)]).0, Verdict::Unknown, "an older proxy");
    assert_eq!(verdict(&[("a", Some(&none)), ("b", None)]).0, Verdict::Unknown);
    let (limited, problems) = verdict(&[("a", Some(&none))]);
    assert_eq!(limited, Verdict::Yes("Limited", String::new()));
    let pods = [("c", Some(&other)), ("b", Some(&one)), ("a", Some(&none)), ("d", None)];
    let (Verdict::No("NotLimited", message), more) = verdict(&pods) else { panic!() };
    assert_eq!(more, problems + 1, "an Event tells it, too");
    assert!(
        message
            .starts_with("pod b: the controller watches configmaps, secrets, which no limit names"),
        "{message}"
    );
    assert!(message.contains("{apiGroups: [\"\"], resources: [configmaps, secrets]}"), "{message}");
}

/// The condition of the locks of a config, by what its pods say, a while after they said so first.
fn leads(config: &ConfigFacts, pods: &[(&str, Option<Elections>)], seconds: u64) -> Verdict {
    let (start, mut unheld) = (tokio::time::Instant::now(), Unheld::default());
    let mut verdict = None;
    for seconds in [0, seconds] {
        let mut rings = Rings::default();
        rings.add_config("ns", config, None);
        for (pod, said) in pods {
            rings.add_pod(
                "ns",
                sharding(config),
                pod,
                PodOfRing::Heard,
                of_elections(said.as_ref()),
            );
        }
        let drafts = [("ns/blue", sharding(config))].into_iter();
        rings.see_locks(drafts, &mut unheld, start + std::time::Duration::from_secs(seconds));
        let [.., locks, _, _] = rings.verdicts("ns", sharding(config));
        verdict = Some(locks);
    }
    verdict.unwrap()
}

#[test]
fn bad_shard_that_does_not_lead_is_named() {
    let mut spec = json!({
        "selector": { "matchLabels": { "shard": "blue" } }, "ring": "op",
        "controller": {
            "leaderElectionName": "op", "locks": [{ "name": "op", "namespace": "kube-system" }],
        },
    });
    let config = config(&spec, &Value::Null);
    let held = |names: &[&str]| {
        let held = names.iter().map(|name| (*name).to_owned()).collect();
        Elections { held, ..Elections::default() }
    };
    let both = held(&["ns/op", "kube-system/op"]);
    let said = |said: &[Elections], seconds: u64| {
        let pods = ["b", "a", "c"].into_iter().zip(said.iter().cloned().map(Some));
        leads(&config, &pods.collect::<Vec<_>>(), seconds)
    };
    let yes = Verdict::Yes("Held", String::new());
    assert_eq!(said(std::slice::from_ref(&both), 60), yes);
    // A leader each, in two pods.
    assert_eq!(said(&[held(&["ns/op"]), held(&["kube-system/op"])], 60), yes);
    assert_eq!(said(&[held(&["ns/op"]), held(&[])], 29), Verdict::Unknown);
    let Verdict::No("NotHeld", message) = said(&[held(&["ns/op"]), held(&[])], 30) else {
        panic!()
    };
    assert!(message.contains("the lock kube-system/op for half a minute"), "{message}");
    let forbidden = Elections { forbidden: vec!["kube-system/op".to_owned()], ..held(&["ns/op"]) };
    let Verdict::No("Forbidden", message) = said(&[both.clone(), forbidden], 0) else { panic!() };
    assert!(
        message.starts_with("pod a: the account of the pod may not write the lock"),
        "{message}"
    );
    let changed = Elections { waits_for_restart: true, ..both };
    assert!(matches!(said(&[changed], 0), Verdict::No("Changed", _)));
    // An older proxy does not say.
    assert_eq!(leads(&config, &[("a", Some(held(&[]))), ("b", None)], 60), Verdict::Unknown);
    assert_eq!(leads(&config, &[], 60), Verdict::Unknown);
    // A lock that no config names is notified where there is none, too.
    spec.as_object_mut().unwrap().remove("controller");
    let config = self::config(&spec, &Value::Null);
    assert_eq!(leads(&config, &[("a", Some(held(&[])))], 60), Verdict::None);
    let unnamed = vec!["leases kube-system/op".to_owned()];
    let unnamed = Elections { unnamed, ..held(&[]) };
    assert!(matches!(leads(&config, &[("a", Some(unnamed))], 0), Verdict::No("NotNamed", _)));
}

#[test]
fn i14_a_config_that_takes_at_once_makes_no_promise() {
    let none = Value::Null;
    let blue = in_ring("blue", MONDAY, &["ant"], &none);
    let mut green = serde_json::to_value(json!({
        "metadata": { "namespace": "ns", "name": "green", "uid": "uid-green" },
        "spec": { "selector": {}, "ring": "op", "handover": { "mode": "Immediate" } },
    }))
    .unwrap();
    green["spec"]["selector"] = json!({ "matchLabels": { "shard": "green" } });
    let green = ConfigFacts::of(&serde_json::from_value(green).unwrap());
    let [kind, status, reason, message] =
        &conditions([&blue, &green], &[("a", PodOfRing::Heard)])[0];
    assert_eq!([&**kind, status, reason], ["HandoverActive", "False", "Immediate"]);
    assert!(
        message.contains("ShardingConfig green of the ring takes everything at once"),
        "{message}"
    );
    // The user has chosen it: no Event says so.
    let rings = ring([&blue, &green], &[("a", PodOfRing::Heard)]);
    let reasons = rings.problems("ns/blue", sharding(&blue)).into_iter().map(|lack| lack.reason);
    assert_eq!(reasons.collect::<Vec<_>>(), ["LimitsDiffer"], "only one of them limits pods");
}

#[test]
fn i14_two_configs_that_want_the_same_both_say_so() {
    let none = Value::Null;
    let blue = in_ring("blue", MONDAY, &["ant", "bee"], &none);
    let green = in_ring("green", TUESDAY, &["bee"], &none);
    let overlap = |configs: [&ConfigFacts; 2]| {
        conditions(configs, &[]).into_iter().find(|[kind, ..]| kind == "NoOverlap").unwrap()
    };
    let [_, status, reason, message] = overlap([&blue, &green]);
    assert_eq!([&*status, &*reason], ["False", "Overlap"]);
    assert_eq!(
        message,
        "ShardingConfig green wants some of the same pods, such as one in namespace bee; select each object in one config alone"
    );
    let rings = ring([&green, &blue], &[("g", PodOfRing::Silent)]);
    let problems = rings.problems("ns/green", sharding(&green));
    let reported: Vec<_> =
        problems.iter().map(|lack| (lack.about, lack.reason, lack.uid)).collect();
    assert_eq!(
        reported,
        [
            (About::Config("NoOverlap"), "Overlap", "uid-green"),
            (About::Config("LeasesRenewed"), "NotRenewed", "uid-green"),
        ]
    );
    assert!(
        problems[0].message.starts_with("ShardingConfig blue wants"),
        "{}",
        problems[0].message
    );
}

#[test]
fn i14_conditions_of_reviews_and_of_the_ring_are_written_together() {
    let mut with_both = with_webhook();
    with_both["ring"] = json!("op");
    let config = config(&with_both, &Value::Null);
    let mut rings = Rings::default();
    rings.add_config("ns", &config, None);
    rings.add_pod("ns", sharding(&config), "op-0", PodOfRing::Heard, Said::default());
    rings.compare(&mut Comparisons::default(), None);
    let written = due("ns/blue", &config, &pods(&["op-0"], &[]), &rings, MONDAY.parse().unwrap());
    let written = written.unwrap();
    assert_eq!(
        types(&written["status"]),
        ["HandoverActive", "NoOverlap", "LeasesRenewed", "WebhookRedirected", "Ready"]
    );
    // One that is not known now stays when another is written: a write names all of ours.
    let told = self::config(&with_both, &written["status"]);
    let mut rings = Rings::default();
    rings.add_config("ns", &told, None);
    rings.add_pod("ns", sharding(&told), "op-0", PodOfRing::WithoutLease, Said::default());
    let none = SelectedPods::default();
    let written = due("ns/blue", &told, &none, &rings, TUESDAY.parse().unwrap()).unwrap();
    assert_eq!(
        types(&written["status"]),
        ["HandoverActive", "NoOverlap", "LeasesRenewed", "WebhookRedirected", "Ready"]
    );
}

#[test]
fn a_write_leaves_out_the_types_of_the_release_before() {
    let with_ring = json!({ "selector": { "matchLabels": { "shard": "blue" } }, "ring": "op" });
    let former = |kind: &str| json!({ "type": kind, "status": "True", "reason": "Apart", "message": "", "lastTransitionTime": MONDAY });
    let all = ["InForce", "Disjoint", "Covered", "Silent"].map(former);
    let config = config(&with_ring, &json!({ "conditions": all }));
    let mut rings = Rings::default();
    rings.add_config("ns", &config, None);
    rings.add_pod("ns", sharding(&config), "op-0", PodOfRing::Heard, Said::default());
    rings.compare(&mut Comparisons::default(), None);
    let written = due("ns/blue", &config, &pods(&["op-0"], &[]), &rings, MONDAY.parse().unwrap());
    // The API server removes what an apply of ours names no more.
    let types = types(&written.unwrap()["status"]);
    assert_eq!(types, ["HandoverActive", "NoOverlap", "LeasesRenewed", "Ready"]);
}

#[test]
fn i14_configs_are_compared_anew_when_one_wants_something_else() {
    let none = Value::Null;
    let blue = in_ring("blue", MONDAY, &["ant", "bee"], &none);
    let [same, apart] = [["bee"], ["cow"]].map(|names| in_ring("green", TUESDAY, &names, &none));
    let mut comparisons = Comparisons::default();
    let mut says = |green: &ConfigFacts| {
        let mut rings = Rings::default();
        for config in [&blue, green] {
            rings.add_config("ns", config, None);
        }
        rings.compare(&mut comparisons, None);
        rings
            .problems("ns/blue", sharding(&blue))
            .into_iter()
            .map(|lack| lack.reason)
            .collect::<Vec<_>>()
    };
    let (none, overlap): (Vec<&str>, Vec<&str>) = (Vec::new(), vec!["Overlap"]);
    assert_eq!(says(&same), overlap);
    assert_eq!(says(&same), overlap);
    assert_eq!(says(&apart), none);
    assert_eq!(says(&same), overlap);
}

/// The namespaces of a cluster.
fn namespaces(names: &[&str]) -> Arc<NamespaceLabels> {
    let names = names.iter().map(|name| ((*name).to_owned(), LabelSet::default()));
    Arc::new(names.collect())
}

/// The condition of the first config by its type: its status, reason and message.
fn says(kind: &str, configs: &[&ConfigFacts], known: &Arc<NamespaceLabels>) -> Option<[String; 3]> {
    let mut rings = Rings::default();
    for config in configs {
        rings.add_config("ns", config, Some(known));
    }
    rings.compare(&mut Comparisons::default(), Some(known));
    let due = due("ns/blue", configs[0], &SelectedPods::default(), &rings, MONDAY.parse().unwrap());
    let due = due?;
    let all = due["status"]["conditions"].as_array().unwrap();
    let one = all.iter().find(|one| one["type"] == kind)?;
    Some(["status", "reason", "message"].map(|key| one[key].as_str().unwrap().to_owned()))
}

#[test]
fn i15_a_config_says_what_its_ring_leaves_to_nobody() {
    let none = Value::Null;
    let blue = in_ring("blue", MONDAY, &["ant"], &none);
    let green = in_ring("green", TUESDAY, &["bee"], &none);
    let known = namespaces(&["ant", "bee"]);
    let covered = |configs: &[&ConfigFacts], known| says("NoGaps", configs, known).unwrap();
    assert_eq!(covered(&[&blue, &green], &known), ["True", "Proven", ""]);
    assert_eq!(
        covered(&[&blue], &known),
        [
            "False",
            "Gap",
            "no shard of the ring has pods, such as one in namespace bee; give them to one"
        ]
    );
    let more = namespaces(&["ant", "bee", "cat", "cow"]);
    assert_eq!(
        covered(&[&blue, &green], &more)[2],
        "no shard of the ring has pods, such as one in namespace cat (and in other namespaces); give \
         them to one"
    );
    // One alone may mean to leave the rest alone: its condition says so, and no Event.
    let reported = |configs: &[&ConfigFacts]| {
        let mut rings = Rings::default();
        for config in configs {
            rings.add_config("ns", config, Some(&more));
        }
        let counts = rings.compare(&mut Comparisons::default(), Some(&more));
        let problems = rings.problems("ns/blue", sharding(configs[0])).into_iter();
        (counts, problems.map(|lack| lack.reason).collect::<Vec<_>>())
    };
    assert_eq!(reported(&[&blue]), ([0, 1], vec![]));
    assert_eq!(reported(&[&blue, &green]), ([0, 1], vec!["Gap"]));
    assert_eq!(reported(&[&blue, &blue_too()]).0, [2, 1]);
}

/// Another config that wants what the first does.
fn blue_too() -> ConfigFacts {
    in_ring("blue-too", TUESDAY, &["ant"], &Value::Null)
}

#[test]
fn bad_i15_beside_a_config_that_is_invalid_it_is_not_said_what_the_ring_leaves() {
    let blue = in_ring("blue", MONDAY, &["ant"], &Value::Null);
    let known = namespaces(&["ant", "bee"]);
    let mut rings = Rings::default();
    rings.add_config("ns", &blue, Some(&known));
    rings.add_invalid("ns");
    rings.compare(&mut Comparisons::default(), Some(&known));
    let due = due("ns/blue", &blue, &SelectedPods::default(), &rings, MONDAY.parse().unwrap());
    let written = due.unwrap();
    let all = written["status"]["conditions"].as_array().unwrap();
    assert!(all.iter().all(|one| one["type"] != "NoGaps"), "{written}");
}

#[test]
fn i15_what_is_not_proven_is_unknown_and_says_why() {
    let by_labels = |name: &str, born: &str, labels: Value| {
        let mut config = json!({
            "metadata": { "namespace": "ns", "name": name, "uid": name, "creationTimestamp": born },
            "spec": {
                "selector": { "matchLabels": { "shard": name } },
                "ring": "op",
                "limits": [{ "namespaces": {}, "clusterScoped": "Exclude" }],
            },
        });
        config["spec"]["limits"][0]["namespaces"]["selector"] = json!({ "matchLabels": labels });
        ConfigFacts::of(&serde_json::from_value(config).unwrap())
    };
    let gold = by_labels("blue", MONDAY, json!({ "tier": "gold" }));
    let prod = by_labels("green", TUESDAY, json!({ "stage": "prod" }));
    let known = namespaces(&["ant"]);
    let said = says("NoOverlap", &[&gold, &prod], &known).unwrap();
    assert_eq!(
        said,
        [
            "Unknown",
            "NotProven",
            "ShardingConfig green may want some of the same *.*: a namespace that gets other labels \
             may be in both"
        ]
    );
    // Both leave out cluster-scoped objects.
    let covered = says("NoGaps", &[&gold, &prod], &known).unwrap();
    assert_eq!(covered[1], "Gap");
    assert!(covered[2].contains("one in namespace ant (and in no namespace)"), "{covered:?}");
}

#[test]
fn i15_configs_are_compared_anew_when_there_is_another_namespace() {
    let blue = in_ring("blue", MONDAY, &["ant"], &Value::Null);
    let mut comparisons = Comparisons::default();
    let mut uncovered = |known: Option<&Arc<NamespaceLabels>>| {
        let mut rings = Rings::default();
        rings.add_config("ns", &blue, known.map(|known| &**known));
        rings.compare(&mut comparisons, known)[1]
    };
    assert_eq!(uncovered(None), 0);
    assert_eq!(uncovered(Some(&namespaces(&["ant"]))), 0);
    let two = namespaces(&["ant", "bee"]);
    assert_eq!([uncovered(Some(&two)), uncovered(Some(&two))], [1, 1]);
    assert_eq!(uncovered(Some(&namespaces(&["ant"]))), 0);
}

#[test]
fn bad_i15_what_a_ring_leaves_is_not_said_while_the_labels_of_namespaces_are_unknown() {
    let mut config = json!({
        "metadata": { "namespace": "ns", "name": "green", "uid": "green" },
        "spec": {
            "selector": { "matchLabels": { "shard": "green" } },
            "ring": "op",
            "limits": [{
                "namespaces": { "selector": { "matchLabels": { "tier": "gold" } } },
                "clusterScoped": "Include",
            }],
        },
    });
    config["metadata"]["creationTimestamp"] = json!(TUESDAY);
    let by_labels = ConfigFacts::of(&serde_json::from_value(config).unwrap());
    let blue = in_ring("blue", MONDAY, &["ant"], &Value::Null);
    let known = namespaces(&["ant", "bee"]);
    let mut rings = Rings::default();
    rings.add_config("ns", &blue, Some(&known));
    rings.add_config("ns", &by_labels, None);
    rings.compare(&mut Comparisons::default(), Some(&known));
    let due = due("ns/blue", &blue, &SelectedPods::default(), &rings, MONDAY.parse().unwrap());
    let said = due.map(|due| due["status"]["conditions"].to_string()).unwrap_or_default();
    assert!(!said.contains("NoGaps"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// Whatever was compared before.
    #[test]
    fn i15_configs_say_the_same_when_some_of_them_are_compared_anew(
        rounds in prop::collection::vec(
            (prop::collection::vec(prop::collection::btree_set(0..4_usize, 0..3), 3), 1..5_usize),
            2..5,
        ),
    ) {
        const NAMES: [&str; 4] = ["ant", "bee", "cow", "dog"];
        let mut comparisons = Comparisons::default();
        for (wants, known) in rounds {
            let known = namespaces(&NAMES[..known]);
            let configs: Vec<_> = ["blue", "green", "red"]
                .into_iter()
                .zip(&wants)
                .filter(|(_, wants)| !wants.is_empty())
                .map(|(name, wants)| {
                    let names: Vec<&str> = wants.iter().map(|at| NAMES[*at]).collect();
                    in_ring(name, MONDAY, &names, &Value::Null)
                })
                .collect();
            let verdicts = |comparisons: &mut Comparisons| {
                let mut rings = Rings::default();
                configs.iter().for_each(|one| rings.add_config("ns", one, Some(&known)));
                let counts = rings.compare(comparisons, Some(&known));
                let all = configs.iter().map(|one| rings.verdicts("ns", sharding(one)));
                (counts, all.collect::<Vec<_>>())
            };
            let kept = verdicts(&mut comparisons);
            prop_assert_eq!(kept, verdicts(&mut Comparisons::default()));
        }
    }
}
