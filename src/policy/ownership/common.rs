//! Objects that two shards own.
//!
//! Hides where they are looked for. Words: a namespace *of today* is one that is there.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    labels,
    places::Places,
    witness::{Finding, Uid, Undecided, Witness},
};
use crate::{
    Boundary, ByResource, HashOf, NamespaceLabels, Rule, Scope, Selected,
    sharding::{find_name, refined},
};
use ctrlmesh_wire::selector::Selector;

/// The most names of namespaces that are tried.
const MOST_NAMES: u32 = 1 << 14;
/// The names that are made of one.
const VARIANTS: u32 = 1 << 11;
/// The longest name of a namespace.
const LONGEST: usize = 63;
/// Most resources that are named.
const MOST_NAMED: usize = 5;
/// The label that each namespace has of its name, and keeps.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The limits of two shards next to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The resources of which both own an object, each with one.
    pub common: Vec<(Rule, Witness)>,
    /// The resources of which it is not known whether they do.
    pub undecided: Vec<(Rule, Undecided)>,
    /// The resources that only one of them limits: the other may write all of their objects.
    pub limited_once: Vec<Rule>,
}

impl Comparison {
    /// The comparison of two shards. `known` are the namespaces of today.
    pub fn of([one, other]: [&ByResource<Arc<Scope>>; 2], known: Option<&NamespaceLabels>) -> Self {
        let mut comparison = Self::default();
        for rule in refined([one, other]) {
            match (one.find(&rule), other.find(&rule)) {
                (Some(one), Some(other)) => match in_common(one, other, Places::of(&rule), known) {
                    Finding::Found(witness) => comparison.common.push((rule, witness)),
                    Finding::Undecided(why) => comparison.undecided.push((rule, why)),
                    Finding::None => {}
                },
                (None, None) => {}
                _ => comparison.limited_once.push(rule),
            }
        }
        comparison
    }

    /// The resources of which both own an object, with one. `None` if there is none.
    pub fn said_common(&self) -> Option<String> {
        let rules = first_of(self.common.iter().map(|(rule, _)| rule))?;
        let (_, witness) = self.common.first()?;
        Some(format!("some of the same {rules}, such as {witness}"))
    }

    /// The resources of which it is not known whether they do, with the first reason.
    pub fn said_undecided(&self) -> Option<String> {
        let rules = first_of(self.undecided.iter().map(|(rule, _)| rule))?;
        let (_, why) = self.undecided.first()?;
        Some(format!("some of the same {rules}: {why}"))
    }

    /// The resources that only one of them limits.
    pub fn said_limited_once(&self) -> Option<String> {
        first_of(self.limited_once.iter())
    }

    /// Whether they agree, which is proven.
    pub fn is_agreement(&self) -> bool {
        self.common.is_empty() && self.undecided.is_empty() && self.limited_once.is_empty()
    }
}

/// The first resources, and how many more there are. `None` if there is none.
fn first_of<'r>(rules: impl Iterator<Item = &'r Rule>) -> Option<String> {
    let rules: Vec<_> = rules.collect();
    let named: Vec<_> = rules.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    let more = rules.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(", {more} more") } else { String::new() };
    (!named.is_empty()).then(|| format!("{}{more}", named.join(", ")))
}

/// An object that both scopes own, of a resource whose objects are in these places. [`Finding::None`]
/// holds for namespaces to come, and for any labels of them. `known` are those of today.
pub fn in_common(
    one: &Scope,
    other: &Scope,
    places: Places,
    known: Option<&NamespaceLabels>,
) -> Finding<Witness> {
    let both = one.meet(other);
    if both.is_nothing() {
        return Finding::None;
    }
    let inside = if places.has_namespaces() { namespace(&both, known) } else { Finding::None };
    let place = match (inside, outside(&both, places)) {
        (Finding::Found(name), _) => name,
        (_, Finding::Found(())) => String::new(),
        (Finding::Undecided(why), _) | (_, Finding::Undecided(why)) => {
            return Finding::Undecided(why);
        }
        (Finding::None, Finding::None) => return Finding::None,
    };
    match labels::find(both.selector(), &[]) {
        Finding::Found(labels) => {
            Finding::Found(Witness::new(&place, places, labels, uid(both.boundaries())))
        }
        Finding::None => Finding::None,
        Finding::Undecided(why) => Finding::Undecided(why),
    }
}

