//! The scopes of resources. A look-up costs the same for two limits and two thousand.

use std::{collections::HashMap, sync::Arc};

use super::{
    ByResource, Scope,
    rule::{Name, Rule, is_shared},
};
use crate::GroupResource;

/// The scope of every limited resource.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    named: HashMap<Box<str>, ByGroup>,
    others: ByGroup,
    rules: Vec<(Rule, Arc<Scope>)>,
    /// The scopes by namespace, each once.
    by_namespace: Vec<Arc<Scope>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct ByGroup {
    exact: HashMap<Box<str>, Arc<Scope>>,
    any: Option<Arc<Scope>>,
}

impl Scopes {
    /// The scopes of `rules`, which must not conflict. If a rule for one resource and a rule for
    /// all resources match, both apply.
    pub fn new(rules: &HashMap<Rule, Arc<Scope>>) -> Self {
        let mut sorted: Vec<_> =
            rules.iter().map(|(rule, scope)| (rule.clone(), Arc::clone(scope))).collect();
        sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut scopes = Self { rules: sorted, ..Self::default() };
        for (rule, scope) in rules {
            if rule.resource == Name::Any {
                scopes.others.insert(&rule.group, Arc::clone(scope));
            }
        }
        for (rule, scope) in rules {
            let Name::Exact(resource) = &rule.resource else { continue };
            let by_group = scopes.named.entry(resource.clone()).or_default();
            scopes.others.restriction(by_group, &rule.group, scope);
        }
        scopes.tell_apart();
        scopes
    }

    fn tell_apart(&mut self) {
        for scope in self.named.values().chain([&self.others]).flat_map(ByGroup::scopes) {
            let is_same = |other: &Arc<Scope>| Arc::ptr_eq(other, scope) || other == scope;
            if scope.is_by_namespace() && !self.by_namespace.iter().any(is_same) {
                self.by_namespace.push(Arc::clone(scope));
            }
        }
    }

    /// Whether one of the scopes by namespace has objects in a namespace.
    pub(super) fn have_namespace(&self, namespace: &str) -> bool {
        self.by_namespace.iter().any(|scope| scope.may_have(namespace))
    }

    /// The scope of a resource, or `None` if the shard sees all of it.
    pub fn find(&self, of: &GroupResource) -> Option<&Arc<Scope>> {
        let (group, resource) = (of.group(), of.resource());
        let named = self.named.get(resource).and_then(|by_group| by_group.find(group));
        let scope = named
            .or_else(|| if is_shared(group, resource) { None } else { self.others.find(group) });
        scope.filter(|scope| !scope.is_everything())
    }

    /// The area of the scopes: in it, the rule that names a resource most exactly says all of it.
    pub(super) fn area(&self) -> ByResource<Arc<Scope>> {
        let named = self.named.iter().map(|(name, by_group)| (Name::Exact(name.clone()), by_group));
        let pieces = named.chain([(Name::Any, &self.others)]).flat_map(|(resource, by_group)| {
            let exact = by_group.exact.iter();
            let exact = exact.map(|(group, scope)| (Name::Exact(group.clone()), scope));
            let any = by_group.any.iter().map(|scope| (Name::Any, scope));
            exact.chain(any).map(move |(group, scope)| {
                let scope = Some(scope).filter(|scope| !scope.is_everything());
                let normal = scope.map(|scope| Arc::new(scope.normal()));
                (Rule { group, resource: resource.clone() }, normal)
            })
        });
        ByResource::new(pieces)
    }

    /// The scopes of an area, with these scopes for the pieces that are the same in both.
    pub(super) fn within(&self, area: &ByResource<Arc<Scope>>) -> Self {
        let own = self.area();
        let mut scopes = Self::default();
        for (rule, piece) in area.pieces() {
            let same = self.at(rule).filter(|_| own.find(rule) == piece).cloned();
            let limited = || piece.map_or_else(|| Arc::new(Scope::everything()), Arc::clone);
            let scope = same.unwrap_or_else(limited);
            let by_group = match &rule.resource {
                Name::Exact(resource) => scopes.named.entry(resource.clone()).or_default(),
                Name::Any => &mut scopes.others,
            };
            by_group.insert(&rule.group, Arc::clone(&scope));
            scopes.rules.push((rule.clone(), scope));
        }
        scopes.tell_apart();
        scopes
    }

