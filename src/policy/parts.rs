//! A policy in its parts.

use std::sync::Arc;

use super::sharding::Sharding;
use crate::wire::selector::Selector;

/// The objects of every dialect that concern one pod, compiled, in parts. Immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The selector of the shard's pods.
    pub pods: Selector,
    /// The shard's objects and lock.
    pub sharding: Arc<Sharding>,
}
