//! What users write: the custom resources, labels and annotations.
//!
//! Types and spellings only. Knows no client, no policy, no proxy; what a field *does* is decided
//! in [`crate::policy`].

pub mod keys;
mod selector;
mod sharding;

pub use self::{
    selector::{LabelSelector, LabelSelectorRequirement, Operator},
    sharding::{
        ClusterScoped, Controller, Hash, HashOf, HashRange, Limit, Namespaces, Resources,
        ShardingConfig, ShardingConfigSpec, Webhook,
    },
};
