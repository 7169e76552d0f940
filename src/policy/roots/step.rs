//! The next writes of a root's children.
//!
//! A function of the existing objects to the objects to be written. So a writer that dies leaves nothing
//! undone: the next one computes the rest. A shard's loss is written before another's gain, so that no
//! two children have an object in common at any moment. The claims of the pods keep the pods apart,
//! whatever is written here.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    partition::Partition,
    root::{Load, Partitions, Root, Shard, Shards},
};
use ctrlmesh_api::ShardingConfigSpec;

/// The facts by which children are drawn, next to themselves.
#[derive(Clone, Debug)]
pub struct Situation<'s> {
    /// The shards that the root needs now. `None` if its replicas are not known yet, or are 0.
    pub shards: Option<Shards>,
    /// Whether their number has stood for long enough that a new shard may get what others have.
    pub is_settled: bool,
    /// The numbers of objects.
    pub load: Load<'s>,
}

/// A child as it is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its spec. `None` if it cannot be read.
    pub spec: Option<ShardingConfigSpec>,
    /// The lot that it says it has. `None` if it does not say, or that cannot be read.
    pub partition: Option<Partition>,
    /// Whether it is the root's: another config of that name is not touched.
    pub is_own: bool,
    /// The injected pods that it selects, which run.
    pub pods: BTreeSet<String>,
    /// Whether one of them is ready.
    pub is_ready: bool,
    /// The pods that have not claimed what its present spec says, by their Leases.
    pub opening: BTreeSet<String>,
    /// Whether a Lease claims something for it.
    pub is_claimed: bool,
    /// Whether it is being deleted.
    pub is_going: bool,
}

/// A write of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The child is created, or gets another spec and lot.
    Put {
        /// Its name.
        name: String,
        /// Its spec.
        spec: Box<ShardingConfigSpec>,
        /// Its lot.
        partition: Partition,
    },
    /// The child is deleted.
    Delete {
        /// Its name.
        name: String,
    },
}

/// The reason why a layout is not what it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Configs with the names of children are not the root's.
    Foreign(Vec<String>),
    /// Shards are to get a part of what others have, of which no one knows the weight yet.
    Uncounted(Vec<String>),
    /// Pods that run would be of another shard.
    Pods(Vec<String>),
    /// Shards are to get what others have, and no pod of theirs is ready.
    NotReady(Vec<String>),
    /// Shards are to get what others have, and the number of replicas has changed a moment ago.
    Settling(Vec<String>),
    /// Pods have not taken what they were given.
    Opening(Vec<String>),
    /// Shards that go are claimed by their pods.
    Claimed(Vec<String>),
    /// Shards have objects, and no pod that is ready: no one handles them.
    Idle(Vec<String>),
}

/// The next writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The writes, in phases: those of a phase in any order or at once, and each phase only if all
    /// writes before it succeeded.
    pub phases: Vec<Vec<Write>>,
    /// The reasons to wait with the rest.
    pub holds: Vec<Blocked>,
}

impl Step {
    fn of(phases: impl IntoIterator<Item = Vec<Write>>, holds: Vec<Blocked>) -> Self {
        let phases = phases.into_iter().filter(|writes| !writes.is_empty());
        Self { phases: phases.collect(), holds }
    }
}

/// The next step of a root with these children, by their names.
pub fn step(root: &Root, children: &BTreeMap<String, Child>, now: &Situation<'_>) -> Step {
    let own = || children.iter().filter(|(_, child)| child.is_own);
    if root.is_disabled {
        let stays = own().filter(|(_, child)| !child.is_going);
        let writes = stays.map(|(name, _)| Write::Delete { name: name.clone() });
        return Step::of([writes.collect()], Vec::new());
    }
    // Nothing is drawn again for a workload without pods: they may come back.
    let Some(shards) = &now.shards else { return Step::default() };
    let wanted: BTreeSet<String> = shards.iter().map(|shard| root.name(*shard)).collect();
    // They are known in a moment, and shards that are drawn without them would move then.
    if root.counts_namespaces() && matches!(now.load, Load::Unknown) {
        return Step::of([], vec![Blocked::Uncounted(wanted.into_iter().collect())]);
    }
    let foreign = children.iter().filter(|(name, child)| !child.is_own && wanted.contains(*name));
    let foreign: Vec<_> = foreign.map(|(name, _)| name.clone()).collect();
    if !foreign.is_empty() {
        return Step::of([], vec![Blocked::Foreign(foreign)]);
    }
    let moved = moved_pods(root, own());
    if !moved.is_empty() {
        return Step::of([], vec![Blocked::Pods(moved)]);
    }
    let own: BTreeMap<&str, &Child> = own().map(|(name, child)| (name.as_str(), child)).collect();
    Layout::of(root, &own, shards, now).step()
}

fn put(name: &str, spec: ShardingConfigSpec, partition: Partition) -> Write {
    Write::Put { name: name.to_owned(), spec: Box::new(spec), partition }
}

