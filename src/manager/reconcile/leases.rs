//! The Leases of pods, and the deletion of those whose pods are gone.
//!
//! Hides when a pod counts as silent, and when as gone: its Lease has not been renewed for a while,
//! and no pod with its uid has been there meanwhile. A pod deletes its own Lease at its end, so these
//! are of pods that were killed. No other pod may do it: none can tell a pod that is gone from one
//! that it cannot see.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
    runtime::watcher::{Config, watcher},
};
use tokio::time::Instant;

use super::{
    key::NotWritten,
    observed::{PodFacts, key, key_of, namespace},
};
use ctrlmesh_api::lease::{self, Elections, ForeignWrites, PodLease, RelatedResources};
use ctrlmesh_base::cluster::{OwnAccess, Reflector, Update};
use ctrlmesh_policy::{ObjectRef, ring::ScopeClaim};

/// The time for which a pod has to be gone: its token is refused after ten seconds, and after
/// seventy where it was being deleted.
const GONE: Duration = Duration::from_secs(120);

/// The time in which a pod that lives has renewed its Lease, four times.
const SILENT: Duration = Duration::from_secs(40);
/// The time in which a pod that has started has a Lease.
const YOUNG: Duration = Duration::from_secs(30);

/// The facts of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundLease {
    name: String,
    version: String,
    pod_uid: String,
    holder: String,
    /// Whether it says what the pod has.
    is_readable: bool,
    /// The config of the pod's shard, by its name and uid, and the number of the spec that is claimed.
    shard: String,
    config_uid: String,
    generation: i64,
    /// Whether it claims something, as far as can be read.
    is_claim: bool,
    elections: Option<Elections>,
    foreign_writes: Option<ForeignWrites>,
    related: Option<RelatedResources>,
}

/// The Leases of all pods, and how each was heard.
pub(super) struct Leases {
    reflector: Reflector<Lease, Option<FoundLease>>,
    heard: BTreeMap<String, Heard>,
}

/// A pod of a ring, by what its Lease shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodOfRing {
    /// A pod without a Lease, which has started a moment ago.
    Young,
    /// A pod without a Lease.
    WithoutLease,
    /// A pod whose Lease cannot be read.
    Unreadable,
    /// A pod whose Lease was not followed for long enough.
    Unheard,
    /// A pod that does not renew its Lease.
    Silent,
    /// A pod that renews its Lease.
    Heard,
}

#[derive(Debug)]
struct Heard {
    version: String,
    /// The time since when it has this version, as far as was seen.
    since: Instant,
    /// Whether it was seen to be renewed.
    is_kept: bool,
    /// The time since when it has this version and no pod.
    gone_since: Option<Instant>,
}

