//! A set of objects for each resource. Resources that are not listed are unrestricted.
//!
//! Hides how rules with wildcards override each other. Knows no object, and of a piece only what
//! [`ObjectSet`] says. Words: an *area* is what one config or claim says of every resource; a resource
//! without a piece in it is not limited.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{Name, Rule, shared_groups};

/// The objects of one resource that a shard may have.
pub trait ObjectSet: Clone + Eq {
    /// The piece without objects.
    fn nothing() -> Self;

    /// Whether it is known to have no object.
    fn is_nothing(&self) -> bool;

    /// The objects in both, in normal form.
    fn meet(&self, other: &Self) -> Self;

    /// Whether it is proven that no object is in both.
    fn is_disjoint(&self, other: &Self) -> bool;

    /// The objects that are not in the other, which is proven. `None` if no piece has exactly these.
    fn without(&self, other: &Self) -> Option<Self>;
}

/// The piece of each limited resource. In normal form, if its pieces are: areas that say the same by
/// the same rules are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ByResource<S> {
    /// `None` takes a resource out of a rule with a wildcard.
    pieces: BTreeMap<Rule, Option<S>>,
}

impl<S: ObjectSet> ByResource<S> {
    /// The area of these pieces. Of the rules that match a resource, the piece of the first counts
    /// in the order: exact, any group, any resource, all.
    pub fn new(pieces: impl IntoIterator<Item = (Rule, Option<S>)>) -> Self {
        let mut area = Self { pieces: pieces.into_iter().collect() };
        let exact = |rule: &&Rule| rule.group != Name::Any;
        let rules: Vec<_> = area.pieces.keys().filter(exact).cloned().collect();
        // What a rule with a wildcard says already is said once.
        let (named, others): (Vec<_>, Vec<_>) =
            rules.into_iter().partition(|rule| rule.resource != Name::Any);
        for rule in named.into_iter().chain(others) {
            if let Some(piece) = area.pieces.remove(&rule)
                && area.find(&rule) != piece.as_ref()
            {
                area.pieces.insert(rule, piece);
            }
        }
        area
    }

    /// The piece of the resource that a rule names. `None` if it is not limited.
    pub fn find(&self, rule: &Rule) -> Option<&S> {
        let named = self.pieces.get(rule).or_else(|| self.pieces.get(&rule.with_any_group()));
        let of_others = || {
            let of_group = self.pieces.get(&rule.with_any_resource());
            of_group.or_else(|| self.pieces.get(&Rule::everything()))
        };
        match named {
            None if rule.is_shared() => None,
            named => named.or_else(of_others)?.as_ref(),
        }
    }

    /// The rules and their pieces, in the order of the rules.
    pub fn pieces(&self) -> impl Iterator<Item = (&Rule, Option<&S>)> {
        self.pieces.iter().map(|(rule, piece)| (rule, piece.as_ref()))
    }

    /// Whether it has no object of any limited resource.
    pub fn is_nothing(&self) -> bool {
        self.pieces.values().flatten().all(S::is_nothing)
    }

    /// The objects in both. A resource that one of them does not limit is limited by the other.
    pub fn meet(&self, other: &Self) -> Self {
        let rules = refined([self, other]).into_iter();
        Self::new(rules.map(|rule| {
            let piece = match (self.find(&rule), other.find(&rule)) {
                (Some(one), Some(other)) => Some(one.meet(other)),
                (one, other) => one.or(other).cloned(),
            };
            (rule, piece)
        }))
    }

    /// Whether it is proven that no object of a resource that both limit is in both.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let both = |rule: &Rule| Some((self.find(rule)?, other.find(rule)?));
        let mut rules = refined([self, other]).into_iter();
        rules.all(|rule| both(&rule).is_none_or(|(one, other)| one.is_disjoint(other)))
    }
}

