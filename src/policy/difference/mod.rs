//! Which objects change hands when one policy follows another: what must be listed to find them,
//! and what becomes of each.
//!
//! Hides how little of a collection has to be looked at. Knows no request and no encoding. The API
//! server judges labels, since it alone has them; [`Part::judge`] judges all else, whether or not
//! the API server was told of it too.

mod again;
mod ranges;

use std::collections::BTreeSet;

use self::ranges::HashSet;
pub use self::{
    again::{Page, watch_from},
    ranges::Hashes,
};
use super::{Boundary, Decision, HashOf, HashRule, Judged};
use crate::wire::{
    frames::{Object, Verdict},
    selector::{Op, Requirement, Selector},
};

/// More namespaces than this are not asked for one by one.
const MAX_NAMESPACES: usize = 16;

/// A part of a collection in which objects may change hands. The parts of one difference have no
/// object in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The labels of its objects.
    pub selector: Selector,
    /// The namespace that it is in, where it is in one.
    pub namespace: Option<Box<str>>,
    /// The hashes of its objects, as far as they are known.
    pub hashes: Option<Hashes>,
    before: Judged,
    after: Judged,
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// The shard had it, and has it not.
    Over,
    /// The shard had it not, and has it.
    In,
    /// Nothing changes.
    Not,
    /// It lacks what a rule goes by.
    Unknown,
}

impl Part {
    /// Judges an object of this part.
    #[must_use]
    pub fn judge(&self, object: &Object<'_>) -> Handed {
        match (self.before.judge(object), self.after.judge(object)) {
            (Verdict::Unknown, _) | (_, Verdict::Unknown) => Handed::Unknown,
            (Verdict::Keep, Verdict::Drop) => Handed::Over,
            (Verdict::Drop, Verdict::Keep) => Handed::In,
            _ => Handed::Not,
        }
    }
}

/// The parts of a collection in which objects change hands. Both decisions are about it; nothing
/// where the parts cannot be said.
///
/// `is_in_namespace` says that the collection is of one namespace already.
#[must_use]
pub fn difference(before: &Decision, after: &Decision, is_in_namespace: bool) -> Option<Vec<Part>> {
    let (old, new) = (selector(before), selector(after));
    let mut parts = Parts { found: Vec::new(), is_in_namespace };
    match (before.judged == Judged::Nothing, after.judged == Judged::Nothing) {
        (true, true) => {}
        (false, true) => parts.add(&old, &before.judged, &Judged::Nothing),
        (true, false) => parts.add(&new, &Judged::Nothing, &after.judged),
        (false, false) => {
            for selector in without(&old, &new)? {
                parts.add(&selector, &before.judged, &Judged::Nothing);
            }
            for selector in without(&new, &old)? {
                parts.add(&selector, &Judged::Nothing, &after.judged);
            }
            if before.judged != after.judged {
                parts.add(&old.and(&new), &before.judged, &after.judged);
            }
        }
    }
    Some(parts.found)
}

fn selector(decision: &Decision) -> Selector {
    decision.scope.as_ref().map_or_else(Selector::everything, |scope| scope.selector().clone())
}

/// What `one` selects and `two` does not, as selectors that have nothing in common: a selector can
/// say the opposite of one requirement, and not that of several.
fn without(one: &Selector, two: &Selector) -> Option<Vec<Selector>> {
    let mut so_far = one.clone();
    let mut found = Vec::new();
    for requirement in two.requirements() {
        if one.requirements().contains(requirement) {
            continue;
        }
        let with = |requirement| so_far.and(&[requirement].into_iter().collect());
        found.push(with(opposite(requirement)?));
        so_far = with(requirement.clone());
    }
    Some(found)
}

/// The requirement that holds just where this one does not. Nothing for a comparison of numbers:
/// what is no number is neither more nor less.
fn opposite(requirement: &Requirement) -> Option<Requirement> {
    let op = match requirement.op() {
        Op::In => Op::NotIn,
        Op::NotIn => Op::In,
        Op::Exists => Op::DoesNotExist,
        Op::DoesNotExist => Op::Exists,
        Op::GreaterThan | Op::LessThan => return None,
    };
    Requirement::new(requirement.key(), op, requirement.values()).ok()
}

struct Parts {
    found: Vec<Part>,
    is_in_namespace: bool,
}

