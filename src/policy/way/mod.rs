//! The way of a request: pass, or be narrowed or renamed.

mod decide;
mod rewrite;

pub(super) use self::rewrite::own_selector;
pub use self::{
    decide::{Extent, Narrow, Way, Write},
    rewrite::{Pushed, Rewrite},
};

#[cfg(test)]
mod tests;
