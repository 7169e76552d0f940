use proptest::prelude::*;

use super::*;
use crate::{
    GroupResource, Rule,
    sharding::{HashRange, NamespaceLabels, ObjectFacts, OfNamespace, namespaces::Resolved},
};
use ctrlmesh_wire::{
    object::Labels,
    selector::{Op, Requirement, Selector},
};

type Map = BTreeMap<String, String>;

const NAMES: [&str; 5] = ["ant", "bee", "cat", "team-a", "team-b"];
const PATTERNS: [&str; 6] = ["^team-", "a$", "^[a-b]", "e+", "^(ant|bee)$", "^team-b"];
const SELECTORS: [&str; 9] =
    ["", "k=v", "k!=v", "k in (v,w)", "!k", "k", "n>3", "n<5", "n in (4,x)"];
const CUTS: [&str; 4] =
    ["0x0000000000000000", "0x4000000000000000", "0x8000000000000000", "0xc000000000000000"];

const GROUPS: [&str; 4] = ["", "apps", "coordination.k8s.io", "a.example.com"];
const RESOURCES: [&str; 4] = ["pods", "leases", "events", "widgets"];

pub(crate) fn named_rule(group: Option<usize>, resource: Option<usize>) -> Rule {
    let name = |at: Option<usize>, names: [&'static str; 4]| at.map_or("*", |at| names[at]);
    Rule::new(name(group, GROUPS), name(resource, RESOURCES)).unwrap()
}

pub(crate) fn rule() -> impl Strategy<Value = Rule> {
    let name = || prop::option::weighted(0.6, 0..4_usize);
    (name(), name()).prop_map(|(group, resource)| named_rule(group, resource))
}

/// Every resource by itself.
pub(crate) fn resources() -> impl Iterator<Item = GroupResource> {
    let in_group = |group| RESOURCES.map(|resource| GroupResource::new(group, resource));
    GROUPS.into_iter().flat_map(in_group)
}

fn hash_rule() -> impl Strategy<Value = HashRule> {
    let of = prop_oneof![Just(HashOf::Uid), Just(HashOf::Namespace)];
    let quarters = prop::sample::subsequence(vec![0, 1, 2, 3], 1..4);
    (of, prop::bool::weighted(0.3), quarters).prop_map(|(of, is_mixed, quarters)| {
        let end = |at: usize| CUTS.get(at + 1).copied().unwrap_or_default();
        let range = |at: usize| HashRange::new(CUTS[at], end(at)).unwrap();
        let ranges = quarters.into_iter().map(range).collect();
        let rule = if is_mixed { HashRule::mixed(ranges) } else { HashRule::new(of, ranges) };
        rule.unwrap()
    })
}

/// A condition on computed keys, of which one or two requirements are.
pub(crate) fn computed() -> impl Strategy<Value = Computed> {
    let names = prop::sample::subsequence(NAMES.to_vec(), 1..4);
    let names = names.prop_map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>());
    let buckets = prop::collection::btree_set(0..34_u32, 1..24);
    let buckets = buckets.prop_map(|all| all.iter().map(u32::to_string).collect::<Vec<_>>());
    let flag = prop::sample::subsequence(vec!["true", "false"], 1..3);
    let flag = flag.prop_map(|values| values.into_iter().map(str::to_owned).collect::<Vec<_>>());
    let bucket = prop::sample::select(vec!["shard-hash", "sharding-hash"]);
    let one = prop_oneof![
        names.prop_map(|values| ("namespace", values)),
        (bucket, buckets),
        flag.prop_map(|values| ("control", values)),
    ];
    let prefix = prop::sample::select(vec!["ctrlmesh", "kridge"]);
    let op = prop::sample::select(vec![
        Op::In,
        Op::In,
        Op::NotIn,
        Op::NotIn,
        Op::Exists,
        Op::DoesNotExist,
    ]);
    let requirement = (prefix, one, op).prop_map(|(prefix, (name, values), op)| {
        let values = if matches!(op, Op::In | Op::NotIn) { values } else { Vec::new() };
        Requirement::new(format!("{prefix}.kusionstack.io/{name}"), op, values).unwrap()
    });
    prop::collection::vec(requirement, 1..3)
        .prop_map(|all| Computed::split(&all.into_iter().collect()).0.unwrap())
}

