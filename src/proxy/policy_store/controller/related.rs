//! The resources that the pod's controller watches, that no limit names, and that belong to limited objects.
//!
//! Hides for which resources the API server is asked, and how often. Does not know how it is asked.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use ctrlmesh_api::lease::{RelatedResource, RelatedResources as Said};
use ctrlmesh_policy::{GroupResource, Sharding};

/// Most resources that are followed.
const MOST: usize = 128;
/// Most resources that are told.
const MOST_TOLD: usize = 16;

/// The related resources of a pod.
#[derive(Debug, Default)]
pub(crate) struct RelatedResources {
    watched: Mutex<BTreeMap<GroupResource, Watched>>,
    hasher: RandomState,
    /// The signal that one was found that is not told yet.
    is_new: Arc<Notify>,
}

/// A resource that a client watches, and no limit names.
#[derive(Debug, Default)]
struct Watched {
    /// The limits under which the API server was asked for its objects, as a hash.
    asked: Option<u64>,
    /// An object of it that belongs to a limited one, or a write of it, for people.
    because: Option<String>,
}

impl RelatedResources {
    /// Notes that a client begins to watch a resource that no limit names. Returns whether to ask the API
    /// server for its objects: once under the same limits.
    pub(crate) fn begin(&self, resource: &GroupResource, sharding: &Sharding) -> bool {
        let limits = self
            .hasher
            .hash_one(sharding.rules().map(|(rule, _)| rule.to_string()).collect::<Vec<_>>());
        let mut all = self.watched.lock();
        if all.len() >= MOST && !all.contains_key(resource) {
            return false;
        }
        let watched = all.entry(resource.clone()).or_default();
        watched.asked.replace(limits) != Some(limits)
    }

    /// Notes that the API server has not answered: it is asked again.
    pub(crate) fn unanswered(&self, resource: &GroupResource) {
        if let Some(watched) = self.watched.lock().get_mut(resource) {
            watched.asked = None;
        }
    }

    /// Whether a resource is watched, and not known to be related.
    pub(crate) fn may_be(&self, resource: &GroupResource) -> bool {
        self.watched.lock().get(resource).is_some_and(|watched| watched.because.is_none())
    }

    /// Notes that a watched resource is related, with an example for people. Returns whether that is new.
    pub(crate) fn found(&self, resource: &GroupResource, because: String) -> bool {
        let mut all = self.watched.lock();
        let Some(watched) = all.get_mut(resource).filter(|one| one.because.is_none()) else {
            return false;
        };
        watched.because = Some(because);
        self.is_new.notify_one();
        true
    }

    /// Waits until one is found that is not told yet.
    pub(crate) async fn is_new(&self) {
        self.is_new.notified().await;
    }

    /// The resources to report: those that no limit names now.
    pub(crate) fn said(&self, sharding: &Sharding) -> Said {
        let all = self.watched.lock();
        let related = all.iter().filter(|(resource, _)| sharding.scope(resource).is_none());
        let related = related.filter_map(|(resource, watched)| {
            Some(RelatedResource {
                group: resource.group().to_owned(),
                resource: resource.resource().to_owned(),
                because: watched.because.clone()?,
            })
        });
        Said { resources: related.take(MOST_TOLD).collect() }
    }
}
