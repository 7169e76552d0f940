//! Admission of ShardingConfigs: none comes in that owns what another shard of its ring owns.
//!
//! Hides which configs are compared, and how it is said what they have in common. Who asks says no by
//! siblings only as a consistent list has them. What comes in by two requests at once is found later,
//! by the conditions of the configs.

use kube::api::DynamicObject;
use serde_json::Value;

use super::{
    running::{Moved, RunningPod, may_move, moved},
    wire::{BadReview, CONFIGS, Response, Review},
};
use crate::configs::{ConfigFacts, Configs};
use ctrlmesh_api::{RootTarget, keys};
use ctrlmesh_policy::{
    Checked, Draft, Kind, NamespaceLabels, ObjectRef, RootDraft, ShardingDraft, draft, object_of,
    ownership::Comparison, ring::DesiredScope, roots::Root,
};

/// Most warnings.
const MOST_NAMED: usize = 5;

/// The answer to a review of a ShardingConfig.
#[derive(Clone, Debug)]
pub struct Config {
    /// The AdmissionReview to send, as JSON.
    pub body: Vec<u8>,
    /// The config, for people: namespace and name.
    pub config: String,
    /// The reason why it is refused. `None` if it is not.
    pub refused: Option<String>,
    /// Whether a sibling is the reason.
    pub is_by_sibling: bool,
    /// Whether the answer depends on the pods that run, which were not given.
    pub asks_for_pods: bool,
    /// The workload of a root that comes in. `None` if it is refused, or stays as it is.
    pub target: Option<RootTarget>,
    /// Whether the user is warned.
    pub is_warned: bool,
}

/// What the API server was asked for the sake of a review.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found<'f> {
    /// The injected pods of the namespace that run. `None` if they are not known.
    pub pods: Option<&'f [RunningPod]>,
    /// The warning about the workload of a root.
    pub workload: Option<&'f str>,
}

/// Answers a review of a created or updated ShardingConfig. The answer depends on the existing configs and the
/// current namespaces. Fails with [`BadReview`] if the body is no such review.
pub fn review_config(
    body: &[u8],
    configs: &Configs,
    known: &NamespaceLabels,
    found: Found<'_>,
) -> Result<Config, BadReview> {
    let Review { uid, namespace, object, old } = Review::parse(body, &CONFIGS)?;
    let is_same = !old.is_null() && object.get("spec") == old.get("spec");
    let is_going = object.pointer("/metadata/deletionTimestamp").is_some();
    let config = in_namespace(object, &namespace)?;
    let named = format!("{namespace}/{}", config.metadata.name.as_deref().unwrap_or_default());
    let (mut asks_for_pods, mut target) = (false, None);
    let judged = match is_same || is_going {
        true => Ok(Vec::new()),
        false => judge(&config, configs, known).and_then(|(new, mut warnings)| {
            if let Draft::Root(draft) = &new {
                target = Some(draft.root.target.clone());
                warnings.extend(found.workload.map(str::to_owned));
            }
            let Some(old) = before(old, &namespace) else { return Ok(warnings) };
            match found.pods {
                _ if !may_move(&old, &new) => Ok(warnings),
                Some(pods) => refuse_moved(&moved(&old, &new, configs, pods)).map(|()| warnings),
                None => {
                    asks_for_pods = true;
                    Ok(warnings)
                }
            }
        }),
    };
    let is_warned = judged.as_ref().is_ok_and(|warnings| !warnings.is_empty());
    let is_by_sibling = matches!(judged, Err(Refused::BySibling(_)));
    let (response, refused) = match judged {
        Ok(warnings) => (Response::warned(uid, warnings), None),
        Err(Refused::ByItself(why) | Refused::BySibling(why)) => {
            (Response::refused(uid, &why), Some(why))
        }
    };
    let body = response.into_body();
    let target = target.filter(|_| refused.is_none());
    Ok(Config { body, config: named, refused, is_by_sibling, asks_for_pods, target, is_warned })
}

fn in_namespace(object: Value, namespace: &str) -> Result<DynamicObject, serde_json::Error> {
    let mut config: DynamicObject = serde_json::from_value(object)?;
    config.metadata.namespace = Some(namespace.to_owned());
    Ok(config)
}

/// The config that is replaced, checked. `None` if there is none.
fn before(old: Value, namespace: &str) -> Option<Checked> {
    let old = in_namespace(old, namespace).ok()?;
    Some(draft(Kind::of_config(&old), &old))
}

/// Refuses a change by which pods that run would be of another shard.
fn refuse_moved(moved: &[Moved]) -> Result<(), Refused> {
    let Some(Moved { pod, from, to }) = moved.first() else { return Ok(()) };
    let more = moved.len() - 1;
    let others = if more > 0 { format!(", and {more} more pods move") } else { String::new() };
    Err(Refused::ByItself(format!(
        "spec: pod {pod} runs in the shard {from} and would be of {to}{others}: a pod that runs gets no \
         other lock and no other objects; end these pods first, or move them on purpose with the label \
         {}{}",
        keys::PREFIX,
        keys::IGNORE_VALIDATE
    )))
}

/// The reason why a config is refused.
enum Refused {
    /// It cannot be used.
    ByItself(String),
    /// Another owns what it owns.
    BySibling(String),
}