/// What a pod says of its controller: `None` where it does not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said<'a> {
    pub(super) elections: Option<&'a Elections>,
    pub(super) foreign_writes: Option<&'a ForeignWrites>,
    pub(super) related: Option<&'a RelatedResources>,
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
        let reflector = Reflector::new(access, watch, |lease: Lease| {
            let found = PodLease::read(&lease).map(|read| {
                let claim = read.claim.and_then(|claim| ScopeClaim::read(&claim));
                FoundLease {
                    name: lease.metadata.name.clone().unwrap_or_default(),
                    version: lease.metadata.resource_version.clone().unwrap_or_default(),
                    pod_uid: read.pod_uid,
                    holder: read.holder,
                    is_readable: read.shard.is_some() && claim.is_some(),
                    shard: read.shard.unwrap_or_default(),
                    config_uid: read.config_uid,
                    generation: read.generation,
                    is_claim: !matches!(claim, Some(ScopeClaim::Nothing)),
                    elections: read.elections,
                    foreign_writes: read.foreign_writes,
                    related: read.related,
                }
            });
            (key_of(&lease), found)
        });
        Self { reflector, heard: BTreeMap::new() }
    }

    /// Takes the next event. Dropping it loses nothing.
    pub(super) async fn next(&mut self) -> Update {
        self.reflector.next().await
    }

    /// Notes which Leases were renewed. `is_there` says whether a pod with this uid is known.
    pub(super) fn hear(&mut self, is_there: impl Fn(&str) -> bool, now: Instant) {
        let Some(known) = self.reflector.known() else { return };
        let leases = known.iter().filter_map(|(at, lease)| Some((at, lease.as_ref()?)));
        hear(&mut self.heard, leases, is_there, now);
    }

    /// The Leases of pods that are gone, as [`Self::hear`] has heard them last.
    pub(super) fn gone(&self, now: Instant) -> Vec<(String, Removal)> {
        let known = self.reflector.known().into_iter().flatten();
        gone(&self.heard, known.filter_map(|(at, lease)| Some((at, lease.as_ref()?))), now)
    }

    /// The state of an injected pod in its ring, as [`Self::hear`] has heard its Lease last. `None`
    /// before Leases are known.
    pub(super) fn of_pod(
        &self,
        namespace: &str,
        pod: &PodFacts,
        now: Instant,
        time: Timestamp,
    ) -> Option<PodOfRing> {
        let at = key(namespace, &PodLease::name_of(&pod.uid));
        let lease = self.reflector.known()?.get(&at).and_then(Option::as_ref);
        Some(match (lease, self.heard.get(&at)) {
            (None, _) if is_young(pod, time) => PodOfRing::Young,
            (None, _) => PodOfRing::WithoutLease,
            (Some(lease), _) if !lease.is_readable => PodOfRing::Unreadable,
            (Some(_), Some(heard)) if heard.since + SILENT <= now => PodOfRing::Silent,
            (Some(_), Some(heard)) if heard.is_kept => PodOfRing::Heard,
            (Some(_), _) => PodOfRing::Unheard,
        })
    }
}

impl Leases {
    fn of(&self, namespace: &str, pod: &PodFacts) -> Option<&FoundLease> {
        let at = key(namespace, &PodLease::name_of(&pod.uid));
        self.reflector.known()?.get(&at)?.as_ref()
    }

    /// The number of this config's spec by which a pod claims. `None` if it has no Lease, or claims by
    /// another config.
    pub(super) fn generation(
        &self,
        namespace: &str,
        pod: &PodFacts,
        config: &ObjectRef,
    ) -> Option<i64> {
        let lease = self.of(namespace, pod)?;
        (config.uid.as_deref() == Some(&lease.config_uid)).then_some(lease.generation)
    }

    /// What a pod says of its controller.
    pub(super) fn said(&self, namespace: &str, pod: &PodFacts) -> Said<'_> {
        let lease = self.of(namespace, pod);
        Said {
            elections: lease.and_then(|lease| lease.elections.as_ref()),
            foreign_writes: lease.and_then(|lease| lease.foreign_writes.as_ref()),
            related: lease.and_then(|lease| lease.related.as_ref()),
        }
    }

    /// Whether a pod has claimed what this config says, as far as it has a Lease.
    pub(super) fn has_claimed(&self, namespace: &str, pod: &PodFacts, config: &ObjectRef) -> bool {
        self.of(namespace, pod).is_none()
            || self
                .generation(namespace, pod, config)
                .is_some_and(|is| config.generation == Some(is))
    }

    /// Whether a Lease claims something for the shard of this config. `true` before Leases are known.
    pub(super) fn is_claimed(&self, config: &ObjectRef) -> bool {
        let Some(known) = self.reflector.known() else { return true };
        let of_namespace = known.range(key(&config.namespace, "")..);
        let mut leases = of_namespace
            .take_while(|(at, _)| *namespace(at) == *config.namespace)
            .filter_map(|(_, lease)| lease.as_ref());
        leases.any(|lease| lease.is_claim && *lease.shard == *config.name)
    }
}

