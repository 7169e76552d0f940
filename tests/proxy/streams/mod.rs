//! Lists and watches.

mod changes;
mod judged;
mod lists;
mod pushdown;
mod watches;
