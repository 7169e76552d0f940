use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{super::Boundary, *};
use crate::sharding::any_computed;

const CTRLMESH: &str = "ctrlmesh.kusionstack.io";
const KRIDGE: &str = "kridge.kusionstack.io";

/// The labels that a stamped object has: a second implementation, of what KusionStack's code and its
/// documents say of the object's namespace.
fn stamped(namespace: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    if namespace.is_empty() {
        return labels;
    }
    let sum = namespace.chars().fold(0_u32, |sum, c| sum + u32::from(c));
    let mut hash: u64 = 14_695_981_039_346_656_037;
    for byte in namespace.as_bytes() {
        hash ^= u64::from(*byte);
        hash = hash.wrapping_mul(1_099_511_628_211);
    }
    for prefix in [CTRLMESH, KRIDGE] {
        let mut stamp = |key: &str, value: String| labels.insert(format!("{prefix}/{key}"), value);
        stamp("namespace", namespace.to_owned());
        stamp("shard-hash", (sum % 32).to_string());
        stamp("sharding-hash", (hash % 32).to_string());
        stamp("control", "true".to_owned());
    }
    labels
}

fn split(text: &str) -> (Option<Computed>, Selector) {
    Computed::split(&text.parse().unwrap())
}

fn computed(text: &str) -> Computed {
    split(text).0.unwrap()
}

#[test]
fn i15_a_key_is_computed_for_both_prefixes_and_others_are_asked_of_the_object() {
    let (of_keys, rest) =
        split("a=b,ctrlmesh.kusionstack.io/namespace=x,kridge.kusionstack.io/shard-hash in (1,2)");
    assert_eq!(rest.to_string(), "a=b");
    let text = "ctrlmesh.kusionstack.io/namespace=x,ctrlmesh.kusionstack.io/shard-hash in (1,2)";
    assert_eq!(of_keys.unwrap().to_string(), text);
    for other in [
        "a=b",
        "ctrlmesh.kusionstack.io/ring=x",
        "x.kridge.kusionstack.io/namespace=x",
        "namespace=x",
    ] {
        let (of_keys, rest) = split(other);
        assert_eq!((of_keys, &*rest.to_string()), (None, other));
    }
}

/// By hand: the characters of `default` are 741 together, and 741 % 32 is 5; the FNV-1a hash of
/// `default` ends with 0xfe, that of `kube-system` with 0x5e, and both % 32 are 30.
#[test]
fn i15_buckets_are_those_of_kusionstack() {
    for (namespace, key, value) in [
        ("default", "shard-hash", "5"),
        ("default", "sharding-hash", "30"),
        ("kube-system", "sharding-hash", "30"),
        // As its controller has stamped them.
        ("foo-01", "shard-hash", "18"),
        ("foo-10", "shard-hash", "18"),
        ("kusionstack-system", "shard-hash", "1"),
        ("default", "namespace", "default"),
        ("default", "control", "true"),
    ] {
        for prefix in [CTRLMESH, KRIDGE] {
            assert!(
                computed(&format!("{prefix}/{key}={value}")).has(namespace),
                "{namespace} {key}"
            );
            assert!(
                !computed(&format!("{prefix}/{key}!={value}")).has(namespace),
                "{namespace} {key}"
            );
        }
    }
}

#[test]
fn i15_names_are_listed_where_the_condition_says_them() {
    let names = |text: &str| {
        let names = computed(text).names();
        names.map(|names| names.into_iter().map(String::from).collect::<Vec<_>>())
    };
    let of = |rest: &str| format!("{CTRLMESH}/{rest}");
    assert_eq!(names(&of("namespace in (b,a)")), Some(vec!["a".into(), "b".into()]));
    assert_eq!(names(&of("namespace notin (b,a)")), None);
    assert_eq!(names(&of("shard-hash in (1,2)")), None);
    // None that is in a namespace.
    for none in ["!namespace", "!control", "control=false", "shard-hash=32", "sharding-hash=01"] {
        let text =
            if let Some(key) = none.strip_prefix('!') { format!("!{}", of(key)) } else { of(none) };
        assert_eq!(names(&text), Some(vec![]), "{none}");
    }
    assert!(computed(&format!("!{CTRLMESH}/namespace")).has(""));
}

proptest! {
    #[test]
    fn i15_ownership_is_that_of_stamped_labels(
        condition in any_computed(),
        namespace in "[a-z]{1,6}(-[0-9]{1,3})?",
        is_in_none in prop::bool::weighted(0.2),
    ) {
        let namespace = if is_in_none { "" } else { &*namespace };
        let labels = stamped(namespace);
        let selector: Selector = condition.to_string().parse().unwrap();
        let is_selected = selector.matches(|key| labels.get(key).map(String::as_str));
        prop_assert_eq!(condition.has(namespace), is_selected, "{} {:?}", condition, namespace);
        let boundary = Boundary::everything().restricted(Some(condition.clone()));
        let is_inside = is_selected || namespace.is_empty();
        prop_assert_eq!(boundary.has_name(namespace), is_inside, "{}, not {}", boundary, condition);
        let names: Option<BTreeSet<_>> = condition.names();
        if let Some(names) = names && is_selected && !namespace.is_empty() {
            prop_assert!(names.contains(namespace), "{} {:?}", condition, namespace);
        }
        if let Some(opposite) = condition.opposite() {
            prop_assert_eq!(opposite.has(namespace), !is_selected, "{} {:?}", opposite, namespace);
        }
    }

    #[test]
    fn i15_both_are_met_where_each_is(
        one in any_computed(),
        other in any_computed(),
        namespace in "[a-z]{0,2}",
    ) {
        let both = one.and(&other);
        prop_assert_eq!(both.has(&namespace), one.has(&namespace) && other.has(&namespace));
        let each: Vec<_> = both.each().collect();
        prop_assert_eq!(both.has(&namespace), each.iter().all(|part| part.has(&namespace)));
    }
}
