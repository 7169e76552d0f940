//! The shard's objects, and its locks.
//!
//! Hides how limits become scopes and how a scope is drawn. Knows no dialect and no request but for
//! where one names the lock.

mod boundary;
mod by_resource;
mod common;
mod facts;
mod filter;
mod lock;
mod meet;
mod namespaces;
mod reach;
mod rule;
mod scope;
mod scopes;
mod shared;

use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use self::{
    boundary::{
        BadRange, Boundary, Computed, HashFunction, HashOf, HashRange, HashRule, Pattern,
        shard_bucket,
    },
    by_resource::{ByResource, ObjectSet},
    facts::{ObjectFacts, OfNamespace},
    filter::Filter,
    lock::{BadLock, LockIn, LockName, Locks, OwnLock},
    namespaces::{LabelSet, NamespaceLabels, Selected},
    reach::Hashes,
    rule::{BadRule, Rule, is_shared},
    scope::Scope,
    scopes::Scopes,
    shared::{BadNamed, Shared, SharedNamespaces},
};
pub(super) use self::{
    boundary::{fnv1a, mixed},
    by_resource::refined,
    common::find_name,
    namespaces::Resolved,
    reach::{changed_hashes, changed_namespaces},
    shared::Named,
};
use super::GroupResource;
#[cfg(test)]
pub(super) use meet::tests::{
    Whole as AnyObject, computed as any_computed, labels_of_namespaces, scope as any_scope,
    whole as any_object,
};

/// The part of a policy that says which objects are the shard's. Immutable: a request takes one at
/// its start and keeps it.
#[derive(Debug, PartialEq, Eq)]
pub struct Sharding {
    shard: Box<str>,
    namespace: Box<str>,
    scopes: Scopes,
    shared: Shared,
    locks: Locks,
    hash: [u8; 32],
}

impl Sharding {
    /// The sharding of the shard `shard`, for pods of `namespace`.
    pub fn new(shard: &str, namespace: &str, locks: Locks, scopes: Scopes, shared: Shared) -> Self {
        let hash = hash([shard, namespace], &locks, &scopes, &shared);
        Self { shard: shard.into(), namespace: namespace.into(), scopes, shared, locks, hash }
    }

    /// Whether this treats each request as another sharding does within an area, however it is written.
    pub fn is_within(&self, other: &Self, area: &ByResource<Arc<Scope>>) -> bool {
        let is_same = (&self.shard, &self.namespace, &self.locks, &self.shared)
            == (&other.shard, &other.namespace, &other.locks, &other.shared);
        is_same && self.area() == *area
    }

    /// The same sharding with other objects: those of an area.
    pub fn within(self: &Arc<Self>, area: &ByResource<Arc<Scope>>) -> Arc<Self> {
        if self.area() == *area {
            return Arc::clone(self);
        }
        Arc::new(self.with(area, self.locks.clone(), self.shared.clone()))
    }

    /// The same shard with the objects of an area, and others that all shards are shown.
    pub(crate) fn with_shared(&self, area: &ByResource<Arc<Scope>>, shared: Shared) -> Arc<Self> {
        Arc::new(self.with(area, self.locks.clone(), shared))
    }

    /// The same sharding with other locks.
    pub fn with_locks(&self, locks: Locks) -> Self {
        self.with(&self.area(), locks, self.shared.clone())
    }

    fn with(&self, area: &ByResource<Arc<Scope>>, locks: Locks, shared: Shared) -> Self {
        Self::new(&self.shard, &self.namespace, locks, self.scopes.within(area), shared)
    }

    /// The namespace of the shard's pods.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name of the shard: that of its config.
    pub fn shard(&self) -> &str {
        &self.shard
    }

    /// The locks of the controller, and the shard's own.
    pub const fn locks(&self) -> &Locks {
        &self.locks
    }

    /// The objects that all shards are shown.
    pub const fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The namespaces in which the shard is shown the objects of a resource that it does not own.
    pub fn shared_namespaces(&self, resource: &GroupResource) -> SharedNamespaces {
        self.shared.namespaces(resource)
    }

    /// The scope of a resource, which the shard owns, or `None` if the resource is not limited.
    pub fn scope(&self, resource: &GroupResource) -> Option<&Arc<Scope>> {
        self.scopes.find(resource)
    }

    /// Whether the shard has a namespace: one of its limits by namespace has it.
    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.scopes.have_namespace(namespace)
    }

    /// The shard's part of each limited resource.
    pub fn area(&self) -> ByResource<Arc<Scope>> {
        self.scopes.area()
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

    /// Whether the two show different objects of a resource. Resources that can hold a lock differ
    /// if the locks do.
    pub fn differs(&self, other: &Self, resource: &GroupResource) -> bool {
        self.limits_otherwise(other, resource)
            || (self.locks_otherwise(other)
                && Locks::is_kind(resource.group(), resource.resource()))
    }

    /// Whether the two own, or are shown, different objects of a resource.
    pub fn limits_otherwise(&self, other: &Self, resource: &GroupResource) -> bool {
        let scope = self.scope(resource);
        let is_shared_otherwise =
            || self.shared_namespaces(resource) != other.shared_namespaces(resource);
        scope != other.scope(resource) || (scope.is_some() && is_shared_otherwise())
    }

    /// Whether the two rename different locks, or one lock differently.
    pub fn locks_otherwise(&self, other: &Self) -> bool {
        self.locks != other.locks
    }

    /// A digest: shardings with the same hash treat every request alike.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }
}

fn hash(names: [&str; 2], locks: &Locks, scopes: &Scopes, shared: &Shared) -> [u8; 32] {
    let mut digest = Sha256::new();
    let mut add = |bytes: &[u8]| {
        digest.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(bytes);
    };
    add(b"ctrlmesh policy 4");
    names.iter().for_each(|name| add(name.as_bytes()));
    for lock in locks.names() {
        add(lock.to_string().as_bytes());
    }
    add(b"");
    for entry in shared.given() {
        // A struct of texts and lists has a JSON.
        add(&serde_json::to_vec(entry).unwrap_or_default());
    }
    add(b"");
    for (rule, scope) in scopes.rules() {
        add(rule.to_string().as_bytes());
        add(scope.to_string().as_bytes());
        for selected in scope.boundaries().iter().filter_map(|boundary| boundary.selected.as_ref())
        {
            add(selected.digest());
        }
    }
    digest.finalize().into()
}
