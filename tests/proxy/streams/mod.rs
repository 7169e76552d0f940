//! Lists and watches.

mod judged;
mod lists;
mod watches;
