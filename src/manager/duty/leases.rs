//! The Leases of pods that are gone.
//!
//! Hides when a pod counts as gone: its Lease has not been renewed for a while, and no pod with its
//! uid has been there meanwhile. A pod deletes its own Lease at its end, so these are of pods that
//! were killed. No other pod may do it: none can tell a pod that is gone from one that it cannot see.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
    runtime::watcher::{Config, watcher},
};
use tokio::time::Instant;

use super::{
    found::{key_of, namespace},
    subject::{NotWritten, Subject},
};
use crate::{
    api::lease::{self, PodLease},
    cluster::{Followed, OwnAccess, Update},
};

/// The time for which a pod has to be gone: its token is refused after ten seconds, and after
/// seventy where it was being deleted.
const GONE: Duration = Duration::from_secs(120);

/// The facts of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundLease {
    name: String,
    version: String,
    pod_uid: String,
    holder: String,
}

/// The Leases of all pods, and since when each has been silent without its pod.
pub(super) struct Leases {
    followed: Followed<Lease, Option<FoundLease>>,
    silent: BTreeMap<String, Silent>,
}

#[derive(Debug)]
struct Silent {
    version: String,
    since: Instant,
}

/// The deletion of a Lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Removal {
    namespace: String,
    lease: FoundLease,
}

impl Leases {
    pub(super) fn follow(access: OwnAccess) -> Self {
        let config = Config::default().labels(lease::RING);
        let watch = move |client: Client| watcher(Api::<Lease>::all(client), config.clone());
        let followed = Followed::new(access, watch, |lease: Lease| {
            let found = PodLease::read(&lease).map(|read| FoundLease {
                name: lease.metadata.name.clone().unwrap_or_default(),
                version: lease.metadata.resource_version.clone().unwrap_or_default(),
                pod_uid: read.pod_uid,
                holder: read.holder,
            });
            (key_of(&lease), found)
        });
        Self { followed, silent: BTreeMap::new() }
    }

    /// Takes the next event. Dropping it loses nothing.
    pub(super) async fn next(&mut self) -> Update {
        self.followed.next().await
    }

    /// The Leases to delete. `is_there` says whether a pod with this uid is known.
    pub(super) fn due(
        &mut self,
        is_there: impl Fn(&str) -> bool,
        now: Instant,
    ) -> Vec<(Subject, Removal)> {
        let Some(known) = self.followed.known() else { return Vec::new() };
        let leases = known.iter().filter_map(|(at, lease)| Some((at, lease.as_ref()?)));
        due(&mut self.silent, leases, is_there, now)
    }
}

fn due<'l>(
    silent: &mut BTreeMap<String, Silent>,
    leases: impl Iterator<Item = (&'l String, &'l FoundLease)>,
    is_there: impl Fn(&str) -> bool,
    now: Instant,
) -> Vec<(Subject, Removal)> {
    let mut before = std::mem::take(silent);
    let mut due = Vec::new();
    for (at, lease) in leases.filter(|(_, lease)| !is_there(&lease.pod_uid)) {
        let same = before.remove(at).filter(|silent| silent.version == lease.version);
        let since = same.map_or(now, |silent| silent.since);
        if now >= since + GONE {
            let namespace = namespace(at).to_owned();
            let removal = Removal { namespace, lease: lease.clone() };
            due.push((Subject::Lease(at.clone()), removal));
        }
        silent.insert(at.clone(), Silent { version: lease.version.clone(), since });
    }
    due
}

impl Removal {
    /// Deletes the Lease, unless the API server has its pod, or the Lease in another version.
    pub(super) async fn send(self, client: &Client) -> Result<(), NotWritten> {
        let Self { namespace, lease: FoundLease { name, version, pod_uid, holder } } = self;
        let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
        let is_there = |pod: Pod| pod.metadata.uid.is_some_and(|uid| uid == pod_uid);
        if !holder.is_empty() && pods.get_opt(&holder).await?.is_some_and(is_there) {
            return Ok(());
        }
        let only = Preconditions { resource_version: Some(version), uid: None };
        let only = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        let leases = Api::<Lease>::namespaced(client.clone(), &namespace);
        match leases.delete(&name, &only).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            deleted => Ok(deleted.map(drop)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(pod: &str, version: u64) -> (String, FoundLease) {
        let name = format!("ctrlmesh-{pod}");
        let [pod_uid, holder, version] = [pod.to_owned(), pod.to_owned(), version.to_string()];
        (format!("ns/{name}"), FoundLease { name, version, pod_uid, holder })
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_deleted_once_its_pod_is_gone_and_it_is_silent() {
        let start = Instant::now();
        let mut silent = BTreeMap::new();
        let mut due = |leases: &[(String, FoundLease)], is_there: &[&str], after: u64| {
            let leases = leases.iter().map(|(at, lease)| (at, lease));
            let at = start + Duration::from_secs(after);
            let due = due(&mut silent, leases, |uid| is_there.contains(&uid), at);
            due.into_iter().map(|(_, removal)| removal.lease.pod_uid).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(due(&[lease("a", 1), lease("b", 1)], &["a", "b"], 0), none);
        // The pod of a is gone; that of b is only not known here: it still renews.
        assert_eq!(due(&[lease("a", 1), lease("b", 1)], &[], 100), none);
        assert_eq!(due(&[lease("a", 1), lease("b", 2)], &[], 219), none);
        assert_eq!(due(&[lease("a", 1), lease("b", 2)], &[], 220), ["a"]);
        assert_eq!(due(&[lease("a", 1), lease("b", 2)], &["a"], 300), none);
        // It was there meanwhile.
        assert_eq!(due(&[lease("a", 1), lease("b", 3)], &[], 310), none);
        assert_eq!(due(&[lease("a", 1), lease("b", 3)], &[], 430), ["a", "b"]);
        assert_eq!(due(&[], &[], 440), none);
    }
}
