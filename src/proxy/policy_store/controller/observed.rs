//! The resources that the pod's controller has named in its requests, and the verbs.
//!
//! Hides how many are kept, and that most requests are like one before. Does not know which facts are reported of
//! them.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{BuildHasher, RandomState},
};

use parking_lot::Mutex;

use ctrlmesh_api::ObservedResource;
use ctrlmesh_policy::{GroupResource, Sharding};
use ctrlmesh_wire::RequestInfo;

/// Most resources that are kept.
const MOST: usize = 256;
/// Most requests that one thread knows to be noted.
const MOST_KNOWN: usize = 4096;

/// The requests of the pod's controller, by resource.
#[derive(Debug, Default)]
pub(crate) struct Observed(Mutex<BTreeMap<GroupResource, BTreeSet<&'static str>>>);

/// The requests that a thread has noted: most are like one of these.
#[derive(Debug, Default)]
pub(crate) struct KnownRequests {
    requests: RefCell<HashSet<u64>>,
    hasher: RandomState,
}

impl Observed {
    /// Notes a request, unless the thread has noted one like it.
    pub(crate) fn note(&self, known: &KnownRequests, info: &RequestInfo<'_>) {
        let Some(resource) = info.resource() else { return };
        let verb = info.verb.as_str();
        let key = known.hasher.hash_one((verb, &resource.group, &resource.resource));
        let mut requests = known.requests.borrow_mut();
        if requests.contains(&key) {
            return;
        }
        if requests.len() >= MOST_KNOWN {
            requests.clear();
        }
        requests.insert(key);
        let mut all = self.0.lock();
        let resource = GroupResource::of(resource);
        if all.len() < MOST || all.contains_key(&resource) {
            all.entry(resource).or_default().insert(verb);
        }
    }

    /// The resources and their verbs, under a policy if there is one.
    pub(crate) fn said(&self, sharding: Option<&Sharding>) -> Vec<ObservedResource> {
        let all = self.0.lock();
        let resource = |(resource, verbs): (&GroupResource, &BTreeSet<&str>)| ObservedResource {
            group: resource.group().to_owned(),
            resource: resource.resource().to_owned(),
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            is_limited: sharding.is_some_and(|sharding| sharding.scope(resource).is_some()),
        };
        all.iter().map(resource).collect()
    }
}
