use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::{
    Boundary, GroupResource, HashOf, HashRange, HashRule, Pattern, Scope, Selected, Shared,
    SharedNamespaces, sharding::any_computed,
};
use ctrlmesh_api as api;
use ctrlmesh_wire::selector::{Op, Requirement};

type Labels = BTreeMap<&'static str, &'static str>;

const NAMES: [&str; 4] = ["", "ant", "bee", "cat"];

fn requirement() -> impl Strategy<Value = Requirement> {
    let keys = prop_oneof![Just("k"), Just("l")];
    let ops = prop_oneof![Just(Op::In), Just(Op::NotIn), Just(Op::Exists), Just(Op::DoesNotExist)];
    let values = prop::sample::subsequence(vec!["1", "2", "3"], 1..3);
    (keys, ops, values).prop_map(|(key, op, values)| {
        let values = if matches!(op, Op::In | Op::NotIn) { values } else { Vec::new() };
        Requirement::new(key, op, values).unwrap()
    })
}

fn hash_rule() -> impl Strategy<Value = HashRule> {
    let of = prop_oneof![Just(HashOf::Uid), Just(HashOf::Namespace)];
    let cuts = prop::collection::btree_set(0u64..16, 1..5);
    (of, prop::bool::weighted(0.2), cuts).prop_map(|(of, is_mixed, cuts)| {
        let text = |cut: u64| format!("{:#018x}", cut << 60);
        let cuts: Vec<_> = cuts.into_iter().collect();
        let range = |pair: &[u64]| {
            let to = pair.get(1).map_or(String::new(), |to| text(*to));
            HashRange::new(&text(pair[0]), &to).unwrap()
        };
        let ranges = cuts.chunks(2).map(range).collect();
        let rule = if is_mixed { HashRule::mixed(ranges) } else { HashRule::new(of, ranges) };
        rule.unwrap()
    })
}

fn boundary() -> impl Strategy<Value = Boundary> {
    let names = prop::sample::subsequence(vec!["ant", "bee", "cat"], 0..3);
    let pattern = prop::option::weighted(0.2, Just(Pattern::new("[ab]").unwrap()));
    let selected = prop::sample::subsequence(vec!["ant", "bee", "cat"], 0..3);
    let selected = prop::option::weighted(0.3, selected);
    let (hash, computed) =
        (prop::option::of(hash_rule()), prop::option::weighted(0.3, any_computed()));
    (names, pattern, selected, computed, hash, any::<bool>()).prop_map(
        |(names, pattern, selected, computed, hash, has_cluster_scoped)| {
            let boundary = Boundary {
                names: (!names.is_empty()).then(|| names.into_iter().map(Into::into).collect()),
                pattern,
                selected: selected.map(|names| Selected::of(&names)),
                computed: None,
                hash,
                has_cluster_scoped,
            };
            boundary.restricted(computed)
        },
    )
}

/// Any namespaces that may be shared, or none.
fn shared() -> impl Strategy<Value = SharedNamespaces> {
    let names = prop::sample::subsequence(vec!["", "ant", "bee", "*"], 1..3);
    prop::collection::vec(names, 0..2).prop_map(|entries| {
        let entries = entries.iter().map(|names| shared_in(names)).collect::<Vec<_>>();
        Shared::new(&entries).unwrap().namespaces(&GroupResource::new("", "pods"))
    })
}

fn shared_in(names: &[&str]) -> api::Shared {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let any = || vec!["*".to_owned()];
    api::Shared { api_groups: any(), resources: any(), namespaces: names, write: None }
}

/// Any narrow that a policy may make about a collection.
fn restriction(are_namespaces: bool) -> impl Strategy<Value = Restriction> {
    let requirements = prop::collection::vec(requirement(), 0..3);
    let boundaries = prop::collection::vec(boundary(), 0..3);
    let given = (requirements, boundaries, prop::bool::weighted(0.1), shared());
    prop::option::weighted(0.9, given).prop_map(move |given| {
        let Some((requirements, boundaries, is_nothing, shared)) = given else {
            return Restriction::default();
        };
        let scope = Scope::new(requirements.into_iter().collect());
        let scope = boundaries.into_iter().fold(scope, Scope::inside);
        let scope = Arc::new(if is_nothing { Scope::nothing() } else { scope });
        let of = if are_namespaces { "namespaces" } else { "pods" };
        let filter = Filter::of(&scope, &GroupResource::new("", of), None, shared);
        Restriction { scope: Some(scope), filter, ..Restriction::default() }
    })
}

fn shows(restriction: &Restriction, labels: &Labels, object: &Object<'_>) -> bool {
    selector(restriction).matches(|key| labels.get(key).copied())
        && restriction.filter.judge(object) == Verdict::Keep
}

fn labels() -> impl Strategy<Value = Labels> {
    let value = || prop::option::of(prop_oneof![Just("1"), Just("2"), Just("3")]);
    (value(), value()).prop_map(|(k, l)| {
        [("k", k), ("l", l)].into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    })
}

