//! The partition of a shard: buckets, hash ranges or namespaces.
//!
//! Hides how a lot is said in a limit, and in the annotation of a child. Does not know which shard gets
//! which lot. Words: a *bucket* is one of 32 that KusionStack computes of a namespace's name.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    intervals::{Interval, IntervalSet},
    sharding::{self, fnv1a, mixed, shard_bucket},
};
use ctrlmesh_api::{
    ClusterScoped, Hash, HashFunction, HashOf, HashRange, LabelSelectorRequirement, Limit, Operator,
};

/// The number of buckets.
pub(crate) const BUCKETS: u128 = 32;
const NAMESPACE: &str = "ctrlmesh.kusionstack.io/namespace";
const BUCKET: &str = "ctrlmesh.kusionstack.io/shard-hash";

/// The lot of a shard. All that it says must hold. In normal form: equal lots have the same objects,
/// but for names that no namespace has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The namespaces. `None` means any.
    only: Option<BTreeSet<String>>,
    /// The namespaces that are another shard's.
    without: BTreeSet<String>,
    /// The buckets of the namespaces. `None` means any.
    buckets: Option<IntervalSet>,
    /// The hashes. `None` means any.
    hashes: Option<(HashOf, IntervalSet)>,
    /// Whether objects that are in no namespace are in it.
    has_outside: bool,
}

/// A lot, as the annotation has it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PartitionText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    only: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    without: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    buckets: Option<Vec<u8>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<Hash>,
    cluster_scoped: ClusterScoped,
}

impl Partition {
    /// All objects.
    pub fn everything() -> Self {
        Self {
            only: None,
            without: BTreeSet::new(),
            buckets: None,
            hashes: None,
            has_outside: true,
        }
    }

    /// The lot without objects.
    pub fn nothing() -> Self {
        let hashes = Some((HashOf::Namespace, IntervalSet::default()));
        Self { hashes, has_outside: false, ..Self::everything() }
    }

    /// The objects in these namespaces.
    pub(super) fn of_names(names: BTreeSet<String>) -> Self {
        Self { only: Some(names), has_outside: false, ..Self::everything() }.normal()
    }

    /// The objects in namespaces with these buckets.
    pub(super) fn of_buckets(buckets: IntervalSet) -> Self {
        Self { buckets: Some(buckets), has_outside: false, ..Self::everything() }.normal()
    }

    /// The objects with these hashes. Those in no namespace have one of their uid alone.
    pub(super) fn of_hashes(of: HashOf, hashes: IntervalSet) -> Self {
        let has_outside = of == HashOf::Uid;
        Self { hashes: Some((of, hashes)), has_outside, ..Self::everything() }.normal()
    }

    /// The lot without the objects in these namespaces.
    pub(super) fn without(self, names: &BTreeSet<String>) -> Self {
        let without = self.without.union(names).cloned().collect();
        Self { without, ..self }.normal()
    }

    /// The part of the lot in namespaces with these buckets, and what it has in none.
    pub(super) fn within(self, buckets: &IntervalSet) -> Self {
        let buckets = self.buckets.as_ref().map_or_else(|| buckets.clone(), |own| own.and(buckets));
        Self { buckets: Some(buckets), ..self }.normal()
    }

    /// Whether it has the objects of a namespace, or some of them.
    pub(super) fn has_namespace(&self, name: &str) -> bool {
        let of_hashes = self.hashes(HashOf::Namespace);
        self.only.as_ref().is_none_or(|only| only.contains(name))
            && !self.without.contains(name)
            && self.buckets.as_ref().is_none_or(|all| all.has(shard_bucket(name).into()))
            && of_hashes.is_none_or(|all| all.has(mixed(fnv1a(name)).into()))
    }

