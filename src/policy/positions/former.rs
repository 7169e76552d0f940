//! The scopes under which clients may hold positions at or below the floor.
//!
//! Hides how many are remembered, and what forgetting one costs. A client that resumes at X has what
//! some scope had at X that was in force when X could be shown: one whose *mark*, the highest
//! position that was shown until it ended, is not below X. Every such scope is among those that are
//! remembered, unless X is not above the mark of one that was forgotten.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::past::Floor;
use crate::policy::{GroupResource, Sharding};

/// Most scopes that are remembered.
const MOST: usize = 16;

/// Marks, by resource.
pub type Marks = HashMap<GroupResource, Floor>;

/// The shardings of before, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Former {
    all: VecDeque<FormerSharding>,
    forgotten: Forgotten,
}

/// A sharding of before, and the mark of each resource whose scope ended with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerSharding {
    /// The sharding.
    pub sharding: Arc<Sharding>,
    /// The marks. `None` if they are not known: any position may be of it.
    pub marks: Option<Marks>,
}

/// The highest marks of the shardings that were forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// The marks.
    pub marks: Marks,
    /// Whether any position of the other resources may be of one of them.
    pub is_unknown: bool,
}

impl Former {
    /// The shardings of before, the oldest first, and what was forgotten before them.
    pub fn new(all: impl IntoIterator<Item = FormerSharding>, forgotten: Forgotten) -> Self {
        let mut former = Self { all: VecDeque::new(), forgotten };
        all.into_iter().for_each(|one| former.add(one));
        former
    }

    /// Shardings that nobody knows, under which any position may have been shown.
    pub fn unknown() -> Self {
        Self::new([], Forgotten { is_unknown: true, ..Forgotten::default() })
    }

    /// Those that are remembered, the oldest first.
    pub fn all(&self) -> impl Iterator<Item = &FormerSharding> {
        self.all.iter()
    }

    /// Those that are not.
    pub const fn forgotten(&self) -> &Forgotten {
        &self.forgotten
    }

    /// Adds the sharding that ends.
    pub fn add(&mut self, former: FormerSharding) {
        self.all.push_back(former);
        if self.all.len() > MOST {
            self.forget();
        }
    }

    /// Forgets the oldest. Returns whether there was one.
    pub fn forget(&mut self) -> bool {
        let Some(FormerSharding { marks, .. }) = self.all.pop_front() else { return false };
        match marks {
            None => self.forgotten = Forgotten { is_unknown: true, marks: HashMap::new() },
            Some(marks) => {
                for (resource, mark) in marks {
                    let known = self.forgotten.marks.get(&resource).copied();
                    let other = self.forgotten.mark(&resource);
                    self.forgotten.marks.insert(resource, known.unwrap_or(other).max(mark));
                }
            }
        }
        true
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
        if is_below(self.forgotten.mark(resource)) {
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

impl Forgotten {
    fn mark(&self, resource: &GroupResource) -> Floor {
        let other = if self.is_unknown { Floor::Unknown } else { Floor::At(0) };
        self.marks.get(resource).copied().unwrap_or(other)
    }
}
