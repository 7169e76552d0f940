//! Whose turn it is, when the objects of several watches change hands at once.
//!
//! A controller that sees a parent before its children makes the children anew, and one that sees
//! the children leave before their parent does so too. So all watches of the pod take the same
//! turns: what has no owner leaves first and comes last. A watch that takes too long is not waited
//! for: its client does not read, or its lists are large.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::policy::Epoch;

/// Longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the client may take to make its own what it was given in a turn before.
const SETTLE: Duration = Duration::from_millis(30);

/// The turns, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    /// DELETED of what has no owner.
    ParentsLeave,
    /// DELETED of what has one.
    ChildrenLeave,
    /// ADDED of what has an owner.
    ChildrenCome,
    /// ADDED of what has none.
    ParentsCome,
}

const TURNS: usize = 4;

impl Turn {
    pub(super) const ALL: [Self; TURNS] =
        [Self::ParentsLeave, Self::ChildrenLeave, Self::ChildrenCome, Self::ParentsCome];

    const fn index(self) -> usize {
        self as usize
    }
}

/// The changes that are under way, of all data threads.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Turns {
    state: Mutex<State>,
    moved: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The epoch up to which each data thread has told its watches, by a number of its own.
    told: BTreeMap<u64, Epoch>,
    next: u64,
    changes: BTreeMap<Epoch, Change>,
}

#[derive(Debug, Default)]
struct Change {
    members: usize,
    /// Members that have not ended each turn.
    waited_for: [usize; TURNS],
    /// Whether anything was sent in each turn.
    has_moved: [bool; TURNS],
}

/// A data thread, which tells its watches of every change.
#[derive(Debug)]
pub(super) struct Teller {
    turns: Arc<Turns>,
    id: u64,
}

/// One watch in one change. Nobody waits for it once it is dropped.
#[derive(Debug)]
pub(super) struct Member {
    turns: Arc<Turns>,
    epoch: Epoch,
    /// Turns that it has ended.
    ended: usize,
}

impl Turns {
    /// A data thread begins.
    pub(super) fn teller(self: &Arc<Self>) -> Teller {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        state.told.insert(id, Epoch::default());
        Teller { turns: Arc::clone(self), id }
    }

    /// Nothing while somebody has to be waited for; else whether what was sent in the turn before
    /// and what comes now may belong together.
    fn is_open(&self, epoch: Epoch, turn: Turn) -> Option<bool> {
        let state = self.state();
        let change = state.changes.get(&epoch)?;
        let before = turn.index().checked_sub(1)?;
        let is_told = state.told.values().all(|told| *told >= epoch);
        let is_open = is_told && change.waited_for.get(before).is_none_or(|count| *count == 0);
        let is_of_kin = matches!(turn, Turn::ChildrenLeave | Turn::ParentsCome);
        is_open.then(|| is_of_kin && change.has_moved.get(before).is_some_and(|moved| *moved))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Teller {
    /// A watch of this thread takes part in the change to `epoch`.
    pub(super) fn member(&self, epoch: Epoch) -> Member {
        let mut state = self.turns.state();
        let change = state.changes.entry(epoch).or_default();
        change.members += 1;
        change.waited_for.iter_mut().for_each(|count| *count += 1);
        Member { turns: Arc::clone(&self.turns), epoch, ended: 0 }
    }

    /// All watches of this thread know of `epoch`.
    pub(super) fn has_told(&self, epoch: Epoch) {
        self.turns.state().told.insert(self.id, epoch);
        self.turns.moved.notify_waiters();
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.turns.state().told.remove(&self.id);
        self.turns.moved.notify_waiters();
    }
}

impl Member {
    /// Waits until all others have ended the turn before `turn`.
    pub(super) async fn wait_for(&self, turn: Turn) {
        let open = async {
            loop {
                let moved = self.turns.moved.notified();
                match self.turns.is_open(self.epoch, turn) {
                    Some(has_moved) => return has_moved,
                    None if turn == Turn::ParentsLeave => return false,
                    None => moved.await,
                }
            }
        };
        if timeout(PATIENCE, open).await.unwrap_or(false) {
            sleep(SETTLE).await;
        }
    }

    /// It has ended `turn` and those before.
    pub(super) fn end(&mut self, turn: Turn, has_moved: bool) {
        let mut state = self.turns.state();
        if let Some(change) = state.changes.get_mut(&self.epoch) {
            if let (Some(moved), true) = (change.has_moved.get_mut(turn.index()), has_moved) {
                *moved = true;
            }
            let ended = turn.index() + 1;
            for count in change.waited_for.iter_mut().take(ended).skip(self.ended) {
                *count = count.saturating_sub(1);
            }
            self.ended = self.ended.max(ended);
        }
        drop(state);
        self.turns.moved.notify_waiters();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end(Turn::ParentsCome, false);
        let mut state = self.turns.state();
        if let Some(change) = state.changes.get_mut(&self.epoch) {
            change.members -= 1;
            if change.members == 0 {
                state.changes.remove(&self.epoch);
            }
        }
    }
}
