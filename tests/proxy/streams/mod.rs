//! Lists and watches.

mod lists;
mod watches;
