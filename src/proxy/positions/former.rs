//! The scopes under which clients may hold positions at or below the floor.
//!
//! Hides how many are remembered, and what forgetting one costs. A client that resumes at X has what
//! some scope had at X whose *mark*, the highest position that was shown under it, is not below X.
//! Every such scope is among those that are remembered, unless one was forgotten whose mark is not
//! below X.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::floor::Floor;
use ctrlmesh_policy::{GroupResource, Sharding};

/// Most scopes that are remembered.
const MOST: usize = 16;

/// Marks, by resource.
pub(crate) type Marks = HashMap<GroupResource, Floor>;

/// The shardings of before, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Former {
    all: VecDeque<FormerSharding>,
    forgotten: Shown,
}

/// A sharding of before, and what was shown under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormerSharding {
    /// The sharding.
    pub(crate) sharding: Arc<Sharding>,
    /// The positions of the resources whose scope ended with it. Another resource's scope goes on in
    /// the next sharding, and has its mark there.
    pub(crate) shown: Shown,
}

/// What was shown under one or several shardings that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The highest position of each resource. An unknown one is as high as any that an earlier process
    /// showed, or that was not parsed.
    pub(crate) marks: Marks,
    /// Whether nothing was shown of other resources. Else their marks are unknown.
    pub(crate) is_whole: bool,
    /// Whether no request runs that was decided under them, so that the marks are final.
    pub(crate) is_over: bool,
}

/// The positions of a resource that were shown under scopes that had ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    /// The highest one that was parsed.
    pub(super) parsed: u64,
    /// The bound of those that were not.
    pub(super) unparsed: Floor,
    /// The bound of all that earlier processes showed, and of all that was not parsed before.
    pub(super) before: Floor,
}

impl Former {
    /// The shardings of before, the oldest first, and what was shown under those that were forgotten.
    pub(crate) fn new(all: impl IntoIterator<Item = FormerSharding>, forgotten: Shown) -> Self {
        let mut former = Self { all: VecDeque::new(), forgotten };
        all.into_iter().for_each(|one| former.add(one));
        former
    }

    /// Shardings that no one knows, under which any position may have been shown.
    pub(crate) fn unknown() -> Self {
        Self::new([], Shown::anything())
    }

    /// Those that are remembered, the oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &FormerSharding> {
        self.all.iter()
    }

    /// What was shown under those that were forgotten.
    pub(crate) const fn forgotten(&self) -> &Shown {
        &self.forgotten
    }

    /// Adds the sharding that ends. One that was in force before as well is remembered once.
    pub(crate) fn add(&mut self, mut former: FormerSharding) {
        self.all.retain(|one| {
            let is_other = one.sharding.hash() != former.sharding.hash();
            if !is_other {
                former.shown.add(&one.shown);
            }
            is_other
        });
        self.all.push_back(former);
        if self.all.len() > MOST {
            self.forget();
        }
    }

    /// Forgets the oldest. Returns whether there was one.
    pub(crate) fn forget(&mut self) -> bool {
        let Some(FormerSharding { shown, .. }) = self.all.pop_front() else { return false };
        self.forgotten.add(&shown);
        true
    }

    /// Notes what was shown of a resource after the end of its scopes, and what became known.
    pub(super) fn raise(&mut self, resource: &GroupResource, late: Late) {
        self.each(|shown| shown.raise(resource, late));
    }

    /// Records that no request runs that was decided under any of them.
    pub(super) fn are_over(&mut self) {
        self.each(|shown| shown.is_over = true);
    }

    fn each(&mut self, change: impl FnMut(&mut Shown)) {
        let all = self.all.iter_mut().map(|former| &mut former.shown);
        all.chain([&mut self.forgotten]).for_each(change);
    }

    /// Whether one of them has another scope of a resource.
    pub(super) fn has(&self, resource: &GroupResource, present: &Sharding) -> bool {
        self.all.iter().any(|former| former.sharding.limits_otherwise(present, resource))
    }

    /// The shardings under which a client may hold the position `at` of a resource. Each has another scope of the
    /// resource, and none has that of `to`. `None` if one of them is not known.
    pub(super) fn of(
        &self,
        resource: &GroupResource,
        at: u64,
        late: Late,
        to: &Sharding,
    ) -> Option<Vec<Arc<Sharding>>> {
        let may_hold = |shown: &Shown| match shown.mark(resource, late) {
            Floor::At(mark) => at <= mark,
            Floor::Unknown => true,
        };
        if late.unparsed == Floor::Unknown || may_hold(&self.forgotten) {
            return None;
        }
        let mut found: Vec<Arc<Sharding>> = Vec::new();
        for FormerSharding { sharding, shown } in &self.all {
            let is_same = |known: &Sharding| !known.limits_otherwise(sharding, resource);
            let is_known = is_same(to) || found.iter().any(|known| is_same(known));
            if !is_known && may_hold(shown) {
                found.push(Arc::clone(sharding));
            }
        }
        (!found.is_empty()).then_some(found)
    }
}

impl Default for Shown {
    /// Nothing.
    fn default() -> Self {
        Self { marks: HashMap::new(), is_whole: true, is_over: true }
    }
}

impl Shown {
    /// Any position of any resource, by a process that has ended.
    pub(crate) fn anything() -> Self {
        Self { is_whole: false, ..Self::default() }
    }

    /// The same, as a later process knows it.
    #[must_use]
    pub(crate) fn by_earlier_process(self) -> Self {
        if self.is_over { self } else { Self::anything() }
    }

    fn add(&mut self, other: &Self) {
        let resources: Vec<_> = self.marks.keys().chain(other.marks.keys()).cloned().collect();
        for resource in resources {
            let mark = self.known(&resource).max(other.known(&resource));
            self.marks.insert(resource, mark);
        }
        self.is_whole &= other.is_whole;
        self.is_over &= other.is_over;
    }

    fn raise(&mut self, resource: &GroupResource, late: Late) {
        let mark = self.mark(resource, late);
        if mark != self.known(resource) {
            self.marks.insert(resource.clone(), mark);
        }
    }

    /// The mark that was noted.
    fn known(&self, resource: &GroupResource) -> Floor {
        let other = if self.is_whole { Floor::At(0) } else { Floor::Unknown };
        self.marks.get(resource).copied().unwrap_or(other)
    }

    /// The mark, as far as it is known now.
    fn mark(&self, resource: &GroupResource, late: Late) -> Floor {
        match self.known(resource) {
            Floor::At(mark) if self.is_over => Floor::At(mark),
            Floor::At(mark) => Floor::At(mark.max(late.parsed)).max(late.unparsed),
            Floor::Unknown => late.before.max(Floor::At(late.parsed)),
        }
    }
}
