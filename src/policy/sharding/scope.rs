//! The shard's objects of one resource, and the judgement of a whole object.

use std::fmt;

use super::Boundary;
use crate::{
    policy::GroupResource,
    wire::{frames::Verdict, object::Object, selector::Selector},
};

/// The shard's objects of a resource: those that a selector selects and that are in every boundary.
#[derive(Debug, PartialEq, Eq)]
pub struct Scope {
    selector: Selector,
    text: String,
    boundaries: Vec<Boundary>,
}

impl Scope {
    /// The objects that `selector` selects.
    #[must_use]
    pub fn new(selector: Selector) -> Self {
        Self { text: selector.to_string(), selector, boundaries: Vec::new() }
    }

    /// The same scope, restricted to the objects inside `boundary`.
    #[must_use]
    pub fn inside(mut self, boundary: Boundary) -> Self {
        self.boundaries.push(boundary);
        self
    }

    pub(super) fn and(&self, other: &Self) -> Self {
        let both = Self::new(self.selector.and(&other.selector));
        let boundaries = [&*self.boundaries, &*other.boundaries].concat();
        Self { boundaries, ..both }
    }

    pub(super) fn is_everything(&self) -> bool {
        self.selector.is_everything() && self.boundaries.is_empty()
    }

    /// The verdict on a whole object of `resource`, by its labels too. `Unknown` if it lacks an
    /// attribute that decides.
    #[must_use]
    pub fn owns<'o>(
        &self,
        resource: &GroupResource,
        object: &Object<'_>,
        label: impl Fn(&str) -> Option<&'o str>,
    ) -> Verdict {
        if !self.selector.matches(label) {
            return Verdict::Drop;
        }
        self.bounds(object, *resource == GroupResource::new("", "namespaces"))
    }

    /// The verdict of the boundaries on an object that the selector selects.
    pub(super) fn bounds(&self, object: &Object<'_>, is_namespace: bool) -> Verdict {
        let verdicts = self.boundaries.iter().map(|boundary| boundary.judge(object, is_namespace));
        verdicts.fold(Verdict::Keep, |all, one| match (all, one) {
            (Verdict::Unknown, _) | (_, Verdict::Unknown) => Verdict::Unknown,
            (Verdict::Keep, one) => one,
            (Verdict::Drop, _) => Verdict::Drop,
        })
    }

    /// The boundaries, which no selector can express.
    #[must_use]
    pub fn boundaries(&self) -> &[Boundary] {
        &self.boundaries
    }

    /// The selector.
    #[must_use]
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// The selector as the value of `labelSelector=`.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Scope {
    /// The canonical text of a scope: `team=blue; namespace in (a,b)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        for (at, boundary) in self.boundaries.iter().enumerate() {
            let gap = if at == 0 && self.text.is_empty() { "" } else { "; " };
            write!(f, "{gap}{boundary}")?;
        }
        Ok(())
    }
}