fn check(
    before: &Restriction,
    after: &Restriction,
    are_namespaces: bool,
    labels: &Labels,
    seed: u8,
) {
    let parts = difference(before, after, false).expect("it can be said");
    for (at, name) in NAMES.iter().enumerate() {
        let uid = format!("uid-{seed}-{at}");
        let (namespace, name) = if are_namespaces { ("", *name) } else { (*name, "x") };
        let object = Object { namespace, name, uid: &uid, ..Object::default() };
        let found: Vec<_> = parts
            .iter()
            .filter(|part| part.selector.matches(|key| labels.get(key).copied()))
            .filter(|part| part.namespace.as_deref().is_none_or(|name| name == namespace))
            .filter(|part| {
                part.hashes.as_ref().is_none_or(|hashes| hashes.has(object.uid, object.namespace))
            })
            .map(|part| part.judge(&object))
            .filter(|handed| *handed != Handed::Not)
            .collect();
        let expected = match (shows(before, labels, &object), shows(after, labels, &object)) {
            (true, false) => vec![Handed::Over],
            (false, true) => vec![Handed::In],
            _ => vec![],
        };
        assert_eq!(found, expected, "{object:?} {labels:?}\n{before:?}\n{after:?}\n{parts:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn just_what_changes_hands_is_found_and_once(
        before in restriction(false),
        after in restriction(false),
        labels in labels(),
        seed in any::<u8>(),
    ) {
        check(&before, &after, false, &labels, seed);
    }

    #[test]
    fn namespaces_change_hands_as_what_they_name(
        before in restriction(true),
        after in restriction(true),
        labels in labels(),
        seed in any::<u8>(),
    ) {
        check(&before, &after, true, &labels, seed);
    }

    #[test]
    fn t48_t52_the_hashes_that_are_pushed_down_miss_nothing(
        restriction in restriction(false),
        seed in any::<u8>(),
    ) {
        for (at, namespace) in NAMES.into_iter().enumerate() {
            let uid = format!("uid-{seed}-{at}");
            let object = Object { namespace, name: "x", uid: &uid, ..Object::default() };
            let is_kept = restriction.filter.judge(&object) == Verdict::Keep;
            if let Some(hashes) = restriction.filter.hashes() {
                prop_assert!(!is_kept || hashes.has(object.uid, object.namespace));
            }
            if let Some(only) = restriction.filter.only_namespace() {
                prop_assert!(!is_kept || only == namespace);
            }
        }
    }
}

fn of(selector: &str, boundary: Option<Boundary>) -> Restriction {
    let scope = Scope::new(selector.parse().unwrap());
    let scope = Arc::new(boundary.into_iter().fold(scope, Scope::inside));
    let filter = match scope.boundaries() {
        [] => Filter::KeepAll,
        _ => Filter::of(&scope, &GroupResource::new("", "pods"), None, SharedNamespaces::default()),
    };
    Restriction { scope: Some(scope), filter, ..Restriction::default() }
}

fn named(names: &[&str]) -> Option<Boundary> {
    let names = Some(names.iter().map(|name| (*name).into()).collect());
    Some(Boundary {
        names,
        pattern: None,
        selected: None,
        computed: None,
        hash: None,
        has_cluster_scoped: false,
    })
}

fn hashed(from: &str, to: &str) -> Option<Boundary> {
    let rule = HashRule::new(HashOf::Uid, vec![HashRange::new(from, to).unwrap()]).unwrap();
    Some(Boundary {
        names: None,
        pattern: None,
        selected: None,
        computed: None,
        hash: Some(rule),
        has_cluster_scoped: true,
    })
}

fn said(before: &Restriction, after: &Restriction) -> Vec<String> {
    let text = |part: &Part| {
        let namespace = part.namespace.as_deref().unwrap_or("*");
        let hashes = part.hashes.as_ref().map_or_else(|| "*".to_owned(), ToString::to_string);
        format!("{} | {namespace} | {hashes}", part.selector)
    };
    difference(before, after, false).unwrap().iter().map(text).collect()
}

#[test]
fn no_more_is_listed_than_changes_hands() {
    let labels = said(&of("team=a,tier", None), &of("team in (a,b),tier", None));
    assert_eq!(
        labels,
        ["team=a,team notin (a,b),tier | * | *", "team in (a,b),team!=a,tier | * | *"]
    );
    let names = said(&of("", named(&["a", "b", "c"])), &of("", named(&["b", "c", "d"])));
    assert_eq!(names, [" | a | *", " | d | *"]);
    let (low, high) = ("0x2000000000000000", "0x3000000000000000");
    let hashes = said(
        &of("", hashed("0x0000000000000000", low)),
        &of("", hashed("0x0000000000000000", high)),
    );
    assert_eq!(hashes, [format!(" | * | shardRange(object.metadata.uid, '{low}', '{high}')")]);
    assert_eq!(said(&of("a=b", None), &of("a=b", None)), [""; 0]);
}

#[test]
fn what_is_shared_before_and_after_is_not_listed() {
    let shared = |names: &[&str]| Shared::new(&[shared_in(names)]).unwrap();
    let shown = |boundary: Option<Boundary>, shared: &Shared| {
        let Restriction { scope, .. } = of("", boundary);
        let pods = GroupResource::new("", "pods");
        let filter = Filter::of(scope.as_ref().unwrap(), &pods, None, shared.namespaces(&pods));
        Restriction { scope, filter, ..Restriction::default() }
    };
    let (one, two) = (shared(&["s"]), shared(&["s", "t"]));
    let moved = said(&shown(named(&["a", "b", "s"]), &one), &shown(named(&["b"]), &one));
    assert_eq!(moved, [" | a | *"]);
    let more = said(&shown(named(&["a"]), &one), &shown(named(&["a"]), &two));
    assert_eq!(more, [" | t | *"]);
    let (low, high) = ("0x2000000000000000", "0x3000000000000000");
    let half = |to| hashed("0x0000000000000000", to);
    let hashes = said(&shown(half(low), &one), &shown(half(high), &one));
    assert_eq!(hashes, [format!(" | * | shardRange(object.metadata.uid, '{low}', '{high}')")]);
    let all = said(&shown(half(low), &one), &shown(half(high), &two));
    assert_eq!(all, [" | * | *"], "what is shared counts whatever its hash is");
    let pushed = shown(half(low), &one).filter;
    assert_eq!((pushed.hashes(), pushed.only_namespace()), (None, None));
    assert_eq!(shown(named(&["s"]), &one).filter.only_namespace(), Some("s"));
}
