//! Splits a key space into ranges of about the same weight.
//!
//! Hides which ranges move: the ends of intervals, from the heaviest share to the lightest, as few as bring all
//! near the mean. Knows neither what the numbers count nor whose the shares are. Words: an
//! *atom* is a weighted key that cannot be split.

use std::collections::BTreeMap;

use super::plan::{self, MOST_SPANS};
use crate::intervals::{END, Interval, IntervalSet};

/// The weight of one object, in parts of that of a number. All numbers together weigh a sixteenth of all
/// objects, so that future objects are spread, too.
const OBJECT: u128 = 16 * END;
/// A part of the mean for which nothing moves.
const GRAINS: u128 = 128;
/// The weight of a namespace where each weighs one: few of them outweigh all numbers.
const NAMESPACE: u128 = 1024 * END;
/// A part of a namespace for which nothing moves: in 32 shards of which one has two too many, the others lack
/// a sixteenth.
const NAMESPACE_GRAINS: u128 = 64;
/// Most pieces that change hands at once. Few do.
const MOST_MOVES: usize = 4096;

/// The weights of the numbers before an end.
pub(super) struct Row {
    end: u128,
    /// The atoms, each with the weight of those before it.
    atoms: Vec<(u128, u128)>,
    /// The weight of all atoms, and of a number that is none.
    sum: u128,
    each: u128,
    /// The weight for which nothing moves. `None` is a part of the mean.
    grain: Option<u128>,
}

impl Row {
    /// The row with so many objects at each of these numbers.
    pub(super) fn new(end: u128, objects: &BTreeMap<u128, u64>) -> Self {
        let (atoms, all) = Self::atoms(objects, OBJECT);
        Self { end, atoms, sum: all * OBJECT, each: all.max(1) * (END / end), grain: None }
    }

    /// The row with so many namespaces at each of these numbers, whatever they hold.
    pub(super) fn of_namespaces(end: u128, namespaces: &BTreeMap<u128, u64>) -> Self {
        let (atoms, all) = Self::atoms(namespaces, NAMESPACE);
        let grain = Some(NAMESPACE / NAMESPACE_GRAINS);
        Self { end, atoms, sum: all * NAMESPACE, each: END / end, grain }
    }

    /// The atoms, each with the weight of those before it, and the number of all that they stand for.
    fn atoms(counts: &BTreeMap<u128, u64>, weight: u128) -> (Vec<(u128, u128)>, u128) {
        let (mut atoms, mut all) = (Vec::with_capacity(counts.len()), 0);
        for (at, count) in counts {
            atoms.push((*at, all * weight));
            // So many that a sum of them has room.
            all += u128::from((*count).min(u32::MAX.into()));
        }
        (atoms, all)
    }

    /// The atoms of a span, by their places.
    fn inside(&self, span: Interval) -> (usize, usize) {
        let before = |number| self.atoms.partition_point(|(at, _)| *at < number);
        (before(span.from), before(span.to))
    }

    /// The weight of the atoms before a place.
    fn before(&self, place: usize) -> u128 {
        self.atoms.get(place).map_or(self.sum, |(_, before)| *before)
    }

    fn at(&self, place: usize) -> Option<u128> {
        self.atoms.get(place).map(|(at, _)| *at)
    }

    fn weight(&self, span: Interval) -> u128 {
        let (first, end) = self.inside(span);
        self.before(end) - self.before(first) + span.size() * self.each
    }

    fn weight_of(&self, spans: &IntervalSet) -> u128 {
        spans.iter().map(|span| self.weight(span)).sum()
    }

    /// The end of the longest beginning of a span that weighs no more than this.
    fn reach(&self, span: Interval, most: u128) -> u128 {
        let (first, end) = self.inside(span);
        let weight = |place: usize| {
            let past = self.at(place - 1).map_or(span.from, |at| at + 1);
            self.before(place) - self.before(first) + (past - span.from) * self.each
        };
        let place = last_that(first, end, |place| weight(place) <= most);
        let atoms = self.before(place) - self.before(first);
        let next = if place < end { self.at(place).unwrap_or(span.to) } else { span.to };
        next.min(span.from + (most - atoms) / self.each)
    }

    /// The beginning of the longest end of a span that weighs no more than this.
    fn reach_back(&self, span: Interval, most: u128) -> u128 {
        let (first, end) = self.inside(span);
        let weight = |count: usize| {
            let from = self.at(end - count).unwrap_or(span.to);
            self.before(end) - self.before(end - count) + (span.to - from) * self.each
        };
        let count = last_that(0, end - first, |count| weight(count) <= most);
        let atoms = self.before(end) - self.before(end - count);
        let past = match count == end - first {
            true => span.from,
            false => self.at(end - count - 1).map_or(span.from, |at| at + 1),
        };
        past.max(span.to.saturating_sub((most - atoms) / self.each))
    }

