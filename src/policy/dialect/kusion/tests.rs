use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::{
    CertFiles, GroupResource, Kind, NamespaceLabels, ObjectFacts, Policy, Webhook,
    dialect::draft::Draft,
};
use ctrlmesh_api::{OwnerDown, Route, Unowned};
use ctrlmesh_wire::{
    object::Object,
    selector::{Op, Requirement},
};

fn compiled(yaml: &str) -> Result<ShardingDraft, Invalid> {
    let kind = Kind::ShardingConfig;
    let (namespace, name) = ("ns".into(), "blue".into());
    let object = ObjectRef { kind, namespace, name, uid: None, generation: None };
    match sharding(object, None, &serde_yaml::from_str(yaml).unwrap())? {
        Draft::Sharding(draft) => Ok(draft),
        Draft::Root(draft) => panic!("{draft:?}"),
    }
}

fn problems(yaml: &str) -> Vec<String> {
    let invalid = compiled(yaml).unwrap_err();
    assert!(invalid.to_string().starts_with("ShardingConfig ns/blue: spec"), "{invalid}");
    invalid.problems.iter().map(ToString::to_string).collect()
}

const PODS: &str = "selector: {matchLabels: {app: op}}\n";

#[test]
fn every_problem_is_told_at_once_with_its_field() {
    let yaml = "
selector: {matchLabels: {}}
controller: {leaderElectionName: My Lock}
limits:
- relateResources: [{apiGroups: [Apps], resources: [Pods]}, {apiGroups: [], resources: []}]
  selector:
    matchLabels: {'a b': c}
    matchExpressions: [{key: a, operator: In, values: []}]
";
    let problems = problems(yaml);
    let fields = [
        "spec.controller.leaderElectionName: \"My Lock\"",
        "spec.selector: is empty",
        "spec.limits[0].selector.matchLabels[\"a b\"]",
        "spec.limits[0].selector.matchExpressions[0]",
        "spec.limits[0].relateResources[0]: apiGroups: \"Apps\"",
        "spec.limits[0].relateResources[1].apiGroups",
        "spec.limits[0].relateResources[1].resources",
    ];
    assert_eq!(problems.len(), fields.len(), "{problems:#?}");
    for field in fields {
        assert!(problems.iter().any(|p| p.starts_with(field)), "{field}: {problems:#?}");
    }
}

#[test]
fn the_webhook_is_checked_and_has_no_effect_on_what_the_shard_sees() {
    let limits = "limits:\n- relateResources: [{apiGroups: [''], resources: [pods]}]\n";
    let hash = |yaml: &str| *compiled(yaml).unwrap().resolve(None).unwrap().sharding.hash();
    let plain = format!("{PODS}{limits}  selector: {{matchLabels: {{a: b}}}}\n");
    let with_webhook = format!("{plain}webhook: {{certDir: /certs, port: 9443}}\n");
    assert_eq!(hash(&plain), hash(&with_webhook));
    assert_eq!(compiled(&plain).unwrap().webhook, None);
}

fn webhook(fields: &str) -> Webhook {
    let yaml = format!("{PODS}webhook: {{certDir: /certs, port: 9443{fields}}}");
    compiled(&yaml).unwrap().webhook.unwrap()
}

#[test]
fn i13_fields_of_the_webhook_that_are_absent_have_their_defaults() {
    let plain = webhook("");
    assert_eq!((&*plain.cert_dir, plain.port.get()), ("/certs", 9443));
    assert_eq!((&plain.cert_secret, &plain.files), (&None, &None));
    let answers = |it: &Webhook| (it.route, it.unowned, it.owner_down);
    assert_eq!(answers(&plain), (Route::Owner, Unowned::Any, OwnerDown::Fail));
    let all = webhook(
        ", certSecret: webhook-cert, certName: ca.pem, keyName: key_1.pem, route: Any, \
         unowned: Deny, ownerDown: Any",
    );
    assert_eq!(all.cert_secret.as_deref(), Some("webhook-cert"));
    assert_eq!(all.files, Some(CertFiles { cert: "ca.pem".into(), key: "key_1.pem".into() }));
    assert_eq!(answers(&all), (Route::Any, Unowned::Deny, OwnerDown::Any));
    assert_eq!(webhook(", unowned: Allow").unowned, Unowned::Allow);
}

