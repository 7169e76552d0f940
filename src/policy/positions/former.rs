//! The scopes under which clients may hold positions at or below the floor.
//!
//! Hides how many are remembered, and what forgetting one costs. A client that resumes at X has what
//! some scope had at X that was in force when X could be shown: one whose *mark*, the highest
//! position that was shown until it ended, is not below X, or any scope that ended before X was shown
//! *late*: by a request that was decided under it, or by an earlier process. Every such scope is among
//! those that are remembered, unless one was forgotten whose mark is not below X.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::floor::Floor;
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
    /// The marks. Of other resources nothing was shown until it ended. `None` if they are not known:
    /// any position may be of it.
    pub marks: Option<Marks>,
}

/// The positions of a resource that were shown under scopes that had ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Late {
    /// The highest that a request of this process showed.
    pub(super) shown: u64,
    /// The highest that an earlier process may have shown, or that was not parsed.
    pub(super) settled: u64,
}

/// The highest marks of the shardings that were forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// The marks.
    pub marks: Marks,
    /// Whether any position of the other resources may be of one of them.
    pub is_unknown: bool,
    /// Whether there is one.
    pub is_any: bool,
}

impl Late {
    /// The highest of them.
    pub(super) fn highest(self) -> u64 {
        self.shown.max(self.settled)
    }
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
        Self::new([], Forgotten::everything())
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
        self.forgotten.is_any = true;
        match marks {
            None => self.forgotten = Forgotten::everything(),
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

    /// Notes the highest position of a resource that was shown late, so that marks say all.
    pub(super) fn raise(&mut self, resource: &GroupResource, shown: u64) {
        let late = Floor::At(shown);
        let marks = self.all.iter_mut().filter_map(|former| former.marks.as_mut());
        for marks in marks.chain(self.forgotten.is_any.then_some(&mut self.forgotten.marks)) {
            let mark = marks.entry(resource.clone()).or_insert(late);
            *mark = mark.max(late);
        }
    }

    /// Whether one of them has another scope of a resource.
    pub(super) fn has(&self, resource: &GroupResource, present: &Sharding) -> bool {
        self.all.iter().any(|former| former.sharding.limits_otherwise(present, resource))
    }

    /// The shardings under which a client may hold the position `at` of a resource, each with another
    /// scope of it, and other than `to`. `None` if one of them is not known.
    pub(super) fn of(
        &self,
        resource: &GroupResource,
        at: u64,
        late: Late,
        to: &Sharding,
    ) -> Option<Vec<Arc<Sharding>>> {
        let is_below = |mark: Floor| match mark {
            Floor::At(mark) => at <= mark,
            Floor::Unknown => true,
        };
        let is_late = at <= late.highest();
        // What was shown late may be of one that was forgotten.
        if is_below(self.forgotten.mark(resource)) || (self.forgotten.is_any && is_late) {
            return None;
        }
        let mut found: Vec<Arc<Sharding>> = Vec::new();
        for FormerSharding { sharding, marks } in &self.all {
            let mark = marks.as_ref().map(|marks| marks.get(resource).copied());
            let is_candidate = is_late || mark.is_none_or(|mark| mark.is_some_and(is_below));
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
    /// Shardings of which nothing is known.
    fn everything() -> Self {
        Self { marks: HashMap::new(), is_unknown: true, is_any: true }
    }

    fn mark(&self, resource: &GroupResource) -> Floor {
        let other = if self.is_unknown { Floor::Unknown } else { Floor::At(0) };
        self.marks.get(resource).copied().unwrap_or(other)
    }
}