/// The checked config, and the warnings about it. Fails with the reason why it is refused.
fn judge(
    config: &DynamicObject,
    configs: &Configs,
    known: &NamespaceLabels,
) -> Result<(Draft, Vec<String>), Refused> {
    let kind = Kind::of_config(config);
    let new = draft(kind, config).map_err(|why| Refused::ByItself(why.to_string()))?;
    if kind == Kind::KridgeShardingConfig {
        has_own_name(config, configs)?;
    }
    let warnings = match &new {
        Draft::Sharding(own) => {
            let warnings = own.warnings.iter().map(ToString::to_string).collect();
            beside(
                own,
                "spec.limits",
                warnings,
                configs.facts_of(&own.config.object.namespace),
                known,
            )?
        }
        Draft::Root(draft) => {
            let warnings = draft.warnings.iter().map(ToString::to_string).collect();
            of_root(draft, warnings, configs, known)?
        }
    };
    Ok((new, warnings))
}

/// Refuses a config of Kridge if its translation would have the name of another.
fn has_own_name(config: &DynamicObject, configs: &Configs) -> Result<(), Refused> {
    let meta = &config.metadata;
    let [namespace, name] = [&meta.namespace, &meta.name].map(|text| text.as_deref().unwrap_or(""));
    let mut all = configs.facts_of(namespace);
    let is_other = |config: &&ConfigFacts| {
        let translation = config.translation.as_ref();
        *object_of(&config.checked).name == *name
            && translation.is_none_or(|translation| meta.uid.as_deref() != Some(&translation.of))
    };
    match all.find(is_other) {
        None => Ok(()),
        Some(_) => Err(Refused::BySibling(format!(
            "metadata.name: a ShardingConfig of ctrlmesh.kusionstack.io has the name {name}: give another, \
             or delete it; both would elect the same leader"
        ))),
    }
}

/// Compares a root with the configs that are not its children: none has the name of one, and none of its
/// ring owns some of what the children have between them.
fn of_root(
    RootDraft { root, whole, .. }: &RootDraft,
    warnings: Vec<String>,
    configs: &Configs,
    known: &NamespaceLabels,
) -> Result<Vec<String>, Refused> {
    let is_own =
        |config: &ConfigFacts| config.child.as_ref().is_some_and(|child| child.is_of(&root.object));
    let others = || configs.facts_of(&root.object.namespace).filter(|config| !is_own(config));
    let names: Vec<_> = root.possible_shards().into_iter().map(|shard| root.name(shard)).collect();
    let object = |config: &'_ ConfigFacts| object_of(&config.checked).clone();
    if let Some(other) = others().map(object).find(|other| names.iter().any(|n| **n == *other.name))
    {
        return Err(Refused::BySibling(format!(
            "spec.root.prefix: {other} has the name of a child and is not its own: give another \
             prefix, or delete it"
        )));
    }
    if let Some(other) = others().find_map(|other| of_same_workload(root, other)) {
        let kind = root.target.kind.as_str();
        return Err(Refused::BySibling(format!(
            "spec.root.target: {other} shards the pods of {kind} {}, too: delete it, or give another workload",
            root.target.name
        )));
    }
    beside(whole, "spec.root.resourceSelector", warnings, others(), known)
}

/// The root that a config is, if it is another one of the same workload.
fn of_same_workload<'c>(root: &Root, other: &'c ConfigFacts) -> Option<&'c ObjectRef> {
    let Ok(Draft::Root(RootDraft { root: other, .. })) = &other.checked else { return None };
    let is_same = other.target == root.target && !other.object.is_same(&root.object);
    (is_same && !other.is_disabled && !root.is_disabled).then_some(&other.object)
}

/// The warnings about a shard next to the others of its ring among these. Fails if one owns what it owns.
fn beside<'c>(
    own: &ShardingDraft,
    field: &str,
    mut warnings: Vec<String>,
    others: impl Iterator<Item = &'c ConfigFacts>,
    known: &NamespaceLabels,
) -> Result<Vec<String>, Refused> {
    let Ok(Some(mine)) = DesiredScope::of(own, Some(known)) else { return Ok(warnings) };
    for config in others {
        let Ok(Some(theirs)) = config.wanted(Some(known)) else { continue };
        if theirs.ring != mine.ring || theirs.shard == mine.shard {
            continue;
        }
        let compared = Comparison::of([&mine.area, &theirs.area], Some(known));
        let name = object_of(&config.checked);
        if let Some((rule, witness)) = compared.common.first() {
            return Err(Refused::BySibling(format!(
                "{field}: {name} of the same ring owns some of the same {rule}, such as \
                 {witness}: take them out of it first, and then apply {} again, as by kubectl apply -f FILE; \
                 or overlap on purpose with the label {}{}",
                own.config.object,
                keys::PREFIX,
                keys::IGNORE_VALIDATE
            )));
        }
        let undecided = compared.undecided.iter().take(MOST_NAMED);
        warnings.extend(undecided.map(|(rule, why)| {
            format!("{name} of the same ring may own some of the same {rule}: {why}")
        }));
        let limited_once = compared.limited_once.iter().take(MOST_NAMED);
        warnings.extend(
            limited_once
                .map(|rule| format!("of this and {name} of the same ring only one limits {rule}")),
        );
    }
    warnings.truncate(MOST_NAMED);
    Ok(warnings)
}
