//! The usable pods of each shard, and the choice of one. Knows no connection and no watch.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::facts::PodFacts;
use ctrlmesh_net::identity::PodIdentity;
use ctrlmesh_policy::ControllerShards;

/// The time for which a pod that could not be reached comes after all others: it has the fewest
/// open reviews, and would be chosen first.
const AVOIDED_FOR: Duration = Duration::from_secs(5);
/// The rest of a pod between two attempts to reach it. Its readiness is known before its proxy has
/// seen that the operator listens.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The usable pods of each shard at one time. Immutable but for their loads.
#[derive(Debug, Default)]
pub(crate) struct Table {
    shards: BTreeMap<Box<str>, Pods>,
}

/// The pods of one shard, by their names.
#[derive(Debug, Default)]
struct Pods {
    usable: Vec<Arc<Peer>>,
    /// The time when there was last one, as far as the tables before this one know.
    last_ready: Option<Instant>,
    /// Number of choices: those who have equal loads take turns.
    turns: Arc<AtomicUsize>,
}

/// A pod that may answer for its shard, since its facts last changed.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) identity: PodIdentity,
    pub(crate) shard: Box<str>,
    /// The addresses of its webhook, the preferred one first.
    pub(crate) addrs: Vec<SocketAddr>,
    state: Arc<TableState>,
}

/// The state of a pod over all tables.
#[derive(Debug, Default)]
struct TableState {
    open: AtomicUsize,
    failed: Mutex<Option<Instant>>,
}

/// A pod that is chosen for one review: it counts as open until this is dropped.
#[derive(Debug)]
pub(crate) struct Chosen(Arc<Peer>);

/// The choice of a pod.
#[derive(Debug)]
pub(crate) enum Choice {
    /// The usable pod with the fewest open reviews.
    Pod(Chosen),
    /// No pod can take it.
    Nobody {
        /// The time when there was last one.
        last_ready: Option<Instant>,
        /// The earliest time at which one that was not reached may be chosen again.
        again: Option<Instant>,
    },
}

/// The pods that a review did not reach, each with the time of the last attempt.
#[derive(Debug, Default)]
pub(super) struct Tried(pub(super) Vec<(Arc<Peer>, Instant)>);

impl Tried {
    pub(super) fn add(&mut self, peer: Arc<Peer>, now: Instant) {
        self.0.retain(|(other, _)| !Arc::ptr_eq(other, &peer));
        self.0.push((peer, now));
    }

    fn last(&self, peer: &Arc<Peer>) -> Option<Instant> {
        self.0.iter().find(|(other, _)| Arc::ptr_eq(other, peer)).map(|(_, at)| *at)
    }
}

impl Table {
    /// The table after this one: of the pods of `siblings` at the time `now`, without `own`.
    pub(super) fn next<'p>(
        &self,
        siblings: &ControllerShards,
        pods: impl IntoIterator<Item = &'p PodFacts>,
        own: &PodIdentity,
        now: Instant,
    ) -> Self {
        let mut shards: BTreeMap<Box<str>, Pods> =
            siblings.names().map(|name| (name.into(), self.emptied(name, now))).collect();
        let former: HashMap<&str, &Arc<Peer>> =
            self.peers().map(|peer| (peer.identity.uid(), peer)).collect();
        for facts in pods.into_iter().filter(|facts| facts.is_usable()) {
            if facts.identity.uid() == own.uid() {
                continue;
            }
            if let Some(shard) = siblings.shard_of(&facts.labels)
                && let Some(pods) = shards.get_mut(shard)
            {
                let former = former.get(facts.identity.uid()).copied();
                pods.usable.push(Peer::after(former, facts, shard));
            }
        }
        Self { shards }
    }

    /// A shard without the pods that it had.
    fn emptied(&self, shard: &str, now: Instant) -> Pods {
        let Some(Pods { usable, last_ready, turns }) = self.shards.get(shard) else {
            return Pods::default();
        };
        let last_ready = if usable.is_empty() { *last_ready } else { Some(now) };
        Pods { usable: Vec::new(), last_ready, turns: Arc::clone(turns) }
    }

    /// Chooses a pod of the shard. One that was not reached a moment ago, by this review or another,
    /// is none.
    pub(super) fn choose(&self, shard: &str, tried: &Tried, now: Instant) -> Choice {
        let Some(pods) = self.shards.get(shard) else {
            return Choice::Nobody { last_ready: None, again: None };
        };
        let turn = pods.turns.fetch_add(1, Relaxed).checked_rem(pods.usable.len()).unwrap_or(0);
        let (late, early) = pods.usable.split_at(turn);
        let rests_until = |peer: &Arc<Peer>| {
            let failed = tried.last(peer).max(*peer.state.failed.lock());
            failed.map(|at| at + AGAIN_AFTER).filter(|until| now < *until)
        };
        let best = early.iter().chain(late).filter(|peer| rests_until(peer).is_none());
        if let Some(peer) = best.min_by_key(|peer| (peer.is_avoided(now), peer.open())) {
            return Choice::Pod(Chosen::new(peer));
        }
        let last_ready = if pods.usable.is_empty() { pods.last_ready } else { Some(now) };
        Choice::Nobody { last_ready, again: pods.usable.iter().filter_map(rests_until).min() }
    }

    /// Whether this very peer is in it.
    pub(super) fn has(&self, peer: &Arc<Peer>) -> bool {
        let pods = self.shards.get(&peer.shard);
        pods.is_some_and(|pods| pods.usable.iter().any(|other| Arc::ptr_eq(other, peer)))
    }

    /// All pods, by shard and name.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.shards.values().flat_map(|pods| &pods.usable)
    }

    /// The shards, also those without a pod, each with the number of its pods.
    pub(crate) fn shards(&self) -> impl Iterator<Item = (&str, usize)> {
        self.shards.iter().map(|(shard, pods)| (&**shard, pods.usable.len()))
    }
}

impl Peer {
    /// The peer with these facts: the former one if nothing has changed.
    fn after(former: Option<&Arc<Self>>, facts: &PodFacts, shard: &str) -> Arc<Self> {
        if let Some(former) = former
            && *former.shard == *shard
            && former.addrs == facts.addrs
        {
            return Arc::clone(former);
        }
        Arc::new(Self {
            identity: facts.identity.clone(),
            shard: shard.into(),
            addrs: facts.addrs.clone(),
            state: former.map(|former| Arc::clone(&former.state)).unwrap_or_default(),
        })
    }

    /// Number of open reviews that were sent to it.
    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Relaxed)
    }

    /// Whether it could not be reached a moment ago.
    pub(crate) fn is_avoided(&self, now: Instant) -> bool {
        let failed = *self.state.failed.lock();
        failed.is_some_and(|at| now.saturating_duration_since(at) < AVOIDED_FOR)
    }

    /// Records whether it could be reached.
    pub(super) fn was_reached(&self, is_reached: bool, now: Instant) {
        *self.state.failed.lock() = (!is_reached).then_some(now);
    }
}

impl Chosen {
    fn new(peer: &Arc<Peer>) -> Self {
        peer.state.open.fetch_add(1, Relaxed);
        Self(Arc::clone(peer))
    }

    /// The pod.
    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.0
    }
}

impl Deref for Chosen {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.0
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.0.state.open.fetch_sub(1, Relaxed);
    }
}