#[test]
fn the_ring_of_a_config_is_its_own_or_named_as_its_lock() {
    let ring = |more: &str| compiled(&format!("{PODS}{more}")).unwrap().ring;
    assert_eq!(ring(""), None);
    assert_eq!(ring("controller: {leaderElectionName: op}"), Some("op".into()));
    assert_eq!(ring("controller: {locks: [{name: 'op-*'}, {name: other}]}"), Some("op".into()));
    let both = "controller: {leaderElectionName: op}\nring: other.ring";
    assert_eq!(ring(both), Some("other.ring".into()));
}

#[test]
fn bad_i14_ring_says_what_would_be_right() {
    let long = "a".repeat(254);
    for name in ["", "My Ring", "-a", "a_b", &long] {
        let problems = problems(&format!("{PODS}ring: {name:?}\n"));
        let says = format!("spec.ring: {name:?} is not the name of a ring: give at most 253 of");
        assert!(matches!(&problems[..], [one] if one.starts_with(&says)), "{problems:?}");
    }
}

#[test]
fn bad_i13_fields_of_the_webhook_say_what_would_be_right() {
    let told = |fields: &str| problems(&format!("{PODS}webhook: {{{fields}}}")).join("; ");
    for (fields, says) in [
        ("certDir: certs, port: 9443", "spec.webhook.certDir: \"certs\" is no directory: give its"),
        ("certDir: /a/../b, port: 9443", "spec.webhook.certDir: \"/a/../b\" is no directory: give"),
        ("certDir: '', port: 9443", "spec.webhook.certDir: \"\" is no directory: give"),
        ("certDir: /a, port: 0", "spec.webhook.port: 0 is no port: give the one on which"),
        ("certDir: /a, port: 5441", "spec.webhook.port: 5441 is a port of the proxy: let the"),
        ("certDir: /a, port: 5447", "spec.webhook.port: 5447 is a port of the proxy: let the"),
        (
            "certDir: /a, port: 1, certSecret: A_b",
            "spec.webhook.certSecret: \"A_b\" is not the name",
        ),
        ("certDir: /a, port: 1, certName: a/b, keyName: k", "spec.webhook.certName: \"a/b\" is no"),
        ("certDir: /a, port: 1, certName: c, keyName: ..k", "spec.webhook.keyName: \"..k\" is no"),
        ("certDir: /a, port: 1, certName: a", "spec.webhook.keyName: is missing: certName and"),
        ("certDir: /a, port: 1, keyName: a", "spec.webhook.certName: is missing: certName and"),
        ("certDir: /a, port: 70000", "spec: invalid value: integer `70000`, expected u16"),
        (
            "certDir: /a, port: 1, route: All",
            "spec: unknown variant `All`, expected `Owner` or `Any`",
        ),
        ("certDir: /a, port: 1, unowned: No", "spec: unknown variant `No`, expected one of `Any`"),
        (
            "certDir: /a, port: 1, ownerDown: x",
            "spec: unknown variant `x`, expected `Fail` or `Any`",
        ),
        ("certDir: /a, port: 1, tls: x", "spec: unknown field `tls`, expected one of `certDir`"),
    ] {
        let problem = told(fields);
        assert!(problem.starts_with(says), "{fields}: {problem}");
    }
    for port in [1, 5440, 5448, 65535] {
        compiled(&format!("{PODS}webhook: {{certDir: /a, port: {port}}}")).unwrap();
    }
    let many = told("certDir: a, port: 5443, certSecret: A, certName: /");
    assert_eq!(many.matches("spec.webhook.").count(), 5, "all at once: {many}");
}

#[test]
fn bad_locks_say_which_and_why() {
    for (controller, expected) in [
        ("{}", "spec.controller: has no lock: give leaderElectionName, or locks"),
        ("{leaderElectionName: 'op*'}", "spec.controller.leaderElectionName: \"op*\" is not an"),
        (
            "{locks: [{name: op}, {name: A}]}",
            "spec.controller.locks[1]: \"A\" is not an object name",
        ),
        ("{locks: [{name: '*'}]}", "spec.controller.locks[0]: \"*\" selects every object"),
        (
            "{locks: [{name: op, namespace: a.b}]}",
            "spec.controller.locks[0]: \"a.b\" is not the name",
        ),
        (
            "{leaderElectionName: op, locks: [{name: op}]}",
            "spec.controller.locks: ns/op and ns/op may give one object, \"op---blue\"",
        ),
        (
            "{locks: [{name: 'op*'}, {name: op-a, namespace: kube-system}]}",
            "spec.controller.locks: ns/op* and kube-system/op-a may give one object",
        ),
    ] {
        let problems = problems(&format!("{PODS}\ncontroller: {controller}\n"));
        assert_eq!(problems.len(), 1, "{controller} {problems:#?}");
        assert!(problems[0].starts_with(expected), "{controller} {problems:#?}");
    }
}

