//! Intersection and disjointness of scopes.
//!
//! Hides the normal form of a scope, and the proofs about two scopes. Does not know the shards. Words:
//! the *meet* of two scopes owns what both own; they are *disjoint* if it is proven that they own
//! nothing in common. Labels that a request states for its namespace are not
//! regarded: by them reviews are judged, which write nothing.

mod without;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Boundary, Computed, HashFunction, HashOf, HashRule, ObjectSet, Pattern, Scope, Selected, common,
};

impl Scope {
    /// The scope in normal form: equal, if the same conditions were met in another order.
    pub fn normal(&self) -> Self {
        self.meet(self)
    }

    /// The objects that both own, in normal form: one condition of each kind, but for patterns and
    /// for hashes of several attributes and functions.
    pub fn meet(&self, other: &Self) -> Self {
        let selector = self.selector().and(other.selector());
        if self.is_nothing() || other.is_nothing() || selector.is_contradiction() {
            return Self::nothing();
        }
        let mut common = Common { has_cluster_scoped: true, ..Common::default() };
        for boundary in self.boundaries().iter().chain(other.boundaries()) {
            common.add(boundary);
        }
        match common.boundaries() {
            Some(boundaries) => {
                boundaries.into_iter().fold(Self::new(selector.simplest()), Self::inside)
            }
            None => Self::nothing(),
        }
    }

    /// Whether it is proven that no object is in both.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let both = self.meet(other);
        both.is_nothing() || has_no_namespace(both.boundaries())
    }
}

/// Whether it is proven that the boundaries, in normal form, have no namespace in common. They must
/// have no object without a namespace in common either.
fn has_no_namespace(boundaries: &[Boundary]) -> bool {
    let has_name = |name: &str| boundaries.iter().all(|boundary| boundary.has_name(name));
    if has_name("") {
        return false;
    }
    let selected = || boundaries.iter().filter_map(|boundary| boundary.selected.as_ref());
    let is_selected = |name: &str| selected().all(|selected| selected.names().contains(name));
    let is_inside = |name: &str| is_selected(name) && has_name(name);
    if let Some(names) = boundaries.iter().find_map(Boundary::namespaces) {
        return !names.iter().any(|name| is_inside(name));
    }
    let patterns: Vec<_> =
        boundaries.iter().filter_map(|boundary| boundary.pattern.as_ref()).collect();
    patterns.iter().enumerate().any(|(at, one)| {
        patterns
            .iter()
            .skip(at + 1)
            .any(|other| !common::may_match_both(one.as_str(), other.as_str()))
    })
}

/// The conditions of several boundaries, by their kinds.
#[derive(Default)]
struct Common {
    names: Option<BTreeSet<Box<str>>>,
    patterns: BTreeMap<Box<str>, Pattern>,
    selected: Option<Selected>,
    computed: Option<Computed>,
    of_uid: CommonHashes,
    of_namespace: CommonHashes,
    of_namespace_mixed: CommonHashes,
    has_cluster_scoped: bool,
}

/// A condition on a hash.
#[derive(Default)]
enum CommonHashes {
    #[default]
    Any,
    In(HashRule),
    None,
}

impl CommonHashes {
    fn add(&mut self, rule: &HashRule) {
        let both = match self {
            Self::Any => rule.meet(rule),
            Self::In(other) => other.meet(rule),
            Self::None => None,
        };
        *self = both.map_or(Self::None, Self::In);
    }

    fn rule(self) -> Option<HashRule> {
        match self {
            Self::In(rule) => Some(rule),
            Self::Any | Self::None => None,
        }
    }
}

impl Common {
    fn add(&mut self, boundary: &Boundary) {
        let Boundary { names, pattern, selected, computed, hash, has_cluster_scoped } = boundary;
        if let Some(names) = names {
            self.names = Some(match &self.names {
                Some(others) => names.intersection(others).cloned().collect(),
                None => names.clone(),
            });
        }
        if let Some(pattern) = pattern {
            self.patterns.insert(pattern.as_str().into(), pattern.clone());
        }
        if let Some(selected) = selected {
            let both = self.selected.as_ref().map(|other| other.and(selected));
            self.selected = Some(both.unwrap_or_else(|| selected.clone()));
        }
        if let Some(computed) = computed {
            let both = self.computed.as_ref().map(|other| other.and(computed));
            self.computed = Some(both.unwrap_or_else(|| computed.clone()));
        }
        if let Some(rule) = hash {
            match (rule.of(), rule.function()) {
                (HashOf::Uid, _) => self.of_uid.add(rule),
                (HashOf::Namespace, HashFunction::Fnv1a) => self.of_namespace.add(rule),
                (HashOf::Namespace, HashFunction::Mixed) => self.of_namespace_mixed.add(rule),
            }
        }
        self.has_cluster_scoped &= has_cluster_scoped;
    }

    /// The boundaries in normal form. `None` if they have no object.
    fn boundaries(mut self) -> Option<Vec<Boundary>> {
        if matches!(self.of_uid, CommonHashes::None) {
            return None;
        }
        if [&self.of_namespace, &self.of_namespace_mixed]
            .iter()
            .any(|of| matches!(of, CommonHashes::None))
        {
            self.names = Some(BTreeSet::new());
        }
        if let Some(computed) = self.computed.take() {
            let named = Boundary { names: self.names.take(), ..Boundary::everything() };
            let restricted = named.restricted(Some(computed));
            (self.names, self.computed) = (restricted.names, restricted.computed);
        }
        // Of names that are listed, each condition on names is known.
        if let Some(names) = &mut self.names {
            let patterns = std::mem::take(&mut self.patterns);
            let hashes = [&mut self.of_namespace, &mut self.of_namespace_mixed];
            let hashes: Vec<_> =
                hashes.into_iter().filter_map(|of| std::mem::take(of).rule()).collect();
            names.retain(|name| {
                patterns.values().all(|pattern| pattern.is_match(name))
                    && hashes.iter().all(|rule| rule.has(name))
            });
            if names.is_empty() {
                self.selected = None;
                if !self.has_cluster_scoped {
                    return None;
                }
            }
        }
        Some(self.listed())
    }

    fn listed(self) -> Vec<Boundary> {
        let mut patterns = self.patterns.into_values();
        let hashes = [self.of_uid, self.of_namespace, self.of_namespace_mixed];
        let mut hashes = hashes.into_iter().filter_map(CommonHashes::rule);
        let first = Boundary {
            names: self.names,
            pattern: patterns.next(),
            selected: self.selected,
            computed: self.computed,
            hash: hashes.next(),
            has_cluster_scoped: self.has_cluster_scoped,
        };
        if first.is_everything() {
            return Vec::new();
        }
        let hashes = hashes.map(|rule| Boundary { hash: Some(rule), ..Boundary::everything() });
        let patterns =
            patterns.map(|pattern| Boundary { pattern: Some(pattern), ..Boundary::everything() });
        [first].into_iter().chain(hashes).chain(patterns).collect()
    }
}

impl ObjectSet for Arc<Scope> {
    fn nothing() -> Self {
        Self::new(Scope::nothing())
    }

    fn is_nothing(&self) -> bool {
        Scope::is_nothing(self)
    }

    fn meet(&self, other: &Self) -> Self {
        Self::new(Scope::meet(self, other))
    }

    fn is_disjoint(&self, other: &Self) -> bool {
        Scope::is_disjoint(self, other)
    }

    fn without(&self, other: &Self) -> Option<Self> {
        Scope::without(self, other).map(Self::new)
    }
}

#[cfg(test)]
pub(super) mod tests;
