//! A policy in its parts.

use std::sync::Arc;

use super::{fence::Fence, object::ObjectRef, sharding::Sharding};
use ctrlmesh_wire::selector::Selector;

/// The objects of every dialect that concern one pod, compiled, in parts. Immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The config that the sharding comes from.
    pub config: PodConfig,
    /// The shard's objects and lock.
    pub sharding: Arc<Sharding>,
    /// The judgement of writes.
    pub fence: Arc<Fence>,
}

/// The config of a shard, as it was when last valid, and the pods that it selected then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodConfig {
    /// The config itself.
    pub object: ObjectRef,
    /// The selector of the shard's pods.
    pub pods: Selector,
}