#[test]
fn a_resource_in_two_limits_is_a_conflict() {
    let yaml = format!(
        "{PODS}
limits:
- relateResources: [{{apiGroups: [''], resources: [pods, secrets]}}]
- relateResources: [{{apiGroups: ['*'], resources: [secrets]}}]
"
    );
    let problems = problems(&yaml);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert!(problems[0].contains("secrets.*") && problems[0].contains("limits[0]"), "{problems:?}");
}

#[test]
fn events_of_both_groups_belong_in_one_limit() {
    let limit = |groups: &str| {
        format!("- relateResources: [{{apiGroups: [{groups}], resources: [events]}}]\n")
    };
    let (core, other) = (limit("''"), limit("events.k8s.io"));
    let problems = problems(&format!("{PODS}\nlimits:\n{core}{other}"));
    assert_eq!(problems.len(), 1, "{problems:#?}");
    let says = "events is limited already by spec.limits[0].relateResources[0] as events: name \
                a resource in one limit only, and the events of events.k8s.io are those of the \
                core group";
    assert!(problems[0].contains("limits[1]") && problems[0].contains(says), "{problems:?}");

    let both = format!("{PODS}\nlimits:\n{}", limit("'', events.k8s.io"));
    let policy = compiled(&both).unwrap().resolve(None).unwrap();
    assert_eq!(policy.sharding.rules().count(), 1);
}

#[test]
fn an_unknown_operator_or_field_is_refused_by_name() {
    for (yaml, wrong) in [
        ("selector: {matchExpressions: [{key: a, operator: Inn}]}", "Inn"),
        ("selector: {matchLabel: {a: b}}", "matchLabel"),
        ("selector: {}\nlimit: []", "limit"),
        ("selector: {}\nlimits: [{relatedResources: []}]", "relatedResources"),
    ] {
        let error = serde_yaml::from_str::<ShardingConfigSpec>(yaml).unwrap_err();
        assert!(error.to_string().contains(wrong), "{error}");
    }
}

#[test]
fn the_hash_tells_what_a_policy_does_and_not_how_it_is_written() {
    let policy = |yaml: &str| compiled(yaml).unwrap().resolve(None).unwrap();
    let one = policy(
        "selector: {matchLabels: {app: op}}
limits:
- relateResources: [{apiGroups: [''], resources: [pods, secrets]}]
  selector: {matchLabels: {a: '1', b: '2'}}",
    );
    let same = policy(
        "selector: {matchLabels: {app: other}}
limits:
- relateResources: [{apiGroups: [''], resources: [secrets]}, {apiGroups: [''], resources: [pods]}]
  selector: {matchExpressions: [{key: b, operator: In, values: ['2']}], matchLabels: {a: '1'}}",
    );
    assert_eq!(one.sharding.hash(), same.sharding.hash());
    let other = policy(
        "selector: {matchLabels: {app: op}}
limits:
- relateResources: [{apiGroups: [''], resources: [pods]}]
  selector: {matchLabels: {a: '1', b: '2'}}",
    );
    assert_ne!(one.sharding.hash(), other.sharding.hash());
}

