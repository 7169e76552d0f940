//! The configs of rings next to each other: what two of them own, and what none does.
//!
//! Hides when they are compared again, and how it is said. Does not know how a wish is read.

use std::{collections::BTreeMap, sync::Arc};

use crate::reconcile::verdict::Verdict;
use ctrlmesh_policy::{
    NamespaceLabels, Rule, Scope,
    ownership::{Comparison, Gap, OverlapIndex, Undecided, gaps},
    ring::DesiredScope,
};

/// Most configs and gaps that are named.
const MOST_NAMED: usize = 5;

/// The comparisons of all rings. Two configs are compared once, while they want the same: there are as
/// many pairs as their number squared.
#[derive(Default)]
pub(in crate::reconcile) struct Comparisons {
    rings: BTreeMap<(String, String), Kept>,
    /// The namespaces for which they were made.
    namespaces: Option<Arc<NamespaceLabels>>,
}

/// The comparison of a ring, and the wishes for which it was made.
struct Kept {
    wishes: Vec<DesiredScope<Arc<Scope>>>,
    compared: Arc<Compared>,
}

/// The configs of a ring next to each other.
#[derive(Default)]
pub(super) struct Compared {
    /// The pairs of shards that do not agree, or of which that is not proven.
    pairs: BTreeMap<[Box<str>; 2], Comparison>,
    /// The objects that no shard owns. `None` if the namespaces are not known.
    gaps: Option<Result<Vec<Gap>, (Rule, Undecided)>>,
}

impl Comparisons {
    /// Compares the configs of each of these rings, named by their namespace and name, and forgets
    /// others.
    pub(super) fn of<'r>(
        &mut self,
        rings: impl Iterator<Item = (&'r (&'r str, &'r str), &'r [DesiredScope<Arc<Scope>>])>,
        namespaces: Option<&Arc<NamespaceLabels>>,
    ) -> Vec<Arc<Compared>> {
        let is_same = match (&self.namespaces, namespaces) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        self.namespaces = namespaces.cloned();
        let mut before = std::mem::take(&mut self.rings);
        let compared = rings.map(|((namespace, ring), wishes)| {
            let key = ((*namespace).to_owned(), (*ring).to_owned());
            let kept = match before.remove(&key) {
                Some(kept) if is_same && kept.wishes == wishes => kept,
                earlier => Kept {
                    wishes: wishes.to_vec(),
                    compared: Arc::new(Compared::of(wishes, namespaces, earlier.as_ref())),
                },
            };
            let compared = Arc::clone(&kept.compared);
            self.rings.insert(key, kept);
            compared
        });
        compared.collect()
    }
}

impl Compared {
    /// Compares these. Of two that want what they did earlier, those that agreed still do, and so do two
    /// that are no neighbours: that is proven for all namespaces.
    fn of(
        wishes: &[DesiredScope<Arc<Scope>>],
        known: Option<&Arc<NamespaceLabels>>,
        earlier: Option<&Kept>,
    ) -> Self {
        let known = known.map(|known| &**known);
        let before = earlier.into_iter().flat_map(|kept| &kept.wishes);
        let before: BTreeMap<&str, _> = before.map(|wanted| (&*wanted.shard, wanted)).collect();
        let is_same = |wanted: &&DesiredScope<Arc<Scope>>| {
            before.get(&*wanted.shard).is_some_and(|before| before.area == wanted.area)
        };
        let same: Vec<bool> = wishes.iter().map(|wanted| is_same(&wanted)).collect();
        let by_name: BTreeMap<&str, _> = (wishes.iter().zip(&same).filter(|(_, same)| **same))
            .map(|(wanted, _)| (&*wanted.shard, wanted))
            .collect();
        let torn = earlier.into_iter().flat_map(|kept| kept.compared.pairs.keys());
        let torn =
            torn.filter_map(|[one, other]| Some([*by_name.get(&**one)?, *by_name.get(&**other)?]));
        let mut pairs: Vec<_> = torn.collect();
        let neighbours = OverlapIndex::of(wishes.iter().map(|wanted| &*wanted.area));
        for (at, one) in wishes.iter().enumerate().filter(|(at, _)| same.get(*at) == Some(&false)) {
            let rest = neighbours.at(at).into_iter();
            // Each pair once.
            let rest = rest.filter(|other| *other > at || same.get(*other) == Some(&true));
            pairs.extend(rest.filter_map(|other| Some([one, wishes.get(other)?])));
        }
        let compared = pairs.into_iter().filter_map(|mut pair| {
            pair.sort_by(|one, other| one.shard.cmp(&other.shard));
            let comparison = Comparison::of(pair.map(|wanted| &*wanted.area), known);
            (!comparison.is_agreement())
                .then(|| (pair.map(|wanted| wanted.shard.clone()), comparison))
        });
        let areas: Vec<_> = wishes.iter().map(|wanted| &*wanted.area).collect();
        Self { pairs: compared.collect(), gaps: known.map(|known| gaps(&areas, known)) }
    }

