//! Which resource versions a client may resume from.
//!
//! A watch resumes from a position that the client was shown. If the scope of the resource
//! changed since, the client's store belongs to the old scope and must be listed anew. So for
//! each resource there is a floor F: the highest position shown to any client under an older
//! scope. A resumption at or below F is refused with 410, unless the very connection was given a
//! complete list at that position under the present scope.
//!
//! Shared by all threads; the order of the two writes in [`Position::show`] and
//! [`Position::change`] is what makes it safe without a lock.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use super::{Epoch, GroupResource};
use crate::wire::rv::ResourceVersion;

/// The floor that says «everything shown before is of an unknown scope».
const UNKNOWN: u64 = u64::MAX;
/// Resources that are told apart. A client may invent names; all beyond share one position, which
/// costs them a list too many and nothing else.
const MAX_RESOURCES: usize = 1024;

/// The positions of every resource that was ever asked for.
#[derive(Debug)]
pub struct Positions {
    known: RwLock<Known>,
    beyond: Arc<Position>,
}

#[derive(Debug)]
struct Known {
    by_resource: HashMap<GroupResource, Arc<Position>>,
    /// Of the other resources.
    past: Past,
}

/// What is known of the positions that clients were shown before this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// The floors at the end of the last process.
    pub floors: HashMap<GroupResource, u64>,
    /// Whether clients may have been shown anything of the resources that `floors` lacks.
    pub unknown: bool,
    /// Whether there was a process before this one. Under the policy of its end it may have shown
    /// any position above the floors: all of them are of an older scope at the next change.
    pub had_process: bool,
}

/// The position from which a client goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// One that can be compared.
    Number(u64),
    /// One that an aggregated API made up, or beyond what etcd can count to.
    Opaque,
}

impl Resume {
    /// From the `resourceVersion` of a request; nothing when it asks for a fresh start.
    #[must_use]
    pub fn at(version: ResourceVersion) -> Option<Self> {
        match version {
            ResourceVersion::Unset | ResourceVersion::Zero => None,
            ResourceVersion::Opaque => Some(Self::Opaque),
            ResourceVersion::At(rv) => Some(u64::try_from(rv).map_or(Self::Opaque, Self::Number)),
        }
    }
}

/// One resource's positions.
#[derive(Debug)]
pub struct Position {
    shown: AtomicU64,
    floor: AtomicU64,
    changed_in: AtomicU64,
    /// Whether an earlier process may have shown positions of the present scope, which are not
    /// known.
    is_inherited: AtomicBool,
}

impl Past {
    /// No client was ever shown anything.
    #[must_use]
    pub fn none() -> Self {
        Self { floors: HashMap::new(), unknown: false, had_process: false }
    }

    /// Clients may have been shown anything.
    #[must_use]
    pub fn unknown() -> Self {
        Self { floors: HashMap::new(), unknown: true, had_process: true }
    }

    fn floor(&self, resource: &GroupResource) -> u64 {
        let other = if self.unknown { UNKNOWN } else { 0 };
        self.floors.get(resource).copied().unwrap_or(other)
    }
}

impl Positions {
    /// The positions of a process that starts.
    #[must_use]
    pub fn new(past: Past) -> Self {
        let beyond = past.floors.values().copied().max().unwrap_or(0);
        let beyond = if past.unknown { UNKNOWN } else { beyond };
        let beyond = Arc::new(Position::new(beyond, past.had_process));
        Self { known: RwLock::new(Known { by_resource: HashMap::new(), past }), beyond }
    }

    /// The position of `resource`, made at its first use.
    ///
    /// A request must ask for it *before* it takes its policy: else a change could slip between
    /// the two and miss the position.
    #[must_use]
    pub fn of(&self, resource: &GroupResource) -> Arc<Position> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(position) = known.by_resource.get(resource) {
            return Arc::clone(position);
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let Known { by_resource, past } = &mut *known;
        if by_resource.len() >= MAX_RESOURCES && !by_resource.contains_key(resource) {
            return Arc::clone(&self.beyond);
        }
        let new = || Arc::new(Position::new(past.floor(resource), past.had_process));
        Arc::clone(by_resource.entry(resource.clone()).or_insert_with(new))
    }

    /// The scope of every resource for which `affected` holds changed in `epoch`. Called before
    /// the policy of that epoch comes into force, and after it.
    pub fn change(&self, epoch: Epoch, affected: impl Fn(&GroupResource) -> bool) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let Known { by_resource, past } = &mut *known;
        for (_, position) in by_resource.iter().filter(|(resource, _)| affected(resource)) {
            position.change(epoch);
        }
        if past.had_process {
            // Which others are affected cannot be told: nobody has asked for them yet.
            past.unknown = true;
            past.floors.retain(|resource, _| !affected(resource));
        }
        self.beyond.change(epoch);
    }

    /// What the next process must know.
    #[must_use]
    pub fn past(&self) -> Past {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut past = known.past.clone();
        for (resource, position) in &known.by_resource {
            match position.floor.load(SeqCst) {
                UNKNOWN => drop(past.floors.remove(resource)),
                0 if !past.unknown => {}
                floor => drop(past.floors.insert(resource.clone(), floor)),
            }
        }
        past
    }
}