/// The pods that run in one child and would be of another.
fn moved_pods<'c>(root: &Root, own: impl Iterator<Item = (&'c String, &'c Child)>) -> Vec<String> {
    let mut moved = Vec::new();
    for (name, child) in own {
        let goes =
            |pod: &&String| root.shard_of(pod).is_some_and(|shard| root.name(shard) != *name);
        moved.extend(child.pods.iter().filter(goes).cloned());
    }
    moved
}

/// The present lots, and the lots of the next layout.
struct Layout<'a> {
    root: &'a Root,
    own: &'a BTreeMap<&'a str, &'a Child>,
    /// The lot of each child that says it.
    now: BTreeMap<&'a str, Partition>,
    /// The lot that each shard is to have.
    wanted: BTreeMap<String, (Shard, Partition)>,
    holds: Vec<Blocked>,
    /// Whether everybody keeps what they have, but for shards whose pods end.
    is_held: bool,
    /// Whether what these had is given to others.
    is_given: bool,
}

impl<'a> Layout<'a> {
    fn of(
        root: &'a Root,
        own: &'a BTreeMap<&'a str, &'a Child>,
        shards: &Shards,
        situation: &Situation<'_>,
    ) -> Self {
        let said = own.iter().filter_map(|(name, child)| Some((*name, child.partition.clone()?)));
        let now: BTreeMap<_, _> = said.collect();
        let have: Partitions = now
            .iter()
            .filter_map(|(name, partition)| Some((root.shard_named(name)?, partition.clone())))
            .collect();
        let named = |partitions: Partitions| {
            partitions
                .into_iter()
                .map(|(shard, partition)| (root.name(shard), (shard, partition)))
                .collect()
        };
        let wanted = named(root.partitions(shards, &have, situation.load));
        let (holds, is_held, is_given) = (Vec::new(), false, false);
        let mut layout = Self { root, own, now, wanted, holds, is_held, is_given };
        layout.hold(situation.is_settled);
        if layout.is_held && layout.has_ending() {
            let takers = layout.takers(shards);
            let partitions =
                root.partitions_given(shards, &takers, &have, situation.load).map(named);
            layout.give(partitions.unwrap_or_default());
        }
        layout
    }

    /// Whether a shard goes that has something, and whose pods end.
    fn has_ending(&self) -> bool {
        let has_ended = |name: &str| self.own.get(name).is_some_and(|child| child.pods.is_empty());
        let goes = |name: &str| !self.wanted.contains_key(name) && has_ended(name);
        self.now.iter().any(|(name, partition)| goes(name) && !partition.is_nothing())
    }

    /// The shards that can take something now.
    fn takers(&self, shards: &Shards) -> Shards {
        let can_take = |shard: &Shard| {
            let child = self.own.get(self.root.name(*shard).as_str());
            child.is_some_and(|child| child.is_ready && child.opening.is_empty())
        };
        shards.iter().copied().filter(can_take).collect()
    }

    /// Gives what shards had whose pods end to those that can take it, though the rest is held up. It is not
    /// where a shard that stays has something of it, as after another canary.
    fn give(&mut self, wanted: BTreeMap<String, (Shard, Partition)>) {
        let stays = |name: &&str| {
            let runs = self.own.get(*name).is_some_and(|child| !child.pods.is_empty());
            self.wanted.contains_key(*name) || runs
        };
        let of_others = |(name, partition): (&str, &Partition)| {
            let mut others = self.now.iter().filter(|(other, _)| **other != name && stays(other));
            let kept = others.all(|(other, had)| match wanted.get(*other) {
                Some((_, wanted)) => wanted.is_disjoint(partition),
                None => had.is_disjoint(partition),
            });
            let same = wanted.iter().filter(|(other, _)| *other != name);
            kept && same.into_iter().all(|(_, (_, other))| other.is_disjoint(partition))
        };
        self.is_given = !wanted.is_empty()
            && wanted.iter().all(|(name, (_, partition))| of_others((name, partition)));
        if self.is_given {
            self.wanted = wanted;
        }
    }

    /// Leaves everybody what they have where the layout cannot begin yet.
    fn hold(&mut self, is_settled: bool) {
        let not_ready = self.shards_that_take(|child| !child.is_ready);
        let new = |child: &Child| child.partition.as_ref().is_none_or(Partition::is_nothing);
        let settling = if is_settled { Vec::new() } else { self.shards_that_take(new) };
        let is_other = self.now.iter().any(|(name, partition)| match self.wanted.get(*name) {
            Some((_, wanted)) => wanted != partition,
            None => !partition.is_nothing(),
        });
        let opening = self.own.iter().filter(|(name, _)| self.wanted.contains_key(**name));
        let opening: Vec<_> =
            opening.flat_map(|(_, child)| child.opening.iter().cloned()).collect();
        let empty = self.wanted.iter().filter(|(_, (_, partition))| partition.is_nothing());
        let empty: Vec<_> = empty.map(|(name, _)| name.clone()).collect();
        if is_other && !opening.is_empty() {
            self.holds.push(Blocked::Opening(opening));
        } else if !not_ready.is_empty() {
            self.holds.push(Blocked::NotReady(not_ready));
        } else if !settling.is_empty() {
            self.holds.push(Blocked::Settling(settling));
        } else {
            // With the known facts of the others a shard is left without anything for this reason alone.
            self.holds.extend((!empty.is_empty()).then_some(Blocked::Uncounted(empty)));
            return;
        }
        self.is_held = true;
        for (name, (_, wanted)) in &mut self.wanted {
            let others = self.now.iter().filter(|(other, _)| *other != name);
            let is_free = others.into_iter().all(|(_, partition)| partition.is_disjoint(wanted));
            match self.now.get(name.as_str()) {
                Some(partition) => *wanted = partition.clone(),
                // What no one has harms no one.
                None if is_free => {}
                None => *wanted = Partition::nothing(),
            }
        }
    }