#[test]
fn boundaries_that_cannot_be_used_say_which_field_and_why() {
    let yaml = format!(
        "{PODS}
limits:
- relateResources: [{{apiGroups: [''], resources: [pods]}}]
  namespaces: {{names: [Team, a.b, ok], pattern: 'a('}}
- relateResources: [{{apiGroups: [''], resources: [secrets]}}]
  namespaces: {{}}
  clusterScoped: Include
- relateResources: [{{apiGroups: [''], resources: [nodes]}}]
  hash: {{of: namespace, ranges: [{{from: '0x0', to: ''}}]}}
- relateResources: [{{apiGroups: [''], resources: [services]}}]
  hash: {{of: uid, ranges: [{{from: '0x0000000000000000', to: ''}}, {{from: '0x8000000000000000', to: ''}}]}}
- relateResources: [{{apiGroups: [''], resources: [events]}}]
  hash: {{of: uid, function: Fnv1aMixed, ranges: []}}
"
    );
    let problems = problems(&yaml);
    let fields = [
        "spec.limits[0].clusterScoped: is missing",
        "spec.limits[0].namespaces.names[0]: \"Team\"",
        "spec.limits[0].namespaces.names[1]: \"a.b\"",
        "spec.limits[0].namespaces.pattern: \"a(\"",
        "spec.limits[1].namespaces: is empty",
        "spec.limits[2].clusterScoped: is missing",
        "spec.limits[2].hash.ranges[0]: \"0x0\" is not a hash",
        "spec.limits[3].hash.ranges: [0x8000000000000000, end) overlaps",
        "spec.limits[4].hash.function: Fnv1aMixed is for namespaces",
    ];
    assert_eq!(problems.len(), fields.len(), "{problems:#?}");
    for field in fields {
        assert!(problems.iter().any(|p| p.starts_with(field)), "{field}: {problems:#?}");
    }
}

#[test]
fn a_boundary_is_part_of_what_the_policy_does() {
    let hash = |limit: &str| {
        let yaml = format!("{PODS}\nlimits: [{limit}]");
        *compiled(&yaml).unwrap().resolve(None).unwrap().sharding.hash()
    };
    let all = [
        "{}",
        "{clusterScoped: Exclude}",
        "{namespaces: {names: [a]}, clusterScoped: Include}",
        "{namespaces: {names: [a]}, clusterScoped: Exclude}",
        "{namespaces: {names: [a, b]}, clusterScoped: Exclude}",
        "{namespaces: {pattern: a}, clusterScoped: Exclude}",
        "{hash: {of: uid, ranges: [{from: '0x0000000000000000', to: ''}]}}",
        "{hash: {of: uid, ranges: [{from: '0x0000000000000001', to: ''}]}}",
        "{hash: {of: namespace, ranges: [{from: '0x0000000000000001', to: ''}]}, clusterScoped: Include}",
        "{hash: {of: namespace, function: Fnv1aMixed, ranges: [{from: '0x0000000000000001', to: ''}]}, clusterScoped: Include}",
        "{selector: {matchLabels: {ctrlmesh.kusionstack.io/shard-hash: '7'}}}",
        "{selector: {matchLabels: {ctrlmesh.kusionstack.io/shard-hash: '7'}}, clusterScoped: Include}",
    ];
    let hashes: BTreeSet<_> = all.iter().map(|limit| hash(limit)).collect();
    assert_eq!(hashes.len(), all.len());
    assert_eq!(
        hash("{namespaces: {names: [b, a]}, clusterScoped: Exclude}"),
        hash("{namespaces: {names: [a, b]}, clusterScoped: Exclude}")
    );
}

#[test]
fn i15_no_range_is_nothing_and_a_word_about_cluster_scoped_objects_counts() {
    let owns = |limit: &str| {
        let yaml = format!("{PODS}\nlimits: [{limit}]");
        let policy = compiled(&yaml).unwrap().resolve(None).unwrap();
        let scope = policy.sharding.scope(&GroupResource::new("", "pods")).unwrap();
        let owns = |namespace| scope.owns(&ObjectFacts::of(&object(namespace, "x"), false));
        ["a", "b", ""].map(|namespace| owns(namespace).unwrap())
    };
    let bucket = "selector: {matchLabels: {kridge.kusionstack.io/shard-hash: '1'}}";
    let not = "selector: {matchExpressions: [{key: ctrlmesh.kusionstack.io/namespace, operator: NotIn, values: [a]}]}";
    for (limit, expected) in [
        ("{hash: {of: uid, ranges: []}}", [false, false, false]),
        ("{hash: {of: uid, ranges: []}, clusterScoped: Include}", [false, false, false]),
        ("{hash: {of: namespace, ranges: []}, clusterScoped: Exclude}", [false, false, false]),
        ("{hash: {of: namespace, ranges: []}, clusterScoped: Include}", [false, false, true]),
        (&format!("{{{bucket}}}"), [true, false, false]),
        (&format!("{{{bucket}, clusterScoped: Include}}"), [true, false, true]),
        (&format!("{{{not}}}"), [false, true, true]),
        (&format!("{{{not}, clusterScoped: Exclude}}"), [false, true, false]),
    ] {
        assert_eq!(owns(limit), expected, "{limit}");
    }
}

