//! Objects that no shard of a ring owns.
//!
//! Hides how the parts of several shards are laid next to each other: namespaces by who has them, then
//! hashes of uids by who has them, then labels.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{
    labels,
    places::Places,
    witness::{Finding, Uid, Undecided, Witness},
};
use crate::{
    Boundary, ByResource, HashOf, HashRule, LabelSet, NamespaceLabels, Rule, Scope,
    sharding::refined,
};
use ctrlmesh_wire::selector::Selector;

/// The objects of a resource that no shard owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The resource.
    pub rule: Rule,
    /// One of them.
    pub witness: Witness,
    /// The number of namespaces in which such objects can be.
    pub namespaces: usize,
    /// Whether such objects can be in no namespace.
    pub has_outside: bool,
}

impl fmt::Display for Gap {
    /// Writes `pods, such as one in namespace ant (and in other namespaces)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, witness, namespaces, has_outside } = self;
        let others = match (*namespaces > 1, *has_outside && *namespaces > 0) {
            (false, false) => "",
            (true, false) => " (and in other namespaces)",
            (false, true) => " (and in no namespace)",
            (true, true) => " (and in other namespaces, and in none)",
        };
        write!(f, "{rule}, such as {witness}{others}")
    }
}

/// The part of a shard of one resource.
struct GapPart<'s> {
    scope: &'s Scope,
    /// The hashes of uids. `None` means all.
    uids: Option<&'s HashRule>,
}

/// The parts of all shards of one resource.
struct GapParts<'s> {
    all: Vec<GapPart<'s>>,
    /// The places among all of those whose namespaces can be listed, by namespace.
    listed: BTreeMap<&'s str, Vec<usize>>,
    /// The places of the others.
    others: Vec<usize>,
}

/// The labels and the uid of an object that some shards do not own.
type Unowned = Finding<(BTreeMap<String, String>, Uid)>;

/// The resources of which no shard owns some object, by the namespaces of today. A resource that one
/// of them does not limit is its own. Fails if that is not known of a resource.
pub fn gaps(
    areas: &[&ByResource<Arc<Scope>>],
    known: &NamespaceLabels,
) -> Result<Vec<Gap>, (Rule, Undecided)> {
    let mut gaps = Vec::new();
    for rule in refined(areas.iter().copied()) {
        let scopes: Option<Vec<_>> = areas.iter().map(|area| area.find(&rule)).collect();
        let Some(scopes) = scopes else { continue };
        match gap(&rule, &scopes, known) {
            Finding::Found(gap) => gaps.push(gap),
            Finding::None => {}
            Finding::Undecided(why) => return Err((rule, why)),
        }
    }
    Ok(gaps)
}

fn gap(rule: &Rule, scopes: &[&Arc<Scope>], known: &NamespaceLabels) -> Finding<Gap> {
    let places = Places::of(rule);
    let scopes: Vec<Scope> = scopes.iter().map(|scope| scope.normal()).collect();
    let parts = GapParts::of(&scopes);
    let mut by_owners: BTreeMap<Vec<usize>, Unowned> = BTreeMap::new();
    let mut gap: Option<Gap> = None;
    let namespaces = known.iter().filter(|_| places.has_namespaces());
    // Cluster-scoped objects comes last: a witness in a namespace says more.
    let outside = matches!(places, Places::Outside | Places::Both).then_some(("", None));
    let all = namespaces.map(|(name, labels)| (name.as_str(), Some(labels))).chain(outside);
    for (namespace, labels) in all {
        let owners = parts.with_place(namespace);
        let unowned = match labels.filter(|_| places == Places::Named) {
            Some(labels) => named(&parts.of_these(&owners), labels),
            None => {
                let found = || unowned(&parts.of_these(&owners));
                by_owners.entry(owners.clone()).or_insert_with(found).clone()
            }
        };
        let (labels, uid) = match unowned {
            Finding::Found(found) => found,
            Finding::None => continue,
            Finding::Undecided(why) => return Finding::Undecided(why),
        };
        let gap = gap.get_or_insert_with(|| Gap {
            rule: rule.clone(),
            witness: Witness::new(namespace, places, labels, uid),
            namespaces: 0,
            has_outside: false,
        });
        match namespace {
            "" => gap.has_outside = true,
            _ => gap.namespaces += 1,
        }
    }
    gap.map_or(Finding::None, Finding::Found)
}