    /// The shards that are to get what others have whose pods run, and that are so, or not there.
    fn shards_that_take(&self, is: impl Fn(&Child) -> bool) -> Vec<String> {
        let lacks_pod = |name: &str| self.own.get(name).is_none_or(|child| is(child));
        let takes = |name: &str, wanted: &Partition| {
            let mut others = self.now.iter().filter(|(other, _)| **other != name);
            others.any(|(other, partition)| {
                let lives = |child: &&Child| !child.pods.is_empty() || child.is_claimed;
                self.own.get(other).is_some_and(lives) && !partition.is_disjoint(wanted)
            })
        };
        let shards = self
            .wanted
            .iter()
            .filter(|(name, (_, partition))| lacks_pod(name) && takes(name, partition));
        shards.map(|(name, _)| name.clone()).collect()
    }

    fn step(mut self) -> Step {
        let [mut losing, mut gaining, mut deleted] = [const { Vec::new() }; 3];
        let mut claimed = Vec::new();
        let goes = |name: &str, child: &Child| {
            let is_empty = child.partition.as_ref().is_some_and(Partition::is_nothing);
            let may_go = child.pods.is_empty() && (self.is_given || is_empty);
            !self.wanted.contains_key(name) && (!self.is_held || may_go)
        };
        for (name, child) in self.own.iter().filter(|(name, child)| goes(name, child)) {
            let emptied = self.emptied(name, child);
            let is_empty = child.partition.as_ref().is_some_and(Partition::is_nothing);
            match emptied {
                Some(spec) if !is_empty || child.spec.as_ref() != Some(&spec) => {
                    losing.push(put(name, spec, Partition::nothing()));
                }
                _ if child.is_claimed => claimed.push((*name).to_owned()),
                _ if child.is_going => {}
                _ => deleted.push(Write::Delete { name: (*name).to_owned() }),
            }
        }
        for (name, (shard, wanted)) in &self.wanted {
            let child = self.own.get(name.as_str());
            let said = child.and_then(|child| child.partition.as_ref());
            let spec_with = |partition: &Partition| self.root.spec(*shard, partition);
            let is_as = |partition: &Partition| {
                let spec = child.and_then(|child| child.spec.as_ref());
                said == Some(partition) && spec == Some(&spec_with(partition))
            };
            let put = |partition: &Partition| put(name, spec_with(partition), partition.clone());
            // What a child has that does not say it is not known, so that it may lose something.
            let kept = match (child, said) {
                (_, Some(partition)) => Some(partition.meet(wanted)),
                (Some(_), None) => Some(wanted.clone()),
                (None, None) => None,
            };
            losing.extend(kept.as_ref().filter(|kept| !is_as(kept)).map(put));
            gaining.extend((kept.as_ref() != Some(wanted)).then(|| put(wanted)));
        }
        if !claimed.is_empty() {
            self.holds.push(Blocked::Claimed(claimed));
        }
        let mut step = Step::of([losing, gaining, deleted], std::mem::take(&mut self.holds));
        if step == Step::default() {
            step.holds.extend(self.idle());
        }
        step
    }

    fn idle(&self) -> Option<Blocked> {
        let is_idle = |name: &&str, child: &Child| {
            !child.is_ready && self.now.get(*name).is_some_and(|partition| !partition.is_nothing())
        };
        let idle = self.own.iter().filter(|(name, child)| is_idle(name, child));
        let names: Vec<_> = idle.map(|(name, _)| (*name).to_owned()).collect();
        (!names.is_empty()).then_some(Blocked::Idle(names))
    }

    /// The spec of a shard that goes, with an empty lot. `None` if no pod can be named that it selects.
    fn emptied(&self, name: &str, child: &Child) -> Option<ShardingConfigSpec> {
        let of_root = || Some(self.root.spec(self.root.shard_named(name)?, &Partition::nothing()));
        let mut spec = child.spec.clone().or_else(of_root)?;
        let limits = self.root.template.limits.iter();
        spec.limits = limits.map(|limit| Partition::nothing().limit(limit)).collect();
        Some(spec)
    }
}
