use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{
    Boundary, ByResource, HashOf, HashRange, HashRule, NamespaceLabels, ObjectFacts, OfNamespace,
    Pattern, Rule, Scope,
    sharding::{AnyObject, Resolved, any_object, any_scope, labels_of_namespaces},
};
use ctrlmesh_wire::{object::Labels, selector::Selector};

/// The witness as the judge takes it. Its hash stands for a uid that was not found.
fn judged(scope: &Scope, witness: &Witness) -> bool {
    let uid = match &witness.uid {
        Uid::Any => "any",
        Uid::Such(uid) => uid,
        Uid::Hash(hash) => {
            let rules = scope.boundaries().iter().filter_map(|boundary| boundary.hash.as_ref());
            let mut of_uid = rules.filter(|rule| rule.of() == HashOf::Uid);
            return of_uid.all(|rule| rule.contains(*hash)) && {
                let facts = ObjectFacts { uid: "", ..facts(witness, "") };
                scope.owns(&facts) != Some(false)
            };
        }
    };
    scope.owns(&facts(witness, uid)) == Some(true)
}

fn facts<'a>(witness: &'a Witness, uid: &'a str) -> ObjectFacts<'a> {
    ObjectFacts {
        namespace: &witness.namespace,
        of_namespace: OfNamespace::Drawn,
        uid,
        labels: Some(Labels::of(&witness.labels)),
    }
}

fn places() -> impl Strategy<Value = Places> {
    use Places::*;
    prop::sample::select(vec![Namespaces, Outside, Both, Unknown])
}

fn may_be_in(places: Places, object: &AnyObject) -> bool {
    match places {
        Places::Namespaces | Places::Named => !object.place.is_empty(),
        Places::Outside => object.place.is_empty(),
        Places::Both | Places::Unknown => true,
    }
}

/// The scope, once namespaces have other labels.
fn relabelled(scope: &Scope, known: &NamespaceLabels) -> Scope {
    let drawn = |boundary: &Boundary| {
        let selected = boundary.selected.as_ref();
        let selected = selected.map(|old| Resolved::default().get(old.selector(), known));
        Boundary { selected, ..boundary.clone() }
    };
    match scope.is_nothing() {
        true => Scope::nothing(),
        false => scope
            .boundaries()
            .iter()
            .fold(Scope::new(scope.selector().clone()), |all, one| all.inside(drawn(one))),
    }
}

