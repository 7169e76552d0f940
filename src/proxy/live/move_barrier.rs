//! Turns of the watches whose objects change hands at once.
//!
//! A controller that sees a parent before its children creates the children again, and so does one
//! that sees the children leave before their parent. So all watches of the pod take the same turns:
//! objects without an owner leave first and come last. A watch that takes too long is not waited
//! for: its client does not read, or its lists are large.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use ctrlmesh_policy::Epoch;

/// The longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time that the client has to process the events of the turn before.
const SETTLE: Duration = Duration::from_millis(30);

/// The turns, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MovePhase {
    /// DELETED of objects without an owner.
    ParentsLeave,
    /// DELETED of objects with an owner.
    ChildrenLeave,
    /// ADDED of objects with an owner.
    ChildrenCome,
    /// ADDED of objects without an owner.
    ParentsCome,
}

const TURNS: usize = 4;

impl MovePhase {
    pub(crate) const ALL: [Self; TURNS] =
        [Self::ParentsLeave, Self::ChildrenLeave, Self::ChildrenCome, Self::ParentsCome];
}

/// The changes that are under way, of all data threads.
#[derive(Debug, Default)]
pub(crate) struct MoveBarrier {
    state: Mutex<UnderWay>,
    moved: Notify,
    /// The epoch that all watches of all threads know of.
    epoch: Gauge<u64, AtomicU64>,
}

#[derive(Debug, Default)]
struct UnderWay {
    /// The epoch up to which each data thread has notified its watches, by the thread's number.
    notified: BTreeMap<u64, Epoch>,
    next: u64,
    changes: BTreeMap<Epoch, BarrierChange>,
}

#[derive(Debug, Default)]
struct BarrierChange {
    members: usize,
    /// Members that have not ended each turn.
    waited_for: [usize; TURNS],
    /// Whether anything was sent in each turn.
    has_moved: [bool; TURNS],
}

/// A data thread, which notifies its watches of every change.
#[derive(Debug)]
pub(super) struct Notifier {
    turns: Arc<MoveBarrier>,
    id: u64,
}

/// The part of one watch in one change. Dropping it ends the waiting for it.
#[derive(Debug)]
pub(crate) struct Member {
    turns: Arc<MoveBarrier>,
    epoch: Epoch,
    /// The number of turns that it has ended.
    ended: usize,
}

impl MoveBarrier {
    /// Turns without a watch. `epoch` is set to the epoch that all watches know of.
    pub(crate) fn new(epoch: Gauge<u64, AtomicU64>) -> Self {
        Self { epoch, ..Self::default() }
    }

    pub(super) fn notifier(self: &Arc<Self>) -> Notifier {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        state.notified.insert(id, Epoch::default());
        Notifier { turns: Arc::clone(self), id }
    }

    /// The turn's permission. `None` while a watch has to be waited for; else whether the turn
    /// before sent possible parents or children of the objects in this one.
    fn is_open(&self, epoch: Epoch, turn: MovePhase) -> Option<bool> {
        let state = self.state.lock();
        let change = state.changes.get(&epoch)?;
        let before = (turn as usize).checked_sub(1)?;
        let is_notified = state.notified.values().all(|notified| *notified >= epoch);
        let is_open = is_notified && change.waited_for.get(before).is_none_or(|count| *count == 0);
        let is_of_kin = matches!(turn, MovePhase::ChildrenLeave | MovePhase::ParentsCome);
        is_open.then(|| is_of_kin && change.has_moved.get(before).is_some_and(|moved| *moved))
    }
}

impl Notifier {
    /// A watch of this thread that takes part in the change to `epoch`.
    pub(super) fn member(&self, epoch: Epoch) -> Member {
        let mut state = self.turns.state.lock();
        let change = state.changes.entry(epoch).or_default();
        change.members += 1;
        change.waited_for.iter_mut().for_each(|count| *count += 1);
        Member { turns: Arc::clone(&self.turns), epoch, ended: 0 }
    }

    /// Records that all watches of this thread know of `epoch`.
    pub(super) fn has_notified(&self, epoch: Epoch) {
        let mut state = self.turns.state.lock();
        state.notified.insert(self.id, epoch);
        // Under the lock, or a slower thread would set it back.
        self.turns.epoch.set(state.notified.values().min().map_or(0, |notified| notified.get()));
        drop(state);
        self.turns.moved.notify_waiters();
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.turns.state.lock().notified.remove(&self.id);
        self.turns.moved.notify_waiters();
    }
}

