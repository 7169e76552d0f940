//! Whose an admission review is: which shard's pod answers it.
//!
//! Hides how the shards of a controller are found, and how facts that are missing count. Knows no
//! connection and no pod.

mod owner;
mod siblings;

pub use self::{
    owner::{Answerer, Here, Judged, Owner},
    siblings::{ControllerShards, Unreadable},
};

#[cfg(test)]
mod tests;
