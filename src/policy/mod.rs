//! Decisions about requests, sans-IO: every one is made here, as a function of values.
//!
//! [`dialect`] makes a [`Draft`] of the objects that users write, and the draft a [`Policy`]. Its
//! parts have lives of their own: [`sharding`] alone has an epoch, [`positions`] and a
//! [`difference`](difference()), so a change of another part touches no watch. [`way`] decides what
//! becomes of a request, [`refusal`] what is answered instead, [`fence`] which writes pass, [`webhook`] whose an admission review
//! is, [`ring`] when a shard gives up what another takes, [`ownership`] whether two own the same, or
//! nobody does, [`roots`] how a root's shards are drawn.

mod dialect;
mod difference;
mod epoch;
mod fence;
mod object;
pub mod ownership;
mod parts;
pub mod positions;
mod refusal;
mod resource;
pub mod ring;
pub mod roots;
mod sharding;
mod spans;
mod way;
mod webhook;

pub use self::{
    dialect::{
        BadDocument, BadWebhook, CertFiles, Checked, Choices, Draft, Invalid, NamespacesUnknown,
        NotChosen, Problem, RootDraft, ShardingDraft, Webhook, all_of, choose, draft,
        from_documents, names, object_of, shard_of, translated,
    },
    difference::{Handed, Page, Part, difference, watch_from},
    epoch::Epoch,
    fence::{BadExcept, Fence, Foreign, Verdict},
    object::{Kind, ObjectRef},
    parts::{PodConfig, Policy},
    refusal::{Refusal, Refused},
    resource::GroupResource,
    sharding::{
        Area, BadLock, BadRange, BadRule, Boundary, Computed, HashFunction, HashOf, HashRange,
        HashRule, Hashes, LabelSet, LockIn, LockName, Locks, NamespaceLabels, ObjectFacts,
        OfNamespace, OwnLock, Pattern, Piece, Rule, Scope, Scopes, Selected, Sharding, Share,
        shard_bucket,
    },
    way::{Extent, Narrow, Pushed, Renamed, Rewrite, Way, Write},
    webhook::{Answerer, Here, Judged, Owner, Siblings, Unreadable},
};
