//! Splits a key space into equal ranges, and moves as few keys as possible.
//!
//! Hides which keys move: where possible those next to what the receiver has. Knows neither what the numbers count nor whose the shares are.

use std::cmp::Reverse;

use crate::intervals::{Interval, IntervalSet};

/// The most spans of a share: as many as a limit may have ranges.
pub(super) const MOST_SPANS: usize = 32;

/// A part of all numbers that is too small to change hands for: shares that are not divisible differ
/// by it, and no span is as small.
fn tolerance(end: u128) -> u128 {
    end >> 24
}

/// The shares of `count` owners in all numbers before `end`, if their present shares are `now`. Numbers
/// without an owner, and those of owners beyond the count, are given away. Shares differ in size by hardly
/// anything, of few numbers by at most one.
pub(super) fn shares(now: &[IntervalSet], count: u32, end: u128) -> Vec<IntervalSet> {
    let moved = Cut::of(now, count, end).done();
    if moved.iter().all(|share| share.iter().len() <= MOST_SPANS) {
        return moved;
    }
    Cut::of(&[], count, end).done()
}

/// The shares in which these owners alone get what no one has, and no one loses anything. `None` if none of
/// them may, or one would be in too many pieces.
pub(super) fn given(now: &[IntervalSet], takes: &[bool], end: u128) -> Option<Vec<IntervalSet>> {
    let mut cut = Cut::of(now, u32::try_from(takes.len()).ok()?, end);
    let kept = cut.shares.iter().zip(takes).filter(|(_, takes)| !**takes);
    let kept: u128 = kept.map(|((share, _), _)| share.size()).sum();
    let count = takes.iter().filter(|takes| **takes).count();
    let each = (end - kept).checked_div(u128::try_from(count).ok()?)?;
    for ((share, size), takes) in cut.shares.iter_mut().zip(takes) {
        *size = if *takes { each + 1 } else { share.size() };
    }
    cut.takes = takes.to_vec();
    for span in cut.free() {
        let mut rest = Some(span);
        while let Some(span) = rest {
            rest = cut.give(span);
        }
    }
    let shares = cut.into_shares();
    shares.iter().all(|share| share.iter().len() <= MOST_SPANS).then_some(shares)
}

/// The shares of `count` owners before `end`, without what an owner before has, too.
pub(super) fn disjoint(now: &[IntervalSet], count: u32, end: u128) -> Vec<IntervalSet> {
    let mut taken = IntervalSet::default();
    let shares = (0..count).map(|at| {
        let share = usize::try_from(at).ok().and_then(|at| now.get(at)).cloned();
        let share = share.unwrap_or_default().and(&IntervalSet::up_to(end)).without(&taken);
        taken = taken.or(&share);
        share
    });
    shares.collect()
}

struct Cut {
    end: u128,
    /// The shares, each with the size that it is to have.
    shares: Vec<(IntervalSet, u128)>,
    /// The owners that may get something.
    takes: Vec<bool>,
}

impl Cut {
    fn of(now: &[IntervalSet], count: u32, end: u128) -> Self {
        let shares = disjoint(now, count, end).into_iter().zip(0..).map(|(share, at)| {
            let rest = u128::from(at < end % u128::from(count));
            (share, end / u128::from(count) + rest)
        });
        let shares: Vec<_> = shares.collect();
        Self { end, takes: vec![true; shares.len()], shares }
    }

    /// What no one has.
    fn free(&self) -> Vec<Interval> {
        let all = self.shares.iter().fold(IntervalSet::default(), |all, (share, _)| all.or(share));
        all.not(self.end).iter().collect()
    }

    fn into_shares(self) -> Vec<IntervalSet> {
        self.shares.into_iter().map(|(share, _)| share).collect()
    }

    fn done(mut self) -> Vec<IntervalSet> {
        let mut free = self.free();
        free.reverse();
        loop {
            while let Some(span) = free.pop() {
                free.extend(self.give(span));
            }
            match self.take() {
                Some(span) => free.push(span),
                None => return self.into_shares(),
            }
        }
    }

    /// Gives a span, or a part of it, to whom it is behind, or next to, or who lacks most. Returns the
    /// rest.
    fn give(&mut self, span: Interval) -> Option<Interval> {
        let few = tolerance(self.end);
        let lack = |(share, size): &(IntervalSet, u128)| size.saturating_sub(share.size());
        let is_behind =
            |(share, _): &(IntervalSet, u128)| share.iter().any(|own| own.to == span.from);
        let is_ahead =
            |(share, _): &(IntervalSet, u128)| share.iter().any(|own| own.from == span.to);
        let rank = |at: usize, one: &(IntervalSet, u128)| {
            let lacks = lack(one) > few;
            // IntervalSet are taken from the end of others, to which they go back.
            (lacks, lacks && is_behind(one), lacks && is_ahead(one), lack(one), Reverse(at))
        };
        let ranked = self.shares.iter().enumerate().zip(&self.takes);
        let ranked = ranked.filter(|(_, takes)| **takes).map(|(one, _)| one);
        let (_, at) = ranked.map(|(at, one)| (rank(at, one), at)).max()?;
        let one = self.shares.get_mut(at)?;
        let size = lack(one).min(span.size());
        let (given, rest) = if span.size() - size <= few {
            (span, None)
        } else if is_ahead(one) && !is_behind(one) {
            split(span, span.size() - size).map_or((span, None), |(a, b)| (b, Some(a)))
        } else {
            split(span, size).map_or((span, None), |(a, b)| (a, Some(b)))
        };
        one.0 = one.0.or(&IntervalSet::of([given]));
        rest
    }

