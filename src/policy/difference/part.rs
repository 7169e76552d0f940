//! The parts of a collection in which objects may change hands, and the judgement of each object.

use crate::{
    decision::Restriction,
    sharding::{Filter, Hashes, changed_hashes, changed_namespaces},
};
use ctrlmesh_wire::{frames::Verdict, object::Object, selector::Selector};

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
    before: Filter,
    after: Filter,
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

/// The parts of a collection in which objects change hands between two narrowings of it.
/// `None` if selectors cannot express them.
///
/// `is_in_namespace` is true if the collection is of one namespace already.
pub fn difference(
    before: &Restriction,
    after: &Restriction,
    is_in_namespace: bool,
) -> Option<Vec<Part>> {
    let (old, new) = (selector(before), selector(after));
    let mut parts = Parts { found: Vec::new(), is_in_namespace };
    match (before.filter == Filter::DropAll, after.filter == Filter::DropAll) {
        (true, true) => {}
        (false, true) => parts.add(&old, &before.filter, &Filter::DropAll),
        (true, false) => parts.add(&new, &Filter::DropAll, &after.filter),
        (false, false) => {
            for selector in without(&old, &new)? {
                parts.add(&selector, &before.filter, &Filter::DropAll);
            }
            for selector in without(&new, &old)? {
                parts.add(&selector, &Filter::DropAll, &after.filter);
            }
            if before.filter != after.filter {
                parts.add(&old.and(&new), &before.filter, &after.filter);
            }
        }
    }
    Some(parts.found)
}

fn selector(restriction: &Restriction) -> Selector {
    restriction.scope.as_ref().map_or_else(Selector::everything, |scope| scope.selector().clone())
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
    fn add(&mut self, selector: &Selector, before: &Filter, after: &Filter) {
        let hashes = changed_hashes(before, after);
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
        match changed_namespaces(before, after).filter(|_| !self.is_in_namespace) {
            Some(names) => self.found.extend(names.into_iter().map(|name| part(Some(name)))),
            None => self.found.push(part(None)),
        }
    }
}

#[cfg(test)]
mod tests;
