//! The namespaces and the hashes of the objects that a share keeps. Also those of the objects that one
//! share keeps and another does not. So a list of them need not be of everything.

mod hashes;

use std::collections::BTreeSet;

pub use self::hashes::Hashes;
use super::{Boundary, Filter, HashFunction, HashOf, HashRule, ObjectFacts, SharedNamespaces};
use crate::intervals::{END, IntervalSet};

/// The most namespaces that are listed one by one.
const MAX_NAMESPACES: usize = 16;

/// The namespaces in which objects may change hands, or `None` if they are too many or not known.
pub(crate) fn changed_namespaces(before: &Filter, after: &Filter) -> Option<Vec<Box<str>>> {
    let (old, new) = (Reach::of(before)?, Reach::of(after)?);
    let is_the_same = old.uid_rules() == new.uid_rules();
    let changes = |name: &str| match (old.keeps(name), new.keeps(name)) {
        (Some(one), Some(other)) => one != other,
        (None, None) => !is_the_same,
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
    shared: Option<&'a SharedNamespaces>,
    /// All kept objects that are namespaced are in these.
    names: BTreeSet<&'a str>,
    is_nowhere: bool,
}

impl<'a> Reach<'a> {
    /// The namespaces of a share. `None` if they cannot be listed, or the objects are Namespaces.
    fn of(filter: &'a Filter) -> Option<Self> {
        let nowhere =
            Self { boundaries: &[], shared: None, names: BTreeSet::new(), is_nowhere: true };
        match filter {
            Filter::DropAll => Some(nowhere),
            Filter::PerObject { scope, are_namespaces: false, shared } => {
                let mut names = shared.names()?;
                names.remove("");
                let shared = Some(shared);
                if scope.is_nothing() {
                    return Some(Self { shared, names, ..nowhere });
                }
                let boundaries = scope.boundaries();
                let known = boundaries.iter().filter_map(Boundary::namespaces);
                let owned = known.min_by_key(|names| names.len())?;
                names.extend(owned.iter().map(AsRef::<str>::as_ref));
                Some(Self { boundaries, shared, names, is_nowhere: false })
            }
            _ => None,
        }
    }

    /// Whether the objects of the namespace are kept; `""` means cluster-scoped. `None` if their uids tell.
    fn keeps(&self, namespace: &str) -> Option<bool> {
        if self.shared.is_some_and(|shared| shared.has(namespace)) {
            return Some(true);
        }
        let object = ObjectFacts::common_in(namespace);
        let of_each = || self.boundaries.iter().map(|one| one.has(&object));
        match () {
            () if self.is_nowhere || of_each().any(|has| has == Some(false)) => Some(false),
            () if of_each().any(|has| has.is_none()) => None,
            () => Some(true),
        }
    }

    fn uid_rules(&self) -> Vec<&HashRule> {
        let rules = self.boundaries.iter().filter_map(|boundary| boundary.hash.as_ref());
        rules.filter(|rule| rule.of() == HashOf::Uid).collect()
    }
}

/// The hashes of the objects that may change hands, or `None` if they are not known.
pub(crate) fn changed_hashes(before: &Filter, after: &Filter) -> Option<Hashes> {
    // Shared objects count whatever their hash is. Objects shared before and after do not change hands.
    if shared_of(before) != shared_of(after) {
        return None;
    }
    let (old, new) = (Hashed::of(before)?, Hashed::of(after)?);
    let of = old.of.or(new.of)?;
    if [old.of, new.of].into_iter().flatten().any(|other| other != of) {
        return None;
    }
    let set = if old.rest == new.rest { old.set.xor(&new.set) } else { old.set.or(&new.set) };
    (set != IntervalSet::up_to(END)).then(|| Hashes::new(of, set))
}

/// What a share has that is not owned.
fn shared_of(filter: &Filter) -> Option<&SharedNamespaces> {
    match filter {
        Filter::DropAll | Filter::KeepAll => None,
        Filter::PerObject { shared, .. } => Some(shared).filter(|shared| !shared.is_empty()),
    }
}

/// A judgement as a set of hashes, and its other conditions.
struct Hashed {
    of: Option<HashOf>,
    set: IntervalSet,
    rest: Option<Vec<Boundary>>,
}

impl Hashed {
    /// The hashes of a share. `None` if there is more than one hash rule, or one that the API
    /// server evaluates differently.
    fn of(filter: &Filter) -> Option<Self> {
        let (scope, are_namespaces) = match filter {
            Filter::DropAll => {
                return Some(Self { of: None, set: IntervalSet::default(), rest: None });
            }
            Filter::KeepAll => {
                return Some(Self {
                    of: None,
                    set: IntervalSet::up_to(END),
                    rest: Some(Vec::new()),
                });
            }
            Filter::PerObject { scope, are_namespaces, .. } => (scope, *are_namespaces),
        };
        if scope.is_nothing() {
            return Self::of(&Filter::DropAll);
        }
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
            return Some(Self { of: None, set: IntervalSet::up_to(END), rest: Some(rest) });
        };
        let set: IntervalSet = rule.ranges().iter().copied().collect();
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

impl Filter {
    /// Hashes of all kept objects, for the API server to select by, or `None` if not known.
    pub fn hashes(&self) -> Option<Hashes> {
        changed_hashes(&Self::DropAll, self).filter(|hashes| !hashes.is_empty())
    }

    /// The one namespace of all kept objects, or `None` if there is not exactly one.
    pub fn only_namespace(&self) -> Option<&str> {
        let reach = Reach::of(self)?;
        match (reach.keeps(""), reach.names.iter().next()) {
            (Some(false), Some(name)) if reach.names.len() == 1 => Some(name),
            _ => None,
        }
    }
}