    /// Takes from whose share is most too large. `None` if no share is.
    fn take(&mut self) -> Option<Interval> {
        let few = tolerance(self.end);
        let excess = |(share, size): &(IntervalSet, u128)| share.size().saturating_sub(*size);
        let fullest = self.shares.iter_mut().max_by_key(|one| excess(one))?;
        let size = excess(fullest);
        // Of one span, if one is large enough, so that shares do not fall into pieces.
        let rank = |span: &Interval| match span.size() >= size {
            true => (false, span.size()),
            false => (true, size - span.size()),
        };
        let span = fullest.0.iter().min_by_key(rank).filter(|_| size > few)?;
        let kept = span.size().saturating_sub(size);
        let kept = if kept > few { kept } else { 0 };
        let taken = split(span, kept).map_or(span, |(_, end)| end);
        fullest.0 = fullest.0.without(&IntervalSet::of([taken]));
        Some(taken)
    }
}

/// The first numbers of a span, this many, and the others. `None` if one of them has none.
fn split(span: Interval, first: u128) -> Option<(Interval, Interval)> {
    let at = span.from + first;
    let is_inside = span.from < at && at < span.to;
    is_inside.then_some((Interval { from: span.from, to: at }, Interval { from: at, to: span.to }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::intervals::END;

    fn moved(before: &[IntervalSet], after: &[IntervalSet]) -> u128 {
        let none = IntervalSet::default();
        let gained = after
            .iter()
            .enumerate()
            .map(|(at, share)| share.without(before.get(at).unwrap_or(&none)).size());
        gained.sum()
    }

    fn is_whole(shares: &[IntervalSet], end: u128) -> bool {
        let all = shares.iter().fold(IntervalSet::default(), |all, share| all.or(share));
        all == IntervalSet::up_to(end) && shares.iter().map(IntervalSet::size).sum::<u128>() == end
    }

    #[test]
    fn i15_fresh_shares_are_in_order_and_as_those_of_kusionstack() {
        let sizes =
            |count| -> Vec<_> { shares(&[], count, 32).iter().map(IntervalSet::size).collect() };
        assert_eq!(sizes(3), [11, 11, 10]);
        assert_eq!(sizes(2), [16, 16]);
        for (at, share) in shares(&[], 4, 32).iter().enumerate() {
            let from = 8 * at as u128;
            assert_eq!(*share, IntervalSet::of([Interval { from, to: from + 8 }]));
        }
    }

    #[test]
    fn i15_a_shard_more_moves_its_own_share_and_one_less_gives_it_back() {
        for end in [END, 32] {
            let three = shares(&[], 3, end);
            let four = shares(&three, 4, end);
            assert!(moved(&three, &four).abs_diff(end / 4) <= 4 * tolerance(end), "{four:?}");
            let again = shares(&four, 3, end);
            assert!(moved(&four, &again) <= end / 4 + tolerance(end) + 1, "{again:?}");
            assert_eq!(again, three);
        }
    }

    #[test]
    fn i15_one_more_or_less_moves_its_share_alone_and_no_span_is_a_sliver() {
        let mut now = shares(&[], 1, END);
        for count in 2..=32_u32 {
            let next = shares(&now, count, END);
            let smallest = next.iter().flat_map(IntervalSet::iter).map(Interval::size).min();
            assert!(smallest > Some(tolerance(END)), "{count}: {next:x?}");
            let back = shares(&next, count - 1, END);
            let share = END / u128::from(count) + 64 * tolerance(END);
            assert!(moved(&now, &next) <= share && moved(&next, &back) <= share, "{count}");
            if count < 5 {
                assert!(moved(&now, &back) <= 8 * tolerance(END), "{count}: it comes back");
            }
            now = next;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

        #[test]
        fn i15_shares_are_whole_equal_and_few_however_they_came_about(
            counts in prop::collection::vec(1..=32_u32, 1..40),
            lost in prop::option::of(0..32_usize),
        ) {
            let mut now = Vec::new();
            let mut many = 0;
            for count in counts {
                if let Some(share) = lost.and_then(|at| now.get_mut(at)) {
                    *share = IntervalSet::default();
                }
                let next = shares(&now, count, END);
                prop_assert_eq!(next.len(), count as usize);
                prop_assert!(is_whole(&next, END));
                let sizes: Vec<u128> = next.iter().map(IntervalSet::size).collect();
                let [least, most] = [sizes.iter().min(), sizes.iter().max()].map(|of| *of.unwrap());
                prop_assert!(most - least <= 64 * tolerance(END), "{next:x?}");
                prop_assert_eq!(&shares(&next, count, END), &next, "it moves nothing twice");
                many = many.max(next.iter().map(|share| share.iter().len()).max().unwrap());
                now = next;
            }
            prop_assert!(many <= MOST_SPANS);
        }

        #[test]
        fn i15_what_is_not_whole_is_made_whole(
            cuts in prop::collection::vec((0..32_u128, 1..8_u128), 0..12),
            count in 1..=32_u32,
        ) {
            let now = cuts.chunks(3).map(|spans| {
                IntervalSet::of(spans.iter().map(|(from, size)| Interval { from: *from, to: from + size }))
            });
            let now: Vec<_> = now.collect();
            prop_assert!(is_whole(&shares(&now, count, 32), 32));
        }
    }
}
