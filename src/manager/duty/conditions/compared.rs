//! The configs of rings beside each other: what two of them own, and what none does.
//!
//! Hides when they are compared anew, and how it is said. Does not know how a wish is read.

use std::{collections::BTreeMap, sync::Arc};

use super::Verdict;
use crate::policy::{
    NamespaceLabels, Rule, Scope,
    ownership::{Comparison, Gap, Undecided, gaps},
    ring::Wanted,
};

/// Most configs and gaps that are named.
const MOST_NAMED: usize = 5;

/// The comparisons of all rings, made once for the same wishes and namespaces: there are as many pairs
/// of configs as their number squared.
#[derive(Default)]
pub(in crate::manager::duty) struct Comparisons {
    rings: BTreeMap<(String, String), Kept>,
    /// The namespaces for which they were made.
    namespaces: Option<Arc<NamespaceLabels>>,
}

/// The comparison of a ring, and the wishes for which it was made.
struct Kept {
    wishes: Vec<Wanted<Arc<Scope>>>,
    compared: Arc<Compared>,
}

/// The configs of a ring beside each other.
#[derive(Default)]
pub(super) struct Compared {
    /// The pairs of shards that do not agree.
    pairs: Vec<([Box<str>; 2], Comparison)>,
    /// The objects that no shard owns. `None` if the namespaces are not known.
    gaps: Option<Result<Vec<Gap>, (Rule, Undecided)>>,
}

impl Comparisons {
    /// Compares the configs of each of these rings, named by their namespace and name, and forgets
    /// others.
    pub(super) fn of<'r>(
        &mut self,
        rings: impl Iterator<Item = (&'r (&'r str, &'r str), &'r [Wanted<Arc<Scope>>])>,
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
            let kept = before.remove(&key).filter(|kept| is_same && kept.wishes == wishes);
            let kept = kept.unwrap_or_else(|| Kept {
                wishes: wishes.to_vec(),
                compared: Arc::new(Compared::of(wishes, namespaces)),
            });
            let compared = Arc::clone(&kept.compared);
            self.rings.insert(key, kept);
            compared
        });
        compared.collect()
    }
}

impl Compared {
    fn of(wishes: &[Wanted<Arc<Scope>>], known: Option<&Arc<NamespaceLabels>>) -> Self {
        let known = known.map(|known| &**known);
        let mut pairs = Vec::new();
        for (at, one) in wishes.iter().enumerate() {
            for other in wishes.iter().skip(at + 1) {
                let comparison = Comparison::of([&one.area, &other.area], known);
                if !comparison.is_agreement() {
                    pairs.push(([one.shard.clone(), other.shard.clone()], comparison));
                }
            }
        }
        let areas: Vec<_> = wishes.iter().map(|wanted| &*wanted.area).collect();
        Self { pairs, gaps: known.map(|known| gaps(&areas, known)) }
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

    /// Whether something is left to nobody.
    pub(super) fn has_gap(&self) -> bool {
        matches!(&self.gaps, Some(Ok(gaps)) if !gaps.is_empty())
    }

    /// Whether a shard agrees with the others.
    pub(super) fn overlap(&self, shard: &str) -> Verdict {
        let (mut torn, mut undecided) = (Vec::new(), Vec::new());
        let mut reason = "LimitedOnce";
        for (rival, compared) in self.of_shard(shard) {
            if let Some(common) = compared.said_common() {
                reason = "WantedTwice";
                torn.push(format!("ShardingConfig {rival} wants {common}"));
            }
            if let Some(rules) = compared.said_limited_once() {
                torn.push(format!("of this and ShardingConfig {rival} only one limits {rules}"));
            }
            let may = |what| format!("ShardingConfig {rival} may want {what}");
            undecided.extend(compared.said_undecided().map(may));
        }
        match (torn.is_empty(), undecided.is_empty()) {
            (false, _) => Verdict::Yes(reason, format!("{}; draw them apart", joined(torn))),
            (true, false) => Verdict::Undecided("NotProven", joined(undecided)),
            (true, true) => Verdict::No("Apart", String::new()),
        }
    }

    /// Whether each object has a shard.
    pub(super) fn covered(&self) -> Verdict {
        let gaps = match &self.gaps {
            None => return Verdict::Unknown,
            Some(Err((rule, why))) => {
                let message = format!("it is not known whether each of {rule} has a shard: {why}");
                return Verdict::Undecided("NotProven", message);
            }
            Some(Ok(gaps)) => gaps,
        };
        if gaps.is_empty() {
            return Verdict::Yes("Owned", String::new());
        }
        let said = joined(gaps.iter().map(ToString::to_string).collect());
        Verdict::No("Orphans", format!("no shard of the ring has {said}; give them to one"))
    }
}

/// The first of these, and how many more there are.
fn joined(mut parts: Vec<String>) -> String {
    let more = parts.len().saturating_sub(MOST_NAMED);
    parts.truncate(MOST_NAMED);
    let more = if more > 0 { format!("; {more} more") } else { String::new() };
    format!("{}{more}", parts.join("; "))
}
