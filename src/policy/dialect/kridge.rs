//! Translation of a Kridge ShardingConfig to one of ours, which means the same.
//!
//! Hides the fields of Kridge. Its config is checked as its translation is, and problems are told by its
//! own fields.

use serde::Deserialize;
use serde_json::Value;

use super::{
    draft::Checked,
    kusion,
    problem::{Invalid, Problem},
};
use crate::object::ObjectRef;
use ctrlmesh_api::{
    KridgeLimit, KridgeShardingConfigSpec, Limit, ObjectSelector, ShardingConfigSpec,
};

/// Checks a config of Kridge. Its translation has its name, and is what others see of it.
pub(super) fn sharding(object: ObjectRef, created: Option<i64>, spec: &Value) -> Checked {
    let spec = match read(spec) {
        Ok(spec) => spec,
        Err(problem) => return Err(Invalid::one(object, "spec", problem)),
    };
    let nested: Vec<bool> =
        spec.limits.iter().map(|limit| limit.object_selector.is_some()).collect();
    let translated = serde_json::to_value(translate(spec)).unwrap_or_default();
    let own = |problem: Problem| {
        let mut field = problem.field;
        for (at, _) in nested.iter().enumerate().filter(|(_, is_nested)| **is_nested) {
            let limit = format!("spec.limits[{at}].");
            field = field.replacen(&limit, &format!("{limit}objectSelector."), 1);
        }
        Problem { field, ..problem }
    };
    kusion::sharding(object, created, &translated).map_err(|invalid| Invalid {
        problems: invalid.problems.into_iter().map(own).collect(),
        ..invalid
    })
}

/// The spec of ours that means what a spec of Kridge says. Fails with the fault.
pub fn translated(spec: &Value) -> Result<ShardingConfigSpec, String> {
    read(spec).map(translate)
}

fn read(spec: &Value) -> Result<KridgeShardingConfigSpec, String> {
    if spec.get("root").is_some_and(|root| !root.is_null()) {
        return Err("root: a root is a ShardingConfig of ctrlmesh.kusionstack.io/v1alpha1: write it as one, \
                    with canary.replicas, auto.shardingSize and auto.everyShardReplicas for Kridge's \
                    canaryReplicas, size and normalReplicas"
            .to_owned());
    }
    let spec = KridgeShardingConfigSpec::deserialize(spec).map_err(|error| error.to_string())?;
    let is_twice = |limit: &KridgeLimit| {
        limit.object_selector.is_some()
            && (limit.relate_resources.is_some() || limit.selector.is_some())
    };
    match spec.limits.iter().position(is_twice) {
        Some(at) => Err(format!(
            "limits[{at}].objectSelector: is next to relateResources or selector: give one spelling of them"
        )),
        None => Ok(spec),
    }
}

fn translate(spec: KridgeShardingConfigSpec) -> ShardingConfigSpec {
    let KridgeShardingConfigSpec { selector, controller, webhook, limits } = spec;
    let limit = |limit: KridgeLimit| {
        let flat = || ObjectSelector {
            relate_resources: limit.relate_resources.unwrap_or_default(),
            selector: limit.selector,
        };
        let ObjectSelector { relate_resources, selector } =
            limit.object_selector.unwrap_or_else(flat);
        Limit { relate_resources, selector, ..Limit::default() }
    };
    ShardingConfigSpec {
        selector: Some(selector),
        controller,
        webhook,
        limits: limits.into_iter().map(limit).collect(),
        ..ShardingConfigSpec::default()
    }
}
