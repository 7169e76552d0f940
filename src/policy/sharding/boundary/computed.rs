//! The labels that KusionStack stamps, computed from the name of a namespace in place of asked of the
//! object.
//!
//! Hides how each is computed. Knows no object. Words: a *computed key* is the key of such a label,
//! by either prefix; cluster-scoped objects has none of them.

use std::{collections::BTreeSet, fmt};

use super::hash::fnv1a;
use ctrlmesh_wire::selector::{Op, Requirement, Selector};

/// The prefixes of computed keys. One key with either is the same.
const PREFIXES: [&str; 2] = ["ctrlmesh.kusionstack.io/", "kridge.kusionstack.io/"];

/// The buckets of namespaces, as labels have them.
const BUCKETS: [&str; 32] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
    "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31",
];

/// A computed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// The name of the namespace.
    Namespace,
    /// The sum of the name's characters, modulo 32: what KusionStack's code stamps
    /// (`pkg/utils/hash.go` of controller-mesh).
    ShardHash,
    /// The FNV-1a hash of the name, modulo 32: the key that its documents have, which no one stamps.
    ShardingHash,
    /// `true`.
    Control,
}

/// A condition on computed keys: all requirements must be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Computed {
    /// In canonical order, with keys of the first prefix.
    requirements: Vec<(Key, Requirement)>,
    /// The buckets that meet the requirements on a hash, a bit for each.
    buckets: Vec<(Key, u32)>,
}

impl Key {
    fn of(key: &str) -> Option<Self> {
        match PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix))? {
            "namespace" => Some(Self::Namespace),
            "shard-hash" => Some(Self::ShardHash),
            "sharding-hash" => Some(Self::ShardingHash),
            "control" => Some(Self::Control),
            _ => None,
        }
    }

    /// The key with the first prefix.
    fn canonical(self) -> &'static str {
        match self {
            Self::Namespace => "ctrlmesh.kusionstack.io/namespace",
            Self::ShardHash => "ctrlmesh.kusionstack.io/shard-hash",
            Self::ShardingHash => "ctrlmesh.kusionstack.io/sharding-hash",
            Self::Control => "ctrlmesh.kusionstack.io/control",
        }
    }

    /// The value for a namespace. `None` if it is empty: cluster-scoped objects has no such label.
    fn value(self, namespace: &str) -> Option<&str> {
        match self {
            _ if namespace.is_empty() => None,
            Self::Namespace => Some(namespace),
            Self::ShardHash | Self::ShardingHash => {
                let bucket = usize::try_from(self.hash(namespace)? % 32).ok()?;
                BUCKETS.get(bucket).copied()
            }
            Self::Control => Some("true"),
        }
    }

    /// Whether its values are buckets of a hash.
    fn is_bucket(self) -> bool {
        matches!(self, Self::ShardHash | Self::ShardingHash)
    }

    /// The hash that its value is the bucket of. `None` if it is no bucket.
    fn hash(self, namespace: &str) -> Option<u64> {
        match self {
            Self::ShardHash => Some(namespace.bytes().map(u64::from).sum()),
            Self::ShardingHash => Some(fnv1a(namespace)),
            Self::Namespace | Self::Control => None,
        }
    }

    /// All values that it may have. `None` if they cannot be listed.
    fn values(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Namespace => None,
            Self::ShardHash | Self::ShardingHash => Some(&BUCKETS),
            Self::Control => Some(&["true"]),
        }
    }
}

/// The bucket of a namespace, 0 to 31, that KusionStack stamps as `shard-hash`.
pub fn shard_bucket(namespace: &str) -> u64 {
    Key::ShardHash.hash(namespace).unwrap_or_default() % 32
}

impl Computed {
    /// The condition that a selector sets on computed keys, and the rest of the selector. `None` if it
    /// sets none.
    pub fn split(selector: &Selector) -> (Option<Self>, Selector) {
        let all = selector.requirements().iter().cloned();
        let (computed, rest): (Vec<_>, Vec<_>) =
            all.partition(|requirement| Key::of(requirement.key()).is_some());
        let computed = (!computed.is_empty()).then(|| Self::of(computed));
        (computed, rest.into_iter().collect())
    }