fn boundary() -> impl Strategy<Value = Boundary> {
    let some = || prop::sample::subsequence(NAMES.to_vec(), 0..5);
    let named = prop::option::weighted(0.4, some());
    let pattern = prop::option::weighted(0.4, prop::sample::select(PATTERNS.to_vec()));
    let selected = prop::option::weighted(0.3, prop::sample::select(vec!["k=v", "k=w", "k"]));
    let hash = prop::option::weighted(0.4, hash_rule());
    let computed = prop::option::weighted(0.4, computed());
    (named, pattern, selected, computed, hash, any::<bool>()).prop_map(
        |(names, pattern, selected, computed, hash, has_cluster_scoped)| {
            let boundary = Boundary {
                names: names.map(|names| names.into_iter().map(Into::into).collect()),
                pattern: pattern.map(|pattern| Pattern::new(pattern).unwrap()),
                selected: selected.map(|selector| {
                    Resolved::default().get(&selector.parse().unwrap(), &labels_of_namespaces())
                }),
                computed: None,
                hash,
                has_cluster_scoped,
            };
            boundary.restricted(computed)
        },
    )
}

/// The labels of the namespaces: `ant` and `team-a` have `k=v`, `bee` has `k=w`.
pub(crate) fn labels_of_namespaces() -> NamespaceLabels {
    let label = |value: &str| Map::from([("k".to_owned(), value.to_owned())]);
    let of = |name: &str| match name {
        "ant" | "team-a" => label("v"),
        "bee" => label("w"),
        _ => Map::new(),
    };
    NAMES.map(|name| (name.to_owned(), of(name).into())).into()
}

/// Scopes of all kinds.
pub(crate) fn scope() -> impl Strategy<Value = Scope> {
    let selector = prop::sample::select(SELECTORS.to_vec());
    let boundaries = prop::collection::vec(boundary(), 0..3);
    (selector, boundaries, prop::bool::weighted(0.02)).prop_map(|(selector, inside, is_nothing)| {
        let scope = inside.into_iter().fold(Scope::new(selector.parse().unwrap()), Scope::inside);
        if is_nothing { Scope::nothing() } else { scope }
    })
}

/// An object of which everything is known, and the labels of its namespace in a request.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    pub(crate) place: &'static str,
    pub(crate) uid: String,
    pub(crate) labels: Map,
    pub(crate) stated: Option<Map>,
}

impl Whole {
    pub(crate) fn facts(&self) -> ObjectFacts<'_> {
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
}

fn labels() -> impl Strategy<Value = Map> {
    let one = |key: &'static str, values: &'static [&'static str]| {
        prop::option::of((Just(key), prop::sample::select(values)))
    };
    (one("k", &["v", "w", ""]), one("n", &["2", "4", "x"])).prop_map(|labels| {
        let labels = [labels.0, labels.1].into_iter().flatten();
        labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    })
}

pub(crate) fn whole() -> impl Strategy<Value = Whole> {
    let place = prop_oneof![1 => Just(""), 5 => prop::sample::select(NAMES.to_vec())];
    let stated = prop::option::weighted(0.2, labels());
    (place, "[0-9a-f]{1,8}", labels(), stated).prop_map(|(place, uid, labels, stated)| Whole {
        place,
        uid,
        labels,
        stated,
    })
}

