//! Label selectors (`apimachinery/pkg/labels/selector.go`): a conjunction of requirements in one
//! canonical order.

use std::fmt;
use std::str::FromStr;

use super::parse;
use super::requirement::{self, Requirement};
use super::syntax::SelectorError;

/// A conjunction of requirements; the empty one selects everything. Canonical, so that equal
/// selectors compare equal: requirements are sorted by key, operator and values, each occurs once,
/// values are sorted and unique, and sets of one value are written as `=` and `!=`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

impl Selector {
    /// Selects every object.
    pub const fn everything() -> Self {
        Self { requirements: Vec::new() }
    }

    /// Reads the API server's string form, as in `?labelSelector=`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        Ok(parse::requirements(text)?.into_iter().collect())
    }

    /// The selector of the objects that both select.
    pub fn and(&self, other: &Self) -> Self {
        self.requirements.iter().chain(&other.requirements).cloned().collect()
    }

    /// Whether an object is selected; `label` returns the value of one of its labels.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(label(requirement.key())))
    }

    /// Whether it selects every object.
    pub const fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether it is proven to select nothing: its requirements contradict each other.
    pub fn is_contradiction(&self) -> bool {
        let mut of_one_label = self.requirements.chunk_by(|one, next| one.key() == next.key());
        of_one_label.any(requirement::contradict)
    }

    /// The selector by as few requirements as possible: one of each kind for a label, and only its
    /// values where it has some. As it is if its requirements contradict each other.
    pub fn simplest(&self) -> Self {
        if self.is_contradiction() {
            return self.clone();
        }
        let of_one_label = self.requirements.chunk_by(|one, next| one.key() == next.key());
        of_one_label.flat_map(requirement::simplest).collect()
    }

    /// The requirements in canonical order.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

/// The AND of the requirements. `matchLabels` and `matchExpressions` become a selector this way.
impl FromIterator<Requirement> for Selector {
    fn from_iter<I: IntoIterator<Item = Requirement>>(iter: I) -> Self {
        let mut requirements: Vec<_> = iter.into_iter().collect();
        requirements.sort_unstable();
        requirements.dedup();
        Self { requirements }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Self::parse(text)
    }
}

/// The API server's string form; it parses to the same selector.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, requirement) in self.requirements.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}
