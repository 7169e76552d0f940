use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    State,
    found::{Found, FoundLease, FoundPod},
    json, print,
    silent::{Versions, silent},
    state::states,
    text,
};
use crate::golden;
use ctrlmesh_api::lease::PodLease;
use ctrlmesh_policy::{
    Draft, Kind, draft,
    ring::{Claim, DesiredScope},
};

const NOW: i64 = 1_800_000_000;

fn before(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW - seconds).unwrap()
}

/// A config whose shard has the pods of these namespaces.
pub(crate) fn config(shard: &str, born: &str, namespaces: &[&str], more: &Value) -> Value {
    let limit = json!({
        "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
        "namespaces": { "names": namespaces },
        "clusterScoped": "Exclude",
    });
    let mut spec = json!({
        "selector": { "matchLabels": { "shard": shard } },
        "ring": "op",
        "limits": [limit],
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({
        "metadata": {
            "namespace": "ns", "name": shard, "uid": format!("uid-{shard}"), "generation": 4,
            "creationTimestamp": born,
        },
        "spec": spec,
    })
}

pub(crate) fn pod(name: &str, shard: &str) -> FoundPod {
    FoundPod {
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        labels: [("shard".to_owned(), shard.to_owned())].into(),
        is_ready: true,
        proxy: Some("ctrlmesh:1".into()),
    }
}

/// The Lease of a pod that claims what this config wants.
pub(crate) fn lease(name: &str, wants: &Value) -> FoundLease {
    let checked = draft(Kind::ShardingConfig, &serde_json::from_value(wants.clone()).unwrap());
    let Draft::Sharding(draft) = checked.unwrap() else { panic!("a root") };
    let wanted = DesiredScope::of(&draft, None).unwrap().unwrap();
    let claim = Claim::of((*wanted.area).clone()).text().unwrap();
    let says = PodLease {
        pod_uid: format!("uid-{name}"),
        holder: name.into(),
        ring: "op".into(),
        shard: Some(wanted.shard.to_string()),
        config_uid: "uid".into(),
        generation: 4,
        claim: Some(claim),
        claimed: Some(before(200)),
        elections: None,
        foreign_writes: None,
        related: None,
        under_way: 0,
        speaks: 1,
        renewed: before(4),
    };
    FoundLease { namespace: "ns".into(), version: "7".into(), says }
}

pub(crate) fn found(configs: &[Value], leases: Vec<FoundLease>, pods: Vec<FoundPod>) -> Found {
    let checked = |config: &Value| {
        draft(Kind::ShardingConfig, &serde_json::from_value(config.clone()).unwrap())
    };
    Found { configs: configs.iter().map(checked).collect(), leases, pods, ..Found::default() }
}

pub(crate) const MONDAY: &str = "2026-11-23T08:00:00Z";
pub(crate) const TUESDAY: &str = "2026-11-24T08:00:00Z";

/// Every state of a pod.
pub(crate) fn everything() -> Found {
    let none = json!({});
    let blue = config("blue", MONDAY, &["ant"], &none);
    let blue_before = config("blue", MONDAY, &["ant", "bee"], &none);
    let green = config("green", TUESDAY, &["bee", "cow"], &none);
    let red = config("red", TUESDAY, &["cow", "dog"], &none);
    let red_left = config("red", TUESDAY, &["dog"], &none);
    let grey = config("grey", TUESDAY, &["eel"], &json!({ "handover": { "mode": "Immediate" } }));
    let gone = config("gone", TUESDAY, &["fox"], &none);
    let mut gives_up = lease("blue-0", &blue_before);
    gives_up.says.under_way = 3;
    let mut torn = lease("torn-0", &blue);
    torn.says.claim = Some("{".into());
    let leases = vec![
        gives_up,
        lease("blue-1", &blue),
        lease("green-0", &green),
        lease("red-0", &red_left),
        lease("gone-0", &gone),
        torn,
    ];
    let pods = vec![
        pod("blue-0", "blue"),
        pod("blue-1", "blue"),
        pod("blue-2", "blue"),
        pod("green-0", "green"),
        pod("red-0", "red"),
        pod("grey-0", "grey"),
        pod("torn-0", "blue"),
    ];
    found(&[blue, green, red, grey], leases, pods)
}

#[test]
fn the_rings_read_as_documented() {
    let rings = states(&everything());
    golden::check("handover.txt", &text(&rings, before(0)));
    golden::check("handover.json", &json(&rings).unwrap());
    assert_eq!(print::json_line(&rings).unwrap().lines().count(), 1);
}

/// The state of each pod, by its name.
fn state_of(found: &Found, pod: &str) -> State {
    let rings = states(found);
    let mut pods = rings.iter().flat_map(|ring| &ring.shards).flat_map(|shard| &shard.pods);
    pods.find(|state| state.pod == pod).unwrap().state
}

#[test]
fn a_pod_waits_until_the_other_has_given_up() {
    let none = json!({});
    let blue = config("blue", MONDAY, &["ant"], &none);
    let blue_before = config("blue", MONDAY, &["ant", "bee"], &none);
    let green = config("green", TUESDAY, &["bee"], &none);
    let pods = vec![pod("blue-0", "blue"), pod("green-0", "green")];
    let at = |blue_has: &Value| {
        let leases = vec![lease("blue-0", blue_has), lease("green-0", &green)];
        found(&[blue.clone(), green.clone()], leases, pods.clone())
    };
    let moves = at(&blue_before);
    assert_eq!(state_of(&moves, "blue-0"), State::GivesUp);
    assert_eq!(state_of(&moves, "green-0"), State::Waits);
    let done = at(&blue);
    assert_eq!(state_of(&done, "blue-0"), State::Settled);
    assert_eq!(state_of(&done, "green-0"), State::Settled);
    // The pod of another namespace has nothing to do with it.
    let mut far = at(&blue);
    let mut other = lease("far-0", &green);
    other.namespace = "far".into();
    far.leases.push(other);
    assert_eq!(state_of(&far, "green-0"), State::Settled);
}

#[test]
fn bad_config_that_is_deleted_or_cannot_be_used_stays_in_force() {
    let blue = config("blue", MONDAY, &["ant"], &json!({}));
    let mut bad = blue.clone();
    bad["spec"]["selector"] = json!({ "matchLabel": {} });
    for (configs, why) in [(vec![], "is deleted"), (vec![bad], "cannot be used")] {
        let found = found(&configs, vec![lease("blue-0", &blue)], vec![pod("blue-0", "blue")]);
        let rings = states(&found);
        let state = &rings[0].shards[0].pods[0];
        assert_eq!(state.state, State::LastGood);
        let says = "uses its last config, which stays in force: ShardingConfig blue";
        assert_eq!(state.says, format!("{says} {why}"));
    }
}

#[test]
fn a_ring_is_found_by_a_name_that_only_one_has() {
    let blue = config("blue", MONDAY, &["ant"], &json!({}));
    let there = |namespaces: &[&str]| {
        let leases = namespaces.iter().map(|namespace| {
            let mut lease = lease("blue-0", &blue);
            (*namespace).clone_into(&mut lease.namespace);
            lease
        });
        states(&found(&[], leases.collect(), vec![]))
    };
    let one = super::only(there(&["far"]), "op").unwrap().unwrap();
    assert_eq!((&*one.namespace, &*one.ring), ("far", "op"));
    assert!(super::only(there(&["far"]), "other").unwrap().is_none());
    let said = super::only(there(&["far", "ns"]), "op").unwrap_err().to_string();
    assert_eq!(said, "several namespaces have a ring of this name: give one of far/op, ns/op");
}

#[test]
fn a_pod_is_silent_if_it_is_waited_for_and_its_lease_stays_as_it_is() {
    let at = everything();
    let rings = states(&at);
    let versions = Versions::of(&at);
    let mut renewed = everything();
    renewed.leases[0].version = "8".into();
    let is_silent = |earlier: &Versions, now: &Versions| {
        silent(&rings, earlier, now).iter().map(|pod| pod.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(is_silent(&versions, &versions), ["blue-0", "torn-0"]);
    assert_eq!(is_silent(&versions, &Versions::of(&renewed)), ["torn-0"]);
    // One that came, or went, meanwhile.
    let none = Versions::of(&found(&[], Vec::new(), Vec::new()));
    assert_eq!(is_silent(&none, &versions), [""; 0]);
    assert_eq!(is_silent(&versions, &none), [""; 0]);
}