fn and(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_meet_owns_what_both_own(
        one in scope(),
        other in scope(),
        objects in prop::collection::vec(whole(), 8),
        [has_uid, has_labels, has_namespace]: [bool; 3],
    ) {
        let meet = one.meet(&other);
        for object in &objects {
            let facts = object.facts();
            let both = and(one.owns(&facts), other.owns(&facts));
            prop_assert!(both.is_some());
            prop_assert_eq!(meet.owns(&facts), both, "{} of {:?}", meet, object);
            // With a fact less it is judged as well as the two, and never otherwise.
            let known = ObjectFacts {
                of_namespace: if has_namespace { facts.of_namespace } else { OfNamespace::Unknown },
                uid: if has_uid { facts.uid } else { "" },
                labels: facts.labels.filter(|_| has_labels),
                ..facts
            };
            let (judged, whole) = (meet.owns(&known), meet.owns(&facts));
            prop_assert!(judged.is_none() || judged == whole, "{} of {:?}", meet, known);
            let of_two = and(one.owns(&known), other.owns(&known));
            prop_assert!(of_two.is_none() || judged == of_two, "{} of {:?}", meet, known);
        }
        prop_assert_eq!(&meet, &other.meet(&one));
        prop_assert_eq!(&meet, &meet.normal());
        prop_assert_eq!(&meet, &meet.meet(&one), "{} and {}", one, other);
    }

    #[test]
    fn what_is_proven_disjoint_has_nothing_in_common(
        one in scope(),
        other in scope(),
        objects in prop::collection::vec(whole(), 16),
    ) {
        let is_disjoint = one.is_disjoint(&other);
        prop_assert_eq!(is_disjoint, other.is_disjoint(&one));
        for object in objects {
            let object = Whole { stated: None, ..object };
            let facts = object.facts();
            let is_common = one.owns(&facts) == Some(true) && other.owns(&facts) == Some(true);
            prop_assert!(!(is_disjoint && is_common), "{} and {}: {:?}", one, other, object);
        }
    }

    #[test]
    fn a_name_that_matches_two_patterns_is_not_missed(
        one in prop::sample::select(MORE_PATTERNS.to_vec()),
        other in prop::sample::select(MORE_PATTERNS.to_vec()),
        names in prop::collection::vec("[abt0-1]([abet0-1-]{0,6}[abt0-1])?", 24),
    ) {
        if !common::may_match_both(one, other) {
            let both = [one, other].map(|pattern| Pattern::new(pattern).unwrap());
            for name in names {
                let is_match = both.iter().all(|pattern| pattern.is_match(&name));
                prop_assert!(!is_match, "{} and {}: {}", one, other, name);
            }
        }
    }
}

#[test]
fn a_character_that_is_a_letter_in_another_case_is_not_missed() {
    for kelvin in ["(?i)^\u{212a}$", r"(?i)^\x{212A}$", r"(?i)^\u212A$", r"(?i)^\U0000212A$"] {
        assert!(Pattern::new(kelvin).unwrap().is_match("k"), "{kelvin}");
        assert!(common::may_match_both(kelvin, "^k"), "{kelvin}");
    }
}

const MORE_PATTERNS: [&str; 16] = [
    "",
    "^a",
    "^b",
    "a$",
    "b$",
    "-",
    "^[^-]*$",
    "^a.*b$",
    "(?i)^A",
    r"\bb",
    r"^\w+$",
    "^a{2,3}$",
    "^(?:ab)+$",
    "^.$",
    r"^..?$",
    "t.*t.*t",
];

fn with(selector: &str, boundary: Boundary) -> Scope {
    Scope::new(selector.parse().unwrap()).inside(boundary)
}

fn any_namespaced() -> Boundary {
    Boundary { has_cluster_scoped: false, ..Boundary::everything() }
}

fn named(names: &[&str]) -> Boundary {
    let names = names.iter().map(|name| (*name).into()).collect();
    Boundary { names: Some(names), ..any_namespaced() }
}

fn matching(pattern: &str) -> Boundary {
    Boundary { pattern: Some(Pattern::new(pattern).unwrap()), ..any_namespaced() }
}

fn hashed(of: HashOf, from: &str, to: &str) -> Boundary {
    let rule = HashRule::new(of, vec![HashRange::new(from, to).unwrap()]).unwrap();
    Boundary { hash: Some(rule), ..any_namespaced() }
}

