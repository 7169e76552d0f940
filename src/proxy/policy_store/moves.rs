//! A move of the shard's boundary that clients may not have been shown whole, or have not worked off.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use ctrlmesh_policy::Sharding;

/// A move of the boundary.
#[derive(Debug)]
pub(crate) struct Move {
    /// The boundary before.
    pub(crate) before: Arc<Sharding>,
    is_shown: AtomicBool,
    is_over: AtomicBool,
}

impl Move {
    pub(super) fn of(before: &Arc<Sharding>) -> Self {
        let before = Arc::clone(before);
        Self { before, is_shown: AtomicBool::new(false), is_over: AtomicBool::new(false) }
    }

    /// Notes that the clients were shown all of it.
    pub(super) fn set_shown(&self) {
        self.is_shown.store(true, Relaxed);
    }

    /// Notes that the clients have worked off what they were shown.
    pub(super) fn set_over(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// Whether the clients were shown all of it.
    pub(crate) fn is_shown(&self) -> bool {
        self.is_shown.load(Relaxed)
    }

    /// Whether the clients have worked off what they were shown.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }
}
