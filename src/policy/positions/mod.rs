//! The resource versions that a client may resume from.
//!
//! A watch resumes from a position that the client was shown. If the scope of the resource
//! changed since, the client's store belongs to the old scope and must be listed anew. So for
//! each resource there is a floor F: the highest position shown to any client under an older
//! scope. A resumption at or below F is refused with 410, unless the very connection was given a
//! complete list at that position under the present scope.
//!
//! Positions are shared by all threads. The hot path is safe without a lock because of the order of
//! the write and the read in [`Position::show`], and of the two in a change.

mod grants;
mod position;

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

pub use self::{
    grants::Grants,
    position::{Position, Question},
};
use super::{Epoch, GroupResource, Policy};
use crate::wire::rv::ResourceVersion;

/// Resources with a position of their own. All others share one, which costs them only needless
/// lists.
const MAX_RESOURCES: usize = 1024;

/// The positions of every resource that clients were shown.
#[derive(Debug)]
pub struct Positions {
    known: RwLock<Known>,
    beyond: Arc<Position>,
}

#[derive(Debug)]
struct Known {
    by_resource: HashMap<GroupResource, Arc<Position>>,
    /// The past, for resources that are not in `by_resource`.
    past: Past,
    /// The policy at the start of this process. Unless `past` is unknown, the last process showed
    /// all positions above its floors under this policy.
    first: Arc<Policy>,
    present: Arc<Policy>,
    epoch: Epoch,
}

/// The positions that clients were shown before this process, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// The floors at the end of the last process.
    pub floors: HashMap<GroupResource, Floor>,
    /// Whether clients may have been shown anything of resources that `floors` lacks.
    pub unknown: bool,
    /// Whether there was a process before this one. Under its last policy it may have shown any
    /// position above the floors: at the next change, all of these are of an older scope.
    pub had_process: bool,
}

/// The highest position that was shown under an older scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// This position; 0 if nothing was shown.
    At(u64),
    /// Any position.
    Unknown,
}

/// The position from which a client resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// A position that can be compared.
    Number(u64),
    /// A position that an aggregated API made up, or that is too large for etcd.
    Opaque,
}

impl Resume {
    /// The position in a request's `resourceVersion`, or `None` if the request does not resume.
    #[must_use]
    pub fn at(version: ResourceVersion) -> Option<Self> {
        match version {
            ResourceVersion::Unset | ResourceVersion::Zero => None,
            ResourceVersion::Opaque => Some(Self::Opaque),
            ResourceVersion::At(rv) => Some(u64::try_from(rv).map_or(Self::Opaque, Self::Number)),
        }
    }
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

    fn floor(&self, resource: &GroupResource) -> Floor {
        let other = if self.unknown { Floor::Unknown } else { Floor::At(0) };
        self.floors.get(resource).copied().unwrap_or(other)
    }
}

impl Positions {
    /// The positions of a process that starts with the policy `first`, under which `past` was read.
    #[must_use]
    pub fn new(past: Past, first: Arc<Policy>) -> Self {
        let highest = past.floors.values().fold(Floor::At(0), |a, b| a.max(*b));
        let highest = if past.unknown { Floor::Unknown } else { highest };
        let beyond = match past.had_process {
            true => Position::inherited(highest, false),
            false => Position::default(),
        };
        let known = Known {
            by_resource: HashMap::new(),
            past,
            present: Arc::clone(&first),
            first,
            epoch: Epoch::default(),
        };
        Self { known: RwLock::new(known), beyond: Arc::new(beyond) }
    }

    /// The position of `resource`, to decide whether a client may resume. It is not kept if nothing
    /// of the resource was shown yet: anybody may invent names.
    ///
    /// A request must take its policy *before* it calls this: floors are raised before a policy
    /// comes into force.
    #[must_use]
    pub fn of(&self, resource: &GroupResource) -> Arc<Position> {
        if resource.is_too_long() {
            return Arc::clone(&self.beyond);
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        match known.by_resource.get(resource) {
            Some(position) => Arc::clone(position),
            None if known.by_resource.len() >= MAX_RESOURCES => Arc::clone(&self.beyond),
            None => Arc::new(known.make(resource)),
        }
    }

    /// The position of `resource`, kept from now on, for a request that `policy` decided in `epoch`
    /// and that is about to show something of it.
    #[must_use]
    pub fn keep(&self, resource: &GroupResource, epoch: Epoch, policy: &Policy) -> Arc<Position> {
        if resource.is_too_long() {
            return Arc::clone(&self.beyond);
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(position) = known.by_resource.get(resource) {
            known.mark(position, resource, epoch, policy);
            return Arc::clone(position);
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if !known.by_resource.contains_key(resource) {
            if known.by_resource.len() >= MAX_RESOURCES {
                return Arc::clone(&self.beyond);
            }
            let position = Arc::new(known.make(resource));
            known.by_resource.insert(resource.clone(), position);
        }
        let position = known.by_resource.get(resource).unwrap_or(&self.beyond);
        known.mark(position, resource, epoch, policy);
        Arc::clone(position)
    }

    /// Raises the floors: `policy` is about to come into force in `epoch`.
    pub fn change(&self, epoch: Epoch, policy: &Arc<Policy>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.epoch = epoch;
        if known.present.hash() == policy.hash() {
            return;
        }
        for (resource, position) in &known.by_resource {
            if known.present.differs(policy, resource) {
                position.change(epoch);
            }
        }
        self.beyond.change(epoch);
        known.present = Arc::clone(policy);
    }

    /// The past that the next process must know.
    #[must_use]
    pub fn past(&self) -> Past {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut past = known.past.clone();
        if past.had_process && known.first.hash() != known.present.hash() {
            // Resources that nobody requested may be affected too, and cannot be listed.
            past.unknown = true;
            past.floors.retain(|resource, _| !known.first.differs(&known.present, resource));
        }
        for (resource, position) in &known.by_resource {
            match position.floor() {
                Floor::At(0) if !past.unknown => drop(past.floors.remove(resource)),
                floor => drop(past.floors.insert(resource.clone(), floor)),
            }
        }
        past
    }
}

impl Known {
    fn make(&self, resource: &GroupResource) -> Position {
        if !self.past.had_process {
            return Position::default();
        }
        let is_changed = self.first.differs(&self.present, resource);
        Position::inherited(self.past.floor(resource), is_changed)
    }

    /// Marks the change for a position that was not kept when the policy changed.
    fn mark(&self, position: &Position, resource: &GroupResource, epoch: Epoch, policy: &Policy) {
        if epoch < self.epoch && policy.differs(&self.present, resource) {
            position.mark(epoch.next());
        }
    }
}

impl Floor {
    fn max(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(a), Self::At(b)) => Self::At(a.max(b)),
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests;
