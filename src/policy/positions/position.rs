//! One resource's positions: the highest that clients were shown, and the floor below which none
//! may be resumed.
//!
//! Positions that clients may hold and that were not read here are the *unread* ones: those that an
//! earlier process showed, and those of responses in an encoding that is not read. Their bound is
//! not known until the API server was asked for its present version ([`Question`]). No version
//! that a client is shown is such a bound: an object's own version in initial events, a list
//! `Exact` at a version, and a cache that lags are all older than what other clients hold.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use super::{Floor, Resume};
use crate::policy::Epoch;

/// See the module.
#[derive(Debug, Default)]
pub struct Position {
    /// The highest that was shown.
    shown: AtomicU64,
    /// The highest that was shown under an older scope.
    floor: AtomicU64,
    /// The epoch that changed the scope last.
    changed_in: AtomicU64,
    unread: Mutex<Unread>,
}

/// Positions that clients may hold and that were not read.
#[derive(Debug, Default)]
struct Unread {
    bound: Bound,
    /// Whether they may be of an older scope. Never with a bound that is known: that is a floor.
    is_old: bool,
    /// How often one was shown: an answer that was asked for before the last says nothing of it.
    count: u64,
}

/// What no unread position is above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Bound {
    /// There are none.
    #[default]
    None,
    At(u64),
    /// The API server can tell.
    Unknown,
    /// The API server tells no position that can be compared.
    Never,
}

/// A bound that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    count: u64,
}

impl Position {
    /// The position of a resource of which an earlier process may have shown anything above
    /// `floor` under the scope of its end. `is_changed` says that the present scope is another.
    pub(super) fn inherited(floor: Floor, is_changed: bool) -> Self {
        let (floor, is_known) = match floor {
            Floor::At(floor) => (floor, true),
            Floor::Unknown => (0, false),
        };
        let unread = Unread { bound: Bound::Unknown, is_old: is_changed || !is_known, count: 0 };
        Self { floor: AtomicU64::new(floor), unread: Mutex::new(unread), ..Self::default() }
    }

    /// A request that was decided in `epoch` shows its client the position `at`.
    pub fn show(&self, at: Resume, epoch: Epoch) {
        match at {
            Resume::Opaque => self.hide(Bound::Never, epoch),
            Resume::Number(rv) => {
                self.shown.fetch_max(rv, SeqCst);
                if self.is_stale(epoch) {
                    self.floor.fetch_max(rv, SeqCst);
                }
            }
        }
    }

    /// A request that was decided in `epoch` shows its client a position that is not read. To be
    /// called once the API server has answered, and for a stream at its end too.
    pub fn show_unread(&self, epoch: Epoch) {
        self.hide(Bound::Unknown, epoch);
    }

    fn hide(&self, bound: Bound, epoch: Epoch) {
        let mut unread = self.unread();
        if unread.bound != Bound::Never {
            unread.bound = bound;
        }
        unread.count += 1;
        unread.is_old |= self.is_stale(epoch);
    }

    /// Whether a client may resume without having been given a list at just that position.
    #[must_use]
    pub fn may_resume(&self, at: Resume) -> bool {
        let is_old = self.unread().is_old;
        let floor = self.floor.load(SeqCst);
        match at {
            Resume::Number(rv) => rv > floor && !is_old,
            Resume::Opaque => floor == 0 && !is_old,
        }
    }

    /// Whether the scope changed after `epoch`.
    #[must_use]
    pub fn is_stale(&self, epoch: Epoch) -> bool {
        epoch.get() < self.changed_in.load(SeqCst)
    }

    /// Asks for the API server's present version, where that would tell what clients may hold. What
    /// an earlier process showed is asked for before it matters: what comes meanwhile is above it.
    #[must_use]
    pub fn question(&self) -> Option<Question> {
        let Unread { bound, is_old, count } = *self.unread();
        let is_asked = bound == Bound::Unknown && (is_old || count == 0);
        is_asked.then_some(Question { count })
    }

    /// The API server's version at some time after the question. Every position that a client was
    /// shown before it is at or below.
    pub fn settle(&self, question: Question, version: Resume) {
        let mut unread = self.unread();
        if unread.bound != Bound::Unknown || unread.count != question.count {
            return;
        }
        unread.bound = match version {
            Resume::Number(bound) => Bound::At(bound),
            Resume::Opaque => Bound::Never,
        };
        if unread.is_old {
            self.leave_behind(&mut unread);
        }
    }

    /// The scope is another from `epoch` on.
    pub(super) fn change(&self, epoch: Epoch) {
        // First the mark, then the reading of `shown`: a request that missed the mark has
        // written `shown` before we read it.
        self.mark(epoch);
        self.floor.fetch_max(self.shown.load(SeqCst), SeqCst);
        self.leave_behind(&mut self.unread());
    }

    /// Requests from before `epoch` were decided by another scope than the present.
    pub(super) fn mark(&self, epoch: Epoch) {
        self.changed_in.fetch_max(epoch.get(), SeqCst);
    }

    /// The part that the next process must know.
    pub(super) fn floor(&self) -> Floor {
        if self.unread().is_old {
            return Floor::Unknown;
        }
        Floor::At(self.floor.load(SeqCst))
    }

    /// The unread positions are of an older scope.
    fn leave_behind(&self, unread: &mut Unread) {
        unread.is_old = match unread.bound {
            Bound::None => false,
            Bound::At(bound) => {
                self.floor.fetch_max(bound, SeqCst);
                unread.bound = Bound::None;
                false
            }
            Bound::Unknown | Bound::Never => true,
        };
    }

    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
