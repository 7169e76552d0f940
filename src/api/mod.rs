//! The user-facing API: custom resources, labels and annotations.
//!
//! Types and spellings only; no client, policy or proxy. The policy gives each field its
//! meaning.

#![warn(missing_docs)]

// The derives of kube name its façade, which would bring a client and its runtime.
extern crate self as kube;
#[doc(hidden)]
pub use kube_core as core;
#[doc(hidden)]
pub use kube_derive::KubeSchema;

mod fence;
pub mod keys;
mod kridge;
pub mod lease;
mod limit;
mod observed;
mod root;
mod selector;
mod sharding;
mod shared;

pub use self::{
    fence::{BadFenceMode, Except, Fence, FenceMode},
    kridge::{
        KridgeLimit, KridgeShardingConfig, KridgeShardingConfigSpec, KridgeStatus, ObjectSelector,
    },
    limit::{ClusterScoped, Hash, HashFunction, HashOf, HashRange, Limit, Namespaces, Resources},
    observed::{ObservedRequests, ObservedResource},
    root::{Auto, Balance, By, Canary, Root, RootClusterScoped, RootTarget, TargetKind, Weight},
    selector::{LabelSelector, LabelSelectorRequirement, Operator},
    sharding::{
        Condition, Controller, Handover, HandoverMode, LockRef, OwnerDown, PodsOfGeneration,
        PodsStatus, RootStatus, Route, ShardingConfig, ShardingConfigSpec, ShardingConfigStatus,
        Unowned, Webhook,
    },
    shared::{Shared, SharedWrite},
};
