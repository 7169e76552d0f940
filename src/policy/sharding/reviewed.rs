//! The judgement of an object of which not every fact is known.

use super::{Boundary, Scope, Selected};
use crate::wire::object::Labels;

/// The facts of an object that an admission review states.
#[derive(Clone, Copy, Debug)]
pub(in crate::policy) struct Reviewed<'a> {
    /// The namespace; empty if the object is in none. That of a Namespace is its own name.
    pub(in crate::policy) namespace: &'a str,
    /// The uid; empty if it is not known.
    pub(in crate::policy) uid: &'a str,
    /// The labels. `None` if they are not known.
    pub(in crate::policy) labels: Option<Labels<'a>>,
    /// Whether the object is a Namespace.
    pub(in crate::policy) is_namespace: bool,
    /// Whether the labels of the object's namespace were known when the boundaries were drawn.
    pub(in crate::policy) is_namespace_known: bool,
}

impl Scope {
    /// Whether the object is in the scope. `None` if that depends on a fact that is not known.
    pub(in crate::policy) fn has(&self, object: &Reviewed<'_>) -> Option<bool> {
        let selector = self.selector();
        let is_selected = match object.labels {
            _ if selector.is_everything() => Some(true),
            Some(labels) => Some(selector.matches(|key| labels.get(key))),
            None => None,
        };
        let bounds = self.boundaries().iter().map(|boundary| boundary.has(object));
        bounds.fold(is_selected, and)
    }
}

impl Boundary {
    fn has(&self, object: &Reviewed<'_>) -> Option<bool> {
        let of_labels = self.selected.as_ref().filter(|_| !object.namespace.is_empty());
        let by_labels = of_labels.map_or(Some(true), |selected| object.is_selected(selected));
        [Some(self.has_name(object.namespace)), self.has_uid(object.uid)]
            .into_iter()
            .fold(by_labels, and)
    }
}

impl Reviewed<'_> {
    /// A Namespace is judged by the labels that the review states: it may be new, or change them.
    fn is_selected(&self, selected: &Selected) -> Option<bool> {
        if self.is_namespace {
            let labels = self.labels?;
            return Some(selected.selector().matches(|key| labels.get(key)));
        }
        let is_selected = selected.names().contains(self.namespace);
        (is_selected || self.is_namespace_known).then_some(is_selected)
    }
}

/// Whether both hold: one that does not decides, whatever the other is.
const fn and(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}