impl Position {
    fn new(floor: u64, had_process: bool) -> Self {
        Self {
            shown: AtomicU64::new(0),
            floor: AtomicU64::new(floor),
            changed_in: AtomicU64::new(0),
            is_inherited: AtomicBool::new(had_process && floor != UNKNOWN),
        }
    }

    /// A request that was decided in `epoch` shows its client the position `rv`.
    pub fn show(&self, rv: u64, epoch: Epoch) {
        self.shown.fetch_max(rv, SeqCst);
        if self.is_stale(epoch) {
            self.floor.fetch_max(rv, SeqCst);
        } else if self.floor.load(SeqCst) == UNKNOWN {
            // The first position of the present scope: whatever an earlier process showed is at
            // or below it. Losing the race to another thread that shows one is as good.
            let _ = self.floor.compare_exchange(UNKNOWN, rv, SeqCst, SeqCst);
        }
    }

    /// Whether a client may resume without having been given a list at just that position. What
    /// cannot be compared may be resumed only before any change.
    #[must_use]
    pub fn may_resume(&self, at: Resume) -> bool {
        let floor = self.floor.load(SeqCst);
        match at {
            Resume::Number(rv) => rv > floor,
            Resume::Opaque => floor == 0,
        }
    }

    /// Whether the scope changed after `epoch`.
    #[must_use]
    pub fn is_stale(&self, epoch: Epoch) -> bool {
        epoch.get() < self.changed_in.load(SeqCst)
    }

    fn change(&self, epoch: Epoch) {
        // First the mark, then the reading of `shown`: a request that missed the mark has
        // written `shown` before we read it.
        self.changed_in.fetch_max(epoch.get(), SeqCst);
        let shown = self.shown.load(SeqCst);
        let is_inherited = self.is_inherited.swap(false, SeqCst);
        self.floor.fetch_max(if is_inherited { UNKNOWN } else { shown.max(1) }, SeqCst);
    }
}

/// The complete lists that one connection was given: at just these positions it may resume even
/// where the floor says otherwise.
#[derive(Debug, Default)]
pub struct Grants {
    given: HashMap<u64, Grant>,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    at: Resume,
    epoch: Epoch,
}

impl Grants {
    /// Collections that one connection may have been given. A client with more lists again.
    const MAX: usize = 1024;

    /// The client of this connection was given all of `collection` at a position, by a request of
    /// `epoch`. A collection is a path with its selectors, as a hash.
    pub fn give(&mut self, collection: u64, at: Resume, epoch: Epoch) {
        if self.given.len() >= Self::MAX && !self.given.contains_key(&collection) {
            self.given.clear();
        }
        self.given.insert(collection, Grant { at, epoch });
    }

