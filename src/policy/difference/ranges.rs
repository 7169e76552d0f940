//! Sets of hashes, and their text in a `shardSelector` (KEP-5866).

use std::fmt;

use crate::{
    policy::sharding::{HashOf, HashRange, fnv1a},
    wire::ListOptions,
};

/// The most ranges in a request line that servers accept.
const MAX_RANGES: usize = 64;
/// One more than the last hash.
const END: u128 = 1 << 64;

/// Hashes of one attribute of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashes {
    of: HashOf,
    set: HashSpans,
}

/// Disjoint spans in order; none touches the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HashSpans(Vec<Span>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    from: u128,
    to: u128,
}

impl Hashes {
    pub(super) fn new(of: HashOf, set: HashSpans) -> Self {
        Self { of, set }
    }

    /// Whether no hash is in it.
    pub fn is_empty(&self) -> bool {
        self.set.0.is_empty()
    }

    /// Whether the set may be added to a client's options: not if it has too many ranges, or if the
    /// client has a `shardSelector` of its own.
    pub fn may_be_pushed(&self, options: &ListOptions<'_>) -> bool {
        self.set.0.len() <= MAX_RANGES && !options.has_shard_selector
    }

    /// Whether an object with this uid, in this namespace, has one of the hashes.
    pub fn has(&self, uid: &str, namespace: &str) -> bool {
        self.set.has(self.hashed(uid, namespace))
    }

    /// The set of one object's hash, and its complement: a probe for servers that apply hashes
    /// without confirming them.
    pub fn of_one(&self, uid: &str, namespace: &str) -> (Self, Self) {
        let one = HashSpans::of_text(self.hashed(uid, namespace));
        let others = Self { of: self.of, set: one.not() };
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
        let mut found: Option<(HashOf, Vec<Span>)> = None;
        for term in text.split("||") {
            let arguments = term.trim().strip_prefix("shardRange(")?.strip_suffix(')')?;
            let mut arguments = arguments.split(',').map(str::trim);
            let of = match arguments.next()? {
                "object.metadata.uid" => HashOf::Uid,
                "object.metadata.namespace" => HashOf::Namespace,
                _ => return None,
            };
            let span = Span { from: number(arguments.next()?)?, to: number(arguments.next()?)? };
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
        Some(Self { of, set: HashSpans::of(spans) })
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
        for (at, Span { from, to }) in self.set.0.iter().enumerate() {
            let or = if at == 0 { "" } else { " || " };
            write!(f, "{or}shardRange({of}, '{from:#018x}', '{to:#018x}')")?;
        }
        Ok(())
    }
}

impl HashSpans {
    pub(super) fn all() -> Self {
        Self(vec![Span { from: 0, to: END }])
    }

    pub(super) fn of_text(text: &str) -> Self {
        let hash = u128::from(fnv1a(text));
        Self(vec![Span { from: hash, to: hash + 1 }])
    }

    /// Whether it has the hash of the text.
    fn has(&self, text: &str) -> bool {
        let hash = u128::from(fnv1a(text));
        self.0.iter().any(|span| span.from <= hash && hash < span.to)
    }

    fn of(mut spans: Vec<Span>) -> Self {
        spans.sort_unstable();
        let mut set: Vec<Span> = Vec::new();
        for span in spans {
            match set.last_mut() {
                Some(last) if last.to >= span.from => last.to = last.to.max(span.to),
                _ => set.push(span),
            }
        }
        Self(set)
    }

    pub(super) fn or(&self, other: &Self) -> Self {
        Self::of(self.0.iter().chain(&other.0).copied().collect())
    }

    fn not(&self) -> Self {
        let mut from = 0;
        let mut set = Vec::new();
        for span in &self.0 {
            if span.from > from {
                set.push(Span { from, to: span.from });
            }
            from = span.to;
        }
        if from < END {
            set.push(Span { from, to: END });
        }
        Self(set)
    }

    pub(super) fn xor(&self, other: &Self) -> Self {
        let without = |one: &Self, two: &Self| one.not().or(two).not();
        without(self, other).or(&without(other, self))
    }
}

impl FromIterator<HashRange> for HashSpans {
    fn from_iter<I: IntoIterator<Item = HashRange>>(ranges: I) -> Self {
        let span = |range: HashRange| {
            let (from, to) = range.bounds();
            Span { from: from.into(), to: to.map_or(END, u128::from) }
        };
        Self::of(ranges.into_iter().map(span).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(spans: &[(u128, u128)]) -> HashSpans {
        HashSpans::of(spans.iter().map(|(from, to)| Span { from: *from, to: *to }).collect())
    }

    fn holds(set: &HashSpans, hash: u128) -> bool {
        set.0.iter().any(|span| span.from <= hash && hash < span.to)
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

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn sets_are_sets(
            one in prop::collection::vec((0u128..40, 1u128..9), 0..5),
            two in prop::collection::vec((0u128..40, 1u128..9), 0..5),
        ) {
            let spans = |of: &[(u128, u128)]| set(&of.iter().map(|(from, n)| (*from, from + n)).collect::<Vec<_>>());
            let (one, two) = (spans(&one), spans(&two));
            for hash in (0..60).chain([END - 1]) {
                let (a, b) = (holds(&one, hash), holds(&two, hash));
                prop_assert_eq!(holds(&one.or(&two), hash), a || b);
                prop_assert_eq!(holds(&one.xor(&two), hash), a != b);
                prop_assert_eq!(holds(&one.not(), hash), !a);
            }
            prop_assert_eq!(&one.xor(&HashSpans::default()), &one);
            prop_assert!(!holds(&one.not(), END));
        }
    }
}