    /// The pairs with this shard, each with the other.
    fn of_shard(&self, shard: &str) -> impl Iterator<Item = (&str, &Comparison)> {
        self.pairs.iter().filter_map(move |([one, other], compared)| match () {
            () if **one == *shard => Some((&**other, compared)),
            () if **other == *shard => Some((&**one, compared)),
            () => None,
        })
    }

    /// Whether a shard owns what another does.
    pub(super) fn owns_twice(&self, shard: &str) -> bool {
        self.of_shard(shard).any(|(_, compared)| !compared.common.is_empty())
    }

    /// Whether something is left to no one.
    pub(super) fn has_gap(&self) -> bool {
        matches!(&self.gaps, Some(Ok(gaps)) if !gaps.is_empty())
    }

    /// Whether a shard agrees with the others.
    pub(super) fn no_overlap(&self, shard: &str) -> Verdict {
        let (mut torn, mut undecided) = (Vec::new(), Vec::new());
        let mut reason = "LimitsDiffer";
        for (rival, compared) in self.of_shard(shard) {
            if let Some(common) = compared.said_common() {
                reason = "Overlap";
                torn.push(format!("ShardingConfig {rival} wants {common}"));
            }
            if let Some(rules) = compared.said_limited_once() {
                torn.push(format!("of this and ShardingConfig {rival} only one limits {rules}"));
            }
            let may = |what| format!("ShardingConfig {rival} may want {what}");
            undecided.extend(compared.said_undecided().map(may));
        }
        match (torn.is_empty(), undecided.is_empty()) {
            (false, _) => Verdict::No(
                reason,
                format!("{}; select each object in one config alone", joined(torn)),
            ),
            (true, false) => Verdict::Undecided("NotProven", joined(undecided)),
            (true, true) => Verdict::Yes("Proven", String::new()),
        }
    }

    /// Whether each object has a shard.
    pub(super) fn no_gaps(&self) -> Verdict {
        let gaps = match &self.gaps {
            None => return Verdict::Unknown,
            Some(Err((rule, why))) => {
                let message = format!("it is not known whether each of {rule} has a shard: {why}");
                return Verdict::Undecided("NotProven", message);
            }
            Some(Ok(gaps)) => gaps,
        };
        if gaps.is_empty() {
            return Verdict::Yes("Proven", String::new());
        }
        let said = joined(gaps.iter().map(ToString::to_string).collect());
        Verdict::No("Gap", format!("no shard of the ring has {said}; give them to one"))
    }
}

/// The first of these, and how many more there are.
fn joined(mut parts: Vec<String>) -> String {
    let more = parts.len().saturating_sub(MOST_NAMED);
    parts.truncate(MOST_NAMED);
    let more = if more > 0 { format!("; {more} more") } else { String::new() };
    format!("{}{more}", parts.join("; "))
}