impl Member {
    /// Waits until all others have ended the turn before `turn`.
    pub(crate) async fn wait_for(&self, turn: MovePhase) {
        let open = async {
            loop {
                let moved = self.turns.moved.notified();
                match self.turns.is_open(self.epoch, turn) {
                    Some(has_moved) => return has_moved,
                    None if turn == MovePhase::ParentsLeave => return false,
                    None => moved.await,
                }
            }
        };
        if timeout(PATIENCE, open).await.unwrap_or(false) {
            sleep(SETTLE).await;
        }
    }

    /// Records that it has ended `turn` and those before.
    pub(crate) fn end(&mut self, turn: MovePhase, has_moved: bool) {
        let mut state = self.turns.state.lock();
        if let Some(change) = state.changes.get_mut(&self.epoch) {
            if let (Some(moved), true) = (change.has_moved.get_mut(turn as usize), has_moved) {
                *moved = true;
            }
            let ended = turn as usize + 1;
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
        self.end(MovePhase::ParentsCome, false);
        let mut state = self.turns.state.lock();
        if let Some(change) = state.changes.get_mut(&self.epoch) {
            change.members -= 1;
            if change.members == 0 {
                state.changes.remove(&self.epoch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use tokio::time::{Instant, advance};

    use super::*;

    fn two_threads() -> (Notifier, Notifier) {
        let turns = Arc::new(MoveBarrier::default());
        (turns.notifier(), turns.notifier())
    }

    #[tokio::test(start_paused = true)]
    async fn t21_a_turn_begins_when_all_others_have_ended_the_one_before() {
        let (one, two) = two_threads();
        let epoch = Epoch::new(2);
        let mut fast = one.member(epoch);
        one.has_notified(epoch);
        fast.wait_for(MovePhase::ParentsLeave).await;
        fast.end(MovePhase::ParentsLeave, false);
        let mut waiting = pin!(fast.wait_for(MovePhase::ChildrenLeave));
        assert!(waiting.as_mut().now_or_never().is_none(), "another thread may have watches too");
        let mut slow = two.member(epoch);
        two.has_notified(epoch);
        assert!(waiting.as_mut().now_or_never().is_none());
        slow.end(MovePhase::ParentsLeave, false);
        assert!(waiting.now_or_never().is_some(), "and nothing left that had children");
    }

    #[tokio::test(start_paused = true)]
    async fn t21_the_client_has_time_to_make_children_its_own() {
        let (one, two) = two_threads();
        let epoch = Epoch::new(2);
        let (mut parents, mut children) = (one.member(epoch), two.member(epoch));
        one.has_notified(epoch);
        two.has_notified(epoch);
        parents.end(MovePhase::ChildrenCome, false);
        children.end(MovePhase::ChildrenCome, true);
        let before = Instant::now();
        parents.wait_for(MovePhase::ParentsCome).await;
        assert!(before.elapsed() >= SETTLE);
    }

    #[test]
    fn t75_the_epoch_that_is_shown_is_known_to_all_threads() {
        let shown = Gauge::default();
        let turns = Arc::new(MoveBarrier::new(shown.clone()));
        let (one, two) = (turns.notifier(), turns.notifier());
        one.has_notified(Epoch::new(2));
        assert_eq!(shown.get(), 0);
        two.has_notified(Epoch::new(1));
        assert_eq!(shown.get(), 1);
        two.has_notified(Epoch::new(2));
        assert_eq!(shown.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_who_is_gone_or_too_slow() {
        let (one, two) = two_threads();
        let epoch = Epoch::new(2);
        let (mut fast, slow, gone) = (one.member(epoch), two.member(epoch), two.member(epoch));
        one.has_notified(epoch);
        fast.end(MovePhase::ParentsLeave, false);
        let mut waiting = Box::pin(fast.wait_for(MovePhase::ChildrenLeave));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(gone);
        drop(two);
        assert!(waiting.as_mut().now_or_never().is_none(), "the slow one is still there");
        advance(PATIENCE).await;
        waiting.await;
        drop(slow);
        drop(fast);
        assert!(one.turns.state.lock().changes.is_empty(), "nothing is left of a change");
    }

    #[tokio::test(start_paused = true)]
    async fn one_change_does_not_wait_for_another() {
        let (one, two) = two_threads();
        let (first, second) = (Epoch::new(2), Epoch::new(3));
        let mut member = one.member(first);
        let _other = two.member(second);
        one.has_notified(first);
        // A thread that notified of a later epoch is not waited for in an earlier one.
        two.has_notified(second);
        member.end(MovePhase::ParentsLeave, false);
        assert!(member.wait_for(MovePhase::ChildrenLeave).now_or_never().is_some());
    }
}
