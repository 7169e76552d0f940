//! The decision about a request: it passes, is restricted to the scope, or is renamed.

mod body;
mod decide;
mod rewrite;

pub(super) use self::rewrite::own_selector;
pub use self::{
    body::Renamed,
    decide::{Extent, RequestAction, Restriction, Write},
    rewrite::{Pushed, Rewrite},
};

#[cfg(test)]
mod tests;