fn known(all: &[(&str, &[(&str, &str)])]) -> NamespaceLabels {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    all.iter().map(|(name, labels)| ((*name).into(), labels.iter().map(owned).collect())).collect()
}

/// A draft that limits Pods by `limit`.
fn draft(limit: &str) -> ShardingDraft {
    let resources = "relateResources: [{apiGroups: [''], resources: [pods]}]";
    let yaml = format!("{PODS}\nlimits: [{{{resources}, {limit}, clusterScoped: Exclude}}]");
    compiled(&yaml).unwrap()
}

fn object<'a>(namespace: &'a str, name: &'a str) -> Object<'a> {
    Object { namespace, name, uid: "u", ..Object::default() }
}

/// The namespaces whose objects the policy's boundary keeps.
fn kept<'a>(policy: &Policy, namespaces: &[&'a str]) -> Vec<&'a str> {
    let scope = policy.sharding.scope(&GroupResource::new("", "pods")).unwrap();
    let [boundary] = scope.boundaries() else { panic!("{scope}") };
    let is_kept = |name: &&str| {
        let is_kept = boundary.has(&ObjectFacts::of(&object(name, "x"), false));
        // A Namespace is judged as the namespace that it names.
        assert_eq!(boundary.has(&ObjectFacts::of(&object("", name), true)), is_kept, "{name}");
        assert_eq!(boundary.has(&ObjectFacts::common_in(name)), is_kept, "{name}");
        is_kept.unwrap()
    };
    namespaces.iter().copied().filter(is_kept).collect()
}

const GOLD: &str = "namespaces: {selector: {matchLabels: {tier: gold}}}";
const ALL: [&str; 4] = ["one", "two", "three", "unknown"];

#[test]
fn namespaces_are_selected_by_their_labels() {
    let known = known(&[
        ("one", &[("tier", "gold")]),
        ("two", &[("tier", "tin")]),
        ("three", &[("tier", "gold"), ("x", "y")]),
    ]);
    let kept = |limit: &str| kept(&draft(limit).resolve(Some(&known)).unwrap(), &ALL);
    assert_eq!(kept(GOLD), ["one", "three"]);
    let not_gold = "{matchExpressions: [{key: tier, operator: NotIn, values: [gold]}]}";
    assert_eq!(kept(&format!("namespaces: {{selector: {not_gold}}}")), ["two"], "not the unknown");
    let and_names = GOLD.replace("{selector", "{names: [two, three], selector");
    assert_eq!(kept(&and_names), ["three"], "all that is given must hold");
    assert_eq!(kept(&GOLD.replace("{selector", "{pattern: o, selector")), ["one"]);
    assert_eq!(kept("namespaces: {selector: {}}"), ["one", "two", "three"]);
}

#[test]
fn labels_that_are_not_known_make_no_policy() {
    let unknown = draft(GOLD).resolve(None).unwrap_err();
    assert_eq!(unknown.field, "spec.limits[0].namespaces.selector");
    assert!(draft("namespaces: {names: [a]}").resolve(None).is_ok());
    assert_eq!(kept(&draft(GOLD).resolve(Some(&NamespaceLabels::new())).unwrap(), &ALL), [""; 0]);
}

#[test]
fn a_relabelled_namespace_makes_another_policy_where_it_matters() {
    let draft = draft(GOLD);
    let policy = |known: &NamespaceLabels| draft.resolve(Some(known)).unwrap();
    let before = known(&[("one", &[("tier", "gold")]), ("two", &[])]);
    for same in [
        known(&[("one", &[("tier", "gold"), ("x", "y")]), ("two", &[])]),
        known(&[("one", &[("tier", "gold")])]),
        known(&[("one", &[("tier", "gold")]), ("two", &[("tier", "tin")]), ("new", &[])]),
    ] {
        assert_eq!(policy(&before), policy(&same));
        assert_eq!(policy(&before).sharding.hash(), policy(&same).sharding.hash());
    }
    let mut hashes = BTreeSet::from([*policy(&before).sharding.hash()]);
    let pods = GroupResource::new("", "pods");
    for other in [
        known(&[("one", &[("tier", "tin")]), ("two", &[])]),
        known(&[("one", &[("tier", "gold")]), ("two", &[("tier", "gold")])]),
        known(&[("two", &[("tier", "gold")])]),
    ] {
        assert!(hashes.insert(*policy(&other).sharding.hash()), "{other:?}");
        assert_ne!(policy(&before).sharding.scope(&pods), policy(&other).sharding.scope(&pods));
    }
}

