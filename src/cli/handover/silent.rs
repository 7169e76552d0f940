//! The deletion of silent pods.
//!
//! Hides how silence is found: by the version of a Lease, which changes with each renewal, and so by
//! no clock but our own.

use std::{collections::BTreeMap, time::Duration};

use super::{found::Found, state::RingState};
use crate::cluster::{Cluster, ClusterError};

/// The time in which a Lease that is kept is renewed, three times.
pub(super) const LISTENED: Duration = Duration::from_secs(30);

/// The versions of all Leases, by the uid of the pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Versions(BTreeMap<String, String>);

impl Versions {
    pub(super) fn of(found: &Found) -> Self {
        let leases = found.leases.iter();
        Self(leases.map(|lease| (lease.says.pod_uid.clone(), lease.version.clone())).collect())
    }

    fn has_same(&self, earlier: &Self, pod: &str) -> bool {
        self.0.get(pod).is_some_and(|version| earlier.0.get(pod) == Some(version))
    }
}

/// A pod that is waited for, and has been silent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Silent {
    namespace: String,
    pod: String,
    uid: String,
    /// Whether there is such a pod. If not, the manager deletes the Lease.
    is_there: bool,
}

/// The silent pods that others wait for: those whose Leases have the versions of `earlier`.
pub(super) fn silent(rings: &[RingState], earlier: &Versions, now: &Versions) -> Vec<Silent> {
    let mut silent = Vec::new();
    for ring in rings {
        let pods = || ring.shards.iter().flat_map(|shard| &shard.pods);
        for awaited in pods().flat_map(|pod| &pod.waits_for) {
            if now.has_same(earlier, &awaited.uid) {
                silent.push(Silent {
                    namespace: ring.namespace.clone(),
                    pod: awaited.pod.clone(),
                    uid: awaited.uid.clone(),
                    is_there: pods().any(|pod| pod.uid == awaited.uid && pod.is_there),
                });
            }
        }
    }
    silent.sort();
    silent.dedup();
    silent
}

impl Silent {
    #[cfg(test)]
    pub(super) fn name(&self) -> &str {
        &self.pod
    }

    /// Deletes the pod, and returns a sentence about it.
    pub(super) async fn delete(&self, cluster: &Cluster) -> Result<String, ClusterError> {
        let Self { namespace, pod, uid, is_there } = self;
        if !is_there {
            return Ok(format!(
                "pod {namespace}/{pod} is gone: the manager deletes Lease ctrlmesh-{uid} two minutes \
                 after"
            ));
        }
        cluster.delete_pod(namespace, pod, uid).await?;
        Ok(format!(
            "pod {namespace}/{pod} is deleted: the manager deletes Lease ctrlmesh-{uid} in two minutes"
        ))
    }
}
