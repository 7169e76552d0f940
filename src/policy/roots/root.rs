//! A root: its shards, their names, pods and configs, and the lots that they are to have.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    balance::{self, Gains, Row},
    lot::{BUCKETS, Lot},
    plan,
};
use crate::{
    api::{
        Balance, By, FenceMode, HashOf, LabelSelectorRequirement, Operator, ShardingConfigSpec,
        Weight,
    },
    policy::{
        object::ObjectRef,
        sharding::{fnv1a, mixed, shard_bucket},
        spans::{END, Spans},
    },
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
    pub(in crate::policy) prefix: String,
    pub(in crate::policy) stateful_set: String,
    /// The canary. `None` if it has no pods.
    pub(in crate::policy) canary: Option<Canary>,
    /// The number of shards beside the canary, and of the pods of each.
    pub(in crate::policy) size: u32,
    pub(in crate::policy) pods_each: u32,
    pub(in crate::policy) by: By,
    pub(in crate::policy) weight: Weight,
    pub(in crate::policy) balance: Balance,
    /// The config of a shard, but for its pods and its lot.
    pub(in crate::policy) template: Box<ShardingConfigSpec>,
}

/// The canary of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::policy) struct Canary {
    pub(in crate::policy) pods: u32,
    /// The namespaces of its objects. `None` means any with its buckets.
    pub(in crate::policy) names: Option<BTreeSet<String>>,
    /// The buckets of its objects. `None` means any.
    pub(in crate::policy) buckets: Option<Spans>,
}

/// A shard of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shard {
    /// The shard of the first pods.
    Canary,
    /// Another shard, from 1.
    Normal(u32),
}

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
pub(super) type Lots = BTreeMap<Shard, Lot>;

impl Canary {
    /// Its lot, which is not empty if it could be checked.
    pub(in crate::policy) fn lot(&self) -> Lot {
        let of_buckets = self.buckets.clone().map(Lot::of_buckets);
        let of_names = self.names.clone().map(Lot::of_names);
        match (of_names, of_buckets) {
            (Some(names), Some(buckets)) => names.meet(&buckets),
            (one, two) => one.or(two).unwrap_or_else(Lot::nothing),
        }
    }
}

impl Root {
    /// The root, whose children have this mode of the fence where it gives none.
    pub fn or_fence_mode(mut self, mode: FenceMode) -> Self {
        self.template.fence.get_or_insert_default().mode.get_or_insert(mode);
        self
    }