    /// The scope of the resources that a rule names, where no rule of these is more exact.
    fn at(&self, rule: &Rule) -> Option<&Arc<Scope>> {
        let named = match &rule.resource {
            Name::Exact(resource) => self.named.get(resource).and_then(|of| of.at(&rule.group)),
            Name::Any => None,
        };
        named.or_else(|| self.others.at(&rule.group).filter(|_| !rule.is_shared()))
    }

    /// The rules in an order that does not depend on how they were written.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, &Arc<Scope>)> {
        self.rules.iter().map(|(rule, scope)| (rule, scope))
    }
}

impl ByGroup {
    fn insert(&mut self, group: &Name, scope: Arc<Scope>) {
        match group {
            Name::Any => self.any = Some(scope),
            Name::Exact(group) => drop(self.exact.insert(group.clone(), scope)),
        }
    }

    fn scopes(&self) -> impl Iterator<Item = &Arc<Scope>> {
        self.exact.values().chain(&self.any)
    }

    fn find(&self, group: &str) -> Option<&Arc<Scope>> {
        self.exact.get(group).or(self.any.as_ref())
    }

    fn at(&self, group: &Name) -> Option<&Arc<Scope>> {
        match group {
            Name::Exact(group) => self.find(group),
            Name::Any => self.any.as_ref(),
        }
    }