#[test]
fn simple_cases_are_proven_disjoint() {
    let all = || any_namespaced();
    let selected = |names: &[&str]| Boundary { selected: Some(Selected::of(names)), ..all() };
    for (one, other) in [
        (with("a=b", all()), with("a=c", all())),
        (with("a in (b,c)", all()), with("a notin (b,c,d)", all())),
        (with("a", all()), with("!a", all())),
        (with("a>4", all()), with("a<6,a!=b,a in (6)", all())),
        (with("a>4", all()), with("a<5", all())),
        (with("", named(&["a", "b"])), with("", named(&["c"]))),
        (with("", named(&["team-a", "b"])), with("", matching("^team-[b-z]"))),
        (with("", matching("^team-a")), with("", matching("^team-b"))),
        (with("", matching("^[a-m]")), with("", matching("^[n-z0-9]"))),
        (with("", matching("-blue$")), with("", matching("-green$"))),
        (with("", selected(&["a"])), with("", selected(&["b"]))),
        (with("", selected(&["a"])), with("", named(&["b"]))),
        (
            with("", hashed(HashOf::Uid, CUTS[0], CUTS[1])),
            with("", hashed(HashOf::Uid, CUTS[1], "")),
        ),
        (
            with("", hashed(HashOf::Namespace, CUTS[0], CUTS[2])),
            with("", hashed(HashOf::Namespace, CUTS[2], "")),
        ),
        (with("", named(&["ant"])), Scope::nothing()),
    ] {
        assert!(one.is_disjoint(&other), "{one} and {other}");
        assert!(!one.is_disjoint(&one) || one.is_nothing(), "{one}");
    }
}

#[test]
fn what_may_have_something_in_common_is_not_disjoint() {
    let everywhere = |boundary| Boundary { has_cluster_scoped: true, ..boundary };
    for (one, other) in [
        (with("a=b", any_namespaced()), with("c=d", any_namespaced())),
        (with("", matching("^a")), with("", matching("z$"))),
        (with("", matching("a")), with("", matching("b"))),
        // Cluster-scoped objects is in both.
        (with("", everywhere(named(&["a"]))), with("", everywhere(named(&["b"])))),
        (
            with("", hashed(HashOf::Uid, CUTS[0], CUTS[1])),
            with("", hashed(HashOf::Namespace, CUTS[1], "")),
        ),
        // A class that only Unicode has.
        (with("", matching(r"^\p{Greek}")), with("", matching("^b"))),
    ] {
        assert!(!one.is_disjoint(&other), "{one} and {other}");
    }
}

#[test]
fn an_empty_meeting_is_nothing_and_not_anything() {
    let [a, b] = ["a", "b"].map(|name| with("", named(&[name])));
    assert!(a.meet(&b).is_nothing());
    assert_eq!(a.meet(&b).to_string(), "nothing");
    let everywhere = |name| Boundary { has_cluster_scoped: true, ..named(&[name]) };
    let meet = with("", everywhere("a")).meet(&with("", everywhere("b")));
    assert_eq!(meet.owns(&ObjectFacts::common_in("a")), Some(false));
    assert_eq!(meet.owns(&ObjectFacts::common_in("c")), Some(false));
    assert_eq!(meet.owns(&ObjectFacts::common_in("")), Some(true));
}

#[test]
fn ranges_of_one_hash_are_cut_to_one_rule() {
    let low = with("", hashed(HashOf::Uid, CUTS[0], CUTS[2]));
    let high = with("", hashed(HashOf::Uid, CUTS[1], ""));
    let both = with("", hashed(HashOf::Uid, CUTS[1], CUTS[2]));
    assert_eq!(low.meet(&high), both);
    let by_namespace = with("", hashed(HashOf::Namespace, CUTS[1], CUTS[2]));
    assert_eq!(low.meet(&by_namespace).boundaries().len(), 2);
    // Patterns and hashes of namespaces that are listed are decided.
    let listed = with("", named(&["ant", "bee"])).meet(&with("", matching("^a")));
    assert_eq!(listed, with("", named(&["ant"])));
}

