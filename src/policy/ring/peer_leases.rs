//! The Leases of the other pods of the ring, as they were read.
//!
//! Hides which readings count for an opening, and when a Lease has run out. Knows nothing of what
//! the pod itself wants. Words: a reading *counts* if it was asked for when the own claim was in the
//! store; the Leases are *followed* if they were read whole, and are watched since.

use std::{collections::BTreeMap, time::Duration};

use super::{
    claim::{Claim, Lease},
    timing::Time,
};
use crate::ObjectSet;

/// The knowledge of the other pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peers<S> {
    leases: BTreeMap<Box<str>, Peer<S>>,
    reading: Option<Reading>,
    is_followed: bool,
    counts: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer<S> {
    shard: Option<Box<str>>,
    claim: Claim<S>,
    age: Option<Age>,
}

/// The age of a version of a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Age {
    version: Box<str>,
    first_seen: Time,
    /// Whether a list has shown it when it was too old.
    has_run_out: bool,
}

/// A list of Leases that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reading {
    /// Whether the own claim is in the store since.
    pub(super) counts: bool,
    /// Whether the own Lease was not written since.
    pub(super) is_current: bool,
}

impl<S: ObjectSet> Peers<S> {
    pub(super) fn new() -> Self {
        Self { leases: BTreeMap::new(), reading: None, is_followed: false, counts: false }
    }

    pub(super) fn ask(&mut self, reading: Reading) {
        self.reading = Some(reading);
    }

    /// The list that was asked for, which will not be answered any more.
    pub(super) fn take_reading(&mut self) -> Option<Reading> {
        self.reading.take()
    }

    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Whether no one else may have opened, since these Leases were read, what they do not claim.
    pub(super) fn counts(&self) -> bool {
        self.counts
    }

    pub(super) fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// Readings count no more for an opening, nor do those that are asked for.
    pub(super) fn discount(&mut self) {
        self.counts = false;
        if let Some(reading) = &mut self.reading {
            reading.counts = false;
        }
    }

    /// The own Lease is written: a list that was asked for may show it as it was before.
    pub(super) fn own_changes(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.is_current = false;
        }
    }

    /// The watch has ended: what follows is unknown until the next list.
    pub(super) fn unfollow(&mut self) {
        self.is_followed = false;
        self.counts = false;
    }

    /// The Leases are not watched for a while: those that were read count as they did.
    pub(super) fn rest(&mut self) {
        self.is_followed = false;
    }

    /// Another ring: nothing of this one counts.
    pub(super) fn forget(&mut self) {
        *self = Self { reading: self.reading, ..Self::new() };
        self.discount();
        self.own_changes();
    }

    /// Takes a list of Leases, without the own one.
    pub(super) fn replace(
        &mut self,
        leases: Vec<Lease<S>>,
        counts: bool,
        is_consistent: bool,
        clock: Clock,
    ) {
        let mut before = std::mem::take(&mut self.leases);
        for lease in leases {
            let age = before.remove(&lease.pod).and_then(|peer| peer.age);
            let clock = if is_consistent { clock } else { Clock { silent_after: None, ..clock } };
            self.insert(lease, age, clock);
        }
        self.counts = counts;
        self.is_followed = is_consistent;
    }

    /// Takes a Lease from the watch. Returns whether it says anything new.
    pub(super) fn change(&mut self, lease: Lease<S>, clock: Clock) -> bool {
        self.insert(lease, None, clock)
    }

    /// A Lease was deleted.
    pub(super) fn remove(&mut self, pod: &str) {
        self.leases.remove(pod);
    }

    fn insert(&mut self, lease: Lease<S>, before: Option<Age>, clock: Clock) -> bool {
        let Lease { pod, shard, version, claim, .. } = lease;
        let age = clock.silent_after.map(|silent_after| match before {
            Some(age) if age.version == version => {
                let has_run_out = age.first_seen + silent_after <= clock.now;
                Age { has_run_out: age.has_run_out || has_run_out, ..age }
            }
            _ => Age { version, first_seen: clock.now, has_run_out: false },
        });
        let peer = Peer { shard, claim, age };
        let is_same = |known: &Peer<S>| known.claim == peer.claim && known.shard == peer.shard;
        let is_new = !self.leases.get(&pod).is_some_and(is_same);
        self.leases.insert(pod, peer);
        is_new
    }

    /// The claims of the living Leases of a shard.
    pub(super) fn of(&self, shard: &str) -> impl Iterator<Item = &Claim<S>> {
        let is_of = move |peer: &&Peer<S>| peer.shard.as_deref() == Some(shard);
        self.living().filter(is_of).map(|peer| &peer.claim)
    }

    /// The claims of all living Leases but those of a shard.
    pub(super) fn but_of(&self, shard: &str) -> impl Iterator<Item = &Claim<S>> {
        let is_other = move |peer: &&Peer<S>| peer.shard.as_deref() != Some(shard);
        self.living().filter(is_other).map(|peer| &peer.claim)
    }

    /// The living Leases of all shards but one: pod, shard, claim.
    pub(super) fn rivals_of(
        &self,
        shard: &str,
    ) -> impl Iterator<Item = (&str, Option<&str>, &Claim<S>)> {
        let has_run_out = |peer: &Peer<S>| peer.age.as_ref().is_some_and(|age| age.has_run_out);
        let rivals = self
            .leases
            .iter()
            .filter(move |(_, peer)| peer.shard.as_deref() != Some(shard) && !has_run_out(peer));
        rivals.map(|(pod, peer)| (&**pod, peer.shard.as_deref(), &peer.claim))
    }

    fn living(&self) -> impl Iterator<Item = &Peer<S>> {
        self.leases.values().filter(|peer| peer.age.as_ref().is_none_or(|age| !age.has_run_out))
    }

    /// The version of a pod's Lease, where its age counts.
    #[cfg(test)]
    pub(super) fn version(&self, pod: &str) -> Option<&str> {
        Some(&self.leases.get(pod)?.age.as_ref()?.version)
    }

    #[cfg(test)]
    pub(super) fn shift(&mut self, past: impl Fn(&mut Time)) {
        let ages = self.leases.values_mut().filter_map(|peer| peer.age.as_mut());
        ages.for_each(|age| past(&mut age.first_seen));
    }

    /// The next time at which a Lease may be found to have run out. It is in the past if a list
    /// would show it now.
    pub(super) fn next_silent(&self, silent_after: Duration) -> Option<Time> {
        let ages = self.living().filter_map(|peer| peer.age.as_ref());
        ages.map(|age| age.first_seen + silent_after).min()
    }
}

/// The time of a reading, and how old a Lease may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) now: Time,
    pub(super) silent_after: Option<Duration>,
}