    /// The shards, in order.
    pub fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        let canary = self.canary.as_ref().map(|_| Shard::Canary);
        canary.into_iter().chain((1..=self.size).map(Shard::Normal))
    }

    /// The name of the child of a shard, as KusionStack has it.
    pub fn name(&self, shard: Shard) -> String {
        match shard {
            Shard::Canary => format!("{}-0-canary", self.prefix),
            Shard::Normal(at) => format!("{}-{at}-normal", self.prefix),
        }
    }

    /// The shard of a child by its name. Also one that the root does not have any more.
    pub(super) fn shard_named(&self, name: &str) -> Option<Shard> {
        let rest = name.strip_prefix(self.prefix.as_str())?.strip_prefix('-')?;
        let shard = match rest.strip_suffix("-normal") {
            Some(at) => Shard::Normal(at.parse().ok()?),
            None => Shard::Canary,
        };
        (self.name(shard) == name).then_some(shard)
    }

    /// The names of the pods of a shard.
    pub fn pods(&self, shard: Shard) -> impl Iterator<Item = String> + '_ {
        let canary = self.canary.as_ref().map_or(0, |canary| canary.pods);
        let (first, count) = match shard {
            Shard::Canary => (0, canary),
            Shard::Normal(at) => (canary + self.pods_each * at.saturating_sub(1), self.pods_each),
        };
        (first..first + count).map(|ordinal| format!("{}-{ordinal}", self.stateful_set))
    }

    /// Whether a pod of the StatefulSet is in no shard.
    pub fn is_beyond(&self, pod: &str) -> bool {
        self.ordinal(pod).is_some() && self.shard_of(pod).is_none()
    }

    fn ordinal(&self, pod: &str) -> Option<u32> {
        let ordinal = pod.strip_prefix(self.stateful_set.as_str())?.strip_prefix('-')?;
        ordinal.parse().ok().filter(|number: &u32| number.to_string() == ordinal)
    }

    /// The shard of a pod. `None` if it is in none.
    pub fn shard_of(&self, pod: &str) -> Option<Shard> {
        let number = self.ordinal(pod)?;
        let canary = self.canary.as_ref().map_or(0, |canary| canary.pods);
        match number.checked_sub(canary) {
            None => Some(Shard::Canary),
            Some(rest) => Some(Shard::Normal(rest / self.pods_each + 1))
                .filter(|_| rest / self.pods_each < self.size),
        }
    }

    /// The config of a shard that has this lot.
    pub fn spec(&self, shard: Shard, lot: &Lot) -> ShardingConfigSpec {
        let mut spec = (*self.template).clone();
        let pods = LabelSelectorRequirement {
            key: POD_NAME.to_owned(),
            operator: Operator::In,
            values: self.pods(shard).collect(),
        };
        spec.selector.get_or_insert_default().match_expressions.push(pods);
        for limit in &mut spec.limits {
            *limit = lot.limit(limit);
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

    /// The lots that the shards are to have, if they have these by now.
    pub(super) fn lots(&self, now: &Lots, load: Load<'_>) -> Lots {
        let canary = self.canary.as_ref();
        let of_canary = canary.map(Canary::lot);
        // By names, others are left what they are not; by buckets, they have the rest of these.
        let names = canary.and_then(|canary| canary.names.as_ref());
        let buckets = canary.filter(|canary| canary.names.is_none());
        let buckets = buckets.and_then(|canary| canary.buckets.as_ref());
        let rest = buckets.map_or_else(|| Spans::up_to(BUCKETS), |all| all.not(BUCKETS));
        let shares = self.shares(now, &rest, load);
        let normals = shares.into_iter().zip(1..).map(|(share, at)| {
            let lot = match self.by {
                By::Label => Lot::of_buckets(share),
                By::Namespace => Lot::of_hashes(HashOf::Namespace, share),
                By::Uid => Lot::of_hashes(HashOf::Uid, share),
            };
            // The first shard has what is in no namespace, unless that is told by its uid.
            let lot = if at == 1 && self.by != By::Uid { lot.with_outside() } else { lot };
            let lot = match (&of_canary, names) {
                (Some(canary), Some(_)) => lot.without(canary.names()),
                _ if buckets.is_some() && self.by != By::Label => lot.within(&rest),
                _ => lot,
            };
            (Shard::Normal(at), lot)
        });
        let mut lots: Lots = normals.collect();
        lots.extend(of_canary.map(|lot| (Shard::Canary, lot)));
        lots
    }

    /// The shares of the shards but the canary: of hashes, or of these buckets.
    fn shares(&self, now: &Lots, rest: &Spans, load: Load<'_>) -> Vec<Spans> {
        let of = |lot: &Lot| match self.by {
            By::Label => lot.buckets().map(|all| all.and(rest)),
            By::Namespace => lot.hashes(HashOf::Namespace).cloned(),
            By::Uid => lot.hashes(HashOf::Uid).cloned(),
        };
        let now = (1..=self.size).map(|at| now.get(&Shard::Normal(at)).and_then(of));
        let now: Vec<_> = now.map(Option::unwrap_or_default).collect();
        if self.by != By::Label {
            return self.cut(&now, END, load, |name| Some(mixed(fnv1a(name)).into()));
        }
        // The buckets that are left are numbered anew, without those of the canary.
        let places: Vec<u128> = rest.iter().flat_map(|span| span.from..span.to).collect();
        let inner = |share: &Spans| {
            let held = places.iter().zip(0..).filter(|(bucket, _)| share.has(**bucket));
            Spans::numbers(held.map(|(_, place)| place))
        };
        let outer = |share: Spans| {
            let held = places.iter().zip(0..).filter(|(_, place)| share.has(*place));
            Spans::numbers(held.map(|(bucket, _)| *bucket))
        };
        let now: Vec<_> = now.iter().map(inner).collect();
        let place = |name: &str| {
            let bucket = u128::from(shard_bucket(name));
            places.iter().zip(0..).find(|(held, _)| **held == bucket).map(|(_, place)| place)
        };
        self.cut(&now, rest.size(), load, place).into_iter().map(outer).collect()
    }

    /// The shares in the numbers before an end, among which each namespace has its place.
    fn cut(
        &self,
        now: &[Spans],
        end: u128,
        load: Load<'_>,
        place: impl Fn(&str) -> Option<u128>,
    ) -> Vec<Spans> {
        if self.weight == Weight::Even {
            return plan::shares(now, self.size, end);
        }
        let (objects, gains) = match load {
            Load::Unknown => (None, Gains::Nobody),
            Load::Known { objects, may_move } if may_move && self.balance == Balance::Move => {
                (Some(objects), Gains::All)
            }
            Load::Known { objects, .. } => (Some(objects), Gains::New),
        };
        let of_canary = self.canary.as_ref().map(Canary::lot);
        let is_canary = |name: &str| of_canary.as_ref().is_some_and(|lot| lot.has_namespace(name));
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
        balance::shares(now, self.size, &row, gains)
    }
}
