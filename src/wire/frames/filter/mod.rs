//! Filters that remove items from the bodies of lists and watches.
//!
//! Hides how an item is removed in each encoding so that the rest is a body that the API server
//! might have sent. Kept items are the same bytes, and memory is that of one item. The caller's
//! [`Judge`] decides, by the identity of an object.

mod judge;
mod list;
mod table;
mod watch;

pub use self::{
    judge::{Judge, Verdict},
    list::{Counts, ListFilter},
    watch::{JudgedEvent, WatchFilter},
};
