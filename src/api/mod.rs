//! The user-facing API: custom resources, labels and annotations.
//!
//! Types and spellings only; no client, policy or proxy. [`crate::policy`] gives each field its
//! meaning.

mod fence;
pub mod keys;
mod kridge;
pub mod lease;
mod limit;
mod root;
mod selector;
mod sharding;

pub use self::{
    fence::{BadFenceMode, Except, Fence, FenceMode},
    kridge::{
        KridgeLimit, KridgeShardingConfig, KridgeShardingConfigSpec, KridgeStatus, ObjectSelector,
    },
    limit::{ClusterScoped, Hash, HashFunction, HashOf, HashRange, Limit, Namespaces, Resources},
    root::{Auto, Balance, By, Canary, Root, Weight},
    selector::{LabelSelector, LabelSelectorRequirement, Operator},
    sharding::{
        Condition, Controller, Handover, HandoverMode, OwnerDown, PodsOfGeneration, PodsStatus,
        RootStatus, Route, ShardingConfig, ShardingConfigSpec, ShardingConfigStatus, Unowned,
        Webhook,
    },
};
