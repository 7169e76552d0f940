//! The scopes under which clients may hold positions at or below the floor.
//!
//! Hides how many are remembered, and what forgetting one costs. A client that resumes at X has what
//! some scope had at X that was in force when X could be shown: one whose *mark*, the highest
//! position that was shown until it ended, is not below X. Every such scope is among those that are
//! remembered, unless X is below the mark of one that was forgotten.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::past::Floor;
use crate::policy::{GroupResource, Sharding};

/// Most scopes that are remembered.
const MOST: usize = 16;

/// The shardings of before, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Former {
    all: VecDeque<FormerSharding>,
    /// The highest marks of those that were forgotten.
    forgotten: HashMap<GroupResource, Floor>,
    /// Whether any position of such a resource may be of a scope that is not known.
    is_unknown: bool,
}

/// A sharding of before, and the mark of each resource whose scope ended with it.
#[derive(Clone, Debug)]
pub(super) struct FormerSharding {
    /// The sharding.
    pub(super) sharding: Arc<Sharding>,
    /// The marks. `None` if they are not known: any position may be of it.
    pub(super) marks: Option<HashMap<GroupResource, Floor>>,
}

impl Former {
    /// The past of a process whose clients may hold positions up to these floors of scopes that
    /// nobody knows.
    pub(super) fn unknown_below(floors: &HashMap<GroupResource, Floor>, is_unknown: bool) -> Self {
        Self { forgotten: floors.clone(), is_unknown, ..Self::default() }
    }

    /// Adds the sharding that ends.
    pub(super) fn add(&mut self, former: FormerSharding) {
        self.all.push_back(former);
        if self.all.len() > MOST
            && let Some(FormerSharding { marks, .. }) = self.all.pop_front()
        {
            match marks {
                None => (self.is_unknown, self.forgotten) = (true, HashMap::new()),
                Some(marks) => {
                    for (resource, mark) in marks {
                        let known = self.forgotten.entry(resource).or_insert(mark);
                        *known = known.max(mark);
                    }
                }
            }
        }
    }

    /// Whether one of them has ended for a resource.
    pub(super) fn has(&self, resource: &GroupResource) -> bool {
        let mut marks = self.all.iter().map(|former| former.marks.as_ref());
        marks.any(|marks| marks.is_none_or(|marks| marks.contains_key(resource)))
    }

    /// The shardings under which a client may hold the position `at` of a resource, each with another
    /// scope of it, and other than `to`. `late` is the highest position that was shown under one after
    /// its end. `None` if one of them is not known.
    pub(super) fn of(
        &self,
        resource: &GroupResource,
        at: u64,
        late: u64,
        to: &Sharding,
    ) -> Option<Vec<Arc<Sharding>>> {
        let is_below = |mark: Floor| match mark {
            Floor::At(mark) => at <= mark,
            Floor::Unknown => true,
        };
        let other = if self.is_unknown { Floor::Unknown } else { Floor::At(0) };
        if is_below(self.forgotten.get(resource).copied().unwrap_or(other)) {
            return None;
        }
        let mut found: Vec<Arc<Sharding>> = Vec::new();
        for FormerSharding { sharding, marks } in &self.all {
            let is_candidate = match marks {
                None => true,
                Some(marks) => {
                    marks.get(resource).is_some_and(|mark| is_below(*mark) || at <= late)
                }
            };
            let scope = sharding.scope(resource);
            let is_known = scope == to.scope(resource)
                || found.iter().any(|known| known.scope(resource) == scope);
            if is_candidate && !is_known {
                found.push(Arc::clone(sharding));
            }
        }
        (!found.is_empty()).then_some(found)
    }
}
