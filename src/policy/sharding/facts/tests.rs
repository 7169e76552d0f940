use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::sharding::{Filter, HashOf, HashRange, HashRule, Pattern, fnv1a};
use ctrlmesh_wire::{frames::Verdict, selector::Selector};

type Map = BTreeMap<String, String>;

/// A condition of a boundary by the hashes of one half.
#[derive(Clone, Copy, Debug)]
struct Half {
    of: HashOf,
    is_upper: bool,
}

/// A boundary, as its parts: the plain judge reads them, and the boundary is made of them.
#[derive(Clone, Debug)]
struct Parts {
    names: Vec<&'static str>,
    has_pattern: bool,
    selected: Option<Vec<&'static str>>,
    half: Option<Half>,
    has_cluster_scoped: bool,
}

/// An object of which everything is known.
#[derive(Clone, Debug)]
struct Whole {
    place: &'static str,
    uid: String,
    labels: Map,
    /// The labels of its namespace in a request; `None` if those count that were known before.
    stated: Option<Map>,
    is_namespace: bool,
}

impl Half {
    fn has(self, text: &str) -> bool {
        (fnv1a(text) >> 63 == 1) == self.is_upper
    }

    fn rule(self) -> HashRule {
        let middle = "0x8000000000000000";
        let (from, to) = if self.is_upper { (middle, "") } else { ("0x0000000000000000", middle) };
        HashRule::new(self.of, vec![HashRange::new(from, to).unwrap()]).unwrap()
    }
}

impl Parts {
    fn boundary(&self) -> Boundary {
        Boundary {
            names: (!self.names.is_empty())
                .then(|| self.names.iter().map(|name| (*name).into()).collect()),
            pattern: self.has_pattern.then(|| Pattern::new("[ab]").unwrap()),
            selected: self.selected.as_deref().map(Selected::of),
            computed: None,
            hash: self.half.map(Half::rule),
            has_cluster_scoped: self.has_cluster_scoped,
        }
    }

    /// The plain judge.
    fn has(&self, object: &Whole) -> bool {
        let has_hash = |of: HashOf, text: &str| match self.half {
            Some(half) if half.of == of => half.has(text),
            _ => true,
        };
        if !has_hash(HashOf::Uid, &object.uid) {
            return false;
        }
        if object.place.is_empty() {
            return self.has_cluster_scoped;
        }
        let is_selected = self.selected.as_ref().is_none_or(|names| match &object.stated {
            Some(labels) => labels.get("k").is_some_and(|value| value == "v"),
            None => names.contains(&object.place),
        });
        (self.names.is_empty() || self.names.contains(&object.place))
            && (!self.has_pattern || object.place.contains(['a', 'b']))
            && is_selected
            && has_hash(HashOf::Namespace, object.place)
    }
}

impl Whole {
    fn facts(&self) -> ObjectFacts<'_> {
        ObjectFacts {
            namespace: self.place,
            of_namespace: match &self.stated {
                Some(labels) => OfNamespace::Stated(Labels::of(labels)),
                None => OfNamespace::Drawn,
            },
            uid: &self.uid,
            labels: Some(Labels::of(&self.labels)),
        }
    }

    fn object(&self) -> Object<'_> {
        let (namespace, name) =
            if self.is_namespace { ("", self.place) } else { (self.place, "x") };
        let labels = Some(Labels::of(&self.labels));
        Object { namespace, name, uid: &self.uid, labels, ..Object::default() }
    }
}

const NAMES: [&str; 3] = ["ant", "bee", "dot"];

fn parts() -> impl Strategy<Value = Parts> {
    let some = || prop::sample::subsequence(NAMES.to_vec(), 0..3);
    let half = (prop_oneof![Just(HashOf::Uid), Just(HashOf::Namespace)], any::<bool>());
    let half = half.prop_map(|(of, is_upper)| Half { of, is_upper });
    let selected = prop::option::weighted(0.4, some());
    (some(), prop::bool::weighted(0.2), selected, prop::option::of(half), any::<bool>()).prop_map(
        |(names, has_pattern, selected, half, has_cluster_scoped)| Parts {
            names,
            has_pattern,
            selected,
            half,
            has_cluster_scoped,
        },
    )
}

fn labels() -> impl Strategy<Value = Map> {
    let value = prop::option::of(prop_oneof![Just("v"), Just("w")]);
    value.prop_map(|value| {
        value.map(|value| ("k".to_owned(), value.to_owned())).into_iter().collect()
    })
}

fn whole() -> impl Strategy<Value = Whole> {
    let place = prop_oneof![1 => Just(""), 4 => prop::sample::select(NAMES.to_vec())];
    let stated = prop::option::weighted(0.3, labels());
    (place, "[0-9a-f]{1,8}", labels(), stated, any::<bool>()).prop_map(
        |(place, uid, labels, stated, is_namespace)| Whole {
            place,
            uid,
            labels,
            stated,
            is_namespace,
        },
    )
}

fn scopes() -> impl Strategy<Value = (bool, Vec<Parts>)> {
    (any::<bool>(), prop::collection::vec(parts(), 0..3))
}