#[test]
fn a_selector_that_cannot_be_used_says_which_field_and_why() {
    let problems = problems(&format!(
        "{PODS}
limits:
- relateResources: [{{apiGroups: [''], resources: [pods]}}]
  namespaces: {{selector: {{matchLabels: {{'a b': c}}}}}}
"
    ));
    let fields = [
        "spec.limits[0].clusterScoped: is missing",
        "spec.limits[0].namespaces.selector.matchLabels[\"a b\"]",
    ];
    assert_eq!(problems.len(), fields.len(), "{problems:#?}");
    for field in fields {
        assert!(problems.iter().any(|p| p.starts_with(field)), "{field}: {problems:#?}");
    }
}

proptest! {
    #[test]
    fn membership_by_set_is_membership_by_labels(
        labels in prop::collection::btree_map(
            "[a-d]{1,2}",
            prop::collection::btree_map("[xyz]", "[01]", 0..3),
            0..8,
        ),
        selector in prop::collection::vec(
            ("[xyz]", 0..4_usize, prop::collection::vec("[01]", 1..3)),
            0..3,
        ),
        asked in "[a-d]{1,2}",
    ) {
        let requirements = selector.iter().map(|(key, op, values)| {
            let op = [Op::In, Op::NotIn, Op::Exists, Op::DoesNotExist][*op];
            let values = if matches!(op, Op::In | Op::NotIn) { &values[..] } else { &[] };
            Requirement::new(key, op, values).unwrap()
        });
        let by_labels: Selector = requirements.clone().collect();
        let expressions: Vec<_> = selector.iter().map(|(key, op, values)| {
            let operator = ["In", "NotIn", "Exists", "DoesNotExist"][*op];
            let values = if *op < 2 { values.join("','") } else { String::new() };
            let values = if values.is_empty() { values } else { format!("'{values}'") };
            format!("{{key: {key}, operator: {operator}, values: [{values}]}}")
        }).collect();
        let draft = draft(&format!(
            "namespaces: {{selector: {{matchExpressions: [{}]}}}}",
            expressions.join(", ")
        ));
        let known = labels.iter().map(|(name, labels)| (name.clone(), labels.clone().into()));
        let policy = draft.resolve(Some(&known.collect())).unwrap();
        let by_set = !kept(&policy, &[&asked]).is_empty();
        let of_asked: Option<&BTreeMap<_, _>> = labels.get(&asked);
        let is_selected = of_asked.is_some_and(|labels| {
            by_labels.matches(|key| labels.get(key).map(String::as_str))
        });
        prop_assert_eq!(by_set, is_selected);
    }
}

/// Clusters create and delete namespaces by the thousand.
#[test]
fn two_thousand_namespaces_and_selectors_are_resolved_once_each() {
    let names: Vec<String> = (0..2000).map(|at| format!("tenant-{at}")).collect();
    let tiers = ["gold", "tin"].map(|tier| BTreeMap::from([("tier".to_owned(), tier.to_owned())]));
    let known = names.iter().zip(tiers.iter().cycle()).map(|(n, l)| (n.clone(), l.clone().into()));
    let known: NamespaceLabels = known.collect();
    let limits: String = (0..200)
        .map(|at| {
            format!(
                "- relateResources: [{{apiGroups: [g{at}], resources: [r{at}]}}]\n  {GOLD}\n  \
                 clusterScoped: Exclude\n"
            )
        })
        .collect();
    let draft = compiled(&format!("{PODS}limits:\n{limits}")).unwrap();
    let policy = draft.resolve(Some(&known)).unwrap();
    let mut sets = policy.sharding.rules().map(|(_, scope)| {
        scope.boundaries()[0].selected.as_ref().map(|selected| selected.names()).unwrap()
    });
    let first = sets.next().unwrap();
    assert_eq!(first.len(), 1000);
    assert!(sets.all(|set| std::ptr::eq(set, first)), "one set for all rules");
}
