//! Boundaries of a shard by namespace and hash, which need no label on the objects.
//!
//! Hides how namespaces and hashes decide. Knows no encodings, requests or objects.

mod computed;
mod hash;

use std::{collections::BTreeSet, fmt};

use regex::{Regex, RegexBuilder};

pub(crate) use self::hash::{fnv1a, mixed};
pub use self::{
    computed::{Computed, shard_bucket},
    hash::{BadRange, HashFunction, HashOf, HashRange, HashRule},
};
use super::Selected;

/// Longest pattern for namespaces, in bytes.
const MAX_PATTERN: usize = 1024;
/// Memory that a compiled pattern may take, in bytes.
const PATTERN_MEMORY: usize = 1 << 20;

/// A boundary. All that it says must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Namespaces by their names. `None` means any; an empty set has none.
    pub names: Option<BTreeSet<Box<str>>>,
    /// Namespaces by a pattern.
    pub pattern: Option<Pattern>,
    /// Namespaces by their labels.
    pub selected: Option<Selected>,
    /// Namespaces by a value that is computed from their names. `None` where they are listed.
    pub computed: Option<Computed>,
    /// A hash of the object.
    pub hash: Option<HashRule>,
    /// Whether cluster-scoped objects are in the shard: conditions on namespaces do not apply to
    /// them. A Namespace object is judged as the namespace that it names.
    pub has_cluster_scoped: bool,
}

/// A regular expression for names, compared by its text.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Boundary {
    /// The boundary without a condition.
    pub(crate) fn everything() -> Self {
        Self {
            names: None,
            pattern: None,
            selected: None,
            computed: None,
            hash: None,
            has_cluster_scoped: true,
        }
    }

    /// Whether it sets no condition.
    pub(crate) fn is_everything(&self) -> bool {
        let Self { names, pattern, selected, computed, hash, has_cluster_scoped } = self;
        names.is_none()
            && pattern.is_none()
            && selected.is_none()
            && computed.is_none()
            && hash.is_none()
            && *has_cluster_scoped
    }

    /// The boundary, whose namespaces are restricted by a condition on computed keys, if there is one.
    pub(crate) fn restricted(mut self, computed: Option<Computed>) -> Self {
        let Some(computed) = computed else { return self };
        if let Some(listed) = computed.names() {
            self.names = Some(match self.names.take() {
                Some(names) => names.intersection(&listed).cloned().collect(),
                None => listed,
            });
        }
        match &mut self.names {
            // Of names that are listed, the condition is known.
            Some(names) => names.retain(|name| computed.has(name)),
            None => self.computed = Some(computed),
        }
        self
    }

    /// Whether objects with this uid may be in the shard. `None` if that depends on the uid, and it is
    /// empty.
    pub(super) fn has_uid(&self, uid: &str) -> Option<bool> {
        match &self.hash {
            Some(rule) if rule.of() == HashOf::Uid => (!uid.is_empty()).then(|| rule.has(uid)),
            _ => Some(true),
        }
    }

    /// Whether it has a condition on namespaces.
    pub(crate) fn is_by_namespace(&self) -> bool {
        let is_hashed = |rule: &HashRule| rule.of() == HashOf::Namespace;
        self.names.is_some()
            || self.pattern.is_some()
            || self.selected.is_some()
            || self.computed.is_some()
            || self.hash.as_ref().is_some_and(is_hashed)
    }

    /// A superset of the shard's namespaces, or `None` if they cannot be listed.
    pub(crate) fn namespaces(&self) -> Option<&BTreeSet<Box<str>>> {
        let selected = self.selected.as_ref().map(Selected::names);
        [self.names.as_ref(), selected].into_iter().flatten().min_by_key(|names| names.len())
    }

    /// Whether objects of the namespace may be in the shard, but for its selector of namespaces; `""`
    /// means cluster-scoped.
    pub(crate) fn has_name(&self, namespace: &str) -> bool {
        if namespace.is_empty() {
            return self.has_cluster_scoped;
        }
        self.names.as_ref().is_none_or(|names| names.contains(namespace))
            && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(namespace))
            && self.computed.as_ref().is_none_or(|computed| computed.has(namespace))
            && match &self.hash {
                Some(rule) if rule.of() == HashOf::Namespace => rule.has(namespace),
                _ => true,
            }
    }
}

impl Pattern {
    /// Compiles `text`, which may match anywhere in a name, as in Go. Fails with a message for the
    /// author of the pattern.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > MAX_PATTERN {
            return Err(format!("has {} bytes: give at most {MAX_PATTERN}", text.len()));
        }
        let built = RegexBuilder::new(text)
            .size_limit(PATTERN_MEMORY)
            .dfa_size_limit(PATTERN_MEMORY)
            .build();
        built.map(Self).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                "is too large once compiled: use fewer or smaller repetitions".to_owned()
            }
            error => {
                format!("{text:?} is not a regular expression: {}", one_line(&error.to_string()))
            }
        })
    }

    /// Whether a name matches.
    pub(super) fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// The last line of the parser's error is the message; the lines before only mark the place.