fn scope(by_label: bool, parts: &[Parts]) -> Scope {
    let selector = if by_label { "k=v".parse().unwrap() } else { Selector::everything() };
    parts.iter().map(Parts::boundary).fold(Scope::new(selector), Scope::inside)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn of_a_whole_object_there_is_one_judgement(object in whole(), (by_label, parts) in scopes()) {
        let scope = Arc::new(scope(by_label, &parts));
        let is_selected = !by_label || object.labels.get("k").is_some_and(|value| value == "v");
        let is_inside = parts.iter().all(|parts| parts.has(&object));
        prop_assert_eq!(scope.owns(&object.facts()), Some(is_selected && is_inside));
        // The judge of streams, which shows selected objects only.
        let object = Whole { stated: None, ..object };
        let (are_namespaces, shared) = (object.is_namespace, SharedNamespaces::default());
        let filter = Filter::PerObject { scope: Arc::clone(&scope), are_namespaces, shared };
        let is_kept = is_selected && filter.judge(&object.object()) == Verdict::Keep;
        let facts = ObjectFacts::of(&object.object(), object.is_namespace);
        prop_assert_eq!(scope.owns(&facts), Some(is_kept));
    }

    #[test]
    fn a_fact_less_never_turns_a_judgement(
        object in whole(),
        (by_label, parts) in scopes(),
        [has_uid, has_labels, has_namespace]: [bool; 3],
    ) {
        let scope = scope(by_label, &parts);
        let whole = object.facts();
        let known = ObjectFacts {
            namespace: whole.namespace,
            of_namespace: if has_namespace { whole.of_namespace } else { OfNamespace::Unknown },
            uid: if has_uid { whole.uid } else { "" },
            labels: whole.labels.filter(|_| has_labels),
        };
        let (all, some) = (scope.owns(&whole), scope.owns(&known));
        prop_assert!(all.is_some(), "{:?}", whole);
        prop_assert!(some.is_none() || some == all, "{:?}: {:?}, not {:?}", known, some, all);
        let common = scope.owns(&ObjectFacts::common_in(object.place));
        let all = scope.owns(&ObjectFacts { of_namespace: OfNamespace::Drawn, ..whole });
        prop_assert!(common.is_none() || common == all, "{:?}, not {:?}", common, all);
    }
}

/// A boundary of one namespace and the lower half of the uids.
fn boundary() -> Boundary {
    let half = Some(Half { of: HashOf::Uid, is_upper: false });
    let names = vec!["a"];
    Parts { names, has_pattern: false, selected: None, half, has_cluster_scoped: false }.boundary()
}

#[test]
fn a_condition_that_does_not_hold_decides_whatever_is_missing() {
    let scope = Scope::new("k=v".parse().unwrap()).inside(boundary());
    let [v, w] = ["v", "w"].map(|value| Map::from([("k".to_owned(), value.to_owned())]));
    let upper = (0..).map(|at| at.to_string()).find(|uid| fnv1a(uid) >> 63 == 1).unwrap();
    let owns = |namespace, uid, labels: Option<&Map>| {
        let labels = labels.map(Labels::of);
        scope.owns(&ObjectFacts { namespace, of_namespace: OfNamespace::Drawn, uid, labels })
    };
    assert_eq!(owns("a", "", Some(&v)), None, "its uid decides");
    assert_eq!(owns("b", "", None), Some(false), "its namespace decides");
    assert_eq!(owns("a", "", Some(&w)), Some(false), "its labels decide");
    assert_eq!(owns("a", &upper, None), Some(false), "its uid decides");
    // So does the judge of streams: the one object is dropped, the other refused.
    let shared = SharedNamespaces::default();
    let filter = Filter::PerObject { scope: Arc::new(scope), are_namespaces: false, shared };
    let shown = |namespace| filter.judge(&Object { namespace, name: "x", ..Object::default() });
    assert_eq!((shown("b"), shown("a")), (Verdict::Drop, Verdict::Unknown));
}

#[test]
fn a_whole_object_is_judged_by_labels_and_boundaries() {
    let of_a = Boundary { hash: None, ..boundary() };
    let scope = Scope::new("team=red".parse().unwrap()).inside(of_a.clone());
    let red = Map::from([("team".to_owned(), "red".to_owned())]);
    let none = Map::new();
    let object =
        |namespace, labels| Object { namespace, name: "x", uid: "u", labels, ..Object::default() };
    for (namespace, labels, owns) in [
        ("a", Some(Labels::of(&red)), Some(true)),
        ("b", Some(Labels::of(&red)), Some(false)),
        ("a", Some(Labels::of(&none)), Some(false)),
        ("a", None, None),
    ] {
        let facts = ObjectFacts::of(&object(namespace, labels), false);
        assert_eq!(scope.owns(&facts), owns, "{namespace}");
    }
    let any = Scope::new(Selector::everything()).inside(of_a);
    assert_eq!(any.owns(&ObjectFacts::of(&object("a", None), false)), Some(true));
    assert_eq!(any.owns(&ObjectFacts::of(&object("", None), false)), Some(false));
    let named = Object { name: "a", uid: "u", ..Object::default() };
    assert_eq!(any.owns(&ObjectFacts::of(&named, true)), Some(true));
}