    /// Inserts `scope` for `group` into `named`, narrowed by the rules for all resources in `self`.
    fn restriction(&self, named: &mut Self, group: &Name, scope: &Arc<Scope>) {
        let both = |other: Option<&Arc<Scope>>| match other {
            None => Arc::clone(scope),
            Some(other) => Arc::new(scope.and(other)),
        };
        match group {
            Name::Exact(name) => named.insert(group, both(self.find(name))),
            Name::Any => {
                for (name, other) in &self.exact {
                    named.insert(&Name::Exact(name.clone()), both(Some(other)));
                }
                named.insert(group, both(self.any.as_ref()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        ObjectSet,
        sharding::meet::tests::{resources, rule},
    };

    /// Scopes of rules that do not conflict, each with a label of its own.
    fn any_scopes() -> impl Strategy<Value = Scopes> {
        prop::collection::vec((rule(), 0..3_u8), 0..5).prop_map(|rules| {
            let mut chosen: HashMap<Rule, Arc<Scope>> = HashMap::new();
            for (rule, label) in rules {
                if !chosen.keys().any(|other| other.conflicts(&rule)) {
                    chosen.insert(rule, scope(&format!("a{label}")));
                }
            }
            Scopes::new(&chosen)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn scopes_within_an_area_are_the_areas_and_the_same_where_it_changes_nothing(
            one in any_scopes(),
            other in any_scopes(),
        ) {
            let area = one.area().meet(&other.area());
            let within = one.within(&area);
            prop_assert!(within.area() == area);
            for resource in resources() {
                let piece = area.find(&Rule::of(&resource));
                let found = within.find(&resource);
                prop_assert_eq!(found.map(|scope| scope.normal()), piece.map(|scope| scope.normal()), "{}", resource);
                if let Some(own) = one.find(&resource)
                    && piece == Some(&Arc::new(own.normal()))
                {
                    prop_assert_eq!(found, Some(own), "{}", resource);
                }
            }
            let same = one.within(&one.area());
            for resource in resources() {
                prop_assert_eq!(same.find(&resource), one.find(&resource), "{}", resource);
            }
        }
    }

    #[test]
    fn within_nothing_there_is_nothing() {
        let pods = GroupResource::new("", "pods");
        let one = scopes(&[("", "pods", "a")]);
        let nothing = ByResource::new([(Rule::of(&pods), Some(Arc::<Scope>::nothing()))]);
        assert!(one.within(&nothing).find(&pods).unwrap().is_nothing());
        let free =
            ByResource::new([(Rule::everything(), Some(scope("b"))), (Rule::of(&pods), None)]);
        assert_eq!(one.within(&free).find(&pods), None);
        assert!(one.within(&free).find(&GroupResource::new("", "secrets")).is_some());
    }

    fn scope(text: &str) -> Arc<Scope> {
        Arc::new(Scope::new(text.parse().unwrap()))
    }

    fn scopes(rules: &[(&str, &str, &str)]) -> Scopes {
        let rules = rules.iter().map(|(g, r, s)| (Rule::new(g, r).unwrap(), scope(s)));
        Scopes::new(&rules.collect())
    }

    fn text(scopes: &Scopes, group: &str, resource: &str) -> String {
        let scope = scopes.find(&GroupResource::new(group, resource));
        scope.map_or_else(|| "-".into(), |scope| scope.text().into())
    }

    #[test]
    fn the_group_tells_resources_of_one_name_apart() {
        let scopes = scopes(&[("", "services", "a"), ("apps", "deployments", "b")]);
        assert_eq!(text(&scopes, "", "services"), "a");
        assert_eq!(text(&scopes, "serving.knative.dev", "services"), "-");
        assert_eq!(text(&scopes, "apps", "deployments"), "b");
        assert_eq!(text(&scopes, "", "deployments"), "-");
    }

    #[test]
    fn events_of_both_groups_are_one_resource() {
        for named in ["", "events.k8s.io", "*"] {
            let scopes = scopes(&[(named, "events", "a")]);
            for group in ["", "events.k8s.io"] {
                assert_eq!(text(&scopes, group, "events"), "a", "{named} {group}");
            }
        }
        let rule = |group| Rule::new(group, "events").unwrap();
        assert!(rule("").conflicts(&rule("events.k8s.io")));
        let one = GroupResource::new("events.k8s.io", "events");
        assert_eq!(one, GroupResource::new("", "events"));
        assert!(rule("events.k8s.io").covers(&one) && rule("").covers(&one));
    }

    #[test]
    fn a_rule_for_all_resources_narrows_a_rule_for_one() {
        let scopes = scopes(&[
            ("*", "*", "all"),
            ("apps", "*", "apps"),
            ("", "pods", "pods"),
            ("*", "jobs", "jobs"),
        ]);
        assert_eq!(text(&scopes, "", "pods"), "all,pods");
        assert_eq!(text(&scopes, "", "secrets"), "all");
        assert_eq!(text(&scopes, "apps", "deployments"), "apps");
        assert_eq!(text(&scopes, "batch", "jobs"), "all,jobs");
        assert_eq!(text(&scopes, "apps", "jobs"), "apps,jobs");
    }

    #[test]
    fn t54_what_shards_have_in_common_is_scoped_by_name_alone() {
        let all = scopes(&[("*", "*", "x")]);
        let shared = [
            ("coordination.k8s.io", "leases"),
            ("", "events"),
            ("events.k8s.io", "events"),
            ("authorization.k8s.io", "subjectaccessreviews"),
            ("authentication.k8s.io", "tokenreviews"),
            ("apiextensions.k8s.io", "customresourcedefinitions"),
        ];
        for (group, resource) in shared {
            assert_eq!(text(&all, group, resource), "-", "{resource}");
            let named = scopes(&[("*", "*", "x"), (group, resource, "y")]);
            assert_eq!(text(&named, group, resource), "x,y", "{resource}");
        }
    }

    #[test]
    fn an_empty_selector_is_no_scope() {
        assert_eq!(text(&scopes(&[("", "pods", "")]), "", "pods"), "-");
    }

    #[test]
    fn one_resource_cannot_be_ruled_twice() {
        let rule = |g, r| Rule::new(g, r).unwrap();
        assert!(rule("", "pods").conflicts(&rule("", "pods")));
        assert!(rule("*", "pods").conflicts(&rule("", "pods")));
        assert!(rule("", "pods").conflicts(&rule("*", "pods")));
        assert!(!rule("*", "*").conflicts(&rule("", "pods")));
        assert!(!rule("a", "pods").conflicts(&rule("", "pods")));
        let wrong = [
            ("A", "pods"),
            ("a-", "pods"),
            ("", "Pods"),
            ("", "-pods"),
            ("", "pods/status"),
            ("", ""),
        ];
        for (group, resource) in wrong {
            assert!(Rule::new(group, resource).is_err());
        }
    }
}
