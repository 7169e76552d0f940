//! Leader election by a Lease, as client-go does it.
//!
//! Hides how a term begins and ends. Every write carries the resourceVersion that was read, so of two
//! replicas that try at once one fails. The times of others are never compared with our clock: a
//! holder is gone if its Lease has not changed for [`LEASE`] by our own clock
//! (`k8s.io/client-go/tools/leaderelection`).

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use ctrlmesh_base::cluster::chain;

/// The time without a change after which a Lease is free.
const LEASE: Duration = Duration::from_secs(15);
/// The time without a renewal after which the holder gives up its term.
const RENEW: Duration = Duration::from_secs(10);
/// The time in which a request is answered.
const ANSWER: Duration = Duration::from_secs(5);
/// The interval of renewals and attempts.
const RETRY: Duration = Duration::from_secs(2);

/// A candidate.
pub(super) struct Candidate {
    leases: Api<Lease>,
    name: String,
    /// The identity of this process. Another process of the same pod has another.
    me: String,
    seen: Option<Seen>,
}

/// The Lease as it was first seen in this state.
#[derive(Debug)]
struct Seen {
    lease: Lease,
    at: Instant,
}

/// The failure of one attempt.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("no answer in {} s", ANSWER.as_secs())]
    Late,
}

impl Candidate {
    pub(super) fn new(client: Client, namespace: &str, name: &str, replica: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            me: format!("{replica}_{:016x}", fastrand::u64(..)),
            seen: None,
        }
    }

    /// Waits until the term of this candidate begins; returns its first moment.
    pub(super) async fn begin(&mut self) -> Instant {
        loop {
            match self.attempt().await {
                Ok(Some(held)) => return held,
                Ok(None) => {}
                Err(error) => tracing::warn!(error = chain(&error), "leader election failed"),
            }
            sleep(RETRY).await;
        }
    }

    /// Renews the term for as long as it lasts, and returns at its end.
    pub(super) async fn renew(&mut self, begun: Instant) {
        let mut ends = begun + RENEW;
        loop {
            sleep(RETRY).await;
            match timeout_at(ends, self.attempt()).await {
                Ok(Ok(Some(held))) => ends = held + RENEW,
                Ok(Ok(None)) => return,
                Ok(Err(error)) => tracing::warn!(error = chain(&error), "cannot renew the Lease"),
                Err(_) => return,
            }
            if Instant::now() >= ends {
                return;
            }
        }
    }

    /// Gives the term back, so that another need not wait.
    pub(super) async fn release(&mut self) {
        let Some(Seen { lease, .. }) = self.seen.take() else { return };
        if holder(&lease) != Some(&self.me) {
            return;
        }
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            ..lease.spec.unwrap_or_default()
        };
        let lease = Lease { spec: Some(spec), ..lease };
        let _ =
            timeout(RETRY, self.leases.replace(&self.name, &PostParams::default(), &lease)).await;
    }

    /// Reads the Lease, and takes or renews it if this replica may. Returns since when this replica holds it, or
    /// `None` if another replica holds it.
    async fn attempt(&mut self) -> Result<Option<Instant>, Failed> {
        // Others count from when they see the write, which is later.
        let begun = Instant::now();
        let attempted = timeout(ANSWER, self.read_and_write()).await;
        let is_held = attempted.map_err(|_| Failed::Late)??;
        Ok(is_held.then_some(begun))
    }

    async fn read_and_write(&mut self) -> Result<bool, Failed> {
        let found = self.leases.get_opt(&self.name).await?;
        let now = Instant::now();
        self.look(found.as_ref(), now);
        if !self.may_write(now) {
            return Ok(false);
        }
        let lease = self.written(found, Timestamp::now());
        let written = match lease.metadata.resource_version {
            Some(_) => self.leases.replace(&self.name, &PostParams::default(), &lease).await,
            None => self.leases.create(&PostParams::default(), &lease).await,
        };
        match written {
            Ok(lease) => {
                self.seen = Some(Seen { lease, at: Instant::now() });
                Ok(true)
            }
            // Another was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Notes the state of the Lease and, if it is another, since when it is so.
    fn look(&mut self, found: Option<&Lease>, now: Instant) {
        let is_same = match (&self.seen, found) {
            (Some(seen), Some(found)) => seen.lease.spec == found.spec,
            _ => false,
        };
        if !is_same {
            self.seen = found.map(|lease| Seen { lease: lease.clone(), at: now });
        }
    }

    /// Whether the Lease is ours, no one's, or not renewed in time.
    fn may_write(&self, now: Instant) -> bool {
        let Some(Seen { lease, at }) = &self.seen else { return true };
        match holder(lease) {
            None => true,
            Some(holder) => *holder == self.me || now >= *at + LEASE,
        }
    }

    /// The Lease to write in place of the one that was found.
    fn written(&self, found: Option<Lease>, now: Timestamp) -> Lease {
        let mut lease = found.unwrap_or_default();
        lease.metadata.name = Some(self.name.clone());
        let is_ours = holder(&lease) == Some(&self.me);
        let spec = lease.spec.get_or_insert_default();
        if !is_ours {
            let is_first = spec.lease_transitions.is_none();
            let transitions = spec.lease_transitions.unwrap_or_default();
            spec.lease_transitions = Some(if is_first { 0 } else { transitions.saturating_add(1) });
            spec.acquire_time = Some(MicroTime(now));
        }
        spec.holder_identity = Some(self.me.clone());
        spec.lease_duration_seconds = i32::try_from(LEASE.as_secs()).ok();
        spec.renew_time = Some(MicroTime(now));
        lease
    }
}

/// The holder of a Lease. `None` if no one holds it.
fn holder(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(me: &str) -> Candidate {
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap()));
        let mut candidate = Candidate::new(client.unwrap(), "mesh", "lease", "replica");
        candidate.me = me.to_owned();
        candidate
    }

    fn held(by: &str, renewed: i64) -> Lease {
        let at = |seconds| Some(MicroTime(Timestamp::from_second(seconds).unwrap()));
        let spec = LeaseSpec {
            holder_identity: Some(by.to_owned()),
            renew_time: at(renewed),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_of_another_is_free_when_it_has_not_changed_for_long() {
        let mut me = candidate("me");
        let start = Instant::now();
        // The other's clock is years off: that means nothing.
        for (renewed, seen, may) in [
            (7, 0, false),
            (7, 14, false),
            (8, 14, false),
            (8, 28, false),
            (8, 29, true),
            (9, 30, false),
        ] {
            let now = start + Duration::from_secs(seen);
            me.look(Some(&held("other", renewed)), now);
            assert_eq!(me.may_write(now), may, "renewed {renewed}, seen at {seen}");
        }
    }

    #[tokio::test]
    async fn the_lease_of_nobody_and_ones_own_are_free_at_once() {
        let now = Instant::now();
        for lease in [None, Some(Lease::default()), Some(held("", 1)), Some(held("me", 1))] {
            let mut me = candidate("me");
            me.look(lease.as_ref(), now);
            assert!(me.may_write(now), "{lease:?}");
        }
        let mut me = candidate("me");
        me.look(Some(&held("me too", 1)), now);
        assert!(!me.may_write(now));
    }

    #[tokio::test]
    async fn a_term_that_begins_is_counted_and_a_renewal_is_not() {
        let me = candidate("me");
        let now = Timestamp::from_second(100).unwrap();
        let spec = |found| me.written(found, now).spec.unwrap();
        for (found, transitions, acquired) in [
            (None, 0, Some(MicroTime(now))),
            (Some(held("other", 1)), 4, Some(MicroTime(now))),
            (Some(held("", 1)), 4, Some(MicroTime(now))),
            (Some(held("me", 1)), 3, None),
        ] {
            let spec = spec(found.clone());
            assert_eq!(spec.lease_transitions, Some(transitions), "{found:?}");
            assert_eq!(spec.acquire_time, acquired, "{found:?}");
            assert_eq!(spec.renew_time, Some(MicroTime(now)));
            assert_eq!(spec.lease_duration_seconds, Some(15));
        }
        let mut found = held("other", 1);
        found.metadata.resource_version = Some("12".to_owned());
        let written = me.written(Some(found), now);
        assert_eq!(written.metadata.resource_version.as_deref(), Some("12"), "a stale write fails");
    }

    #[tokio::test]
    async fn two_processes_of_one_pod_are_two_candidates() {
        let client = || Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap()));
        let one = || Candidate::new(client().unwrap(), "mesh", "lease", "manager-0").me;
        assert_ne!(one(), one());
    }
}
