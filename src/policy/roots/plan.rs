//! The cut of a row of numbers into shares of the same size.
//!
//! Hides which numbers change hands: as few as make the shares equal, and where possible those beside
//! what the receiver has. Knows neither what the numbers count nor whose the shares are.

use std::cmp::Reverse;

use crate::policy::spans::{Span, Spans};

/// The most spans of a share: as many as a limit may have ranges.
pub(super) const MOST_SPANS: usize = 32;

/// A part of all numbers that is too small to change hands for: shares that are not divisible differ
/// by it, and no span is as small.
fn tolerance(end: u128) -> u128 {
    end >> 24
}

/// The shares of `count` owners in all numbers before `end`, if their shares are these by now; what
/// nobody has, and what owners beyond the count have, is given away. Shares differ in size by hardly anything, of few
/// numbers by at most one.
pub(super) fn shares(now: &[Spans], count: u32, end: u128) -> Vec<Spans> {
    let moved = Cut::of(now, count, end).done();
    if moved.iter().all(|share| share.iter().len() <= MOST_SPANS) {
        return moved;
    }
    Cut::of(&[], count, end).done()
}

/// The shares of `count` owners before `end`, without what an owner before has, too.
pub(super) fn disjoint(now: &[Spans], count: u32, end: u128) -> Vec<Spans> {
    let mut taken = Spans::default();
    let shares = (0..count).map(|at| {
        let share = usize::try_from(at).ok().and_then(|at| now.get(at)).cloned();
        let share = share.unwrap_or_default().and(&Spans::up_to(end)).without(&taken);
        taken = taken.or(&share);
        share
    });
    shares.collect()
}

struct Cut {
    end: u128,
    /// The shares, each with the size that it is to have.
    shares: Vec<(Spans, u128)>,
}

impl Cut {
    fn of(now: &[Spans], count: u32, end: u128) -> Self {
        let shares = disjoint(now, count, end).into_iter().zip(0..).map(|(share, at)| {
            let rest = u128::from(at < end % u128::from(count));
            (share, end / u128::from(count) + rest)
        });
        Self { end, shares: shares.collect() }
    }

    fn done(mut self) -> Vec<Spans> {
        let all = self.shares.iter().fold(Spans::default(), |all, (share, _)| all.or(share));
        let mut free: Vec<Span> = all.not(self.end).iter().collect();
        free.reverse();
        loop {
            while let Some(span) = free.pop() {
                free.extend(self.give(span));
            }
            match self.take() {
                Some(span) => free.push(span),
                None => return self.shares.into_iter().map(|(share, _)| share).collect(),
            }
        }
    }

    /// Gives a span, or a part of it, to whom it is behind, or beside, or who lacks most. Returns the
    /// rest.
    fn give(&mut self, span: Span) -> Option<Span> {
        let few = tolerance(self.end);
        let lack = |(share, size): &(Spans, u128)| size.saturating_sub(share.size());
        let is_behind = |(share, _): &(Spans, u128)| share.iter().any(|own| own.to == span.from);
        let is_ahead = |(share, _): &(Spans, u128)| share.iter().any(|own| own.from == span.to);
        let rank = |at: usize, one: &(Spans, u128)| {
            let lacks = lack(one) > few;
            // Spans are taken from the end of others, to which they go back.
            (lacks, lacks && is_behind(one), lacks && is_ahead(one), lack(one), Reverse(at))
        };
        let ranked = self.shares.iter().enumerate();
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
        one.0 = one.0.or(&Spans::of([given]));
        rest
    }

    /// Takes from whose share is most too large. `None` if no share is.
    fn take(&mut self) -> Option<Span> {
        let few = tolerance(self.end);
        let excess = |(share, size): &(Spans, u128)| share.size().saturating_sub(*size);
        let fullest = self.shares.iter_mut().max_by_key(|one| excess(one))?;
        let size = excess(fullest);
        // Of one span, if one is large enough, so that shares do not fall into pieces.
        let rank = |span: &Span| match span.size() >= size {
            true => (false, span.size()),
            false => (true, size - span.size()),
        };
        let span = fullest.0.iter().min_by_key(rank).filter(|_| size > few)?;
        let kept = span.size().saturating_sub(size);
        let kept = if kept > few { kept } else { 0 };
        let taken = split(span, kept).map_or(span, |(_, end)| end);
        fullest.0 = fullest.0.without(&Spans::of([taken]));
        Some(taken)
    }
}

/// The first numbers of a span, this many, and the others. `None` if one of them has none.
fn split(span: Span, first: u128) -> Option<(Span, Span)> {
    let at = span.from + first;
    let is_inside = span.from < at && at < span.to;
    is_inside.then_some((Span { from: span.from, to: at }, Span { from: at, to: span.to }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::spans::END;

    fn moved(before: &[Spans], after: &[Spans]) -> u128 {
        let none = Spans::default();
        let gained = after
            .iter()
            .enumerate()
            .map(|(at, share)| share.without(before.get(at).unwrap_or(&none)).size());
        gained.sum()
    }

    fn is_whole(shares: &[Spans], end: u128) -> bool {
        let all = shares.iter().fold(Spans::default(), |all, share| all.or(share));
        all == Spans::up_to(end) && shares.iter().map(Spans::size).sum::<u128>() == end
    }

    #[test]
    fn i15_fresh_shares_are_in_order_and_as_those_of_kusionstack() {
        let sizes = |count| -> Vec<_> { shares(&[], count, 32).iter().map(Spans::size).collect() };
        assert_eq!(sizes(3), [11, 11, 10]);
        assert_eq!(sizes(2), [16, 16]);
        for (at, share) in shares(&[], 4, 32).iter().enumerate() {
            let from = 8 * at as u128;
            assert_eq!(*share, Spans::of([Span { from, to: from + 8 }]));
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
            let smallest = next.iter().flat_map(Spans::iter).map(Span::size).min();
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
                    *share = Spans::default();
                }
                let next = shares(&now, count, END);
                prop_assert_eq!(next.len(), count as usize);
                prop_assert!(is_whole(&next, END));
                let sizes: Vec<u128> = next.iter().map(Spans::size).collect();
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
                Spans::of(spans.iter().map(|(from, size)| Span { from: *from, to: from + size }))
            });
            let now: Vec<_> = now.collect();
            prop_assert!(is_whole(&shares(&now, count, 32), 32));
        }
    }
}
