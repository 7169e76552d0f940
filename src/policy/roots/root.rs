//! A root: its shards, their names, pods and configs, and the lots that they are to have.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    balance::{self, Gains, Row},
    partition::{BUCKETS, Partition},
    plan,
};
use crate::{
    intervals::{END, IntervalSet},
    object::ObjectRef,
    sharding::{fnv1a, mixed, shard_bucket},
};
use ctrlmesh_api::{
    Balance, By, FenceMode, HashOf, LabelSelectorRequirement, Operator, RootTarget,
    ShardingConfigSpec, TargetKind, Weight, keys,
};

/// Label of a pod of a StatefulSet: its name.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";

/// A checked root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The config.
    pub object: ObjectRef,
    /// Whether its children are deleted.
    pub is_disabled: bool,
    pub(crate) prefix: String,
    /// The workload whose pods are sharded.
    pub target: RootTarget,
    /// The canary. `None` if it has no pods.
    pub(crate) canary: Option<Canary>,
    /// The number of shards next to the canary. `None` is by replicas.
    pub(crate) size: Option<u32>,
    /// The most shards next to the canary.
    pub(crate) most_shards: u32,
    /// The number of the pods of each.
    pub(crate) pods_each: u32,
    pub(crate) by: By,
    pub(crate) weight: Weight,
    pub(crate) balance: Balance,
    /// The config of a shard, but for its pods and its lot.
    pub(crate) template: Box<ShardingConfigSpec>,
}

/// The canary of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Canary {
    pub(crate) pods: u32,
    /// The namespaces of its objects. `None` means any with its buckets.
    pub(crate) names: Option<BTreeSet<String>>,
    /// The buckets of its objects. `None` means any.
    pub(crate) buckets: Option<IntervalSet>,
}

/// A shard of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shard {
    /// The shard of the first pods.
    Canary,
    /// Another shard, from 1.
    Normal(u32),
}

/// The shards of a root.
pub type Shards = BTreeSet<Shard>;

/// The numbers of objects by which shards are balanced.
#[derive(Clone, Copy, Debug)]
pub enum Load<'l> {
    /// They are not counted, or not yet.
    Unknown,
    /// They are counted.
    Known {
        /// The number of the sharded resources' objects in each namespace, or one for each namespace.
        objects: &'l BTreeMap<String, u64>,
        /// Whether objects may move now for the sake of balance alone.
        may_move: bool,
    },
}

/// The lots of shards.
pub(super) type Partitions = BTreeMap<Shard, Partition>;

impl Canary {
    /// Its lot, which is not empty if it could be checked.
    pub(crate) fn partition(&self) -> Partition {
        let of_buckets = self.buckets.clone().map(Partition::of_buckets);
        let of_names = self.names.clone().map(Partition::of_names);
        match (of_names, of_buckets) {
            (Some(names), Some(buckets)) => names.meet(&buckets),
            (one, two) => one.or(two).unwrap_or_else(Partition::nothing),
        }
    }
}

impl Root {
    /// The root, whose children have this mode of the fence where it gives none.
    pub fn or_fence_mode(mut self, mode: FenceMode) -> Self {
        self.template.fence.get_or_insert_default().mode.get_or_insert(mode);
        self
    }

    /// The name of the child of a shard, as KusionStack has it.
    pub fn name(&self, shard: Shard) -> String {
        match shard {
            Shard::Canary => format!("{}-0-canary", self.prefix),
            Shard::Normal(at) => format!("{}-{at}-normal", self.prefix),
        }
    }

    /// The shard of a child by its name. Also one that the root does not have any more.
    pub fn shard_named(&self, name: &str) -> Option<Shard> {
        let rest = name.strip_prefix(self.prefix.as_str())?.strip_prefix('-')?;
        let shard = match rest.strip_suffix("-normal") {
            Some(at) => Shard::Normal(at.parse().ok()?),
            None => Shard::Canary,
        };
        (self.name(shard) == name).then_some(shard)
    }

    /// Whether the number of its shards is that of the replicas of its workload.
    pub fn is_by_replicas(&self) -> bool {
        self.size.is_none()
    }

    /// Whether a pod that runs may be of another shard by another version of it.
    pub fn may_move(&self, other: &Self) -> bool {
        let of = |root: &Self| {
            let canary = root.canary.as_ref().map(|canary| canary.pods);
            (root.target.clone(), root.prefix.clone(), canary, root.size, root.pods_each)
        };
        of(self) != of(other)
    }

