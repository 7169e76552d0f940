//! Limits: the resources of each, and the scope of their objects.

use std::{collections::BTreeSet, sync::Arc};

use super::selector::selector;
use crate::{
    GroupResource,
    dialect::{
        draft::{DraftScope, LabelRule},
        problem::{Problem, Problems},
    },
    sharding::{Boundary, Computed, HashOf, HashRange, HashRule, Pattern, Rule},
};
use ctrlmesh_api as api;
use ctrlmesh_api::{ClusterScoped, Limit, Resources};
use ctrlmesh_wire::{dns::is_label, selector::Selector};

/// A limit's claim to a pair of group and resource, and the field that makes it.
struct LimitClaim {
    limit: usize,
    field: String,
    rule: Rule,
}

/// The scopes of limits in the list at a field, each for a rule.
pub(super) fn limits(
    at: &str,
    limits: &[Limit],
    problems: &mut Problems,
    warnings: &mut Vec<Problem>,
) -> Vec<(Rule, Arc<DraftScope>)> {
    let mut claims: Vec<LimitClaim> = Vec::new();
    let mut rules = Vec::new();
    for (number, limit) in limits.iter().enumerate() {
        let field = format!("{at}[{number}]");
        let selector = limit.selector.as_ref().map_or_else(Selector::everything, |given| {
            selector(&format!("{field}.selector"), given, problems)
        });
        let (computed, selector) = Computed::split(&selector);
        warnings.extend(
            computed
                .iter()
                .flat_map(Computed::impossible)
                .map(|what| Problem { field: format!("{field}.selector"), what }),
        );
        let is_computed = computed.is_some();
        let boundary = boundary(&field, limit, problems);
        let boundary = match boundary {
            None if computed.is_none() => None,
            given => {
                let mut boundary = given.unwrap_or_else(Boundary::everything);
                // Cluster-scoped objects has none of the keys. A word about it counts more.
                if limit.cluster_scoped.is_none() {
                    boundary.has_cluster_scoped &= computed.as_ref().is_none_or(|one| one.has(""));
                }
                Some(boundary.restricted(computed))
            }
        };
        let labels = label_rule(&field, limit, problems);
        let is_hashed = |hash: &api::Hash| hash.of == api::HashOf::Namespace;
        let is_by_namespace =
            is_computed || limit.namespaces.is_some() || limit.hash.as_ref().is_some_and(is_hashed);
        let at = field.clone();
        let scope = Arc::new(DraftScope { selector, boundary, labels, field: at, is_by_namespace });
        for (field, rule) in rules_of(&field, &limit.relate_resources, problems) {
            if let Some(other) = claims.iter().find(|claim| claim.rule.conflicts(&rule)) {
                // One limit may repeat a rule: it may name both groups of one storage.
                if other.limit != number || other.rule != rule {
                    problems.add(field, conflict(&rule, other));
                }
                continue;
            }
            rules.push((rule.clone(), Arc::clone(&scope)));
            claims.push(LimitClaim { limit: number, field, rule });
        }
    }
    rules
}

fn conflict(rule: &Rule, other: &LimitClaim) -> String {
    let mut what = format!(
        "{rule} is limited already by {} as {}: name a resource in one limit only",
        other.field, other.rule
    );
    if rule.covers(&GroupResource::new("", "events")) {
        what.push_str(", and the events of events.k8s.io are those of the core group");
    }
    what
}

fn label_rule(at: &str, limit: &Limit, problems: &mut Problems) -> Option<LabelRule> {
    let given = limit.namespaces.as_ref()?.selector.as_ref()?;
    let field = format!("{at}.namespaces.selector");
    let selector = selector(&field, given, problems);
    Some(LabelRule { field, selector })
}

