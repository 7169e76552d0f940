//! One resource's positions: the highest that clients were shown, and the floor at or below which
//! none may be resumed.
//!
//! *Unparsed* positions are those that clients may hold but that we did not parse: those that an
//! earlier process showed, and those of responses in an encoding that we do not parse. Their bound
//! is unknown until the API server reports its current version ([`Question`]). A version that a
//! client is shown is not such a bound: an object's own version in initial events, a list `Exact`
//! at a version, and a cache that lags are all older than positions of other clients.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

use super::{floor::Floor, former::Late, past::Resume};
use ctrlmesh_policy::Epoch;

/// The positions of one resource, see the module.
#[derive(Debug, Default)]
pub(crate) struct Position {
    /// The highest position that was shown.
    shown: AtomicU64,
    /// The highest position that was shown under an older scope.
    floor: AtomicU64,
    /// The highest position that was shown under an older scope after its end.
    late: AtomicU64,
    /// The highest known bound of unparsed positions of an older scope.
    settled: AtomicU64,
    /// The epoch of the last change of scope.
    changed_in: AtomicU64,
    unparsed: Mutex<Unparsed>,
}

/// Positions that clients may hold but that we did not parse.
#[derive(Debug, Default)]
struct Unparsed {
    bound: Bound,
    /// Whether they may be of an older scope. Never true with a known bound: that raises the floor.
    is_old: bool,
    /// The number of times one was shown: a question asked before the last does not cover it.
    count: u64,
}

/// The upper bound of the unparsed positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Bound {
    #[default]
    None,
    At(u64),
    /// The bound is not known yet: the API server can report it.
    Unknown,
    /// A bound that is never known: the positions cannot be compared.
    Never,
}

/// A request for the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    count: u64,
}

impl Position {
    /// The position of a resource after an earlier process, which may have shown anything above
    /// `floor` under its last scope. `is_changed` is true if the present scope is another.
    pub(super) fn inherited(floor: Floor, is_changed: bool) -> Self {
        let (floor, is_known) = match floor {
            Floor::At(floor) => (floor, true),
            Floor::Unknown => (0, false),
        };
        let unparsed =
            Unparsed { bound: Bound::Unknown, is_old: is_changed || !is_known, count: 0 };
        Self { floor: AtomicU64::new(floor), unparsed: Mutex::new(unparsed), ..Self::default() }
    }

    /// Records that a request decided in `epoch` shows its client the position `at`.
    pub(crate) fn show(&self, at: Resume, epoch: Epoch) {
        match at {
            Resume::Opaque => self.hide(Bound::Never, epoch),
            Resume::Number(rv) => {
                self.shown.fetch_max(rv, SeqCst);
                if self.is_stale(epoch) {
                    self.late.fetch_max(rv, SeqCst);
                    self.floor.fetch_max(rv, SeqCst);
                }
            }
        }
    }

    /// Records that a request decided in `epoch` shows its client an unparsed position. Call it
    /// once the API server has responded, and for a stream at its end too.
    pub(crate) fn show_unread(&self, epoch: Epoch) {
        self.hide(Bound::Unknown, epoch);
    }

    fn hide(&self, bound: Bound, epoch: Epoch) {
        let mut unparsed = self.unparsed.lock();
        if unparsed.bound != Bound::Never {
            unparsed.bound = bound;
        }
        unparsed.count += 1;
        unparsed.is_old |= self.is_stale(epoch);
    }

    /// Whether a client may resume at this position without a grant of exactly this one.
    pub(crate) fn may_resume(&self, at: Resume) -> bool {
        let is_old = self.unparsed.lock().is_old;
        let floor = self.floor.load(SeqCst);
        match at {
            Resume::Number(rv) => rv > floor && !is_old,
            Resume::Opaque => floor == 0 && !is_old,
        }
    }

    /// The positions that were shown under scopes that had ended.
    pub(super) fn late(&self) -> Late {
        let Unparsed { bound, is_old, .. } = *self.unparsed.lock();
        let (parsed, settled) = (self.late.load(SeqCst), self.settled.load(SeqCst));
        let before = match bound {
            Bound::None => Floor::At(settled),
            Bound::At(bound) => Floor::At(settled.max(bound)),
            Bound::Unknown | Bound::Never => Floor::Unknown,
        };
        let unparsed = if is_old { Floor::Unknown } else { Floor::At(settled) };
        Late { parsed, unparsed, before: before.max(unparsed) }
    }

    /// Whether the scope changed after `epoch`.
    pub(crate) fn is_stale(&self, epoch: Epoch) -> bool {
        epoch.get() < self.changed_in.load(SeqCst)
    }

    /// The question for the API server's current version, or `None` if the answer is of no use.
    /// After a restart it is asked before it matters, since versions grow meanwhile.
    pub(crate) fn question(&self) -> Option<Question> {
        let Unparsed { bound, is_old, count } = *self.unparsed.lock();
        let is_asked = bound == Bound::Unknown && (is_old || count == 0);
        is_asked.then_some(Question { count })
    }

    /// Answers a question with the API server's version at some later time. No position that a
    /// client was shown before the question is above it.
    pub(crate) fn settle(&self, question: Question, version: Resume) {
        let mut unparsed = self.unparsed.lock();
        if unparsed.bound != Bound::Unknown || unparsed.count != question.count {
            return;
        }
        unparsed.bound = match version {
            Resume::Number(bound) => Bound::At(bound),
            Resume::Opaque => Bound::Never,
        };
        if unparsed.is_old {
            self.leave_behind(&mut unparsed);
        }
    }

    /// Records that the scope is another from `epoch` on.
    pub(super) fn change(&self, epoch: Epoch) {
        // First store the mark, then load `shown`: a request that missed the mark has stored
        // `shown` before we load it.
        self.mark(epoch);
        self.floor.fetch_max(self.shown.load(SeqCst), SeqCst);
        self.leave_behind(&mut self.unparsed.lock());
    }

    /// Records that requests decided before `epoch` had another scope than the present one.
    pub(super) fn mark(&self, epoch: Epoch) {
        self.changed_in.fetch_max(epoch.get(), SeqCst);
    }

    /// The floor that the next process must know.
    pub(super) fn floor(&self) -> Floor {
        if self.unparsed.lock().is_old {
            return Floor::Unknown;
        }
        Floor::At(self.floor.load(SeqCst))
    }

    /// Counts the unparsed positions as of an older scope: a known bound raises the floor.
    fn leave_behind(&self, unparsed: &mut Unparsed) {
        unparsed.is_old = match unparsed.bound {
            Bound::None => false,
            Bound::At(bound) => {
                self.settled.fetch_max(bound, SeqCst);
                self.floor.fetch_max(bound, SeqCst);
                unparsed.bound = Bound::None;
                false
            }
            Bound::Unknown | Bound::Never => true,
        };
    }
}
