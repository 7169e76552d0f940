//! The shards that may own an object of another's, of many.
//!
//! Hides by which namespaces they are found: of shards that limit the same resources, each to namespaces
//! that it lists, two that list none in common agree. Knows neither labels nor hashes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{ByResource, Rule, Scope};

/// The areas of many shards, found by the namespaces that they list.
pub struct OverlapIndex<'a> {
    /// `None` is an area that may have objects in any namespace, or in none.
    all: Vec<Option<Listed<'a>>>,
    /// The places of those of a group that list a namespace.
    by_name: BTreeMap<(usize, &'a str), Vec<usize>>,
}

/// An area of which all resources have their objects in namespaces that it lists.
struct Listed<'a> {
    /// The number of those that limit the same resources by the same rules.
    group: usize,
    names: BTreeSet<&'a str>,
}

impl<'a> OverlapIndex<'a> {
    /// The neighbours among these.
    pub fn of(areas: impl Iterator<Item = &'a ByResource<Arc<Scope>>>) -> Self {
        let mut groups: BTreeMap<Vec<(&Rule, bool)>, usize> = BTreeMap::new();
        let mut by_name: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        let mut all = Vec::new();
        for (at, area) in areas.enumerate() {
            let Some(names) = names(area) else {
                all.push(None);
                continue;
            };
            let rules = area.pieces().map(|(rule, piece)| (rule, piece.is_some()));
            let next = groups.len();
            let group = *groups.entry(rules.collect()).or_insert(next);
            for name in &names {
                by_name.entry((group, *name)).or_default().push(at);
            }
            all.push(Some(Listed { group, names }));
        }
        Self { all, by_name }
    }

    /// The places of those that may own an object of the one at a place, which is among them. That the
    /// others agree with it is proven, for any labels of namespaces.
    pub fn at(&self, place: usize) -> BTreeSet<usize> {
        let Some(Some(own)) = self.all.get(place) else { return (0..self.all.len()).collect() };
        let is_other = |other: &Option<Listed<'_>>| {
            other.as_ref().is_none_or(|other| other.group != own.group)
        };
        let others = self.all.iter().enumerate().filter(|(_, other)| is_other(other));
        let listed = own.names.iter().filter_map(|name| self.by_name.get(&(own.group, *name)));
        others.map(|(at, _)| at).chain(listed.flatten().copied()).chain([place]).collect()
    }
}

/// The namespaces of all objects of an area. `None` if they are not listed.
fn names(area: &ByResource<Arc<Scope>>) -> Option<BTreeSet<&str>> {
    let mut all = BTreeSet::new();
    for (_, scope) in area.pieces() {
        let Some(scope) = scope.filter(|scope| !scope.is_nothing()) else { continue };
        if scope.boundaries().iter().all(|boundary| boundary.has_name("")) {
            return None;
        }
        let names = scope.boundaries().iter().find_map(|boundary| boundary.names.as_ref())?;
        all.extend(names.iter().map(|name| &**name));
    }
    Some(all)
}
