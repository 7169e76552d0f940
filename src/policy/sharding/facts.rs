//! The judgement of an object of which some facts may be missing. It is the only one: for the
//! objects in streams, for admission reviews, and for callers that have a whole object.

use super::{Boundary, Scope, Selected, SharedNamespaces};
use ctrlmesh_wire::object::{Labels, Object};

/// The facts of an object by which a scope has it or not, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub struct ObjectFacts<'a> {
    /// The namespace; empty if the object is in none. That of a Namespace is its own name.
    pub namespace: &'a str,
    /// The labels of the namespace.
    pub of_namespace: OfNamespace<'a>,
    /// The uid; empty if it is not known.
    pub uid: &'a str,
    /// The labels. `None` if they are not known.
    pub labels: Option<Labels<'a>>,
}

/// The labels of an object's namespace, or of a Namespace.
#[derive(Clone, Copy, Debug)]
pub enum OfNamespace<'a> {
    /// The labels that the namespace had when the boundaries were drawn.
    Drawn,
    /// The labels that a request states: the Namespace may be new, or change them.
    Stated(Labels<'a>),
    /// Labels that are not known.
    Unknown,
}

impl<'a> ObjectFacts<'a> {
    /// The facts that an object states of itself.
    pub fn of(object: &Object<'a>, is_namespace: bool) -> Self {
        Self {
            namespace: if is_namespace { object.name } else { object.namespace },
            of_namespace: OfNamespace::Drawn,
            uid: object.uid,
            labels: object.labels,
        }
    }

    /// The facts that all objects of a namespace have in common.
    pub fn common_in(namespace: &'a str) -> Self {
        Self { namespace, of_namespace: OfNamespace::Drawn, uid: "", labels: None }
    }
}

impl Scope {
    /// Whether the object is in the scope, by its labels too. `None` if that depends on a fact that
    /// is not known: a condition that does not hold decides, whatever is not known of the others.
    pub fn owns(&self, object: &ObjectFacts<'_>) -> Option<bool> {
        and(self.selects(object), || self.bounds(object))
    }

    /// Whether the selector selects the object.
    fn selects(&self, object: &ObjectFacts<'_>) -> Option<bool> {
        let selector = self.selector();
        match object.labels {
            _ if selector.is_everything() => Some(true),
            Some(labels) => Some(selector.matches(|key| labels.get(key))),
            None => None,
        }
    }

    /// Whether the shard is shown the object: it is in the scope, or is selected and in one of these
    /// namespaces. `None` as of [`Self::owns`].
    pub fn shows(&self, object: &ObjectFacts<'_>, shared: &SharedNamespaces) -> Option<bool> {
        match shared.has(object.namespace) {
            true => self.selects(object),
            false => self.owns(object),
        }
    }

    /// Whether namespaces decide about objects.
    pub(crate) fn is_by_namespace(&self) -> bool {
        self.boundaries().iter().any(Boundary::is_by_namespace)
    }

    /// Whether objects of a namespace may be in the scope.
    pub(crate) fn may_have(&self, namespace: &str) -> bool {
        self.bounds(&ObjectFacts::common_in(namespace)) != Some(false)
    }

    /// Whether an object that the selector selects is in the scope.
    pub(super) fn bounds(&self, object: &ObjectFacts<'_>) -> Option<bool> {
        let mut is_inside = Some(!self.is_nothing());
        for boundary in self.boundaries() {
            is_inside = and(is_inside, || boundary.has(object));
        }
        is_inside
    }
}

impl Boundary {
    /// Whether the object is inside. `None` if that depends on a fact that is not known.
    pub fn has(&self, object: &ObjectFacts<'_>) -> Option<bool> {
        let of_labels = self.selected.as_ref().filter(|_| !object.namespace.is_empty());
        let by_labels = || of_labels.map_or(Some(true), |selected| object.is_in(selected));
        and(and(Some(self.has_name(object.namespace)), by_labels), || self.has_uid(object.uid))
    }
}

impl ObjectFacts<'_> {
    /// Whether the labels of the namespace select it.
    fn is_in(&self, selected: &Selected) -> Option<bool> {
        match self.of_namespace {
            OfNamespace::Drawn => Some(selected.names().contains(self.namespace)),
            OfNamespace::Stated(labels) => Some(selected.selector().matches(|key| labels.get(key))),
            OfNamespace::Unknown => None,
        }
    }
}

/// Whether both hold: one that does not decides, whatever the other is.
fn and(one: Option<bool>, other: impl FnOnce() -> Option<bool>) -> Option<bool> {
    match one {
        Some(false) => one,
        Some(true) => other(),
        None => other().filter(|is_held| !is_held),
    }
}

#[cfg(test)]
mod tests;
