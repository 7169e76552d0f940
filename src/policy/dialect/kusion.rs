//! Compilation of a KusionStack ShardingConfig to a draft: all of it or nothing.

mod webhook;

use std::sync::Arc;

use serde::Deserialize;

use super::{
    draft::{DraftScope, LabelRule, ShardingDraft},
    problem::{Invalid, Problem, Problems},
};
use crate::{
    api::{
        self, ClusterScoped, HandoverMode, LabelSelector, LabelSelectorRequirement, Limit,
        Operator, Resources, ShardingConfigSpec,
    },
    policy::{
        GroupResource,
        object::ObjectRef,
        parts::PodConfig,
        sharding::{Boundary, Computed, HashOf, HashRange, HashRule, Lock, Pattern, Rule},
    },
    wire::{
        dns::{is_label, is_subdomain},
        selector::{LabelError, Op, Requirement, Selector},
    },
};

/// Checks the ShardingConfig `object` with this spec.
pub(super) fn sharding(
    object: ObjectRef,
    spec: &serde_json::Value,
) -> Result<ShardingDraft, Invalid> {
    match ShardingConfigSpec::deserialize(spec) {
        Ok(spec) => compile(object, &spec),
        Err(error) => Err(Invalid::one(object, "spec", error)),
    }
}

fn compile(object: ObjectRef, spec: &ShardingConfigSpec) -> Result<ShardingDraft, Invalid> {
    let mut problems = Problems::default();
    let lock = spec.controller.as_ref().and_then(|controller| {
        let lock = Lock::new(&controller.leader_election_name, &object.name, &object.namespace);
        problems.ok("spec.controller.leaderElectionName", lock)
    });
    let pods = selector("spec.selector", &spec.selector, &mut problems);
    if pods.is_everything() {
        problems.add("spec.selector", "is empty: give labels that select the pods of this shard");
    }
    let webhook = webhook::webhook(spec.webhook.as_ref(), &mut problems);
    let mut warnings = Vec::new();
    let limits = limits(&spec.limits, &mut problems, &mut warnings);
    let ring = ring(spec, &mut problems);
    let object = problems.none_of(object)?;
    let config = PodConfig { object, pods };
    let waits = spec.handover.as_ref().and_then(|handover| handover.mode).unwrap_or_default()
        == HandoverMode::Wait;
    Ok(ShardingDraft { config, created: None, webhook, ring, waits, warnings, lock, limits })
}

/// Most bytes of the name of a ring.
const MAX_RING: usize = 253;

/// The ring of a config, by default named as the controller's lock.
fn ring(spec: &ShardingConfigSpec, problems: &mut Problems) -> Option<Box<str>> {
    let Some(ring) = &spec.ring else {
        return Some(spec.controller.as_ref()?.leader_election_name.as_str().into());
    };
    if ring.len() > MAX_RING || !is_subdomain(ring) {
        let what = format!(
            "{ring:?} is not the name of a ring: give at most {MAX_RING} of a-z, 0-9, - and ., beginning \
             and ending with a letter or digit, the same in all shards of the controller"
        );
        problems.add("spec.ring", what);
        return None;
    }
    Some(ring.as_str().into())
}

/// A limit's claim to a pair of group and resource, and the field that makes it.
struct Claim {
    limit: usize,
    field: String,
    rule: Rule,
}

fn limits(
    limits: &[Limit],
    problems: &mut Problems,
    warnings: &mut Vec<Problem>,
) -> Vec<(Rule, Arc<DraftScope>)> {
    let mut claims: Vec<Claim> = Vec::new();
    let mut rules = Vec::new();
    for (at, limit) in limits.iter().enumerate() {
        let field = format!("spec.limits[{at}]");
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
        let boundary = boundary(&field, limit, problems);
        let boundary = match boundary {
            None if computed.is_none() => None,
            given => Some(given.unwrap_or_else(Boundary::everything).restricted(computed)),
        };
        let labels = label_rule(&field, limit, problems);
        let scope = Arc::new(DraftScope { selector, boundary, labels });
        for (field, rule) in rules_of(&field, &limit.relate_resources, problems) {
            if let Some(other) = claims.iter().find(|claim| claim.rule.conflicts(&rule)) {
                // One limit may repeat a rule: it may name both groups of one storage.
                if other.limit != at || other.rule != rule {
                    problems.add(field, conflict(&rule, other));
                }
                continue;
            }
            rules.push((rule.clone(), Arc::clone(&scope)));
            claims.push(Claim { limit: at, field, rule });
        }
    }
    rules
}

fn conflict(rule: &Rule, other: &Claim) -> String {
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
    let hash = hash.as_ref().and_then(|hash| hash_rule(&format!("{at}.hash"), hash, problems));
    let mut boundary = Boundary {
        names: None,
        pattern: None,
        selected: None,
        computed: None,
        hash,
        has_cluster_scoped: *cluster_scoped != Some(ClusterScoped::Exclude),
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
    Some(boundary)
}

fn hash_rule(at: &str, given: &api::Hash, problems: &mut Problems) -> Option<HashRule> {
    let mut ranges = Vec::new();
    for (number, range) in given.ranges.iter().enumerate() {
        let range = HashRange::new(&range.from, &range.to);
        ranges.push(problems.ok(format!("{at}.ranges[{number}]"), range));
    }
    let ranges = ranges.into_iter().collect::<Option<_>>()?;
    let of = match given.of {
        api::HashOf::Uid => HashOf::Uid,
        api::HashOf::Namespace => HashOf::Namespace,
    };
    problems.ok(format!("{at}.ranges"), HashRule::new(of, ranges))
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

fn selector(field: &str, given: &LabelSelector, problems: &mut Problems) -> Selector {
    let labels = given.match_labels.iter().map(|(key, value)| {
        (format!("{field}.matchLabels[{key:?}]"), Requirement::equals(key, value))
    });
    let expressions = given.match_expressions.iter().enumerate().map(|(at, expression)| {
        (format!("{field}.matchExpressions[{at}]"), requirement(expression))
    });
    labels.chain(expressions).filter_map(|(field, parsed)| problems.ok(field, parsed)).collect()
}

fn requirement(given: &LabelSelectorRequirement) -> Result<Requirement, LabelError> {
    let op = match given.operator {
        Operator::In => Op::In,
        Operator::NotIn => Op::NotIn,
        Operator::Exists => Op::Exists,
        Operator::DoesNotExist => Op::DoesNotExist,
    };
    Requirement::new(&given.key, op, &given.values)
}

#[cfg(test)]
mod tests;
