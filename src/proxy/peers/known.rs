//! The present table of the pods, for all threads, and a review's search in it.

use std::{sync::Arc, time::Duration};

use arc_swap::{ArcSwap, Guard};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::table::{Choice, Chosen, Peer, Table, Tried};

/// A shard that had a usable pod within this time is given [`PATIENCE`] to have one again.
const RECENTLY: Duration = Duration::from_secs(30);
/// Time from the beginning of a search in which a pod may be chosen: the pod of a shard with one pod is
/// replaced.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pods that answer for the shards, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    table: ArcSwap<Table>,
    changed: watch::Sender<()>,
    problem: watch::Sender<Option<String>>,
}

/// The search of one review for a pod of a shard that takes it.
#[derive(Debug)]
pub(crate) struct PeerPicker<'a> {
    peers: &'a Peers,
    shard: &'a str,
    was_ready: Option<Instant>,
    tried: Tried,
    until: Instant,
}

impl<'a> PeerPicker<'a> {
    /// A search that begins now, of a review that may wait for so long. `was_ready` is the time at which
    /// a pod was usable that is not in the table: this one.
    pub(crate) fn new(
        peers: &'a Peers,
        shard: &'a str,
        was_ready: Option<Instant>,
        wait: Duration,
    ) -> Self {
        let until = Instant::now() + PATIENCE.min(wait);
        Self { peers, shard, was_ready, tried: Tried::default(), until }
    }

    /// Chooses a usable pod. If there is none and there was one a moment ago, waits for one, or for one
    /// that was not reached to be tried again, but not after the first 5 s of the search, or less if
    /// the review may not wait for so long.
    pub(crate) async fn next(&mut self) -> Option<Chosen> {
        if let Choice::Pod(chosen) = self.choose(Instant::now()) {
            return Some(chosen);
        }
        let mut changes = self.peers.changes();
        loop {
            changes.mark_unchanged();
            let now = Instant::now();
            let choice = self.choose(now);
            let (last_ready, again) = match choice {
                Choice::Pod(chosen) => return Some(chosen),
                Choice::Nobody { last_ready, again } => (last_ready.max(self.was_ready)?, again),
            };
            if now.saturating_duration_since(last_ready) > RECENTLY || now >= self.until {
                return None;
            }
            let by = again.map_or(self.until, |again| again.min(self.until));
            if let Ok(Err(_ended)) = timeout_at(by, changes.changed()).await {
                return None;
            }
        }
    }

    fn choose(&self, now: Instant) -> Choice {
        self.peers.table().choose(self.shard, &self.tried, now)
    }

    /// Records that a pod was not reached.
    pub(crate) fn missed(&mut self, peer: Arc<Peer>) {
        self.tried.add(peer, Instant::now());
    }
}

impl Peers {
    /// The present table.
    pub(crate) fn table(&self) -> Guard<Arc<Table>> {
        self.table.load()
    }

    /// A receiver of every change.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The reason why the table may be wrong. `None` if it is up to date, or no one needs it.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// A receiver of the problem.
    #[cfg(test)]
    pub(super) fn problems(&self) -> watch::Receiver<Option<String>> {
        self.problem.subscribe()
    }

    /// Puts a table in force.
    pub(super) fn put(&self, table: Table) {
        self.table.store(Arc::new(table));
        self.changed.send_replace(());
    }

    /// Records that the first pods are awaited.
    pub(super) fn await_first(&self) {
        let awaited = "the pods of the namespace are not listed yet";
        self.problem.send_replace(Some(awaited.to_owned()));
    }

    /// Records the state of what the table is made of, and logs a new problem.
    pub(super) fn report(&self, problem: Option<String>) {
        self.problem.send_if_modified(|present| {
            if *present == problem {
                return false;
            }
            match &problem {
                Some(problem) => tracing::warn!(problem, "the pods of the shards may be unknown"),
                None => tracing::info!("the pods of the shards are known"),
            }
            *present = problem;
            true
        });
    }
}
