//! Lists and watches.

mod changes;
mod judged;
mod large;
mod lists;
mod pushdown;
mod watches;