/// Requirements on two labels, a few of which mean the same or contradict each other.
fn requirement() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "k",
        "!k",
        "k=v",
        "k!=v",
        "k in (v,w)",
        "k in (w,x)",
        "k notin (v,x)",
        "k notin (w)",
        "n>3",
        "n>4",
        "n<5",
        "n<9",
        "n",
        "!n",
        "n in (4,x)",
        "n notin (4,8)",
        "n!=6",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_simplest_selector_selects_the_same(all in prop::collection::vec(requirement(), 0..6)) {
        let selector: Selector = all.join(",").parse().unwrap();
        let simplest = selector.simplest();
        let (values, numbers) = ([None, Some("v"), Some("w"), Some("x"), Some("y")], [
            None, Some("3"), Some("4"), Some("5"), Some("6"), Some("8"), Some("9"), Some("x"),
        ]);
        for value in values {
            for number in numbers {
                let label = |key: &str| if key == "k" { value } else { number };
                prop_assert_eq!(simplest.matches(label), selector.matches(label), "{} {}", selector, simplest);
            }
        }
        prop_assert_eq!(&simplest.simplest(), &simplest);
        if !selector.is_contradiction() {
            let kinds: BTreeSet<_> =
                simplest.requirements().iter().map(|one| (one.key(), one.op())).collect();
            prop_assert_eq!(kinds.len(), simplest.requirements().len(), "{}", simplest);
        }
    }
}

#[test]
fn a_part_of_a_scope_meets_it_in_itself() {
    let scope = |text: &str| Scope::new(text.parse().unwrap());
    for (one, part) in [
        ("team in (ant,bee)", "team in (ant)"),
        ("team", "team in (ant)"),
        ("team!=cat", "team notin (bee,cat)"),
        ("n>3", "n>5"),
        ("", "team=ant"),
    ] {
        let (one, part) = (scope(one), scope(part));
        assert_eq!(one.meet(&part), part.normal());
        assert_eq!(part.meet(&one), part.normal());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_left_without_another_is_exactly_that(
        one in scope(),
        other in scope(),
        objects in prop::collection::vec(whole(), 16),
    ) {
        let Some(rest) = one.without(&other) else { return Ok(()) };
        prop_assert!(rest.is_disjoint(&other), "{} without {} is {}", one, other, rest);
        prop_assert_eq!(&rest, &rest.normal());
        for object in objects {
            let object = Whole { stated: None, ..object };
            let facts = object.facts();
            let wanted = and(one.owns(&facts), other.owns(&facts).map(|is| !is));
            prop_assert_eq!(rest.owns(&facts), wanted, "{} without {} is {}: {:?}", one, other, rest, object);
        }
    }
}

#[test]
fn what_is_left_can_be_said_where_one_condition_tells_two_apart() {
    let labels = |text: &str| Scope::new(text.parse().unwrap());
    let names = |names: &[&str], has_cluster_scoped: bool| Boundary {
        names: Some(names.iter().map(|name| (*name).into()).collect()),
        pattern: None,
        selected: None,
        computed: None,
        hash: None,
        has_cluster_scoped,
    };
    let hash = |from: usize, to: &str| Boundary {
        names: None,
        pattern: None,
        selected: None,
        computed: None,
        hash: Some(
            HashRule::new(HashOf::Namespace, vec![HashRange::new(CUTS[from], to).unwrap()])
                .unwrap(),
        ),
        has_cluster_scoped: false,
    };
    for (one, other, rest) in [
        (labels("team in (ant,bee)"), labels("team in (bee,cat)"), labels("team=ant")),
        (labels("tier=x,team in (ant,bee)"), labels("team=bee,tier=x"), labels("team=ant,tier=x")),
        (labels("team"), labels("team=bee"), labels("team!=bee,team")),
        (
            labels("").inside(names(&["a", "b"], true)),
            labels("").inside(names(&["b"], false)),
            labels("").inside(names(&["a"], true)),
        ),
        (
            labels("").inside(names(&["a", "b"], true)),
            labels("").inside(names(&["b"], true)),
            labels("").inside(names(&["a"], false)),
        ),
        (
            labels("").inside(hash(0, CUTS[2])),
            labels("").inside(hash(1, "")),
            labels("").inside(hash(0, CUTS[1])),
        ),
    ] {
        assert_eq!(one.without(&other), Some(rest.normal()), "{one} without {other}");
    }
    assert_eq!(labels("a=1").without(&labels("a=1")), Some(Scope::nothing()));
    assert_eq!(labels("a in (1,2),b in (1,2)").without(&labels("a=1,b=1")), None);
    assert_eq!(labels("").without(&labels("n>3")), None);
}
