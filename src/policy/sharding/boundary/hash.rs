//! Hashes of objects, and ranges of them (KEP-5866).
//!
//! Hides how a hash is spelled and computed. Knows no boundary.

use std::fmt;

use crate::intervals::{END, Interval, IntervalSet};

/// A rule for objects whose hash is in one of the ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashRule {
    of: HashOf,
    function: HashFunction,
    ranges: Vec<HashRange>,
}

/// The hashed attribute, as its bytes in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashOf {
    /// `metadata.uid`.
    Uid,
    /// `metadata.namespace`.
    Namespace,
}

/// The function that hashes the attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashFunction {
    /// FNV-1a, which API servers know too.
    #[default]
    Fnv1a,
    /// FNV-1a, mixed, which they do not.
    Mixed,
}

/// A range of hashes: the first in it, and the first after it, or `None` if it has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HashRange {
    from: u64,
    to: Option<u64>,
}

/// Errors in hash ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadRange {
    #[error("{0:?} is not a hash: give 0x and sixteen digits 0-9a-f")]
    Hash(String),
    #[error(
        "from {from} to {to} contains no hash: `to` is exclusive and must be larger than `from`"
    )]
    Empty { from: String, to: String },
    #[error("{0} overlaps {1}: the ranges of a shard must be disjoint")]
    Overlap(HashRange, HashRange),
    #[error("is empty: name a range, for example from 0x0000000000000000 to \"\", the end")]
    None,
}

impl HashRule {
    /// A rule for ranges in any order, by FNV-1a.
    pub fn new(of: HashOf, ranges: Vec<HashRange>) -> Result<Self, BadRange> {
        Self::by(of, HashFunction::Fnv1a, ranges)
    }

    /// A rule for the mixed hashes of namespaces, in any order.
    pub fn mixed(ranges: Vec<HashRange>) -> Result<Self, BadRange> {
        Self::by(HashOf::Namespace, HashFunction::Mixed, ranges)
    }

    fn by(
        of: HashOf,
        function: HashFunction,
        mut ranges: Vec<HashRange>,
    ) -> Result<Self, BadRange> {
        if ranges.is_empty() {
            return Err(BadRange::None);
        }
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            if let [one, next] = pair
                && one.to.is_none_or(|to| to > next.from)
            {
                return Err(BadRange::Overlap(*next, *one));
            }
        }
        Ok(Self { of, function, ranges })
    }

    /// The hashes in both of two rules for one attribute and function. `None` if there are none.
    pub(in crate::sharding) fn meet(&self, other: &Self) -> Option<Self> {
        let mut ranges: Vec<HashRange> = Vec::new();
        let (mut ones, mut others) =
            (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        while let (Some(one), Some(other)) = (ones.peek(), others.peek()) {
            let end = |range: &HashRange| range.to.map_or(END, u128::from);
            let to = if end(one) < end(other) { one.to } else { other.to };
            let from = one.from.max(other.from);
            if to.is_none_or(|to| from < to) {
                match ranges.last_mut() {
                    // What touches is one range, so that equal sets are equal rules.
                    Some(last) if last.to == Some(from) => last.to = to,
                    _ => ranges.push(HashRange { from, to }),
                }
            }
            if end(one) <= end(other) {
                ones.next()
            } else {
                others.next()
            };
        }
        (!ranges.is_empty()).then_some(Self { ranges, ..*self })
    }

    /// The hashes that are not in it. `None` if there are none.
    pub(in crate::sharding) fn complement(&self) -> Option<Self> {
        let mut ranges = Vec::new();
        let mut from = Some(0);
        for range in &self.ranges {
            if let Some(first) = from.filter(|first| *first < range.from) {
                ranges.push(HashRange { from: first, to: Some(range.from) });
            }
            from = range.to;
        }
        ranges.extend(from.map(|from| HashRange { from, to: None }));
        (!ranges.is_empty()).then_some(Self { ranges, ..*self })
    }

    /// The ranges as [`HashRange::new`] reads them.
    pub(crate) fn texts(&self) -> Vec<(String, String)> {
        let text = |hash: u64| format!("{hash:#018x}");
        let ends = |range: &HashRange| (text(range.from), range.to.map(text).unwrap_or_default());
        self.ranges.iter().map(ends).collect()
    }

    /// Whether the rule has the hash of the text.
    pub(in crate::sharding) fn has(&self, text: &str) -> bool {
        self.contains(match self.function {
            HashFunction::Fnv1a => fnv1a(text),
            HashFunction::Mixed => mixed(fnv1a(text)),
        })
    }

    /// Whether the rule has a hash.
    pub(crate) fn contains(&self, hash: u64) -> bool {
        holds(&self.ranges, hash)
    }

    /// The hashed attribute.
    pub fn of(&self) -> HashOf {
        self.of
    }

    /// The function that hashes it.
    pub fn function(&self) -> HashFunction {
        self.function
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> &[HashRange] {
        &self.ranges
    }
}

impl HashRange {
    /// The first hash in it, and the first after it, or `None` if it has no end.
    pub(crate) fn bounds(self) -> (u64, Option<u64>) {
        (self.from, self.to)
    }

    /// A range between two hashes, `0x` and sixteen digits each; `""` as `to` is the end.
    pub fn new(from: &str, to: &str) -> Result<Self, BadRange> {
        let first = hash(from)?;
        let end = if to.is_empty() { None } else { Some(hash(to)?) };
        if end.is_some_and(|end| end <= first) {
            return Err(BadRange::Empty { from: from.to_owned(), to: to.to_owned() });
        }
        Ok(Self { from: first, to: end })
    }
}

impl FromIterator<HashRange> for IntervalSet {
    fn from_iter<I: IntoIterator<Item = HashRange>>(ranges: I) -> Self {
        Self::of(ranges.into_iter().map(|range| {
            let (from, to) = range.bounds();
            Interval { from: from.into(), to: to.map_or(END, u128::from) }
        }))
    }
}

/// Parses the spelling of KEP-5866, which gives each hash exactly one text.
fn hash(text: &str) -> Result<u64, BadRange> {
    let bad = || BadRange::Hash(text.to_owned());
    let digits = text.strip_prefix("0x").ok_or_else(bad)?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() != 16 || !digits.bytes().all(is_digit) {
        return Err(bad());
    }
    u64::from_str_radix(digits, 16).map_err(|_| bad())
}

/// Whether a hash is in the ranges, which are sorted and disjoint.
fn holds(ranges: &[HashRange], hash: u64) -> bool {
    let behind = ranges.partition_point(|range| range.from <= hash);
    let range = behind.checked_sub(1).and_then(|at| ranges.get(at));
    range.is_some_and(|range| range.to.is_none_or(|to| hash < to))
}

/// FNV-1a with 64 bits, of the bytes as they are: the hash of KEP-5866, so that the API server and
/// the proxy draw the same boundary.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A hash whose bits all depend on all bits of another: the finaliser of MurmurHash3 (`fmix64`), with
/// its constants. FNV-1a multiplies last by a number with few bits set, so that texts which differ in
/// their last characters only differ little in the highest bits, by which ranges tell them apart.
pub(crate) fn mixed(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

impl fmt::Display for HashRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to {
            Some(to) => write!(f, "[{:#018x}, {to:#018x})", self.from),
            None => write!(f, "[{:#018x}, end)", self.from),
        }
    }
}