    /// The weight that all shares can have but those that an atom alone fills.
    fn level(&self, count: usize) -> u128 {
        if self.grain.is_some() {
            // Atoms of one weight: no share may have two while another has none.
            return (self.sum + self.end * self.each)
                / u128::try_from(count.max(1)).unwrap_or(u128::MAX);
        }
        let places = 0..self.atoms.len();
        let mut atoms: Vec<_> = places.map(|at| self.before(at + 1) - self.before(at)).collect();
        atoms.sort_unstable();
        let mut rest = self.sum + self.end * self.each;
        let mut left = u128::try_from(count).unwrap_or(u128::MAX);
        while let Some(atom) = atoms.pop().filter(|atom| left > 1 && atom * left > rest) {
            rest -= atom;
            left -= 1;
        }
        rest / left.max(1)
    }
}

/// The last of these places that is so, if the first is and none after one that is not.
fn last_that(first: usize, end: usize, is: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (first, end);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if is(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Who may get what someone else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gains {
    /// No owner.
    Nobody,
    /// The owners without a share.
    New,
    /// Other owners, too, where the heaviest share weighs more than 1.2 times the mean, and would weigh a
    /// tenth less.
    All,
}

/// The shares of `count` owners in a row, if their shares are these already. What no one has is given away. If
/// all is, the shares are cut again.
pub(super) fn shares(now: &[IntervalSet], count: u32, row: &Row, gains: Gains) -> Vec<IntervalSet> {
    let mut shares = Shares::of(now, count, row);
    if shares.all.iter().all(|(share, _)| share.is_empty()) {
        let mut even = Shares::of(&plan::shares(&[], count, row.end), count, row);
        even.even_out(|_| true);
        return even.done();
    }
    shares.give_rest();
    let is_new: Vec<_> = shares.all.iter().map(|(share, _)| share.is_empty()).collect();
    if gains != Gains::Nobody {
        shares.even_out(|at| is_new.get(at) == Some(&true));
    }
    if gains == Gains::All {
        shares = shares.worth_it();
    }
    if shares.all.iter().any(|(share, _)| share.iter().len() > MOST_SPANS) {
        return self::shares(&[], count, row, gains);
    }
    shares.done()
}

/// The shares in which these owners alone get what no one has, and no one loses anything. `None` if none of
/// them may, or one would be in too many pieces.
pub(super) fn given(now: &[IntervalSet], takes: &[bool], row: &Row) -> Option<Vec<IntervalSet>> {
    let mut shares = Shares::of(now, u32::try_from(takes.len()).ok()?, row);
    shares.takes = takes.to_vec();
    shares.give_rest();
    let shares = shares.done();
    let all = shares.iter().fold(IntervalSet::default(), |all, share| all.or(share));
    let is_whole = all.not(row.end).is_empty();
    let is_short = shares.iter().all(|share| share.iter().len() <= MOST_SPANS);
    (is_whole && is_short).then_some(shares)
}

/// The shares, each with its weight.
#[derive(Clone)]
struct Shares<'r> {
    row: &'r Row,
    all: Vec<(IntervalSet, u128)>,
    /// The owners that may get what no one has.
    takes: Vec<bool>,
    level: u128,
}

/// A piece that may change hands.
struct WeightedRange {
    span: Interval,
    weight: u128,
    /// Whether it is next to what the receiver has.
    is_beside: bool,
}

impl<'r> Shares<'r> {
    fn of(now: &[IntervalSet], count: u32, row: &'r Row) -> Self {
        let all = plan::disjoint(now, count, row.end);
        let all: Vec<_> = all
            .into_iter()
            .map(|share| {
                let weight = row.weight_of(&share);
                (share, weight)
            })
            .collect();
        let level = row.level(all.len());
        Self { row, takes: vec![true; all.len()], all, level }
    }

    fn done(self) -> Vec<IntervalSet> {
        self.all.into_iter().map(|(share, _)| share).collect()
    }

    fn grain(&self) -> u128 {
        self.row.grain.unwrap_or(self.level / GRAINS + 1)
    }

    fn heaviest(&self) -> u128 {
        self.all.iter().map(|(_, weight)| *weight).max().unwrap_or_default()
    }

    /// The shares as they are, or evened out if that is worth it.
    fn worth_it(self) -> Self {
        let sum: u128 = self.all.iter().map(|(_, weight)| *weight).sum();
        let count = u128::try_from(self.all.len()).unwrap_or(u128::MAX);
        if self.heaviest() * count * 5 <= sum * 6 {
            return self;
        }
        let mut even = self.clone();
        even.even_out(|_| true);
        if even.heaviest() * 10 <= self.heaviest() * 9 { even } else { self }
    }

    fn put(&mut self, at: usize, span: Interval) {
        if let Some((share, weight)) = self.all.get_mut(at) {
            *share = share.or(&IntervalSet::of([span]));
            *weight += self.row.weight(span);
        }
    }

    fn take(&mut self, at: usize, span: Interval) {
        if let Some((share, weight)) = self.all.get_mut(at) {
            *share = share.without(&IntervalSet::of([span]));
            *weight -= self.row.weight(span);
        }
    }

    /// Gives away what no one has, each piece to the lightest that has room for it.
    fn give_rest(&mut self) {
        let all = self.all.iter().fold(IntervalSet::default(), |all, (share, _)| all.or(share));
        for mut rest in all.not(self.row.end).iter() {
            while rest.from < rest.to {
                let rank = |(share, weight): &(IntervalSet, u128)| {
                    let has_room = share.iter().len() < MOST_SPANS;
                    (!has_room && !is_beside(share, rest), *weight)
                };
                let takes = |(at, _): &(usize, _)| self.takes.get(*at).is_some_and(|takes| *takes);
                let ranked = self.all.iter().enumerate().filter(takes);
                let Some((at, lightest)) = ranked.min_by_key(|(_, one)| rank(one)) else { return };
                let lack = self.level.saturating_sub(lightest.1).max(self.grain());
                let mut to = self.row.reach(rest, lack);
                if self.row.weight(Interval { from: rest.from, to }) < self.grain() {
                    to = to.max(self.past_first(rest));
                }
                if self.row.weight(Interval { from: to, to: rest.to }) < self.grain() {
                    to = rest.to;
                }
                self.put(at, Interval { from: rest.from, to });
                rest.from = to;
            }
        }
    }

    /// The number after the first atom of a span.
    fn past_first(&self, span: Interval) -> u128 {
        let (first, end) = self.row.inside(span);
        let past = self.row.at(first).filter(|_| first < end).map_or(span.to, |at| at + 1);
        past.min(span.to)
    }

    /// Moves pieces from heavy shares to light ones that may take some, until none is worth it.
    fn even_out(&mut self, takes: impl Fn(usize) -> bool) {
        for _ in 0..MOST_MOVES {
            let Some((from, to, span)) = self.next_move(&takes) else { return };
            self.take(from, span);
            self.put(to, span);
        }
    }

    fn next_move(&self, takes: &impl Fn(usize) -> bool) -> Option<(usize, usize, Interval)> {
        let mut by_weight: Vec<_> = (0..).zip(&self.all).collect();
        by_weight.sort_by_key(|(at, (_, weight))| (*weight, *at));
        for (from, (share, heavy)) in by_weight.iter().rev() {
            for (to, (taking, light)) in by_weight.iter().filter(|(at, _)| takes(*at)) {
                let most = heavy.saturating_sub(self.level).min(self.level.saturating_sub(*light));
                if most < self.grain() {
                    break;
                }
                if let Some(piece) = self.piece(share, taking, most, heavy - light) {
                    return Some((*from, *to, piece.span));
                }
            }
        }
        None
    }

    /// The best piece of a share for another: of at most this weight, or an atom by which the two still
    /// come nearer. `None` if there is none.
    fn piece(
        &self,
        share: &IntervalSet,
        taking: &IntervalSet,
        most: u128,
        apart: u128,
    ) -> Option<WeightedRange> {
        let ends = share.iter().flat_map(|span| {
            let (first, end) = self.row.inside(span);
            let last = self.row.at(end.wrapping_sub(1)).filter(|_| first < end);
            let tos = [self.row.reach(span, most), self.past_first(span)];
            let froms = [self.row.reach_back(span, most), last.unwrap_or(span.from)];
            let beginnings = tos.map(|to| Interval { to, ..span });
            beginnings.into_iter().chain(froms.map(|from| Interval { from, ..span }))
        });
        let pieces = ends.filter(|span| span.from < span.to).map(|span| WeightedRange {
            span,
            weight: self.row.weight(span),
            is_beside: is_beside(taking, span),
        });
        let has_room = taking.iter().len() < MOST_SPANS;
        let usable = pieces.filter(|piece| {
            let is_worth_it = piece.weight >= self.grain() && piece.weight + self.grain() <= apart;
            is_worth_it && (has_room || piece.is_beside)
        });
        usable.max_by_key(|piece| {
            let is_large = 2 * piece.weight >= most;
            (is_large, piece.is_beside, u128::MAX - piece.weight.abs_diff(most))
        })
    }
}

fn is_beside(share: &IntervalSet, span: Interval) -> bool {
    share.iter().any(|own| own.to == span.from || own.from == span.to)
}

#[cfg(test)]
mod tests;
