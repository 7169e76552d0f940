//! The user-facing API: custom resources, labels and annotations.
//!
//! Types and spellings only; no client, policy or proxy. [`crate::policy`] gives each field its
//! meaning.

pub mod keys;
pub mod lease;
mod selector;
mod sharding;

pub use self::{
    selector::{LabelSelector, LabelSelectorRequirement, Operator},
    sharding::{
        ClusterScoped, Condition, Controller, Handover, HandoverMode, Hash, HashOf, HashRange,
        Limit, Namespaces, OwnerDown, Resources, Route, ShardingConfig, ShardingConfigSpec,
        ShardingConfigStatus, Unowned, Webhook,
    },
};
