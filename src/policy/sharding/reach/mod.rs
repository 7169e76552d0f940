//! The namespaces and the hashes of the objects that a share keeps, and of those that one share keeps
//! and another does not. So a list of them need not be of everything.

mod hashes;

use std::collections::BTreeSet;

pub use self::hashes::Hashes;
use super::{Boundary, HashFunction, HashOf, HashRule, ObjectFacts, Share};
use crate::policy::spans::{END, Spans};

/// The most namespaces that are listed one by one.
const MAX_NAMESPACES: usize = 16;

/// The namespaces in which objects may change hands, or `None` if they are too many or not known.
pub(in crate::policy) fn changed_namespaces(
    before: &Share,
    after: &Share,
) -> Option<Vec<Box<str>>> {
    let (old, new) = (Reach::of(before)?, Reach::of(after)?);
    let is_the_same = old.uid_rules() == new.uid_rules();
    let changes = |name: &str| match (old.has(name), new.has(name)) {
        (false, false) => false,
        (true, true) => !is_the_same,
        _ => true,
    };
    if changes("") {
        return None;
    }
    let every: BTreeSet<&str> = old.names.union(&new.names).copied().collect();
    let changed: Vec<_> = every.into_iter().filter(|name| changes(name)).map(Into::into).collect();
    (changed.len() <= MAX_NAMESPACES).then_some(changed)
}

/// The namespaces of the objects that are kept.
struct Reach<'a> {
    boundaries: &'a [Boundary],
    /// All kept objects that are namespaced are in these.
    names: BTreeSet<&'a str>,
    is_nowhere: bool,
}

impl<'a> Reach<'a> {
    /// The namespaces of a share. `None` if they cannot be listed, or the objects are Namespaces.
    fn of(share: &'a Share) -> Option<Self> {
        match share {
            Share::None => Some(Self { boundaries: &[], names: BTreeSet::new(), is_nowhere: true }),
            Share::Each { scope, are_namespaces: false } => {
                let boundaries = scope.boundaries();
                let known = boundaries.iter().filter_map(Boundary::namespaces);
                let names = known.min_by_key(|names| names.len())?;
                let names = names.iter().map(AsRef::as_ref).collect();
                Some(Self { boundaries, names, is_nowhere: false })
            }
            _ => None,
        }
    }

    /// Whether objects of the namespace may be kept; `""` means cluster-scoped.
    fn has(&self, namespace: &str) -> bool {
        let object = ObjectFacts::common_in(namespace);
        !self.is_nowhere && self.boundaries.iter().all(|one| one.has(&object) != Some(false))
    }

    fn uid_rules(&self) -> Vec<&HashRule> {
        let rules = self.boundaries.iter().filter_map(|boundary| boundary.hash.as_ref());
        rules.filter(|rule| rule.of() == HashOf::Uid).collect()
    }
}

/// The hashes of the objects that may change hands, or `None` if they are not known.
pub(in crate::policy) fn changed_hashes(before: &Share, after: &Share) -> Option<Hashes> {
    let (old, new) = (Hashed::of(before)?, Hashed::of(after)?);
    let of = old.of.or(new.of)?;
    if [old.of, new.of].into_iter().flatten().any(|other| other != of) {
        return None;
    }
    let set = if old.rest == new.rest { old.set.xor(&new.set) } else { old.set.or(&new.set) };
    (set != Spans::up_to(END)).then(|| Hashes::new(of, set))
}

/// A judgement as a set of hashes, and its other conditions.
struct Hashed {
    of: Option<HashOf>,
    set: Spans,
    rest: Option<Vec<Boundary>>,
}

impl Hashed {
    /// The hashes of a share. `None` if there is more than one hash rule, or one that the API
    /// server evaluates differently.
    fn of(share: &Share) -> Option<Self> {
        let (scope, are_namespaces) = match share {
            Share::None => {
                return Some(Self { of: None, set: Spans::default(), rest: None });
            }
            Share::Whole => {
                return Some(Self { of: None, set: Spans::up_to(END), rest: Some(Vec::new()) });
            }
            Share::Each { scope, are_namespaces } => (scope, *are_namespaces),
        };
        let mut found = None;
        let mut rest = Vec::new();
        for boundary in scope.boundaries() {
            let without = Boundary { hash: None, ..boundary.clone() };
            if let Some(rule) = &boundary.hash
                && found.replace((rule, boundary.has_cluster_scoped)).is_some()
            {
                return None;
            }
            if !without.is_everything() {
                rest.push(without);
            }
        }
        let Some((rule, has_cluster_scoped)) = found else {
            return Some(Self { of: None, set: Spans::up_to(END), rest: Some(rest) });
        };
        let set: Spans = rule.ranges().iter().copied().collect();
        let set = match rule.of() {
            HashOf::Uid => set,
            _ if rule.function() == HashFunction::Mixed => return None,
            // The API server hashes a Namespace as an object without a namespace.
            HashOf::Namespace if are_namespaces => return None,
            // Cluster-scoped objects have the hash of the empty namespace.
            HashOf::Namespace if has_cluster_scoped => set.or(&Hashes::span_of("")),
            HashOf::Namespace => set,
        };
        Some(Self { of: Some(rule.of()), set, rest: Some(rest) })
    }
}

impl Share {
    /// Hashes of all kept objects, for the API server to select by, or `None` if not known.
    pub fn hashes(&self) -> Option<Hashes> {
        changed_hashes(&Self::None, self).filter(|hashes| !hashes.is_empty())
    }

    /// The one namespace of all kept objects, or `None` if there is not exactly one.
    pub fn only_namespace(&self) -> Option<&str> {
        let reach = Reach::of(self)?;
        match (reach.has(""), reach.names.iter().next()) {
            (false, Some(name)) if reach.names.len() == 1 => Some(name),
            _ => None,
        }
    }
}
