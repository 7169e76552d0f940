//! The cut of a row of numbers into shares of the same size.
//!
//! Hides which numbers change hands: as few as make the shares equal, and where possible those beside
//! what the receiver has. Knows neither what the numbers count nor whose the shares are.

use crate::policy::spans::{Span, Spans};

/// The most spans of a share: as many as a limit may have ranges.
const MOST_SPANS: usize = 32;

/// The shares of `count` owners in all numbers before `end`, if their shares are these by now; what
/// nobody has, and what owners beyond the count have, is given away. Shares differ in size by at most one.
pub(super) fn shares(now: &[Spans], count: u32, end: u128) -> Vec<Spans> {
    let moved = Cut::of(now, count, end).done();
    if moved.iter().all(|share| share.iter().len() <= MOST_SPANS) {
        return moved;
    }
    Cut::of(&[], count, end).done()
}

struct Cut {
    end: u128,
    /// The shares, each with the size that it is to have.
    shares: Vec<(Spans, u128)>,
}

impl Cut {
    fn of(now: &[Spans], count: u32, end: u128) -> Self {
        let mut taken = Spans::default();
        let shares = (0..count).map(|at| {
            let share = usize::try_from(at).ok().and_then(|at| now.get(at)).cloned();
            let share = share.unwrap_or_default().and(&Spans::up_to(end)).without(&taken);
            taken = taken.or(&share);
            let rest = u128::from(u128::from(at) < end % u128::from(count));
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

    /// Gives a span, or its beginning, to whom it is beside, or who lacks most. Returns the rest.
    fn give(&mut self, span: Span) -> Option<Span> {
        let lack = |(share, size): &(Spans, u128)| size.saturating_sub(share.size());
        let is_beside = |(share, _): &(Spans, u128)| {
            share.iter().any(|own| own.to == span.from || own.from == span.to)
        };
        let rank = |at: usize, one: &(Spans, u128)| {
            (lack(one) > 0).then(|| (is_beside(one), lack(one), std::cmp::Reverse(at)))
        };
        let ranked = self.shares.iter().enumerate();
        let (_, at) = ranked.filter_map(|(at, one)| Some((rank(at, one)?, at))).max()?;
        let one = self.shares.get_mut(at)?;
        let size = lack(one).min(span.size());
        // What is beside its beginning alone is cut there.
        let is_before = one.0.iter().any(|own| own.to == span.from);
        let is_behind = !is_before && one.0.iter().any(|own| own.from == span.to);
        let (given, rest) = match is_behind {
            true => split(span, span.size() - size).map_or((span, None), |(a, b)| (b, Some(a))),
            false => split(span, size).map_or((span, None), |(a, b)| (a, Some(b))),
        };
        one.0 = one.0.or(&Spans::of([given]));
        rest
    }

    /// Takes from whose share is most too large. `None` if no share is.
    fn take(&mut self) -> Option<Span> {
        let excess = |(share, size): &(Spans, u128)| share.size().saturating_sub(*size);
        let fullest = self.shares.iter_mut().max_by_key(|one| excess(one))?;
        let size = excess(fullest);
        // The largest span of a share stays one.
        let last = fullest.0.iter().min_by_key(|span| span.size()).filter(|_| size > 0)?;
        let taken = split(last, last.size().saturating_sub(size)).map_or(last, |(_, end)| end);
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
            assert_eq!(moved(&three, &four), end / 4, "{four:?}");
            let again = shares(&four, 3, end);
            assert!(moved(&four, &again) <= end / 4 + 1, "{again:?}");
            assert_eq!(again, three);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

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
                prop_assert!(most - least <= 1);
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