fn one_line(error: &str) -> String {
    let last = error.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Pattern {}

impl fmt::Display for Boundary {
    /// The canonical text of a boundary: `namespace in (a,b), namespace ~ "^t", namespace labels
    /// tier=gold, namespace computed ctrlmesh.kusionstack.io/shard-hash=7, hash(uid) in […)`. It does
    /// not list the namespaces with the labels.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(names) = &self.names {
            let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
            parts.push(format!("namespace in ({})", names.join(",")));
        }
        if let Some(pattern) = &self.pattern {
            parts.push(format!("namespace ~ {:?}", pattern.as_str()));
        }
        if let Some(selected) = &self.selected {
            parts.push(format!("namespace labels {}", selected.selector()));
        }
        if let Some(computed) = &self.computed {
            parts.push(format!("namespace computed {computed}"));
        }
        if let Some(rule) = &self.hash {
            let of = match rule.of() {
                HashOf::Uid => "uid",
                HashOf::Namespace => "namespace",
            };
            let function = match rule.function() {
                HashFunction::Fnv1a => "hash",
                HashFunction::Mixed => "mixed hash",
            };
            let ranges: Vec<_> = rule.ranges().iter().map(ToString::to_string).collect();
            parts.push(format!("{function}({of}) in {}", ranges.join(" or ")));
        }
        if !self.has_cluster_scoped {
            parts.push("nothing without a namespace".to_owned());
        }
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sharding::ObjectFacts;
    use ctrlmesh_wire::object::Object;

    fn object<'a>(namespace: &'a str, name: &'a str, uid: &'a str) -> Object<'a> {
        Object { namespace, name, uid, ..Object::default() }
    }

    fn has(boundary: &Boundary, object: &Object<'_>, is_namespace: bool) -> Option<bool> {
        boundary.has(&ObjectFacts::of(object, is_namespace))
    }

    fn any() -> Boundary {
        Boundary::everything()
    }

    fn of(of: HashOf, ranges: &[(&str, &str)]) -> Boundary {
        let ranges = ranges.iter().map(|(from, to)| HashRange::new(from, to).unwrap()).collect();
        Boundary { hash: Some(HashRule::new(of, ranges).unwrap()), ..any() }
    }

    const HALF: &str = "0x8000000000000000";
    const ZERO: &str = "0x0000000000000000";

    #[test]
    fn t52_the_hash_is_that_of_kep_5866() {
        for (text, hash) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("abc", 0xe71f_a219_0541_574b),
            ("default", 0xebad_a516_8620_c5fe),
            ("kube-system", 0xdf65_c7bc_1d82_b35e),
            ("00000000-0000-0000-0000-000000000001", 0x7c38_4b62_18f2_983e),
        ] {
            assert_eq!(fnv1a(text), hash, "{text:?}");
        }
    }

    #[test]
    fn i15_numbered_namespaces_are_spread_evenly_by_the_mixed_hash() {
        // `fmix64` of MurmurHash3 (smhasher, MurmurHash3.cpp).
        for (hash, mixed) in [(0, 0), (1, 0xb456_bcfc_34c2_cb2c), (2, 0x3abf_2a20_6506_83e7)] {
            assert_eq!(hash::mixed(hash), mixed, "{hash}");
        }
        let half = |rule: HashRule| (0..1000).filter(|at| rule.has(&format!("ns-{at:04}"))).count();
        let ranges = || vec![HashRange::new(ZERO, HALF).unwrap()];
        assert_eq!(half(HashRule::new(HashOf::Namespace, ranges()).unwrap()), 1000);
        let even = half(HashRule::mixed(ranges()).unwrap());
        assert!((450..=550).contains(&even), "{even}");
    }

    #[test]
    fn t52_a_range_has_its_first_and_not_its_last() {
        let abc = object("", "", "abc");
        let at = "0xe71fa2190541574b";
        let behind = "0xe71fa2190541574c";
        assert_eq!(has(&of(HashOf::Uid, &[(at, behind)]), &abc, false), Some(true));
        assert_eq!(has(&of(HashOf::Uid, &[(ZERO, at)]), &abc, false), Some(false));
        assert_eq!(has(&of(HashOf::Uid, &[(behind, "")]), &abc, false), Some(false));
        assert_eq!(has(&of(HashOf::Uid, &[(ZERO, HALF), (at, "")]), &abc, false), Some(true));
    }

    #[test]
    fn ranges_that_cannot_be_used_say_why() {
        for text in
            ["", "0", "0x0", "0X0000000000000000", "0x000000000000000G", "0x0000000000000ABC"]
        {
            assert_eq!(HashRange::new(text, ""), Err(BadRange::Hash(text.to_owned())));
        }
        assert!(matches!(HashRange::new(HALF, ZERO), Err(BadRange::Empty { .. })));
        assert!(matches!(HashRange::new(HALF, HALF), Err(BadRange::Empty { .. })));
        let range = |from, to| HashRange::new(from, to).unwrap();
        let overlap =
            HashRule::new(HashOf::Uid, vec![range(HALF, ""), range(ZERO, "0x8000000000000001")]);
        assert!(matches!(overlap, Err(BadRange::Overlap(..))));
        let twice = HashRule::new(HashOf::Uid, vec![range(ZERO, ""), range(HALF, "")]);
        assert!(matches!(twice, Err(BadRange::Overlap(..))));
        assert_eq!(HashRule::new(HashOf::Uid, vec![]), Err(BadRange::None));
        assert!(HashRule::new(HashOf::Uid, vec![range(HALF, ""), range(ZERO, HALF)]).is_ok());
    }

    #[test]
    fn t51_what_is_in_no_namespace_is_in_the_shard_that_says_so() {
        let node = object("", "node-1", "u");
        for boundary in [
            Boundary { names: Some(BTreeSet::from(["a".into()])), ..any() },
            Boundary { pattern: Some(Pattern::new("^a").unwrap()), ..any() },
            of(HashOf::Namespace, &[(ZERO, "0x0000000000000001")]),
        ] {
            assert_eq!(has(&boundary, &node, false), Some(true));
            let without = Boundary { has_cluster_scoped: false, ..boundary };
            assert_eq!(has(&without, &node, false), Some(false));
        }
    }

    #[test]
    fn a_namespace_is_judged_as_what_it_names() {
        let boundary = Boundary {
            names: Some(BTreeSet::from(["a".into()])),
            has_cluster_scoped: false,
            ..any()
        };
        assert_eq!(has(&boundary, &object("", "a", "u"), true), Some(true));
        assert_eq!(has(&boundary, &object("", "b", "u"), true), Some(false));
    }

    #[test]
    fn what_is_in_one_namespace_needs_no_look_at_it() {
        let boundary = Boundary { names: Some(BTreeSet::from(["a".into()])), ..any() };
        assert_eq!(boundary.has(&ObjectFacts::common_in("a")), Some(true));
        assert_eq!(boundary.has(&ObjectFacts::common_in("b")), Some(false));
        let both = Boundary { hash: of(HashOf::Uid, &[(ZERO, HALF)]).hash, ..boundary };
        assert_eq!(both.has(&ObjectFacts::common_in("a")), None);
        assert_eq!(both.has(&ObjectFacts::common_in("b")), Some(false));
    }

    #[test]
    fn an_object_without_a_uid_has_no_hash() {
        let boundary = of(HashOf::Uid, &[(ZERO, "")]);
        assert_eq!(has(&boundary, &object("a", "metrics", ""), false), None);
    }

    #[test]
    fn a_pattern_matches_anywhere_and_is_bounded() {
        let boundary =
            |pattern| Boundary { pattern: Some(Pattern::new(pattern).unwrap()), ..any() };
        let team = object("team-b", "x", "u");
        assert_eq!(has(&boundary("^team-[a-f]"), &team, false), Some(true));
        assert_eq!(has(&boundary("^team-[c-f]$"), &team, false), Some(false));
        assert_eq!(has(&boundary("b"), &team, false), Some(true));
        assert!(Pattern::new("a{").unwrap_err().contains("not a regular expression"));
        assert!(Pattern::new("(((a{100}){100}){100})").unwrap_err().contains("too large"));
        assert!(Pattern::new(&"a".repeat(2000)).unwrap_err().contains("at most"));
    }

    proptest! {
        #[test]
        fn t52_shards_are_disjoint_and_miss_nothing(
            mut cuts in prop::collection::vec(1u64.., 0..6),
            uid in "[0-9a-f-]{1,36}",
        ) {
            cuts.sort_unstable();
            cuts.dedup();
            let text = |cut: u64| format!("{cut:#018x}");
            let mut starts = vec![ZERO.to_owned()];
            starts.extend(cuts.iter().map(|cut| text(*cut)));
            let mut ends: Vec<_> = cuts.iter().map(|cut| text(*cut)).collect();
            ends.push(String::new());
            let owners = starts.iter().zip(&ends).filter(|(from, to)| {
                has(&of(HashOf::Uid, &[(from, to)]), &object("", "", &uid), false) == Some(true)
            });
            prop_assert_eq!(owners.count(), 1);
        }
    }
}