impl Parts {
    fn add(&mut self, selector: &Selector, before: &Judged, after: &Judged) {
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

/// The namespaces in which objects may change hands; nothing where they are many, or not known.
fn namespaces(before: &Judged, after: &Judged) -> Option<Vec<Box<str>>> {
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

/// Where the objects are that are kept.
struct Reach<'a> {
    boundaries: &'a [Boundary],
    /// Outside of these namespaces there are none but those that are in no namespace.
    names: BTreeSet<&'a str>,
    is_nowhere: bool,
}

impl<'a> Reach<'a> {
    /// Nothing where it cannot be said in names, or the objects are in no namespace.
    fn of(judged: &'a Judged) -> Option<Self> {
        match judged {
            Judged::Nothing => {
                Some(Self { boundaries: &[], names: BTreeSet::new(), is_nowhere: true })
            }
            Judged::Each { scope, are_namespaces: false } => {
                let boundaries = scope.boundaries();
                let known = boundaries.iter().filter_map(Boundary::namespaces);
                let names = known.min_by_key(|names| names.len())?;
                let names = names.iter().map(AsRef::as_ref).collect();
                Some(Self { boundaries, names, is_nowhere: false })
            }
            _ => None,
        }
    }

    fn has(&self, namespace: &str) -> bool {
        !self.is_nowhere && self.boundaries.iter().all(|one| one.has_namespace(namespace))
    }

    fn uid_rules(&self) -> Vec<&HashRule> {
        let rules = self.boundaries.iter().filter_map(|boundary| boundary.hash.as_ref());
        rules.filter(|rule| rule.of() == HashOf::Uid).collect()
    }
}

/// The hashes of the objects that may change hands; nothing where nothing is known of them.
fn hashes(before: &Judged, after: &Judged) -> Option<Hashes> {
    let (old, new) = (Hashed::of(before)?, Hashed::of(after)?);
    let of = old.of.or(new.of)?;
    if [old.of, new.of].into_iter().flatten().any(|other| other != of) {
        return None;
    }
    let set = if old.rest == new.rest { old.set.xor(&new.set) } else { old.set.or(&new.set) };
    (set != HashSet::all()).then(|| Hashes::new(of, set))
}

/// A view as a set of hashes, and what else it goes by.
struct Hashed {
    of: Option<HashOf>,
    set: HashSet,
    rest: Option<Vec<Boundary>>,
}

impl Hashed {
    /// Nothing where more than one hash is asked for, or one that the API server would not say as
    /// we do.
    fn of(judged: &Judged) -> Option<Self> {
        let (scope, are_namespaces) = match judged {
            Judged::Nothing => {
                return Some(Self { of: None, set: HashSet::default(), rest: None });
            }
            Judged::All => {
                return Some(Self { of: None, set: HashSet::all(), rest: Some(Vec::new()) });
            }
            Judged::Each { scope, are_namespaces } => (scope, *are_namespaces),
        };
        let mut found = None;
        let mut rest = Vec::new();
        for boundary in scope.boundaries() {
            let (rule, without) = boundary.without_hash();
            if let Some(rule) = rule
                && found.replace((rule, boundary.has_cluster_scoped)).is_some()
            {
                return None;
            }
            if !without.is_everything() {
                rest.push(without);
            }
        }
        let Some((rule, has_cluster_scoped)) = found else {
            return Some(Self { of: None, set: HashSet::all(), rest: Some(rest) });
        };
        let set: HashSet = rule.ranges().iter().copied().collect();
        let set = match rule.of() {
            HashOf::Uid => set,
            // A Namespace is in no namespace, for the API server.
            HashOf::Namespace if are_namespaces => return None,
            HashOf::Namespace if has_cluster_scoped => set.or(&HashSet::of_no_namespace()),
            HashOf::Namespace => set,
        };
        Some(Self { of: Some(rule.of()), set, rest: Some(rest) })
    }
}

impl Judged {
    /// Hashes outside of which no object is kept, for an API server that goes by them.
    #[must_use]
    pub fn hashes(&self) -> Option<Hashes> {
        hashes(&Self::Nothing, self).filter(|hashes| !hashes.is_empty())
    }

    /// The namespace outside of which no object is kept, where there is just one.
    #[must_use]
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