impl<'s> GapParts<'s> {
    fn of(scopes: &'s [Scope]) -> Self {
        let all: Vec<GapPart<'s>> = scopes.iter().map(GapPart::of).collect();
        let mut listed: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut others = Vec::new();
        for (at, part) in all.iter().enumerate() {
            match part.scope.boundaries().iter().find_map(Boundary::namespaces) {
                Some(names) => {
                    for name in names.iter().filter(|name| part.has_place(name)) {
                        listed.entry(name).or_default().push(at);
                    }
                }
                None => others.push(at),
            }
        }
        Self { all, listed, others }
    }

    /// The places among all of those that have objects in a namespace, or in none.
    fn with_place(&self, namespace: &str) -> Vec<usize> {
        if namespace.is_empty() {
            let all = self.all.iter().enumerate();
            return all.filter(|(_, part)| part.has_place("")).map(|(at, _)| at).collect();
        }
        let listed = self.listed.get(namespace).into_iter().flatten().copied();
        let others = self.others.iter().copied();
        let others =
            others.filter(|at| self.all.get(*at).is_some_and(|part| part.has_place(namespace)));
        listed.chain(others).collect()
    }

    /// The selectors of these, and the hashes of their uids.
    fn of_these(&self, places: &[usize]) -> Vec<(&'s Selector, Option<&'s HashRule>)> {
        let these = places.iter().filter_map(|at| self.all.get(*at));
        these.map(|part| (part.scope.selector(), part.uids)).collect()
    }
}

impl<'s> GapPart<'s> {
    fn of(scope: &'s Scope) -> Self {
        let mut rules = scope.boundaries().iter().filter_map(|boundary| boundary.hash.as_ref());
        Self { scope, uids: rules.find(|rule| rule.of() == HashOf::Uid) }
    }

    /// Whether objects of a namespace, or in none, may be the shard's.
    fn has_place(&self, namespace: &str) -> bool {
        let mut boundaries = self.scope.boundaries().iter();
        !self.scope.is_nothing()
            && boundaries.all(|boundary| {
                let selected = boundary.selected.as_ref().filter(|_| !namespace.is_empty());
                boundary.has_name(namespace)
                    && selected.is_none_or(|selected| selected.names().contains(namespace))
            })
    }
}

/// The labels of a Namespace, and a uid that none of the owners has who select them.
fn named(owners: &[(&Selector, Option<&HashRule>)], labels: &LabelSet) -> Unowned {
    let label = |key: &str| labels.get(key);
    let any = Selector::everything();
    let owners = owners.iter().filter(|(selector, _)| selector.matches(label));
    let owners: Vec<_> = owners.map(|(_, uids)| (&any, *uids)).collect();
    match unowned(&owners) {
        Finding::Found((_, uid)) => Finding::Found((labels.into(), uid)),
        other => other,
    }
}

/// The labels and the uid of an object that none of these parts has. A part is a selector, with the rule for
/// the hashes of its uids.
fn unowned(parts: &[(&Selector, Option<&HashRule>)]) -> Unowned {
    let ranges = parts.iter().filter_map(|(_, uids)| *uids).flat_map(HashRule::ranges);
    let bounds = ranges.flat_map(|range| [Some(range.bounds().0), range.bounds().1]);
    let mut cuts: Vec<u64> = bounds.flatten().chain([0]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    for (at, from) in cuts.iter().enumerate() {
        let has_uid = |uids: &Option<&HashRule>| uids.is_none_or(|uids| uids.contains(*from));
        let selectors = parts.iter().filter(|(_, uids)| has_uid(uids));
        let selectors: Vec<_> = selectors.map(|(selector, _)| *selector).collect();
        match labels::find(&Selector::everything(), &selectors) {
            Finding::Found(labels) => {
                let to = cuts.get(at + 1).copied();
                return Finding::Found((labels, Uid::within(*from, to)));
            }
            Finding::None => {}
            Finding::Undecided(why) => return Finding::Undecided(why),
        }
    }
    Finding::None
}
