//! The present table of the pods, for all threads.

use std::{sync::Arc, time::Duration};

use arc_swap::{ArcSwap, Guard};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::table::{Choice, Chosen, Peer, Table};

/// A shard that had a usable pod within this time is given [`PATIENCE`] to have one again.
const RECENTLY: Duration = Duration::from_secs(30);
/// The longest wait for a usable pod: the pod of a shard with one pod is replaced.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pods that answer for the shards, as far as they are known.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Peers {
    table: ArcSwap<Table>,
    changed: watch::Sender<()>,
    problem: watch::Sender<Option<String>>,
}

impl Peers {
    /// The present table.
    pub(in crate::proxy) fn table(&self) -> Guard<Arc<Table>> {
        self.table.load()
    }

    /// A receiver of every change.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The reason why the table may be wrong. `None` if it is up to date, or nobody needs it.
    pub(in crate::proxy) fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// A receiver of the problem.
    #[cfg(test)]
    pub(super) fn problems(&self) -> watch::Receiver<Option<String>> {
        self.problem.subscribe()
    }

    /// Chooses a usable pod of the shard that is none of `except`. If there is none and there was
    /// one a moment ago, waits for one, no longer than 5 s. `was_ready` is the time at which there was
    /// one that is not in the table: this pod.
    pub(in crate::proxy) async fn owner(
        &self,
        shard: &str,
        except: &[Arc<Peer>],
        was_ready: Option<Instant>,
    ) -> Option<Chosen> {
        if let Choice::Pod(chosen) = self.table().choose(shard, except, Instant::now()) {
            return Some(chosen);
        }
        let until = Instant::now() + PATIENCE;
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            let now = Instant::now();
            let choice = self.table().choose(shard, except, now);
            let last_ready = match choice {
                Choice::Pod(chosen) => return Some(chosen),
                Choice::Nobody { last_ready } => last_ready.max(was_ready)?,
            };
            if now.saturating_duration_since(last_ready) > RECENTLY {
                return None;
            }
            timeout_at(until, changes.changed()).await.ok()?.ok()?;
        }
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
