//! Decisions about requests, sans-IO: every one is made here, as a function of values.

mod boundary;
mod choose;
mod compile;
mod decide;
mod difference;
mod document;
mod lock;
mod namespaces;
pub mod positions;
mod refusal;
mod scopes;

use std::sync::Arc;

pub use self::{
    boundary::{BadRange, Boundary, HashOf, HashRange, HashRule, Pattern},
    choose::{Configs, Present, choose, draft},
    compile::{Draft, Invalid, Problem, compile},
    decide::{Decision, Extent, Judged, Pushed, Rewrite},
    difference::{Handed, Hashes, Page, Part, difference, watch_from},
    document::{BadDocument, from_documents, names},
    lock::{BadLock, Lock, LockIn},
    namespaces::{Namespaces, NamespacesUnknown, Selected},
    refusal::{Refusal, Refused},
    scopes::{BadRule, Rule, Scope, Scopes},
};
use crate::wire::selector::Selector;

/// The rules of one ShardingConfig for one pod. Immutable: a request takes one policy at its start
/// and keeps it.
#[derive(Debug, PartialEq, Eq)]
pub struct Policy {
    shard: Box<str>,
    pods: Selector,
    scopes: Scopes,
    lock: Option<Lock>,
    hash: [u8; 32],
}

impl Policy {
    /// The name of the ShardingConfig.
    #[must_use]
    pub fn shard(&self) -> &str {
        &self.shard
    }

    /// The selector of the shard's pods.
    #[must_use]
    pub fn pods(&self) -> &Selector {
        &self.pods
    }

    /// The renaming of the controller's lock.
    #[must_use]
    pub fn lock(&self) -> Option<&Lock> {
        self.lock.as_ref()
    }

    /// The scope of a resource, or `None` if the shard sees all of it.
    #[must_use]
    pub fn scope(&self, resource: &GroupResource) -> Option<&Arc<Scope>> {
        self.scopes.find(resource)
    }

    /// The limits in an order that does not depend on how they were written.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, &Arc<Scope>)> {
        self.scopes.rules()
    }

    /// The namespaces selected by label, one item for each boundary with such a selector.
    pub fn selected_namespaces(&self) -> impl Iterator<Item = &Selected> {
        let boundaries = self.rules().flat_map(|(_, scope)| scope.boundaries());
        boundaries.filter_map(|boundary| boundary.selected.as_ref())
    }

    /// Whether the two policies show different objects of a resource. Resources that can hold a
    /// lock differ if the lock does.
    #[must_use]
    pub fn differs(&self, other: &Self, resource: &GroupResource) -> bool {
        self.scope(resource) != other.scope(resource)
            || (self.lock != other.lock && Lock::is_kind(resource))
    }

    /// A digest: policies with the same hash treat every request alike.
    #[must_use]
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }
}

/// The number of a policy. Epochs start at 1 and grow; 0 is before the first policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// The epoch with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A resource as it is stored: group and plural name, no version. Two groups that serve the same
/// storage are one resource here, under the name of the first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    group: Box<str>,
    resource: Box<str>,
}

impl GroupResource {
    /// Characters in a DNS subdomain.
    const MAX_NAME: usize = 253;

    /// The core group is `""`.
    #[must_use]
    pub fn new(group: &str, resource: &str) -> Self {
        Self { group: storing(group, resource).into(), resource: resource.into() }
    }

    /// Whether a name is too long for any API server: a group is a DNS subdomain, a resource a
    /// label (RFC 1123).
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        self.group.len().max(self.resource.len()) > Self::MAX_NAME
    }

    /// The API group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The plural name.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.resource
    }
}

/// The group that names the storage of a resource. Events are stored in the core group and served
/// by both: the only pair of `AddCohabitatingResources` (Kubernetes 1.37,
/// `pkg/kubeapiserver/default_storage_factory_builder.go`) whose groups are both still served.
fn storing<'a>(group: &'a str, resource: &str) -> &'a str {
    if (group, resource) == ("events.k8s.io", "events") { "" } else { group }
}

impl std::fmt::Display for GroupResource {
    /// `pods`, or `deployments.apps`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}
