//! The parts of a collection in which objects may change hands, and the judgement of each object.

use std::collections::BTreeSet;

use super::ranges::Hashes;
use crate::{
    policy::{
        sharding::{Boundary, HashFunction, HashOf, HashRule, ObjectFacts, Share},
        spans::{END, Spans},
        way::Narrow,
    },
    wire::{frames::Verdict, object::Object, selector::Selector},
};

/// The most namespaces that are listed one by one.
const MAX_NAMESPACES: usize = 16;

/// A part of a collection in which objects may change hands. The parts of one difference have no
/// object in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The label selector of its objects.
    pub selector: Selector,
    /// The namespace to list, or `None` for all of the collection.
    pub namespace: Option<Box<str>>,
    /// The hashes of its objects, or `None` if they are not known.
    pub hashes: Option<Hashes>,
    before: Share,
    after: Share,
}

/// An object's change of hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// The object leaves the shard.
    Over,
    /// The object enters the shard.
    In,
    /// The object stays where it is.
    Not,
    /// The object lacks an attribute that a rule needs.
    Unknown,
}

impl Part {
    /// Judges an object of this part.
    pub fn judge(&self, object: &Object<'_>) -> Handed {
        match (self.before.judge(object), self.after.judge(object)) {
            (Verdict::Unknown, _) | (_, Verdict::Unknown) => Handed::Unknown,
            (Verdict::Keep, Verdict::Drop) => Handed::Over,
            (Verdict::Drop, Verdict::Keep) => Handed::In,
            _ => Handed::Not,
        }
    }
}

/// The parts of a collection in which objects change hands between two narrowings of it, or
/// `None` if selectors cannot express them.
///
/// `is_in_namespace` is true if the collection is of one namespace already.
pub fn difference(before: &Narrow, after: &Narrow, is_in_namespace: bool) -> Option<Vec<Part>> {
    let (old, new) = (selector(before), selector(after));
    let mut parts = Parts { found: Vec::new(), is_in_namespace };
    match (before.share == Share::None, after.share == Share::None) {
        (true, true) => {}
        (false, true) => parts.add(&old, &before.share, &Share::None),
        (true, false) => parts.add(&new, &Share::None, &after.share),
        (false, false) => {
            for selector in without(&old, &new)? {
                parts.add(&selector, &before.share, &Share::None);
            }
            for selector in without(&new, &old)? {
                parts.add(&selector, &Share::None, &after.share);
            }
            if before.share != after.share {
                parts.add(&old.and(&new), &before.share, &after.share);
            }
        }
    }
    Some(parts.found)
}

fn selector(narrow: &Narrow) -> Selector {
    narrow.scope.as_ref().map_or_else(Selector::everything, |scope| scope.selector().clone())
}

/// Disjoint selectors for what `one` selects and `two` does not: a selector can negate one
/// requirement, but not several. `None` if a requirement cannot be negated.
fn without(one: &Selector, two: &Selector) -> Option<Vec<Selector>> {
    let mut so_far = one.clone();
    let mut found = Vec::new();
    for requirement in two.requirements() {
        if one.requirements().contains(requirement) {
            continue;
        }
        let with = |requirement| so_far.and(&[requirement].into_iter().collect());
        found.push(with(requirement.opposite()?));
        so_far = with(requirement.clone());
    }
    Some(found)
}

struct Parts {
    found: Vec<Part>,
    is_in_namespace: bool,
}

impl Parts {
    fn add(&mut self, selector: &Selector, before: &Share, after: &Share) {
        let hashes = hashes(before, after);
        if hashes.as_ref().is_some_and(Hashes::is_empty) {
            return;
        }
        let part = |namespace: Option<Box<str>>| Part {
            selector: selector.clone(),
            hashes: hashes.clone(),
            namespace,
            before: before.clone(),
            after: after.clone(),
        };
        match namespaces(before, after).filter(|_| !self.is_in_namespace) {
            Some(names) => self.found.extend(names.into_iter().map(|name| part(Some(name)))),
            None => self.found.push(part(None)),
        }
    }
}

/// The namespaces in which objects may change hands, or `None` if they are too many or not known.
fn namespaces(before: &Share, after: &Share) -> Option<Vec<Box<str>>> {
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
fn hashes(before: &Share, after: &Share) -> Option<Hashes> {
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
        hashes(&Self::None, self).filter(|hashes| !hashes.is_empty())
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

#[cfg(test)]
mod tests;
