//! The positions of every resource.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;

use super::{
    floor::Floor,
    former::{Former, FormerSharding, Shown},
    past::Past,
    position::Position,
};
use ctrlmesh_policy::{Epoch, GroupResource, Sharding};

/// Resources with a position of their own. All others share one, which costs them only needless
/// lists.
const MAX_RESOURCES: usize = 1024;

/// The positions of every resource that clients were shown.
#[derive(Debug)]
pub(crate) struct Positions {
    known: RwLock<KnownPositions>,
    beyond: Arc<Position>,
}

#[derive(Debug)]
struct KnownPositions {
    by_resource: HashMap<GroupResource, Arc<Position>>,
    /// The past, for resources that are not in `by_resource`.
    past: Past,
    /// The policy at the start of this process. Unless `past` is unknown, the last process showed
    /// all positions above its floors under this policy.
    first: Arc<Sharding>,
    present: Arc<Sharding>,
    former: Former,
    epoch: Epoch,
}

impl Positions {
    /// The positions of a process that starts with the policy `first`, under which `past` was read.
    pub(crate) fn new(past: Past, first: Arc<Sharding>) -> Self {
        let highest = past.floors.values().fold(Floor::At(0), |a, b| a.max(*b));
        let highest = if past.unknown { Floor::Unknown } else { highest };
        let beyond = match past.had_process {
            true => Position::inherited(highest, false),
            false => Position::default(),
        };
        let known = KnownPositions {
            by_resource: HashMap::new(),
            former: past.former.clone(),
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
    pub(crate) fn of(&self, resource: &GroupResource) -> Arc<Position> {
        if resource.is_too_long() {
            return Arc::clone(&self.beyond);
        }
        let known = self.known.read();
        match known.by_resource.get(resource) {
            Some(position) => Arc::clone(position),
            None if known.by_resource.len() >= MAX_RESOURCES => Arc::clone(&self.beyond),
            None => Arc::new(known.make(resource)),
        }
    }

    /// The position of `resource`, which is kept from now on. It is for a request that `sharding` decided in
    /// `epoch` and that is about to show something of the resource.
    pub(crate) fn keep(
        &self,
        resource: &GroupResource,
        epoch: Epoch,
        sharding: &Sharding,
    ) -> Arc<Position> {
        if resource.is_too_long() {
            return Arc::clone(&self.beyond);
        }
        let known = self.known.read();
        if let Some(position) = known.by_resource.get(resource) {
            known.mark(position, resource, epoch, sharding);
            return Arc::clone(position);
        }
        drop(known);
        let mut known = self.known.write();
        if !known.by_resource.contains_key(resource) {
            if known.by_resource.len() >= MAX_RESOURCES {
                return Arc::clone(&self.beyond);
            }
            let position = Arc::new(known.make(resource));
            known.by_resource.insert(resource.clone(), position);
        }
        let position = known.by_resource.get(resource).unwrap_or(&self.beyond);
        known.mark(position, resource, epoch, sharding);
        Arc::clone(position)
    }

    /// Raises the floors: `sharding` is about to come into force in `epoch`.
    pub(crate) fn change(&self, epoch: Epoch, sharding: &Arc<Sharding>) {
        let mut known = self.known.write();
        known.epoch = epoch;
        if known.present.hash() == sharding.hash() {
            return;
        }
        known.raise_marks();
        let mut marks = HashMap::new();
        for (resource, position) in &known.by_resource {
            if known.present.differs(sharding, resource) {
                position.change(epoch);
                marks.insert(resource.clone(), position.floor());
            }
        }
        self.beyond.change(epoch);
        // What an earlier process showed under the first sharding has no positions here.
        let is_first = known.present.hash() == known.first.hash();
        let is_whole = !(known.past.had_process && is_first);
        let former = std::mem::replace(&mut known.present, Arc::clone(sharding));
        let shown = Shown { marks, is_whole, is_over: false };
        known.former.add(FormerSharding { sharding: former, shown });
    }

    /// Records that no request runs that was decided before `epoch`, unless another has begun.
    pub(crate) fn are_over(&self, epoch: Epoch) {
        let mut known = self.known.write();
        if known.epoch == epoch {
            known.raise_marks();
            known.former.are_over();
        }
    }

    /// Whether a scope of before may be known for a resource.
    pub(crate) fn has_former(&self, resource: &GroupResource) -> bool {
        let known = self.known.read();
        known.former.has(resource, &known.present)
    }

    /// The former shardings under which a client may hold the position `at` of a resource. Each has another scope
    /// of the resource, and none has that of `to`. `None` if one of them is not known.
    pub(crate) fn former(
        &self,
        resource: &GroupResource,
        position: &Position,
        at: u64,
        to: &Sharding,
    ) -> Option<Vec<Arc<Sharding>>> {
        // The others share a position, whose marks are no one's.
        let is_own = !std::ptr::eq(position, &*self.beyond);
        let known = self.known.read();
        is_own.then(|| known.former.of(resource, at, position.late(), to)).flatten()
    }

    /// The sharding in force.
    pub(crate) fn present(&self) -> Arc<Sharding> {
        Arc::clone(&self.known.read().present)
    }

    /// The past that the next process must know.
    pub(crate) fn past(&self) -> Past {
        let known = self.known.read();
        let mut past = known.past.clone();
        past.former = known.former.clone();
        raise(&mut past.former, &known.by_resource);
        if past.had_process && known.first.hash() != known.present.hash() {
            // Resources that no client requested may be affected too, and cannot be listed.
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

/// Has the marks of former shardings say what was shown late, and what became known.
fn raise(former: &mut Former, positions: &HashMap<GroupResource, Arc<Position>>) {
    positions.iter().for_each(|(resource, position)| former.raise(resource, position.late()));
}

impl KnownPositions {
    fn raise_marks(&mut self) {
        raise(&mut self.former, &self.by_resource);
    }

    fn make(&self, resource: &GroupResource) -> Position {
        if !self.past.had_process {
            return Position::default();
        }
        let is_changed = self.first.differs(&self.present, resource);
        Position::inherited(self.past.floor(resource), is_changed)
    }

    /// Marks the change for a position that was not kept when the policy changed.
    fn mark(
        &self,
        position: &Position,
        resource: &GroupResource,
        epoch: Epoch,
        sharding: &Sharding,
    ) {
        if epoch < self.epoch && sharding.differs(&self.present, resource) {
            position.mark(epoch.next());
        }
    }
}

#[cfg(test)]
mod tests;