/// The rules by which areas can be compared piece by piece: each names resources that no area tells
/// apart, but for those that another of the rules names more exactly.
pub(crate) fn refined<'a, S: 'a>(
    areas: impl IntoIterator<Item = &'a ByResource<S>>,
) -> BTreeSet<Rule> {
    let mut rules: BTreeSet<Rule> = BTreeSet::new();
    for area in areas {
        rules.extend(area.pieces.keys().cloned());
    }
    let wide = rules.iter().filter(|rule| rule.resource == Name::Any);
    let mut groups: BTreeSet<Name> = wide.map(|rule| rule.group.clone()).collect();
    if groups.remove(&Name::Any) || !groups.is_empty() {
        let mut exact = Vec::new();
        for Rule { group, resource } in &rules {
            let (Name::Any, Name::Exact(name)) = (group, resource) else { continue };
            let shared = shared_groups(name).map(|group| Name::Exact(group.into()));
            let groups = groups.iter().cloned().chain(shared);
            exact.extend(groups.map(|group| Rule { group, resource: resource.clone() }));
        }
        rules.extend(exact);
    }
    rules
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::Arc};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        GroupResource, Scope,
        sharding::{
            Scopes,
            meet::tests::{named_rule, resources, rule},
        },
    };

    /// Cells of a resource.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Cells(u8);

    impl ObjectSet for Cells {
        fn nothing() -> Self {
            Self(0)
        }

        fn is_nothing(&self) -> bool {
            self.0 == 0
        }

        fn meet(&self, other: &Self) -> Self {
            Self(self.0 & other.0)
        }

        fn is_disjoint(&self, other: &Self) -> bool {
            self.0 & other.0 == 0
        }

        fn without(&self, other: &Self) -> Option<Self> {
            Some(Self(self.0 & !other.0))
        }
    }

    fn area() -> impl Strategy<Value = ByResource<Cells>> {
        let piece = prop::option::weighted(0.9, (0..16_u8).prop_map(Cells));
        prop::collection::vec((rule(), piece), 0..6).prop_map(ByResource::new)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn areas_meet_resource_by_resource(one in area(), other in area()) {
            let meet = one.meet(&other);
            for rule in resources().map(|resource| Rule::of(&resource)) {
                let expected = match (one.find(&rule), other.find(&rule)) {
                    (Some(one), Some(other)) => Some(one.meet(other)),
                    (one, other) => one.or(other).copied(),
                };
                prop_assert_eq!(meet.find(&rule), expected.as_ref(), "{}", rule);
                if let (Some(one), Some(both)) = (one.find(&rule), other.find(&rule))
                    && !one.is_disjoint(both)
                {
                    prop_assert!(!meet.is_nothing());
                }
            }
            prop_assert_eq!(&one.meet(&one), &one);
            let is_common = |resource: GroupResource| {
                let rule = Rule::of(&resource);
                let pair = one.find(&rule).zip(other.find(&rule));
                pair.is_some_and(|(one, other)| !one.is_disjoint(other))
            };
            if one.is_disjoint(&other) {
                prop_assert!(!resources().any(is_common));
            }
        }

        #[test]
        fn the_area_of_scopes_finds_what_they_find(rules in prop::collection::vec(rule(), 0..5)) {
            let mut chosen: Vec<Rule> = Vec::new();
            for rule in rules {
                if !chosen.iter().any(|other| other.conflicts(&rule)) {
                    chosen.push(rule);
                }
            }
            let scope = |at: usize| Arc::new(Scope::new(format!("a{at}").parse().unwrap()));
            let rules = chosen.into_iter().enumerate().map(|(at, rule)| (rule, scope(at)));
            let scopes = Scopes::new(&rules.collect::<HashMap<_, _>>());
            let area = scopes.area();
            for resource in resources() {
                prop_assert_eq!(area.find(&Rule::of(&resource)), scopes.find(&resource), "{}", resource);
            }
        }
    }

    #[test]
    fn a_resource_that_one_does_not_limit_is_not_compared() {
        let pods = |cells| ByResource::new([(named_rule(Some(0), Some(0)), Some(Cells(cells)))]);
        let all = ByResource::new([(Rule::everything(), Some(Cells(2)))]);
        assert!(pods(1).is_disjoint(&ByResource::new([])));
        assert!(pods(1).is_disjoint(&all));
        assert!(!pods(3).is_disjoint(&all));
    }
}
