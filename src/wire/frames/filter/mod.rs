//! Bodies of lists and watches with items left out.
//!
//! Hides how an item is taken out of each encoding so that what is left is a body that the API
//! server might have sent. Kept items are the same bytes, and memory is that of one item. Whether
//! an item is kept somebody else says, by its [`Object`].

mod list;
mod table;
mod watch;

pub use self::{
    list::{Counts, ListFilter},
    watch::{Passed, WatchFilter},
};
use super::facts::Object;

/// Most bytes that are held of one item or event. The API server stores 1.5 MiB unless told
/// otherwise, and etcd is rarely told more than 8.
pub(super) const MAX_ITEM: usize = 64 << 20;
/// Held memory above this is given back after the item.
pub(super) const KEPT_CAPACITY: usize = 256 << 10;

/// What a rule says of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is in the shard.
    Keep,
    /// It is not.
    Drop,
    /// It lacks what the rule goes by.
    Unknown,
}

/// Says of each object whether it is in the shard.
pub type Judge<'j> = &'j mut dyn FnMut(&Object<'_>) -> Verdict;
