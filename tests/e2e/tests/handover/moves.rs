//! The moves of boundaries, at random.

use std::{collections::BTreeSet, fmt};

use fastrand::Rng;

pub(crate) const SHARDS: [&str; 4] = ["ant", "bee", "cow", "dog"];
/// The objects, each of one team.
pub(crate) const TEAMS: [&str; 12] =
    ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9", "t10", "t11"];

pub(crate) type Teams = BTreeSet<&'static str>;

/// The teams of each shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split(pub(crate) [Teams; SHARDS.len()]);

/// A change of boundaries.
pub(crate) struct Move {
    what: String,
    from: Split,
    pub(crate) to: Split,
    /// The shard whose config is deleted, and made again.
    deleted: Option<usize>,
}

/// A write of one config.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Draw(usize, Teams),
    Delete(usize),
}

impl Split {
    /// Two shards.
    pub(crate) fn first() -> Self {
        Self::random(&mut Rng::with_seed(0), 2)
    }

    /// The teams, in this many shards.
    fn random(rng: &mut Rng, shards: usize) -> Self {
        let mut split = [const { Teams::new() }; SHARDS.len()];
        for team in TEAMS {
            split[rng.usize(..shards)].insert(team);
        }
        Self(split)
    }
}

impl Move {
    pub(crate) fn random(rng: &mut Rng, from: &Split) -> Self {
        let shards = rng.usize(2..=SHARDS.len());
        let (what, to, deleted) = match rng.usize(..4) {
            0 => {
                let mut to = from.clone();
                let (one, other) = (rng.usize(..SHARDS.len()), rng.usize(1..SHARDS.len()));
                let other = (one + other) % SHARDS.len();
                to.0.swap(one, other);
                (format!("{} and {} swap", SHARDS[one], SHARDS[other]), to, None)
            }
            1 => {
                let anew = rng.usize(..shards);
                let what = format!("{} is made again, {shards} shards", SHARDS[anew]);
                (what, Split::random(rng, shards), Some(anew))
            }
            _ => return Self::redraw(rng, from),
        };
        Self { what, from: from.clone(), to, deleted }
    }

    /// Another split, of configs that stay.
    pub(crate) fn redraw(rng: &mut Rng, from: &Split) -> Self {
        let shards = rng.usize(2..=SHARDS.len());
        let to = Split::random(rng, shards);
        Self { what: format!("{shards} shards"), from: from.clone(), to, deleted: None }
    }

    /// The writes, in a random order: something may be taken before it is given up.
    pub(crate) fn steps(&self, rng: &mut Rng) -> Vec<Step> {
        let changed = |shard: &usize| self.from.0[*shard] != self.to.0[*shard];
        let mut shards: Vec<_> = (0..SHARDS.len())
            .filter(|shard| changed(shard) || self.deleted == Some(*shard))
            .collect();
        rng.shuffle(&mut shards);
        let mut steps = Vec::new();
        for shard in shards {
            if self.deleted == Some(shard) {
                steps.insert(rng.usize(..=steps.len()), Step::Delete(shard));
            }
            steps.push(Step::Draw(shard, self.to.0[shard].clone()));
        }
        steps
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