/// Namespaces with any labels.
fn any_labels() -> impl Strategy<Value = NamespaceLabels> {
    let value = || prop::option::of(prop::sample::select(vec!["v", "w", "x"]));
    let names: Vec<String> = labels_of_namespaces().into_keys().collect();
    prop::collection::vec(value(), names.len()).prop_map(move |values| {
        let labels = values.into_iter().map(|value| {
            value.map(|value| ("k".to_owned(), value.to_owned())).into_iter().collect()
        });
        names.iter().cloned().zip(labels).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn i15_a_witness_is_kept_by_both_and_what_is_proven_disjoint_stays_so(
        one in any_scope(),
        other in any_scope(),
        places in places(),
        objects in prop::collection::vec(any_object(), 16),
        later in any_labels(),
    ) {
        let known = labels_of_namespaces();
        let finding = in_common(&one, &other, places, Some(&known));
        prop_assert_eq!(&finding, &in_common(&other, &one, places, Some(&known)));
        match &finding {
            Finding::Found(witness) => {
                prop_assert!(judged(&one, witness), "{} does not keep {}", one, witness);
                prop_assert!(judged(&other, witness), "{} does not keep {}", other, witness);
            }
            Finding::None => {
                let scopes = [relabelled(&one, &later), relabelled(&other, &later)];
                for object in objects.iter().filter(|object| may_be_in(places, object)) {
                    let object = AnyObject { stated: None, ..object.clone() };
                    for [one, other] in [[&one, &other], [&scopes[0], &scopes[1]]] {
                        let owns = |scope: &Scope| scope.owns(&object.facts()) == Some(true);
                        prop_assert!(!(owns(one) && owns(other)), "{} and {}: {:?}", one, other, object);
                    }
                }
            }
            Finding::Undecided(_) => {}
        }
        // What claims take for disjoint is not refused.
        if one.is_disjoint(&other) {
            prop_assert!(!matches!(finding, Finding::Found(_)), "{} and {}", one, other);
        }
    }

    #[test]
    fn i15_two_shards_that_are_no_neighbours_agree(
        scopes in prop::collection::vec((any_scope(), any_scope(), 0..4_usize), 2..6),
        later in any_labels(),
    ) {
        let [pods, all] = [("", "pods"), ("*", "*")].map(|(group, name)| Rule::new(group, name).unwrap());
        let areas: Vec<_> = scopes.into_iter().map(|(one, other, of)| {
            let [one, other] = [one, other].map(|scope| Some(Arc::new(scope)));
            ByResource::new(match of {
                0 => vec![(all.clone(), one)],
                1 => vec![(pods.clone(), one)],
                2 => vec![(pods.clone(), None), (all.clone(), other)],
                _ => vec![(pods.clone(), one), (all.clone(), other)],
            })
        }).collect();
        let neighbours = OverlapIndex::of(areas.iter());
        for (at, one) in areas.iter().enumerate() {
            let beside = neighbours.at(at);
            prop_assert!(beside.contains(&at));
            for (other, area) in areas.iter().enumerate() {
                prop_assert_eq!(beside.contains(&other), neighbours.at(other).contains(&at));
                if !beside.contains(&other) {
                    for known in [labels_of_namespaces(), later.clone()] {
                        let compared = Comparison::of([one, area], Some(&known));
                        prop_assert!(compared.is_agreement(), "{compared:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn i15_what_no_shard_owns_is_found_and_what_is_found_no_shard_owns(
        scopes in prop::collection::vec(any_scope(), 1..4),
        objects in prop::collection::vec(any_object(), 16),
        rule in prop::sample::select(vec![("", "pods"), ("*", "*"), ("", "nodes"), ("", "namespaces")]),
    ) {
        let known = labels_of_namespaces();
        let rule = Rule::new(rule.0, rule.1).unwrap();
        let places = Places::of(&rule);
        let area = |scope: Scope| ByResource::new([(rule.clone(), Some(Arc::new(scope)))]);
        let areas: Vec<_> = scopes.into_iter().map(area).collect();
        let scopes: Vec<_> = areas.iter().map(|area| area.find(&rule).unwrap()).collect();
        let Ok(gaps) = gaps(&areas.iter().collect::<Vec<_>>(), &known) else { return Ok(()) };
        for Gap { witness, namespaces, has_outside, .. } in &gaps {
            prop_assert!(*namespaces > 0 || *has_outside);
            for scope in &scopes {
                prop_assert!(!judged(scope, witness), "{} keeps {}", scope, witness);
            }
        }
        let is_in = |gap: &Gap, place: &str| match place {
            "" => gap.has_outside,
            _ => gap.namespaces > 0,
        };
        for object in objects.iter().filter(|object| may_be_in(places, object)) {
            let mut object = AnyObject { stated: None, ..object.clone() };
            if places == Places::Named {
                object.labels = (&known[object.place]).into();
            }
            let is_owned = scopes.iter().any(|scope| scope.owns(&object.facts()) == Some(true));
            let is_found = gaps.iter().any(|gap| is_in(gap, object.place));
            prop_assert!(is_owned || is_found, "no one has {:?}: {:?}", object, gaps);
        }
    }
}

fn scope(labels: &str, boundary: Boundary) -> Scope {
    Scope::new(labels.parse().unwrap()).inside(boundary)
}

fn any() -> Boundary {
    Boundary { has_cluster_scoped: false, ..Boundary::everything() }
}

fn names(names: &[&str]) -> Boundary {
    Boundary { names: Some(names.iter().map(|name| (*name).into()).collect()), ..any() }
}

fn pattern(pattern: &str) -> Boundary {
    Boundary { pattern: Some(Pattern::new(pattern).unwrap()), ..any() }
}

fn labelled(selector: &str) -> Boundary {
    let selector = selector.parse().unwrap();
    Boundary {
        selected: Some(Resolved::default().get(&selector, &labels_of_namespaces())),
        ..any()
    }
}

fn hashed(of: HashOf, from: &str, to: &str) -> Boundary {
    let ranges = vec![HashRange::new(from, to).unwrap()];
    Boundary { hash: Some(HashRule::new(of, ranges).unwrap()), ..any() }
}

fn everywhere(boundary: Boundary) -> Boundary {
    Boundary { has_cluster_scoped: true, ..boundary }
}

const ZERO: &str = "0x0000000000000000";
const HALF: &str = "0x8000000000000000";
const PAST: &str = "0x8000000000000001";

#[test]
fn i15_two_shards_are_told_what_both_own() {
    for (one, other, told) in [
        (scope("", names(&["ant"])), scope("", names(&["ant", "bee"])), "one in namespace ant"),
        (
            scope("a in (b,c)", any()),
            scope("a notin (b,d),n>3", any()),
            "one in namespace ant with labels a=c,n=4",
        ),
        (scope("", pattern("^team-")), scope("", pattern("a$")), "one in namespace team-a"),
        (scope("", pattern("^x")), scope("", pattern("-y$")), "one in namespace x-y"),
        (scope("", labelled("k=v")), scope("", pattern("^te")), "one in namespace team-a"),
        (
            scope("", pattern("^new-")),
            scope("", hashed(HashOf::Namespace, HALF, "")),
            "one in namespace new-a",
        ),
        (
            scope("", hashed(HashOf::Uid, ZERO, HALF)),
            scope("", hashed(HashOf::Uid, ZERO, HALF)),
            "one in namespace ant and uid 9a45cd88-8d59-40d6-8144-5b6a189663f5",
        ),
        (
            scope("", hashed(HashOf::Uid, ZERO, PAST)),
            scope("", hashed(HashOf::Uid, HALF, "")),
            "one in namespace ant and a uid with hash 0x8000000000000000",
        ),
        (
            scope("", everywhere(names(&["ant"]))),
            scope("", everywhere(names(&["bee"]))),
            "one in no namespace",
        ),
    ] {
        let known = labels_of_namespaces();
        let finding = in_common(&one, &other, Places::Both, Some(&known));
        let Finding::Found(witness) = finding else { panic!("{one} and {other}: {finding:?}") };
        assert_eq!(witness.to_string(), told, "{one} and {other}");
    }
}

#[test]
fn i15_what_is_not_decided_says_by_what() {
    use Undecided::*;
    for (one, other, why) in [
        // No namespace of today has both.
        (scope("", labelled("k=v")), scope("", labelled("tier=gold")), NamespaceLabels),
        (scope("", labelled("tier=gold")), scope("", names(&["ant"])), NamespaceLabels),
        (scope("", pattern(r"^\p{Greek}")), scope("", pattern("a")), NamespaceNames),
        // One name in 2^64 has the hash, if any.
        (
            scope("", hashed(HashOf::Namespace, ZERO, PAST)),
            scope("", hashed(HashOf::Namespace, HALF, "")),
            NamespaceNames,
        ),
        (scope("", everywhere(names(&["ant"]))), scope("", everywhere(names(&["bee"]))), Outside),
    ] {
        let known = labels_of_namespaces();
        let finding = in_common(&one, &other, Places::Unknown, Some(&known));
        assert_eq!(finding, Finding::Undecided(why), "{one} and {other}");
    }
}

#[test]
fn i15_what_is_proven_disjoint_is_so_for_namespaces_to_come() {
    for (one, other) in [
        (scope("", labelled("k=v")), scope("", labelled("k!=v"))),
        (scope("", labelled("k")), scope("", labelled("!k"))),
        (scope("", labelled("kubernetes.io/metadata.name=ant")), scope("", names(&["bee", "cat"]))),
        (scope("", pattern("^ant$")), scope("", pattern("^bee$"))),
        (scope("", pattern("^ANT$")), scope("", any())),
        (scope("", names(&["ant"])), scope("", everywhere(names(&["bee"])))),
        (
            scope("", hashed(HashOf::Namespace, ZERO, HALF)),
            scope("", hashed(HashOf::Namespace, HALF, "")),
        ),
    ] {
        let finding = in_common(&one, &other, Places::Both, Some(&labels_of_namespaces()));
        assert_eq!(finding, Finding::None, "{one} and {other}");
    }
    // Both say that they have cluster-scoped objects, of which there is nothing.
    let everywhere = |name| scope("", everywhere(names(&[name])));
    let finding = in_common(&everywhere("ant"), &everywhere("bee"), Places::Namespaces, None);
    assert_eq!(finding, Finding::None);
}

#[test]
fn i15_an_orphan_is_named() {
    let pods = Rule::new("", "pods").unwrap();
    let all = Rule::everything();
    let nodes = Rule::new("", "nodes").unwrap();
    let known = labels_of_namespaces();
    let quarter = "0x4000000000000000";
    for (rule, shards, told) in [
        (
            &pods,
            vec![scope("", names(&["ant"])), scope("", names(&["bee", "cat"]))],
            "2: one in namespace team-a",
        ),
        (&pods, vec![scope("", pattern("^team-")), scope("", pattern("^[a-c]"))], ""),
        // Nothing of theirs is in no namespace.
        (&pods, vec![scope("", any())], ""),
        (&all, vec![scope("", any())], "0 and outside: one in no namespace"),
        (
            &nodes,
            vec![scope("", any()), scope("", names(&["ant"]))],
            "0 and outside: one in no namespace",
        ),
        (&all, vec![scope("", any()), scope("", everywhere(names(&[])))], ""),
        (&pods, vec![scope("a=b", any()), scope("a!=b,a", any())], "5: one in namespace ant"),
        (&pods, vec![scope("a=b", any()), scope("a!=b", any())], ""),
        (
            &pods,
            vec![scope("n>3", any()), scope("n<3", any()), scope("!n", any())],
            "5: one in namespace ant with labels n=3",
        ),
        (
            &pods,
            vec![
                scope("", hashed(HashOf::Uid, ZERO, quarter)),
                scope("", hashed(HashOf::Uid, HALF, "")),
            ],
            "5: one in namespace ant and uid 94e1893e-ef38-4ee2-9121-4f2dfad25d9a",
        ),
        (
            &pods,
            vec![
                scope("", hashed(HashOf::Uid, ZERO, HALF)),
                scope("a", hashed(HashOf::Uid, HALF, "")),
                scope("!a", hashed(HashOf::Uid, HALF, "")),
            ],
            "",
        ),
    ] {
        let area = |scope| ByResource::new([(rule.clone(), Some(Arc::new(scope)))]);
        let areas: Vec<_> = shards.into_iter().map(area).collect();
        let gaps = gaps(&areas.iter().collect::<Vec<_>>(), &known).unwrap();
        let text = |gap: &Gap| {
            let outside = if gap.has_outside { " and outside" } else { "" };
            format!("{}{outside}: {}", gap.namespaces, gap.witness)
        };
        let texts: Vec<_> = gaps.iter().map(text).collect();
        assert_eq!(texts.join("; "), told, "{rule}");
    }
}

#[test]
fn i15_a_resource_that_one_shard_does_not_limit_has_no_orphans() {
    let pods = Rule::new("", "pods").unwrap();
    let one = ByResource::new([(pods, Some(Arc::new(scope("", names(&["ant"])))))]);
    let known = labels_of_namespaces();
    assert_eq!(gaps(&[&one, &ByResource::new([])], &known), Ok(vec![]));
    assert_eq!(gaps(&[&one], &known).unwrap().len(), 1);
    assert_eq!(gaps(&[], &known), Ok(vec![]));
}

#[test]
fn i15_labels_that_are_too_many_are_not_decided() {
    let pods = Rule::new("", "pods").unwrap();
    let keys = |at: usize| format!("k{at} in (a,b,c,d,e),l{at}");
    let scopes = (0..40).map(|at| scope(&keys(at), any()));
    // Each set of labels but the last is refused by the last selector alone.
    let last = scope("z!=a", any());
    let area = |scope| ByResource::new([(pods.clone(), Some(Arc::new(scope)))]);
    let areas: Vec<_> = scopes.chain([last, scope("z=a", any())]).map(area).collect();
    let found = gaps(&areas.iter().collect::<Vec<_>>(), &labels_of_namespaces());
    assert_eq!(found, Err((pods, Undecided::Labels)));
}

#[test]
fn i15_a_namespace_counts_by_the_labels_that_it_has() {
    let namespaces = Rule::new("", "namespaces").unwrap();
    let area = |text| ByResource::new([(namespaces.clone(), Some(Arc::new(scope(text, any()))))]);
    let areas = [area("k=v"), area("k=w")];
    let gaps = gaps(&areas.iter().collect::<Vec<_>>(), &labels_of_namespaces()).unwrap();
    let [gap] = &*gaps else { panic!("{gaps:?}") };
    assert_eq!((gap.namespaces, gap.witness.to_string()), (2, "Namespace cat".to_owned()));
}

#[test]
fn the_places_of_resources_are_those_of_kubernetes() {
    for (group, resource, places) in [
        ("*", "*", Places::Both),
        ("", "*", Places::Both),
        ("apps", "*", Places::Namespaces),
        ("", "pods", Places::Namespaces),
        ("", "nodes", Places::Outside),
        ("*", "nodes", Places::Outside),
        ("", "namespaces", Places::Named),
        ("*", "pods", Places::Unknown),
        ("example.com", "widgets", Places::Unknown),
        ("example.com", "*", Places::Unknown),
        ("rbac.authorization.k8s.io", "clusterroles", Places::Outside),
        ("rbac.authorization.k8s.io", "roles", Places::Namespaces),
        ("coordination.k8s.io", "*", Places::Namespaces),
        ("apiextensions.k8s.io", "customresourcedefinitions", Places::Outside),
    ] {
        let rule = Rule::new(group, resource).unwrap();
        assert_eq!(Places::of(&rule), places, "{rule}");
    }
}

#[test]
fn i15_what_a_shard_has_is_said_in_few_words() {
    let rule = |resource: &str| Rule::new("", resource).unwrap();
    let named = |names: &[&str]| {
        let mut boundary = Boundary::everything();
        boundary.names = Some(names.iter().map(|name| (*name).into()).collect());
        let scope = Scope::new(Selector::everything());
        Some(Arc::new(scope.inside(boundary)))
    };
    let everything = || Some(Arc::new(Scope::new(Selector::everything())));
    let of = |pieces: Vec<(Rule, Option<Arc<Scope>>)>| {
        let said = said(&ByResource::new(pieces));
        (said.objects, said.resources)
    };
    let words = |objects: &str, resources: &str| (objects.to_owned(), resources.to_owned());
    assert_eq!(of(vec![]), words("everything", ""));
    assert_eq!(of(vec![(rule("pods"), everything())]), words("everything", "pods"));
    let three = vec![
        (rule("pods"), named(&["ant", "bee"])),
        (rule("configmaps"), everything()),
        (rule("secrets"), named(&["ant", "bee"])),
    ];
    let said_of_three = words("everything; ant,bee, cluster-scoped", "configmaps,pods,secrets");
    assert_eq!(of(three), said_of_three);
    let many: Vec<String> = (0..100).map(|number| format!("namespace-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let (text, _) = of(vec![(rule("pods"), named(&many))]);
    assert_eq!(text.len(), 40);
    assert!(text.starts_with("namespace-0,namespace-1,") && text.ends_with('…'), "{text}");
}

#[test]
fn a_boundary_is_said_by_what_tells_it_apart() {
    let range = |from: &str, to: &str| HashRange::new(from, to).unwrap();
    let (zero, half) = ("0x0000000000000000", "0x8000000000000000");
    let hash = |rule: HashRule, has_cluster_scoped| Boundary {
        hash: Some(rule),
        has_cluster_scoped,
        ..Boundary::everything()
    };
    let of = |scope: Scope| {
        said(&ByResource::new([(Rule::everything(), Some(Arc::new(scope)))])).objects
    };
    let inside = |boundary| of(Scope::new(Selector::everything()).inside(boundary));
    let mixed = HashRule::mixed(vec![range(zero, half)]).unwrap();
    assert_eq!(inside(hash(mixed.clone(), false)), "0x00000000-0x80000000");
    assert_eq!(inside(hash(mixed, true)), "0x00000000-0x80000000, cluster-scoped");
    let uids = HashRule::new(HashOf::Uid, vec![range(half, "")]).unwrap();
    assert_eq!(inside(hash(uids, true)), "uid 0x80000000-");
    let pattern = Some(Pattern::new("^team-").unwrap());
    let named = Boundary { pattern, has_cluster_scoped: false, ..Boundary::everything() };
    assert_eq!(
        of(Scope::new("team=blue".parse().unwrap()).inside(named)),
        "team=blue, ~ \"^team-\""
    );
    assert_eq!(of(Scope::nothing()), "nothing");
    let none =
        Boundary { names: Some([].into()), has_cluster_scoped: false, ..Boundary::everything() };
    assert_eq!(inside(none), "no namespace");
}

/// A shard that lists a namespace meets those that list it, and those that list none.
#[test]
fn i15_shards_that_list_other_namespaces_are_no_neighbours() {
    let rule = Rule::new("*", "*").unwrap();
    let area = |names: &[&str], has_cluster_scoped| {
        let names = names.iter().map(|name| Box::from(*name)).collect();
        let listed = Boundary { names: Some(names), has_cluster_scoped, ..Boundary::everything() };
        let scope = Scope::new(Selector::everything()).inside(listed);
        ByResource::new([(rule.clone(), Some(Arc::new(scope)))])
    };
    let everything =
        ByResource::new([(rule.clone(), Some(Arc::new(Scope::new(Selector::everything()))))]);
    let areas = [
        area(&["a", "b"], false),
        area(&["b", "c"], false),
        area(&["d"], false),
        area(&["e"], true),
        everything,
        ByResource::new([(Rule::new("", "pods").unwrap(), None)]),
    ];
    let neighbours = OverlapIndex::of(areas.iter());
    let at = |place| neighbours.at(place).into_iter().collect::<Vec<_>>();
    assert_eq!(at(0), [0, 1, 3, 4, 5]);
    assert_eq!(at(2), [2, 3, 4, 5]);
    assert_eq!(at(3), [0, 1, 2, 3, 4, 5]);
}