    fn of(requirements: Vec<Requirement>) -> Self {
        let keyed = requirements.into_iter().filter_map(|requirement| {
            let key = Key::of(requirement.key())?;
            Some(requirement.on(key.canonical()))
        });
        let selector = keyed.collect::<Selector>().simplest();
        let requirements = selector.requirements().iter();
        let keyed = requirements.filter_map(|one| Some((Key::of(one.key())?, one.clone())));
        Self::new(keyed.collect())
    }

    fn new(requirements: Vec<(Key, Requirement)>) -> Self {
        let hashes = [Key::ShardHash, Key::ShardingHash].into_iter();
        let of_key = |key: Key| requirements.iter().filter(move |(of, _)| *of == key);
        let asked = hashes.filter(|key| of_key(*key).next().is_some());
        let buckets = asked.map(|key| {
            let is_met = |bucket: &&str| of_key(key).all(|(_, one)| one.matches(Some(bucket)));
            let met = BUCKETS.iter().enumerate().filter(|(_, bucket)| is_met(bucket));
            (key, met.fold(0, |all, (at, _)| all | 1 << at))
        });
        let buckets = buckets.collect();
        Self { requirements, buckets }
    }

    /// The values that are asked for and that no namespace has, each with those that there are.
    pub(crate) fn impossible(&self) -> Vec<String> {
        let mut said = Vec::new();
        for (key, one) in &self.requirements {
            let Some(values) = key.values() else { continue };
            let unknown = one.values().iter().filter(|value| !values.contains(&&***value));
            let (first, last) = (values.first().unwrap_or(&""), values.last().unwrap_or(&""));
            let are =
                if first == last { (*first).to_owned() } else { format!("{first} to {last}") };
            said.extend(unknown.map(|value| {
                format!("no namespace has {}={value:?}: there is {are}", key.canonical())
            }));
        }
        said
    }

    /// Whether a namespace meets the condition; `""` means none.
    pub(crate) fn has(&self, namespace: &str) -> bool {
        if namespace.is_empty() {
            return self.requirements.iter().all(|(_, one)| one.matches(None));
        }
        let mut others = self.requirements.iter().filter(|(key, _)| !key.is_bucket());
        let mut buckets = self.buckets.iter();
        buckets
            .all(|(key, met)| key.hash(namespace).is_some_and(|hash| met >> (hash % 32) & 1 == 1))
            && others.all(|(key, one)| one.matches(key.value(namespace)))
    }

    /// The condition that both are met.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let both = self.requirements.iter().chain(&other.requirements);
        Self::of(both.map(|(_, requirement)| requirement.clone()).collect())
    }

    /// A superset of the namespaces that meet it, or `None` if they cannot be listed.
    pub(crate) fn names(&self) -> Option<BTreeSet<Box<str>>> {
        let of_key = |key: Key| self.requirements.iter().filter(move |(of, _)| *of == key);
        let is_met = |(key, _): &(Key, Requirement)| {
            let Some(values) = key.values() else { return true };
            values.iter().any(|value| of_key(*key).all(|(_, one)| one.matches(Some(value))))
        };
        let is_absent = |(_, one): &(Key, Requirement)| one.op() == Op::DoesNotExist;
        if self.requirements.iter().any(|one| !is_met(one) || is_absent(one)) {
            return Some(BTreeSet::new());
        }
        let listed = of_key(Key::Namespace).find(|(_, one)| one.op() == Op::In);
        listed.map(|(_, one)| one.values().iter().map(|name| name.as_str().into()).collect())
    }

    /// Its requirements, each as a condition of its own.
    pub(crate) fn each(&self) -> impl Iterator<Item = Self> {
        self.requirements.iter().map(|one| Self::new(vec![one.clone()]))
    }

    /// The condition that is met where this one is not. `None` if no condition is.
    pub(crate) fn opposite(&self) -> Option<Self> {
        let [(key, one)] = &*self.requirements else { return None };
        Some(Self::new(vec![(*key, one.opposite()?)]))
    }
}

impl fmt::Display for Computed {
    /// The condition as a label selector.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let selector: Selector = self.requirements.iter().map(|(_, one)| one.clone()).collect();
        selector.fmt(f)
    }
}

#[cfg(test)]
mod tests;
