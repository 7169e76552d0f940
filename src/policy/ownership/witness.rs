//! Example objects that prove an overlap or a gap.

use std::{collections::BTreeMap, fmt};

use super::places::Places;
use crate::sharding::fnv1a;
use ctrlmesh_wire::selector::{Requirement, Selector};

/// The most uids that are tried for a range of hashes.
const MOST_UIDS: u64 = 1 << 14;

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding<T> {
    /// There is this one.
    Found(T),
    /// It is proven that there is none.
    None,
    /// Neither is known.
    Undecided(Undecided),
}

/// The reason why it is not known whether there is an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Undecided {
    /// No namespace has the labels now that several selectors ask for.
    #[error("a namespace that gets other labels may be in both")]
    NamespaceLabels,
    /// No namespace was found whose name meets all patterns, hashes and computed labels.
    #[error("a namespace of another name may be in both")]
    NamespaceNames,
    /// The resource may have no objects outside of namespaces.
    #[error("objects in no namespace are in both, if the resource has any")]
    Outside,
    /// The selectors have too many labels.
    #[error("the labels that the selectors name are too many to try")]
    Labels,
}

/// An object, as far as it matters for whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The namespace. Empty if the object is in none.
    pub namespace: Box<str>,
    /// Whether it is a Namespace itself.
    pub is_namespace: bool,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The uid.
    pub uid: Uid,
}

/// The uid of a witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uid {
    /// Any.
    Any,
    /// This one.
    Such(String),
    /// Any with this hash: none was found.
    Hash(u64),
}

impl Uid {
    /// A uid whose hash is in a range; `None` as its end is the last hash.
    pub(super) fn within(from: u64, to: Option<u64>) -> Self {
        if from == 0 && to.is_none() {
            return Self::Any;
        }
        let found = (0..MOST_UIDS).map(uid).find(|uid| {
            let hash = fnv1a(uid);
            hash >= from && to.is_none_or(|to| hash < to)
        });
        found.map_or(Self::Hash(from), Self::Such)
    }
}

/// The uid of this number: random as those of version 4 (RFC 9562), but the same each time.
fn uid(number: u64) -> String {
    let mut random = fastrand::Rng::with_seed(number);
    let bits = random.u128(..);
    let [high, low] = [bits >> 64, bits & u128::from(u64::MAX)];
    let [a, b, c] = [high >> 32, (high >> 16) & 0xffff, high & 0xfff];
    let [d, e] = [(low >> 48) & 0x3fff | 0x8000, low & 0xffff_ffff_ffff];
    format!("{a:08x}-{b:04x}-4{c:03x}-{d:04x}-{e:012x}")
}

impl Witness {
    pub(super) fn new(
        namespace: &str,
        places: Places,
        labels: BTreeMap<String, String>,
        uid: Uid,
    ) -> Self {
        Self { namespace: namespace.into(), is_namespace: places == Places::Named, labels, uid }
    }
}

impl fmt::Display for Witness {
    /// Writes `one in namespace ant with labels team=blue and a uid of hash 0x…`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, is_namespace, labels, uid } = self;
        match &**namespace {
            "" => f.write_str("one in no namespace")?,
            name if *is_namespace => write!(f, "Namespace {name}")?,
            name => write!(f, "one in namespace {name}")?,
        }
        if !labels.is_empty() {
            let equal = labels.iter().map(|(key, value)| Requirement::equals(key, value).ok());
            let labels: Selector = equal.flatten().collect();
            write!(f, " with labels {labels}")?;
        }
        match uid {
            Uid::Any => Ok(()),
            Uid::Such(uid) => write!(f, " and uid {uid}"),
            Uid::Hash(hash) => write!(f, " and a uid with hash {hash:#018x}"),
        }
    }
}