    /// The namespaces, if they are listed.
    pub(super) fn names(&self) -> &BTreeSet<String> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        self.only.as_ref().unwrap_or(&NONE)
    }

    /// Whether it has objects in no namespace.
    pub(super) fn has_outside(&self) -> bool {
        self.has_outside
    }

    /// The lot with the objects in no namespace, too.
    pub(super) fn with_outside(self) -> Self {
        Self { has_outside: true, ..self }
    }

    pub(super) fn buckets(&self) -> Option<&IntervalSet> {
        self.buckets.as_ref()
    }

    pub(super) fn hashes(&self, of: HashOf) -> Option<&IntervalSet> {
        self.hashes.as_ref().filter(|(is, _)| *is == of).map(|(_, hashes)| hashes)
    }

    /// Whether it has no object.
    pub fn is_nothing(&self) -> bool {
        *self == Self::nothing()
    }

    /// The objects in both.
    pub fn meet(&self, other: &Self) -> Self {
        let only = match (&self.only, &other.only) {
            (Some(one), Some(two)) => Some(one.intersection(two).cloned().collect()),
            (one, two) => one.as_ref().or(two.as_ref()).cloned(),
        };
        let buckets = match (&self.buckets, &other.buckets) {
            (Some(one), Some(two)) => Some(one.and(two)),
            (one, two) => one.as_ref().or(two.as_ref()).cloned(),
        };
        let hashes = match (&self.hashes, &other.hashes) {
            (Some((of, one)), Some((is, two))) if of == is => Some((*of, one.and(two))),
            // A limit has one hash.
            (Some(_), Some(_)) => return Self::nothing(),
            (one, two) => one.as_ref().or(two.as_ref()).cloned(),
        };
        let without = self.without.union(&other.without).cloned().collect();
        let has_outside = self.has_outside && other.has_outside;
        Self { only, without, buckets, hashes, has_outside }.normal()
    }

    /// Whether no object is in both.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        if matches!((&self.hashes, &other.hashes), (Some((one, _)), Some((two, _))) if one != two) {
            return self.is_nothing() || other.is_nothing();
        }
        self.meet(other).is_nothing()
    }

    fn normal(mut self) -> Self {
        let is_none = |spans: &IntervalSet| spans.is_empty();
        let has_no_uid = self.hashes(HashOf::Uid).is_some_and(is_none);
        if let Some(mut only) = self.only.take() {
            only.retain(|name| self.has_namespace(name));
            self.without.clear();
            self.buckets = None;
            self.hashes.take_if(|(of, _)| *of == HashOf::Namespace);
            self.only = Some(only);
        } else if let Some(buckets) = &self.buckets {
            self.without.retain(|name| buckets.has(shard_bucket(name).into()));
        }
        let has_no_namespace = self.only.as_ref().is_some_and(BTreeSet::is_empty)
            || self.buckets.as_ref().is_some_and(is_none)
            || self.hashes.as_ref().is_some_and(|(_, all)| is_none(all));
        match has_no_namespace {
            true if has_no_uid || !self.has_outside => Self::nothing(),
            _ => self,
        }
    }

    /// The limit, for the objects of it that are in the lot.
    pub(super) fn limit(&self, template: &Limit) -> Limit {
        let mut limit = template.clone();
        let name = |operator, names: &BTreeSet<String>| LabelSelectorRequirement {
            key: NAMESPACE.to_owned(),
            operator,
            values: names.iter().cloned().collect(),
        };
        let mut all = Vec::new();
        // A list of none is no requirement. Cluster-scoped objects has no such label.
        let is_outside = self.only.as_ref().is_some_and(BTreeSet::is_empty)
            || self.buckets.as_ref().is_some_and(IntervalSet::is_empty);
        all.extend(is_outside.then(|| name(Operator::DoesNotExist, &BTreeSet::new())));
        let only = self.only.as_ref().filter(|_| !is_outside);
        all.extend(only.map(|names| name(Operator::In, names)));
        all.extend((!self.without.is_empty()).then(|| name(Operator::NotIn, &self.without)));
        let buckets = self.buckets.as_ref().filter(|_| !is_outside);
        all.extend(buckets.map(|buckets| LabelSelectorRequirement {
            key: BUCKET.to_owned(),
            operator: Operator::In,
            values: numbers(buckets).map(|bucket| bucket.to_string()).collect(),
        }));
        if !all.is_empty() {
            limit.selector.get_or_insert_default().match_expressions.extend(all);
        }
        if let Some(hash) = self.hash() {
            limit.hash = Some(hash);
        }
        let has_outside =
            self.has_outside && template.cluster_scoped != Some(ClusterScoped::Exclude);
        limit.cluster_scoped = Some(cluster_scoped(has_outside));
        limit
    }

    fn hash(&self) -> Option<Hash> {
        let (of, spans) = self.hashes.as_ref()?;
        let function = match of {
            HashOf::Uid => HashFunction::Fnv1a,
            HashOf::Namespace => HashFunction::Fnv1aMixed,
        };
        let text = |number: u128| u64::try_from(number).map_or_else(|_| String::new(), hash_text);
        let ranges =
            spans.iter().map(|Interval { from, to }| HashRange { from: text(from), to: text(to) });
        Some(Hash { of: *of, function: Some(function), ranges: ranges.collect() })
    }

    /// The text of it, for an annotation.
    pub fn text(&self) -> String {
        let buckets = self.buckets.as_ref().map(|buckets| numbers(buckets).collect());
        let text = PartitionText {
            only: self.only.clone(),
            without: self.without.clone(),
            buckets,
            hash: self.hash(),
            cluster_scoped: cluster_scoped(self.has_outside),
        };
        // A struct of texts, numbers and lists has a JSON.
        serde_json::to_string(&text).unwrap_or_default()
    }

    /// The lot that a text says. `None` if it cannot be read.
    pub fn read(text: &str) -> Option<Self> {
        let PartitionText { only, without, buckets, hash, cluster_scoped } =
            serde_json::from_str(text).ok()?;
        let bucket = |number: u8| Interval { from: number.into(), to: u128::from(number) + 1 };
        let is_bucket = |number: &u8| u128::from(*number) < BUCKETS;
        if buckets.as_ref().is_some_and(|all| !all.iter().all(is_bucket)) {
            return None;
        }
        let hashes = match hash {
            None => None,
            Some(Hash { of, ranges, .. }) => {
                let range = |range: HashRange| sharding::HashRange::new(&range.from, &range.to);
                Some((of, ranges.into_iter().map(range).collect::<Result<IntervalSet, _>>().ok()?))
            }
        };
        let buckets = buckets.map(|all| IntervalSet::of(all.into_iter().map(bucket)));
        let has_outside = cluster_scoped == ClusterScoped::Include;
        Some(Self { only, without, buckets, hashes, has_outside }.normal())
    }
}

fn cluster_scoped(has_outside: bool) -> ClusterScoped {
    if has_outside { ClusterScoped::Include } else { ClusterScoped::Exclude }
}

fn hash_text(hash: u64) -> String {
    format!("{hash:#018x}")
}

/// The buckets, each by its number.
fn numbers(buckets: &IntervalSet) -> impl Iterator<Item = u8> + '_ {
    let numbers = buckets.iter().flat_map(|span| span.from..span.to);
    numbers.filter_map(|number| u8::try_from(number).ok())
}
