//! The judgement of a workload: what its root needs, what stands in the way, and what cannot be known.
//!
//! Hides by which facts each is notified. Asks no cluster, and prints nothing.

mod hooks;
mod judgement;
mod kinds;
mod locks;
mod mesh;
mod owners;
mod pods;

pub(in crate::shard) use self::judgement::{Judgement, Wanted, Weight};
use super::facts::Facts;

/// Judges a workload.
pub(in crate::shard) fn judge(facts: &Facts, wanted: &Wanted) -> Judgement {
    let mut judgement = Judgement::default();
    mesh::judge(facts, &mut judgement);
    owners::judge(facts, wanted, &mut judgement);
    pods::judge(facts, &mut judgement);
    locks::judge(facts, &mut judgement);
    hooks::judge(facts, &mut judgement);
    kinds::judge(facts, wanted, &mut judgement);
    judgement.remarks.sort_by_key(|remark| remark.weight);
    judgement
}

#[cfg(test)]
mod tests;
