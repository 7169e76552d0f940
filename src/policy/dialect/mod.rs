//! The objects that users write, in each of their APIs, made drafts of parts of the policy.
//!
//! Hides the fields and the rules of each API. An object is checked by itself, for no pod; the
//! choice of a pod's config among several knows no API.

mod choose;
mod document;
mod draft;
mod kridge;
mod kusion;
pub(super) mod problem;
mod webhook;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::DynamicObject;

use self::problem::Server;
pub use self::{
    choose::{Choices, NotChosen, choose},
    document::{BadDocument, all_of, from_documents, names},
    draft::{Checked, Draft, NamespacesUnknown, RootDraft, ShardingDraft, object_of, shard_of},
    kridge::translated,
    problem::{Invalid, Problem},
    webhook::{BadWebhook, CertFiles, Webhook},
};
use super::object::{Kind, ObjectRef};

/// Checks an object of this kind, as the API server holds it. Fails with [`Invalid`], which
/// names every field that is wrong, its value, and what would be right.
pub fn draft(kind: Kind, object: &DynamicObject) -> Checked {
    // A translated object has the name and the kind of its translation.
    let identity = ObjectRef::new(Kind::ShardingConfig, &object.metadata);
    let Some(spec) = object.data.get("spec").filter(|spec| !spec.is_null()) else {
        return Err(Invalid::one(identity, "spec", "is missing: give a selector of the pods"));
    };
    let created = object.metadata.creation_timestamp.as_ref().map(|Time(at)| at.as_second());
    let checked = match kind {
        Kind::ShardingConfig => kusion::sharding(identity, created, spec),
        Kind::KridgeShardingConfig => kridge::sharding(identity, created, spec),
    };
    checked.map_err(|invalid| Invalid { server: Server::read(spec).into(), ..invalid })
}

#[cfg(test)]
mod tests;
