//! The shard's objects of one resource.

use std::fmt;

use super::Boundary;
use crate::wire::selector::Selector;

/// The shard's objects of a resource: those that a selector selects and that are in every boundary.
#[derive(Debug, PartialEq, Eq)]
pub struct Scope {
    selector: Selector,
    text: String,
    boundaries: Vec<Boundary>,
}

impl Scope {
    /// The objects that `selector` selects.
    pub fn new(selector: Selector) -> Self {
        Self { text: selector.to_string(), selector, boundaries: Vec::new() }
    }

    /// The scope, restricted to the objects inside `boundary`.
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

    /// The boundaries, which no selector can express.
    pub fn boundaries(&self) -> &[Boundary] {
        &self.boundaries
    }

    /// The selector.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// The selector as the value of `labelSelector=`.
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
