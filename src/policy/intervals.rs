//! Sets of numbers, as spans.
//!
//! Hides their normal form. Knows nothing of what the numbers count: hashes, or buckets of them.

/// One more than the last hash.
pub(crate) const END: u128 = 1 << 64;

/// A set of numbers: disjoint spans in order, of which none touches the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalSet(Vec<Interval>);

/// The numbers from the first to before the last, which is larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Interval {
    pub(crate) from: u128,
    pub(crate) to: u128,
}

impl Interval {
    pub(crate) fn size(self) -> u128 {
        self.to - self.from
    }
}

impl IntervalSet {
    /// The set of the numbers in any of these.
    pub(crate) fn of(spans: impl IntoIterator<Item = Interval>) -> Self {
        let mut spans: Vec<_> = spans.into_iter().collect();
        spans.sort_unstable();
        let mut set: Vec<Interval> = Vec::new();
        for span in spans {
            match set.last_mut() {
                Some(last) if last.to >= span.from => last.to = last.to.max(span.to),
                _ => set.push(span),
            }
        }
        Self(set)
    }

    /// The numbers from zero to before this one.
    pub(crate) fn up_to(end: u128) -> Self {
        Self::of((end > 0).then_some(Interval { from: 0, to: end }))
    }

    /// The set of these numbers.
    pub(crate) fn numbers(numbers: impl IntoIterator<Item = u128>) -> Self {
        Self::of(numbers.into_iter().map(|from| Interval { from, to: from + 1 }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many numbers are in it.
    pub(crate) fn size(&self) -> u128 {
        self.iter().map(Interval::size).sum()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Interval> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn has(&self, number: u128) -> bool {
        self.iter().any(|span| span.from <= number && number < span.to)
    }

    pub(crate) fn or(&self, other: &Self) -> Self {
        Self::of(self.iter().chain(other.iter()))
    }

    pub(crate) fn and(&self, other: &Self) -> Self {
        let both = self.iter().flat_map(|one| {
            other
                .iter()
                .map(move |two| Interval { from: one.from.max(two.from), to: one.to.min(two.to) })
        });
        Self::of(both.filter(|span| span.from < span.to))
    }

    /// The numbers before the end that are not in it.
    pub(crate) fn not(&self, end: u128) -> Self {
        let mut from = 0;
        let mut set = Vec::new();
        for span in self.iter() {
            if span.from > from {
                set.push(Interval { from, to: span.from });
            }
            from = span.to;
        }
        if from < end {
            set.push(Interval { from, to: end });
        }
        Self(set)
    }

    pub(crate) fn without(&self, other: &Self) -> Self {
        self.and(&other.not(END))
    }

    pub(crate) fn xor(&self, other: &Self) -> Self {
        self.without(other).or(&other.without(self))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spans() -> impl Strategy<Value = IntervalSet> {
        prop::collection::vec((0u128..40, 1u128..9), 0..5).prop_map(|spans| {
            IntervalSet::of(
                spans.into_iter().map(|(from, size)| Interval { from, to: from + size }),
            )
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn sets_are_sets(one in spans(), two in spans()) {
            for number in (0..60).chain([END - 1]) {
                let (a, b) = (one.has(number), two.has(number));
                prop_assert_eq!(one.or(&two).has(number), a || b);
                prop_assert_eq!(one.and(&two).has(number), a && b);
                prop_assert_eq!(one.xor(&two).has(number), a != b);
                prop_assert_eq!(one.without(&two).has(number), a && !b);
                prop_assert_eq!(one.not(END).has(number), !a);
            }
            prop_assert_eq!(&one.xor(&IntervalSet::default()), &one);
            prop_assert!(!one.not(END).has(END));
            prop_assert_eq!(one.size() + one.not(END).size(), END);
            prop_assert_eq!(one.size() + two.size(), one.or(&two).size() + one.and(&two).size());
        }
    }
}
