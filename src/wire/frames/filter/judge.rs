//! The caller's judge of an object.

use crate::object::Object;

/// The verdict of a rule on one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The object is in the shard.
    Keep,
    /// The object is not in the shard.
    Drop,
    /// The object lacks a fact that the rule needs.
    Unknown,
}

/// Decides whether an object is in the shard.
pub type Judge<'j> = &'j mut dyn FnMut(&Object<'_>) -> Verdict;
