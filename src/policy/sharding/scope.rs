//! The shard's objects of one resource.

use std::fmt;

use super::Boundary;
use ctrlmesh_wire::selector::Selector;

/// The shard's objects of a resource: those that a selector selects and that are in every boundary.
#[derive(Debug, PartialEq, Eq)]
pub struct Scope {
    selector: Selector,
    text: String,
    boundaries: Vec<Boundary>,
    is_nothing: bool,
}

impl Scope {
    /// The objects that `selector` selects.
    pub fn new(selector: Selector) -> Self {
        Self { text: selector.to_string(), selector, boundaries: Vec::new(), is_nothing: false }
    }

    /// All objects.
    pub(super) fn everything() -> Self {
        Self::new(Selector::everything())
    }

    /// No objects.
    pub fn nothing() -> Self {
        Self { is_nothing: true, ..Self::everything() }
    }

    /// Whether it has no objects, whatever they are.
    pub fn is_nothing(&self) -> bool {
        self.is_nothing
    }

    /// The scope, restricted to the objects inside `boundary`.
    pub fn inside(mut self, boundary: Boundary) -> Self {
        self.boundaries.push(boundary);
        self
    }

    pub(super) fn and(&self, other: &Self) -> Self {
        let both = Self::new(self.selector.and(&other.selector));
        let boundaries = [&*self.boundaries, &*other.boundaries].concat();
        let is_nothing = self.is_nothing || other.is_nothing;
        Self { boundaries, is_nothing, ..both }
    }

    pub(super) fn is_everything(&self) -> bool {
        self.selector.is_everything() && self.boundaries.is_empty() && !self.is_nothing
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
        if self.is_nothing {
            return f.write_str("nothing");
        }
        f.write_str(&self.text)?;
        for (at, boundary) in self.boundaries.iter().enumerate() {
            let gap = if at == 0 && self.text.is_empty() { "" } else { "; " };
            write!(f, "{gap}{boundary}")?;
        }
        Ok(())
    }
}
