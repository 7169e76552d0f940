//! Compilation of a KusionStack ShardingConfig to a draft: all of it or nothing.

mod fence;
mod limits;
mod root;
mod selector;
mod shared;
mod webhook;

use std::sync::Arc;

use serde::Deserialize;

use self::{limits::limits, selector::selector};
use super::{
    draft::{Draft, RootDraft, ShardingDraft},
    problem::{Invalid, Problem, Problems},
};
use crate::{
    fence::Fence,
    object::ObjectRef,
    parts::PodConfig,
    roots::{Partition, Shard},
    sharding::{BadLock, LockName, Locks},
};
use ctrlmesh_api::{Controller, HandoverMode, Root, ShardingConfigSpec};
use ctrlmesh_wire::{dns::is_subdomain, selector::Selector};

/// Checks the ShardingConfig `object` with this spec.
pub(super) fn sharding(
    object: ObjectRef,
    created: Option<i64>,
    spec: &serde_json::Value,
) -> Result<Draft, Invalid> {
    match ShardingConfigSpec::deserialize(spec) {
        Ok(spec) => match &spec.root {
            Some(root) => self::root(object, &spec, root).map(Draft::Root),
            None => {
                let draft = compile(object, &spec)?;
                Ok(Draft::Sharding(ShardingDraft { created, ..draft }))
            }
        },
        Err(error) => Err(Invalid::one(object, "spec", error)),
    }
}

fn compile(object: ObjectRef, spec: &ShardingConfigSpec) -> Result<ShardingDraft, Invalid> {
    let mut problems = Problems::default();
    let locks = spec
        .controller
        .as_ref()
        .and_then(|controller| locks(controller, &object, &mut problems))
        .unwrap_or_default();
    let given = spec.selector.as_ref();
    let pods = given
        .map_or_else(Selector::everything, |given| selector("spec.selector", given, &mut problems));
    if pods.is_everything() {
        problems.add("spec.selector", "is empty: give labels that select the pods of this shard");
    }
    let webhook = webhook::webhook(spec.webhook.as_ref(), &mut problems);
    let mut warnings = Vec::new();
    let limits = limits("spec.limits", &spec.limits, &mut problems, &mut warnings);
    let fence = fence::fence(spec.fence.as_ref(), &limits, &mut problems, &mut warnings);
    let shared = shared::shared(&spec.shared, &mut problems, &mut warnings);
    let ring = ring(spec, &mut problems);
    let object = problems.none_of(object)?;
    let config = PodConfig { object, pods };
    let waits = spec.handover.as_ref().and_then(|handover| handover.mode).unwrap_or_default()
        == HandoverMode::Wait;
    let fence = Arc::new(Fence { config: config.object.to_string().into(), ..fence });
    Ok(ShardingDraft {
        config,
        created: None,
        webhook,
        ring,
        waits,
        warnings,
        fence,
        shared,
        locks,
        limits,
    })
}

/// The locks of a controller. `None` if it has problems.
fn locks(controller: &Controller, object: &ObjectRef, problems: &mut Problems) -> Option<Locks> {
    let mut names = Vec::new();
    if let Some(name) = &controller.leader_election_name {
        // Only `locks` may name several at once.
        let checked = match name.ends_with('*') {
            true => Err(BadLock::Name(name.clone())),
            false => LockName::beside_the_pods(name, &object.namespace),
        };
        names.extend(problems.ok("spec.controller.leaderElectionName", checked));
    }
    for (at, lock) in controller.locks.iter().enumerate() {
        let name = match lock.namespace.as_deref() {
            Some(namespace) => LockName::new(&lock.name, namespace),
            None => LockName::beside_the_pods(&lock.name, &object.namespace),
        };
        names.extend(problems.ok(format!("spec.controller.locks[{at}]"), name));
    }
    if controller.leader_election_name.is_none() && controller.locks.is_empty() {
        problems.add("spec.controller", "has no lock: give leaderElectionName, or locks");
    }
    let field = match controller.locks.is_empty() {
        true => "spec.controller.leaderElectionName",
        false => "spec.controller.locks",
    };
    problems.ok(field, Locks::new(names, &object.name, &object.namespace))
}

/// Checks a root: by itself, and by its first child, in which the rest of its fields are.
fn root(object: ObjectRef, spec: &ShardingConfigSpec, given: &Root) -> Result<RootDraft, Invalid> {
    let mut problems = Problems::default();
    let root = root::root(&object, spec, given, &mut problems);
    let of_root = |problem: &Problem| {
        let field = problem.field.replacen("spec.limits", "spec.root.resourceSelector", 1);
        Problem { field, what: problem.what.clone() }
    };
    let (mut warnings, mut whole) = (Vec::new(), None);
    if let Some(root) = &root {
        let name = root.name(Shard::Normal(1)).into();
        let child = ObjectRef { name, uid: None, generation: None, ..object.clone() };
        match compile(child, &root.spec(Shard::Normal(1), &Partition::everything())) {
            Ok(draft) => {
                warnings.extend(draft.warnings.iter().map(of_root));
                whole = Some(Box::new(draft));
            }
            Err(invalid) => problems.extend(invalid.problems.iter().map(of_root)),
        }
    }
    let object = problems.none_of(object)?;
    match (root, whole) {
        (Some(root), Some(whole)) => Ok(RootDraft { root, whole, warnings }),
        _ => Err(Invalid::one(object, "spec.root", "cannot be used")),
    }
}

/// Most bytes of the name of a ring.
const MAX_RING: usize = 253;

/// The ring of a config, by default named as the controller's first lock.
fn ring(spec: &ShardingConfigSpec, problems: &mut Problems) -> Option<Box<str>> {
    let Some(ring) = &spec.ring else {
        return spec.controller.as_ref()?.first_lock().map(Into::into);
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

#[cfg(test)]
mod tests;
