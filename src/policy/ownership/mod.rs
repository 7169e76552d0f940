//! Whether the shards of a ring own an object twice, or not at all.
//!
//! Hides how an object is found that shows it, and when it is proven that there is none. Knows neither
//! claims nor time: it compares what configs want. Words: a *witness* is such an object, which the
//! judge of [`Scope::owns`](super::Scope::owns) keeps or drops as said; *places* are the namespaces,
//! and being in none.

mod common;
mod gaps;
mod labels;
mod neighbours;
mod owners;
mod places;
mod said;
mod witness;

pub use self::{
    common::{Comparison, in_common},
    gaps::{Gap, gaps},
    neighbours::OverlapIndex,
    owners::{Owners, owners_in, owners_of},
    places::Places,
    said::{OwnsInWords, said},
    witness::{Finding, Uid, Undecided, Witness},
};

#[cfg(test)]
mod tests;
