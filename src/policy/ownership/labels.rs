//! Labels that one selector selects and others do not.
//!
//! Hides which values of a label stand for all others: a selector tells apart that the label is
//! missing, the values that requirements list, and where a number lies between their bounds.

use std::collections::{BTreeMap, BTreeSet};

use super::witness::{Finding, Undecided};
use ctrlmesh_wire::selector::{Op, Requirement, Selector};

/// The most sets of labels that are tried.
const MOST_TRIES: u32 = 1 << 14;

type Labels = BTreeMap<String, String>;

/// A search for labels.
struct Search<'s> {
    wanted: &'s Selector,
    /// None of these must select the labels.
    unwanted: &'s [&'s Selector],
    /// The values to try of each key; `None` is a label that is missing.
    keys: Vec<(&'s str, Vec<Option<String>>)>,
    labels: Labels,
    tries: u32,
}

/// The labels of an object that `wanted` selects, and none of `unwanted`.
pub(super) fn find(wanted: &Selector, unwanted: &[&Selector]) -> Finding<Labels> {
    let mut by_key: BTreeMap<&str, Vec<&Requirement>> = BTreeMap::new();
    let all = unwanted.iter().copied().chain([wanted]);
    for requirement in all.flat_map(Selector::requirements) {
        by_key.entry(requirement.key()).or_default().push(requirement);
    }
    let keys = by_key.into_iter().map(|(key, all)| (key, values(&all))).collect();
    let mut search = Search { wanted, unwanted, keys, labels: Labels::new(), tries: 0 };
    match search.walk(0) {
        Some(true) => Finding::Found(search.labels),
        Some(false) => Finding::None,
        None => Finding::Undecided(Undecided::Labels),
    }
}

impl Search<'_> {
    /// Sets the labels from the key at a place on. `None` if there are too many.
    fn walk(&mut self, at: usize) -> Option<bool> {
        self.tries += 1;
        if self.tries > MOST_TRIES {
            return None;
        }
        let Some((key, values)) = self.keys.get(at).cloned() else {
            let label = |key: &str| self.labels.get(key).map(String::as_str);
            return Some(!self.unwanted.iter().any(|other| other.matches(label)));
        };
        for value in values {
            let of_key = |requirement: &&Requirement| requirement.key() == key;
            let mut wanted = self.wanted.requirements().iter().filter(of_key);
            if !wanted.all(|requirement| requirement.matches(value.as_deref())) {
                continue;
            }
            match value {
                Some(value) => self.labels.insert(key.to_owned(), value),
                None => self.labels.remove(key),
            };
            match self.walk(at + 1) {
                Some(false) => {}
                end => return end,
            }
        }
        self.labels.remove(key);
        Some(false)
    }
}

/// Values of a label of which one meets the same of these requirements as any other value does.
fn values(all: &[&Requirement]) -> Vec<Option<String>> {
    let is_bound = |one: &&&Requirement| matches!(one.op(), Op::GreaterThan | Op::LessThan);
    let listed = all.iter().filter(|one| !is_bound(one)).flat_map(|one| one.values());
    let listed: BTreeSet<&str> = listed.map(String::as_str).collect();
    let mut values: BTreeSet<String> = listed.iter().map(|value| (*value).to_owned()).collect();
    // One more than are listed: so many are not all listed.
    let more = listed.len() + 1;
    let unlisted = (0..=more).map(|at| format!("x{at}")).find(|value| !listed.contains(&**value));
    values.extend(unlisted);
    let bounds = all.iter().filter(is_bound).filter_map(|one| one.values().first()?.parse().ok());
    for bound in bounds.collect::<BTreeSet<i64>>() {
        let reach = i64::try_from(more).unwrap_or(i64::MAX);
        let near = bound.saturating_sub(reach)..=bound.saturating_add(reach);
        // No value of a label begins with a sign.
        for number in near.filter(|number| *number >= 0) {
            // A number is spelled in more ways than are listed.
            let spelled = (0..more).map(|zeros| format!("{}{number}", "0".repeat(zeros)));
            values.extend(spelled);
        }
    }
    [None].into_iter().chain(values.into_iter().map(Some)).collect()
}
