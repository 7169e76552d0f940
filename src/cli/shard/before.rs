//! The fields of a workload before `ctrlmesh shard` changes them, and the root that remembers them.
//!
//! Hides where they are kept.

use kube::api::DynamicObject;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::facts::{Facts, Workload};
use ctrlmesh_api::{RootTarget, TargetKind, keys};

/// Annotation of a root: the fields of its workload before `ctrlmesh shard` changed them, as JSON.
pub(super) const BEFORE: &str = "ctrlmesh.kusionstack.io/before-shard";

/// The fields of a workload that are changed. `None` where the workload did not have the field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Before {
    pub(super) replicas: Option<u32>,
    /// The strategy of a Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) strategy: Option<Value>,
    /// The label by which its pods get a proxy.
    pub(super) label: Option<String>,
}

impl Before {
    pub(super) fn of(workload: &Workload) -> Self {
        let is_deployment = workload.target.kind == TargetKind::Deployment;
        let strategy = workload.object["spec"].get("strategy").cloned();
        Self {
            replicas: workload.object["spec"].get("replicas").map(|_| workload.replicas()),
            strategy: strategy.filter(|_| is_deployment),
            label: workload.pod_labels().get(&*label()).map(|value| (*value).to_owned()),
        }
    }
}

/// The label by which a pod gets a proxy.
pub(super) fn label() -> String {
    format!("{}{}", keys::PREFIX, keys::ENABLE_PROXY)
}

/// The strategy by which no shard is without a ready pod in a rollout.
pub(super) fn strategy() -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}})
}

/// The root of the workload that an earlier run has written.
pub(super) fn root_of(facts: &Facts) -> Option<&DynamicObject> {
    let configs = facts.configs.as_ref().ok()?;
    configs.iter().find(|config| is_ours(config, &facts.workload.target))
}

/// Whether a config is the root that `ctrlmesh shard` has written for this workload.
pub(super) fn is_ours(config: &DynamicObject, target: &RootTarget) -> bool {
    let of = config.data.pointer("/spec/root/target");
    let is_its = of.and_then(|of| RootTarget::deserialize(of).ok()).is_some_and(|of| of == *target);
    is_its && read(config).is_some()
}

/// The fields that its workload had before.
pub(super) fn read(config: &DynamicObject) -> Option<Before> {
    let text = config.metadata.annotations.as_ref()?.get(BEFORE)?;
    serde_json::from_str(text).ok()
}
