//! Filters that remove items from the bodies of lists and watches.
//!
//! Hides how an item is removed in each encoding so that the rest is a body that the API server
//! might have sent. Kept items are the same bytes, and memory is that of one item. The caller's
//! [`Judge`] decides, by the [`Object`] of an item.

mod list;
mod table;
mod watch;

pub use self::{
    list::{Counts, ListFilter},
    watch::{Passed, WatchFilter},
};
use super::facts::Object;

/// Most bytes that are held of one item or event. The API server stores 1.5 MiB by default, and
/// etcd is rarely configured for more than 8.
pub(super) const MAX_ITEM: usize = 64 << 20;
/// Held memory above this is freed after the item.
pub(super) const KEPT_CAPACITY: usize = 256 << 10;

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