    /// The names of the pods of a shard of a StatefulSet.
    pub fn pods(&self, shard: Shard) -> impl Iterator<Item = String> + '_ {
        let canary = self.canary.as_ref().map_or(0, |canary| canary.pods);
        let (first, count) = match shard {
            Shard::Canary => (0, canary),
            Shard::Normal(at) => (canary + self.pods_each * at.saturating_sub(1), self.pods_each),
        };
        (first..first + count).map(|ordinal| format!("{}-{ordinal}", self.target.name))
    }

    /// Whether a pod of the StatefulSet is in none of these shards.
    pub fn is_beyond(&self, pod: &str, shards: &Shards) -> bool {
        self.ordinal(pod).is_some() && self.shard_of(pod).is_none_or(|of| !shards.contains(&of))
    }

    fn ordinal(&self, pod: &str) -> Option<u32> {
        let name =
            Some(&*self.target.name).filter(|_| self.target.kind == TargetKind::StatefulSet)?;
        let ordinal = pod.strip_prefix(name)?.strip_prefix('-')?;
        ordinal.parse().ok().filter(|number: &u32| number.to_string() == ordinal)
    }

    /// The shard of a pod of a StatefulSet. `None` if it is in none.
    pub fn shard_of(&self, pod: &str) -> Option<Shard> {
        let number = self.ordinal(pod)?;
        let canary = self.canary.as_ref().map_or(0, |canary| canary.pods);
        match number.checked_sub(canary) {
            None => Some(Shard::Canary),
            Some(rest) => Some(Shard::Normal(rest / self.pods_each + 1))
                .filter(|_| rest / self.pods_each < self.size.unwrap_or(self.most_shards)),
        }
    }

    /// The config of a shard that has this lot.
    pub fn spec(&self, shard: Shard, partition: &Partition) -> ShardingConfigSpec {
        let mut spec = (*self.template).clone();
        let (key, values) = match self.target.kind {
            TargetKind::StatefulSet => (POD_NAME, self.pods(shard).collect()),
            TargetKind::Deployment => (keys::SHARD, vec![self.name(shard)]),
        };
        let pods = LabelSelectorRequirement { key: key.to_owned(), operator: Operator::In, values };
        spec.selector.get_or_insert_default().match_expressions.push(pods);
        for limit in &mut spec.limits {
            *limit = partition.limit(limit);
        }
        spec
    }

    /// Whether its shards have equal numbers of namespaces.
    pub fn counts_namespaces(&self) -> bool {
        self.weight == Weight::Namespaces
    }

    /// The resources whose objects are counted, each by its group and its plural name.
    pub fn counted(&self) -> impl Iterator<Item = (&str, &str)> {
        let limits = self.template.limits.iter().filter(|_| self.weight == Weight::Objects);
        let all = limits.flat_map(|limit| &limit.relate_resources);
        all.flat_map(|all| {
            let groups = all.api_groups.iter();
            groups.flat_map(|group| all.resources.iter().map(|name| (&**group, &**name)))
        })
    }

    /// The lots that these shards are to have, if they have these already.
    pub(super) fn partitions(
        &self,
        shards: &Shards,
        now: &Partitions,
        load: Load<'_>,
    ) -> Partitions {
        self.lots_of(shards, now, load, None).unwrap_or_default()
    }

    /// The lots in which `takers` alone get the parts that none of these shards has. No shard loses anything,
    /// except by another canary. `None` if there are no such lots.
    pub(super) fn partitions_given(
        &self,
        shards: &Shards,
        takers: &Shards,
        now: &Partitions,
        load: Load<'_>,
    ) -> Option<Partitions> {
        let mut partitions = self.lots_of(shards, now, load, Some(takers))?;
        for (shard, partition) in &mut partitions {
            if !takers.contains(shard) {
                *partition = now.get(shard).cloned().unwrap_or_else(Partition::nothing);
            }
        }
        Some(partitions)
    }

    fn lots_of(
        &self,
        shards: &Shards,
        now: &Partitions,
        load: Load<'_>,
        takers: Option<&Shards>,
    ) -> Option<Partitions> {
        let canary = self.canary.as_ref();
        let of_canary = canary.map(Canary::partition);
        // By names, others are left what they are not; by buckets, they have the rest of these.
        let names = canary.and_then(|canary| canary.names.as_ref());
        let buckets = canary.filter(|canary| canary.names.is_none());
        let buckets = buckets.and_then(|canary| canary.buckets.as_ref());
        let rest = buckets.map_or_else(|| IntervalSet::up_to(BUCKETS), |all| all.not(BUCKETS));
        let normals: Vec<Shard> =
            shards.iter().copied().filter(|shard| *shard != Shard::Canary).collect();
        let shares = self.shares(&normals, now, &rest, load, takers)?;
        let outside = self.with_outside(&normals, now, takers);
        let normals = shares.into_iter().zip(normals).map(|(share, shard)| {
            let partition = match self.by {
                By::Label => Partition::of_buckets(share),
                By::Namespace => Partition::of_hashes(HashOf::Namespace, share),
                By::Uid => Partition::of_hashes(HashOf::Uid, share),
            };
            let partition =
                if outside == Some(shard) { partition.with_outside() } else { partition };
            let partition = match (&of_canary, names) {
                (Some(canary), Some(_)) => partition.without(canary.names()),
                _ if buckets.is_some() && self.by != By::Label => partition.within(&rest),
                _ => partition,
            };
            (shard, partition)
        });
        let mut partitions: Partitions = normals.collect();
        partitions.extend(of_canary.map(|partition| (Shard::Canary, partition)));
        Some(partitions)
    }

    /// The shard that has cluster-scoped objects: the one that has it, or the first that may get it. `None`
    /// if that is notified by its uid.
    fn with_outside(
        &self,
        shards: &[Shard],
        now: &Partitions,
        takers: Option<&Shards>,
    ) -> Option<Shard> {
        let shards = || shards.iter().copied().filter(|_| self.by != By::Uid);
        let has_it = |shard: &Shard| now.get(shard).is_some_and(Partition::has_outside);
        let may = |shard: &Shard| takers.is_none_or(|takers| takers.contains(shard));
        shards().find(has_it).or_else(|| shards().find(may))
    }

    /// The shares of the shards but the canary: of hashes, or of these buckets.
    fn shares(
        &self,
        shards: &[Shard],
        now: &Partitions,
        rest: &IntervalSet,
        load: Load<'_>,
        takers: Option<&Shards>,
    ) -> Option<Vec<IntervalSet>> {
        let of = |partition: &Partition| match self.by {
            By::Label => partition.buckets().map(|all| all.and(rest)),
            By::Namespace => partition.hashes(HashOf::Namespace).cloned(),
            By::Uid => partition.hashes(HashOf::Uid).cloned(),
        };
        let now = shards.iter().map(|shard| now.get(shard).and_then(of));
        let now: Vec<_> = now.map(Option::unwrap_or_default).collect();
        let takes =
            takers.map(|takers| shards.iter().map(|at| takers.contains(at)).collect::<Vec<_>>());
        let takes = takes.as_deref();
        if self.by != By::Label {
            return self.cut(&now, END, load, takes, |name| Some(mixed(fnv1a(name)).into()));
        }
        // The buckets that are left are numbered again, without those of the canary.
        let places: Vec<u128> = rest.iter().flat_map(|span| span.from..span.to).collect();
        let inner = |share: &IntervalSet| {
            let held = places.iter().zip(0..).filter(|(bucket, _)| share.has(**bucket));
            IntervalSet::numbers(held.map(|(_, place)| place))
        };
        let outer = |share: IntervalSet| {
            let held = places.iter().zip(0..).filter(|(_, place)| share.has(*place));
            IntervalSet::numbers(held.map(|(bucket, _)| *bucket))
        };
        let now: Vec<_> = now.iter().map(inner).collect();
        let place = |name: &str| {
            let bucket = u128::from(shard_bucket(name));
            places.iter().zip(0..).find(|(held, _)| **held == bucket).map(|(_, place)| place)
        };
        let shares = self.cut(&now, rest.size(), load, takes, place)?;
        Some(shares.into_iter().map(outer).collect())
    }

    /// The shares in the numbers before an end, among which each namespace has its place.
    fn cut(
        &self,
        now: &[IntervalSet],
        end: u128,
        load: Load<'_>,
        takes: Option<&[bool]>,
        place: impl Fn(&str) -> Option<u128>,
    ) -> Option<Vec<IntervalSet>> {
        let count = u32::try_from(now.len()).unwrap_or(u32::MAX);
        if self.weight == Weight::Even {
            return match takes {
                Some(takes) => plan::given(now, takes, end),
                None => Some(plan::shares(now, count, end)),
            };
        }
        let (objects, gains) = match load {
            Load::Unknown => (None, Gains::Nobody),
            Load::Known { objects, may_move } if may_move && self.balance == Balance::Move => {
                (Some(objects), Gains::All)
            }
            Load::Known { objects, .. } => (Some(objects), Gains::New),
        };
        let of_canary = self.canary.as_ref().map(Canary::partition);
        let is_canary =
            |name: &str| of_canary.as_ref().is_some_and(|partition| partition.has_namespace(name));
        let mut at: BTreeMap<u128, u64> = BTreeMap::new();
        for (name, count) in objects.into_iter().flatten().filter(|(name, _)| !is_canary(name)) {
            if let Some(place) = place(name) {
                let all = at.entry(place).or_default();
                *all = all.saturating_add(*count);
            }
        }
        let row = match self.counts_namespaces() {
            true => Row::of_namespaces(end, &at),
            false => Row::new(end, &at),
        };
        match takes {
            Some(takes) => balance::given(now, takes, &row),
            None => Some(balance::shares(now, count, &row, gains)),
        }
    }
}
