//! Decisions about requests, sans-IO: every one is made here, as a function of values.
//!
//! [`dialect`] makes a [`Draft`] of the objects that users write, and the draft a [`Policy`]. Its
//! parts have lives of their own: [`sharding`] alone has an epoch, and a
//! [`difference`](difference()), so a change of another part touches no watch. [`decision`] decides how a
//! request is handled, and [`refusal`] which answer is sent instead. [`fence`] decides which writes
//! pass, and [`webhook`] which shard an admission review belongs to. [`ring`] decides when a shard
//! gives up objects that another takes. [`ownership`] decides whether two shards own the same
//! objects, or no shard owns them. [`roots`] decides how a root's shards are drawn.

#![warn(missing_docs)]

mod decision;
mod dialect;
mod difference;
mod epoch;
mod fence;
mod intervals;
mod object;
pub mod ownership;
mod parts;
mod refusal;
mod resource;
pub mod ring;
pub mod roots;
mod sharding;
mod webhook;

pub use self::{
    decision::{Extent, Pushed, Renamed, RequestAction, Restriction, Rewrite, Write},
    dialect::{
        BadDocument, BadWebhook, CertFiles, Checked, Choices, Draft, Invalid, NamespacesUnknown,
        NotChosen, Problem, RootDraft, ShardingDraft, Webhook, all_of, choose, draft,
        from_documents, names, object_of, shard_of, translated,
    },
    difference::{Handed, Page, Part, difference, watch_from},
    epoch::Epoch,
    fence::{BadExcept, Fence, Foreign, Verdict, deletes},
    object::{Kind, ObjectRef},
    parts::{PodConfig, Policy},
    refusal::{Refusal, Refused},
    resource::GroupResource,
    sharding::{
        BadLock, BadNamed, BadRange, BadRule, Boundary, ByResource, Computed, Filter, HashFunction,
        HashOf, HashRange, HashRule, Hashes, LabelSet, LockIn, LockName, Locks, NamespaceLabels,
        ObjectFacts, ObjectSet, OfNamespace, OwnLock, Pattern, Rule, Scope, Scopes, Selected,
        Sharding, Shared, SharedNamespaces, is_shared, shard_bucket,
    },
    webhook::{Answerer, ControllerShards, Here, Judged, Owner, Unreadable},
};