/// A uid that boundaries in normal form have.
fn uid(boundaries: &[Boundary]) -> Uid {
    let mut rules = boundaries.iter().filter_map(|boundary| boundary.hash.as_ref());
    let rule = rules.find(|rule| rule.of() == HashOf::Uid);
    // The widest range is the easiest to hit.
    let ranges = rule.iter().flat_map(|rule| rule.ranges()).map(|range| range.bounds());
    let widest = ranges.max_by_key(|(from, to)| to.unwrap_or(u64::MAX) - from);
    widest.map_or(Uid::Any, |(from, to)| Uid::within(from, to))
}

/// Whether cluster-scoped objects is in the scope.
fn outside(both: &Scope, places: Places) -> Finding<()> {
    let has_all = both.boundaries().iter().all(|boundary| boundary.has_name(""));
    match places {
        _ if !has_all => Finding::None,
        Places::Namespaces | Places::Named => Finding::None,
        Places::Outside | Places::Both => Finding::Found(()),
        Places::Unknown => Finding::Undecided(Undecided::Outside),
    }
}

/// A namespace whose objects are in a scope in normal form, by its boundaries.
fn namespace(both: &Scope, known: Option<&NamespaceLabels>) -> Finding<String> {
    let boundaries = both.boundaries();
    let has_name = |name: &str| boundaries.iter().all(|boundary| boundary.has_name(name));
    let selected: Vec<&Selected> = boundaries.iter().filter_map(|b| b.selected.as_ref()).collect();
    let is_selected = |name: &str| selected.iter().all(|all| all.names().contains(name));
    let may_be_selected = |name: &str| selected.iter().all(|all| may_select(all.selector(), name));
    if selected.iter().any(|all| all.selector().is_contradiction()) {
        return Finding::None;
    }
    if let Some(names) = boundaries.iter().find_map(|boundary| boundary.names.as_ref()) {
        let mut names = names.iter().filter(|name| has_name(name) && may_be_selected(name));
        let mut is_any = false;
        let found = names.find(|name| {
            is_any = true;
            is_selected(name)
        });
        return match found {
            Some(name) => Finding::Found(name.to_string()),
            None if is_any => Finding::Undecided(Undecided::NamespaceLabels),
            None => Finding::None,
        };
    }
    let of_today = known.into_iter().flat_map(BTreeMap::keys).map(String::as_str);
    let of_today = of_today.chain(selected.iter().flat_map(|all| all.names()).map(AsRef::as_ref));
    if let Some(name) = of_today.into_iter().find(|name| has_name(name) && is_selected(name)) {
        return Finding::Found(name.to_owned());
    }
    let patterns: Vec<&str> =
        boundaries.iter().filter_map(|b| b.pattern.as_ref()).map(|p| p.as_str()).collect();
    match named(&patterns, |name| has_name(name) && may_be_selected(name)) {
        Finding::Found(_) if !selected.is_empty() => Finding::Undecided(Undecided::NamespaceLabels),
        found => found,
    }
}

/// Whether the label that a namespace has of its name lets a selector select it.
fn may_select(selector: &Selector, name: &str) -> bool {
    let mut all = selector.requirements().iter().filter(|one| one.key() == NAME_LABEL);
    all.all(|one| one.matches(Some(name)))
}

/// A name that matches all patterns and meets a condition, of those that can be made easily.
fn named(patterns: &[&str], is_met: impl Fn(&str) -> bool) -> Finding<String> {
    let (mut found, mut tries, mut is_any) = (None, 0, false);
    let is_whole = find_name(patterns, |name| {
        is_any = true;
        let made = (0..VARIANTS).flat_map(|at| [format!("{name}-{at}"), format!("{at}-{name}")]);
        let names = [name.to_owned()].into_iter().chain(made);
        let mut names = names.filter(|name| name.len() <= LONGEST);
        found = names.find(|name| {
            tries += 1;
            tries > MOST_NAMES || is_met(name)
        });
        found.is_some()
    });
    match found.filter(|name| is_met(name)) {
        Some(name) => Finding::Found(name),
        None if is_whole == Some(false) && !is_any => Finding::None,
        None => Finding::Undecided(Undecided::NamespaceNames),
    }
}