/// The boundary of a limit, without its selector for namespaces.
fn boundary(at: &str, limit: &Limit, problems: &mut Problems) -> Option<Boundary> {
    let Limit { namespaces, hash, cluster_scoped, .. } = limit;
    if namespaces.is_none() && hash.is_none() && cluster_scoped.is_none() {
        return None;
    }
    let is_silent = namespaces.is_some()
        || hash.as_ref().is_some_and(|hash| matches!(hash.of, api::HashOf::Namespace));
    if is_silent && cluster_scoped.is_none() {
        let what = "is missing: namespaces do not decide about objects that are in none; give \
                    Include in one shard and Exclude in the others";
        problems.add(format!("{at}.clusterScoped"), what);
    }
    // Uids alone have no hash if nothing has a uid.
    let has_none = hash.as_ref().is_some_and(|hash| hash.ranges.is_empty());
    let has_nothing = has_none && hash.as_ref().is_some_and(|hash| hash.of == api::HashOf::Uid);
    let hash = hash.as_ref().and_then(|hash| hash_rule(&format!("{at}.hash"), hash, problems));
    let mut boundary = Boundary {
        names: None,
        pattern: None,
        selected: None,
        computed: None,
        hash,
        has_cluster_scoped: *cluster_scoped != Some(ClusterScoped::Exclude) && !has_nothing,
    };
    if let Some(api::Namespaces { names, pattern, selector }) = namespaces {
        let at = format!("{at}.namespaces");
        if names.is_empty() && pattern.is_none() && selector.is_none() {
            problems.add(&at, "is empty: give names, a pattern, or a selector");
        }
        for (number, name) in names.iter().enumerate() {
            if name.len() > 63 || !is_label(name) {
                let what = format!(
                    "{name:?} is not a namespace: give at most 63 of a-z, 0-9 and -, beginning and \
                     ending with a letter or digit"
                );
                problems.add(format!("{at}.names[{number}]"), what);
            }
            boundary.names.get_or_insert_default().insert(name.as_str().into());
        }
        boundary.pattern = pattern
            .as_deref()
            .and_then(|pattern| problems.ok(format!("{at}.pattern"), Pattern::new(pattern)));
    }
    if has_none {
        boundary.names = Some(BTreeSet::new());
    }
    Some(boundary)
}

/// The rule of a hash. `None` if it has no range, or has a problem.
fn hash_rule(at: &str, given: &api::Hash, problems: &mut Problems) -> Option<HashRule> {
    let mut ranges = Vec::new();
    for (number, range) in given.ranges.iter().enumerate() {
        let range = HashRange::new(&range.from, &range.to);
        ranges.push(problems.ok(format!("{at}.ranges[{number}]"), range));
    }
    let ranges = ranges.into_iter().collect::<Option<Vec<_>>>()?;
    let rule = match (given.of, given.function.unwrap_or_default()) {
        (api::HashOf::Uid, api::HashFunction::Fnv1aMixed) => {
            let what = "Fnv1aMixed is for namespaces, and uids need no mixing: leave it out";
            problems.add(format!("{at}.function"), what);
            return None;
        }
        _ if ranges.is_empty() => return None,
        (api::HashOf::Uid, api::HashFunction::Fnv1a) => HashRule::new(HashOf::Uid, ranges),
        (api::HashOf::Namespace, api::HashFunction::Fnv1a) => {
            HashRule::new(HashOf::Namespace, ranges)
        }
        (api::HashOf::Namespace, api::HashFunction::Fnv1aMixed) => HashRule::mixed(ranges),
    };
    problems.ok(format!("{at}.ranges"), rule)
}

fn rules_of(limit: &str, given: &[Resources], problems: &mut Problems) -> Vec<(String, Rule)> {
    if given.is_empty() {
        return vec![(limit.to_owned(), Rule::everything())];
    }
    let mut rules = Vec::new();
    for (at, resources) in given.iter().enumerate() {
        let field = format!("{limit}.relateResources[{at}]");
        if resources.api_groups.is_empty() {
            problems.add(
                format!("{field}.apiGroups"),
                "is empty: name a group, \"\" for the core group, or \"*\"",
            );
        }
        if resources.resources.is_empty() {
            problems.add(
                format!("{field}.resources"),
                "is empty: name a resource in plural, for example \"pods\", or \"*\"",
            );
        }
        for group in &resources.api_groups {
            for resource in &resources.resources {
                let rule = problems.ok(&field, Rule::new(group, resource));
                rules.extend(rule.map(|rule| (field.clone(), rule)));
            }
        }
    }
    rules
}