    /// Whether it was given `collection` at just this position, under the scope that `position`
    /// has now.
    #[must_use]
    pub fn allow(&self, collection: u64, at: Resume, position: &Position) -> bool {
        self.given
            .get(&collection)
            .is_some_and(|grant| grant.at == at && !position.is_stale(grant.epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> GroupResource {
        GroupResource::new("", "pods")
    }

    #[test]
    fn t23_what_was_shown_before_a_change_cannot_be_resumed() {
        let positions = Positions::new(Past::none());
        let pods = positions.of(&pods());
        pods.show(100, Epoch::new(1));
        assert!(pods.may_resume(Resume::Number(100)) && pods.may_resume(Resume::Number(7)));
        positions.change(Epoch::new(2), |_| true);
        assert!(!pods.may_resume(Resume::Number(100)) && !pods.may_resume(Resume::Number(7)));
        pods.show(101, Epoch::new(2));
        assert!(pods.may_resume(Resume::Number(101)), "the new scope's own position");
    }

    #[test]
    fn t23_an_old_request_that_ends_late_raises_the_floor() {
        let positions = Positions::new(Past::none());
        let pods = positions.of(&pods());
        positions.change(Epoch::new(2), |_| true);
        pods.show(150, Epoch::new(1));
        assert!(!pods.may_resume(Resume::Number(150)));
        assert!(pods.may_resume(Resume::Number(151)));
    }

    #[test]
    fn unaffected_resources_keep_their_floor() {
        let positions = Positions::new(Past::none());
        let (pods, nodes) = (pods(), GroupResource::new("", "nodes"));
        positions.of(&pods).show(100, Epoch::new(1));
        positions.of(&nodes).show(100, Epoch::new(1));
        positions.change(Epoch::new(2), |resource| *resource == pods);
        assert!(!positions.of(&pods).may_resume(Resume::Number(100)));
        assert!(positions.of(&nodes).may_resume(Resume::Number(100)));
    }

    #[test]
    fn t76_an_unknown_past_is_at_or_below_the_first_position_shown() {
        let positions = Positions::new(Past::unknown());
        let pods = positions.of(&pods());
        assert!(!pods.may_resume(Resume::Number(u64::MAX - 1)) && !pods.may_resume(Resume::Opaque));
        pods.show(100, Epoch::new(1));
        assert!(!pods.may_resume(Resume::Number(100)));
        assert!(pods.may_resume(Resume::Number(101)));
    }

    #[test]
    fn t23_a_list_of_the_present_scope_may_be_resumed_at_the_floor_itself() {
        let positions = Positions::new(Past::none());
        let pods = positions.of(&pods());
        let mut grants = Grants::default();
        pods.show(100, Epoch::new(1));
        grants.give(7, Resume::Number(100), Epoch::new(1));
        positions.change(Epoch::new(2), |_| true);
        assert!(!grants.allow(7, Resume::Number(100), &pods), "a list of the old scope");
        grants.give(7, Resume::Number(100), Epoch::new(2));
        assert!(grants.allow(7, Resume::Number(100), &pods));
        assert!(
            !grants.allow(7, Resume::Number(99), &pods)
                && !grants.allow(8, Resume::Number(100), &pods)
        );
    }

    #[test]
    fn floors_outlive_the_process() {
        for past in [Past::none(), Past::unknown()] {
            let positions = Positions::new(past);
            positions.of(&pods()).show(100, Epoch::new(1));
            positions.change(Epoch::new(2), |_| true);
            let next = Positions::new(positions.past());
            assert_eq!(next.past(), positions.past(), "also before anybody asked");
            assert!(!next.of(&pods()).may_resume(Resume::Number(100)));
            assert!(next.of(&pods()).may_resume(Resume::Number(101)));
            let nodes = next.of(&GroupResource::new("", "nodes"));
            assert_eq!(nodes.may_resume(Resume::Number(100)), !next.past().unknown);
        }
    }

    /// The next process has the policy of the last one, and then it changes.
    #[test]
    fn t76_a_change_covers_what_the_last_process_showed() {
        let secrets = GroupResource::new("", "secrets");
        for is_asked_before in [false, true] {
            let last = Positions::new(Past::none());
            last.of(&pods()).show(50, Epoch::new(1));
            last.change(Epoch::new(2), |_| true);
            let past = Past { had_process: true, ..last.past() };
            last.of(&pods()).show(100, Epoch::new(2));
            last.of(&secrets).show(100, Epoch::new(2));

            let next = Positions::new(past);
            if is_asked_before {
                assert!(next.of(&pods()).may_resume(Resume::Number(100)));
                next.of(&pods()).show(60, Epoch::new(1));
                assert!(next.of(&secrets).may_resume(Resume::Number(100)));
            }
            next.change(Epoch::new(2), |resource| *resource == pods());
            assert!(!next.of(&pods()).may_resume(Resume::Number(100)));
            // Who has not asked yet is asked to list once too often.
            let is_resumed = next.of(&secrets).may_resume(Resume::Number(100));
            assert_eq!(is_resumed, is_asked_before);

            let third = Positions::new(Past { had_process: true, ..next.past() });
            assert!(!third.of(&pods()).may_resume(Resume::Number(100)));
            let is_resumed = third.of(&secrets).may_resume(Resume::Number(100));
            assert_eq!(is_resumed, is_asked_before);

            next.of(&pods()).show(120, Epoch::new(2));
            assert!(!next.of(&pods()).may_resume(Resume::Number(120)));
            assert!(next.of(&pods()).may_resume(Resume::Number(121)));
            next.change(Epoch::new(3), |_| true);
            assert!(next.of(&pods()).may_resume(Resume::Number(121)), "shown by nobody");
        }
    }

    #[test]
    fn invented_resources_share_one_position() {
        let positions = Positions::new(Past::none());
        for n in 0..MAX_RESOURCES + 10 {
            positions.of(&GroupResource::new("", &format!("r{n}"))).show(100, Epoch::new(1));
        }
        assert_eq!(positions.known.read().unwrap().by_resource.len(), MAX_RESOURCES);
        positions.change(Epoch::new(2), |_| false);
        assert!(!positions.of(&GroupResource::new("", "one more")).may_resume(Resume::Number(100)));
    }
}
