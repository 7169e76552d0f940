//! Sets of hashes, and their text in a `shardSelector` (KEP-5866).

use std::fmt;

use crate::{
    intervals::{END, Interval, IntervalSet},
    sharding::{HashOf, fnv1a},
};
use ctrlmesh_wire::ListOptions;

/// The most ranges in a request line that servers accept.
const MAX_RANGES: usize = 64;

/// Hashes of one attribute of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashes {
    of: HashOf,
    set: IntervalSet,
}

impl Hashes {
    pub(super) fn new(of: HashOf, set: IntervalSet) -> Self {
        Self { of, set }
    }

    /// Whether no hash is in it.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Whether the set may be added to a client's options: not if it has too many ranges, or if the
    /// client has a `shardSelector` of its own.
    pub fn may_be_pushed(&self, options: &ListOptions<'_>) -> bool {
        self.set.iter().len() <= MAX_RANGES && !options.has_shard_selector
    }

    /// Whether an object with this uid, in this namespace, has one of the hashes.
    pub fn has(&self, uid: &str, namespace: &str) -> bool {
        self.set.has(u128::from(fnv1a(self.hashed(uid, namespace))))
    }

    /// The set of one object's hash, and its complement: a probe for servers that apply hashes
    /// without confirming them.
    pub fn of_one(&self, uid: &str, namespace: &str) -> (Self, Self) {
        let one = Self::span_of(self.hashed(uid, namespace));
        let others = Self { of: self.of, set: one.not(END) };
        (Self { of: self.of, set: one }, others)
    }

    fn hashed<'t>(&self, uid: &'t str, namespace: &'t str) -> &'t str {
        match self.of {
            HashOf::Uid => uid,
            HashOf::Namespace => namespace,
        }
    }

    /// Whether `text`, the selector in a list's `metadata.shardInfo`, means this set. The API
    /// server prints the selector in its own form.
    pub fn is_said_by(&self, text: &str) -> bool {
        Self::read(text).as_ref() == Some(self)
    }

    /// Parses the text that [`Self`] prints, with any quotes and spaces.
    fn read(text: &str) -> Option<Self> {
        let mut found: Option<(HashOf, Vec<Interval>)> = None;
        for term in text.split("||") {
            let arguments = term.trim().strip_prefix("shardRange(")?.strip_suffix(')')?;
            let mut arguments = arguments.split(',').map(str::trim);
            let of = match arguments.next()? {
                "object.metadata.uid" => HashOf::Uid,
                "object.metadata.namespace" => HashOf::Namespace,
                _ => return None,
            };
            let span =
                Interval { from: number(arguments.next()?)?, to: number(arguments.next()?)? };
            if arguments.next().is_some() || span.from >= span.to || span.to > END {
                return None;
            }
            let (known, spans) = found.get_or_insert_with(|| (of, Vec::new()));
            if *known != of {
                return None;
            }
            spans.push(span);
        }
        let (of, spans) = found?;
        Some(Self { of, set: IntervalSet::of(spans) })
    }
}

fn number(quoted: &str) -> Option<u128> {
    let text = quoted.trim_matches(['\'', '"']);
    u128::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

impl fmt::Display for Hashes {
    /// The value of `shardSelector=`. An empty set has no text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.of {
            HashOf::Uid => "object.metadata.uid",
            HashOf::Namespace => "object.metadata.namespace",
        };
        for (at, Interval { from, to }) in self.set.iter().enumerate() {
            let or = if at == 0 { "" } else { " || " };
            write!(f, "{or}shardRange({of}, '{from:#018x}', '{to:#018x}')")?;
        }
        Ok(())
    }
}

impl Hashes {
    /// The set with the hash of a text alone.
    pub(super) fn span_of(text: &str) -> IntervalSet {
        let hash = u128::from(fnv1a(text));
        IntervalSet::of([Interval { from: hash, to: hash + 1 }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(spans: &[(u128, u128)]) -> IntervalSet {
        IntervalSet::of(spans.iter().map(|(from, to)| Interval { from: *from, to: *to }))
    }

    #[test]
    fn t48_the_echo_is_compared_as_ranges() {
        let half = Hashes::new(HashOf::Uid, set(&[(0, 1 << 63)]));
        let echo =
            "shardRange(object.metadata.uid, \"0x0000000000000000\", \"0x8000000000000000\")";
        assert!(half.is_said_by(echo));
        assert!(half.is_said_by(&echo.replace('"', "'").replace(", ", ",")));
        assert!(!half.is_said_by(&echo.replace("uid", "namespace")));
        assert!(!half.is_said_by(&echo.replace("0x8", "0x9")));
        assert!(!half.is_said_by("") && !half.is_said_by(&echo[1..]));
        let end = Hashes::new(HashOf::Uid, set(&[(7, 9), (1 << 63, END)]));
        assert!(end.is_said_by(&end.to_string()), "{end}");
        assert!(end.to_string().ends_with("'0x8000000000000000', '0x10000000000000000')"), "{end}");
        let twice = format!("{end} || {end}");
        assert!(end.is_said_by(&twice), "what overlaps is one");
    }
}