fn hear<'l>(
    heard: &mut BTreeMap<String, Heard>,
    leases: impl Iterator<Item = (&'l String, &'l FoundLease)>,
    is_there: impl Fn(&str) -> bool,
    now: Instant,
) {
    let mut before = std::mem::take(heard);
    for (at, lease) in leases {
        let earlier = before.remove(at);
        let was_kept = earlier.as_ref().is_some_and(|heard| heard.is_kept);
        let same = earlier.as_ref().filter(|heard| heard.version == lease.version);
        let gone_since = (!is_there(&lease.pod_uid))
            .then(|| same.and_then(|heard| heard.gone_since).unwrap_or(now));
        let version = lease.version.clone();
        let since = same.map_or(now, |heard| heard.since);
        let is_kept = was_kept || (earlier.is_some() && same.is_none());
        heard.insert(at.clone(), Heard { version, since, is_kept, gone_since });
    }
}

fn gone<'l>(
    heard: &BTreeMap<String, Heard>,
    leases: impl Iterator<Item = (&'l String, &'l FoundLease)>,
    now: Instant,
) -> Vec<(String, Removal)> {
    let is_gone = |at: &String| {
        let since = heard.get(at).and_then(|heard| heard.gone_since);
        since.is_some_and(|since| now >= since + GONE)
    };
    let removal = |(at, lease): (&String, &FoundLease)| {
        (at.clone(), Removal { namespace: namespace(at).to_owned(), lease: lease.clone() })
    };
    leases.filter(|(at, _)| is_gone(at)).map(removal).collect()
}

/// Whether the pod has started a moment ago, or not yet.
fn is_young(pod: &PodFacts, time: Timestamp) -> bool {
    pod.started.is_none_or(|started| time.duration_since(started).unsigned_abs() < YOUNG)
}

impl Removal {
    /// Deletes the Lease, unless the API server has its pod, or the Lease in another version.
    pub(super) async fn send(self, client: &Client) -> Result<(), NotWritten> {
        let Self { namespace, lease: FoundLease { name, version, pod_uid, holder, .. } } = self;
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
        let found = FoundLease {
            name: name.clone(),
            version,
            pod_uid,
            holder,
            is_readable: true,
            shard: "blue".to_owned(),
            config_uid: "uid".to_owned(),
            generation: 1,
            is_claim: true,
            elections: None,
            foreign_writes: None,
            related: None,
        };
        (format!("ns/{name}"), found)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_silent_once_it_was_not_renewed_and_heard_once_it_was() {
        let start = Instant::now();
        let mut heard = BTreeMap::new();
        let mut at = |version: u64, after: u64| {
            let leases = [lease("a", version)];
            let now = start + Duration::from_secs(after);
            hear(&mut heard, leases.iter().map(|(at, lease)| (at, lease)), |_| true, now);
            let Heard { since, is_kept, .. } = &heard["ns/ctrlmesh-a"];
            (*since + SILENT <= now, *is_kept)
        };
        // Not renewed yet, as far as was seen.
        assert_eq!(at(1, 0), (false, false));
        assert_eq!(at(1, 39), (false, false));
        assert_eq!(at(1, 40), (true, false));
        assert_eq!(at(2, 41), (false, true));
        assert_eq!(at(2, 80), (false, true));
        assert_eq!(at(2, 81), (true, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_deleted_once_its_pod_is_gone_and_it_is_silent() {
        let start = Instant::now();
        let mut silent = BTreeMap::new();
        let mut due = |leases: &[(String, FoundLease)], is_there: &[&str], after: u64| {
            let leases = leases.iter().map(|(at, lease)| (at, lease));
            let at = start + Duration::from_secs(after);
            hear(&mut silent, leases.clone(), |uid| is_there.contains(&uid), at);
            gone(&silent, leases, at)
                .into_iter()
                .map(|(_, removal)| removal.lease.pod_uid)
                .collect::<Vec<_>>()
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
