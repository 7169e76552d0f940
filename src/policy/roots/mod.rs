//! Roots: the configs of the shards of a workload, drawn by one object.
//!
//! Hides the names and pods of the shards, who gets which [`Partition`], and in which order children are
//! written so that no two have an object in common at any moment. Does not know how a config is
//! written, or how pods are watched. Words: a *child* is the config of a shard; the *layout* is the
//! lots of all children, and they alone say it.

mod balance;
mod partition;
mod plan;
mod root;
mod step;
mod target;
#[cfg(test)]
mod tests;

pub(super) use self::{partition::BUCKETS, root::Canary, target::MOST_SHARDS};
pub use self::{
    partition::Partition,
    root::{Load, POD_NAME, Root, Shard, Shards},
    step::{Blocked, Child, Situation, Step, Write, step},
    target::TargetPod,
};
