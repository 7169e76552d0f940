//! The workload of a root, as the API server has it, and its pods.
//!
//! Hides which of its fields count for the shards of its pods, the text about them, and how it is notified of
//! which Deployment a pod is. Does not know who
//! follows it, or who asks.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::Value;

use ctrlmesh_api::{RootTarget, TargetKind, keys};

/// A workload, by what counts for the shards of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    /// The number of pods that it is to have.
    pub(super) replicas: u32,
    rollout: Rollout,
}

/// The way in which a rollout replaces pods.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rollout {
    /// A new pod is ready before an old one is deleted, or no ReplicaSet chooses which that is.
    OneByOne,
    /// Old pods are deleted before new ones are ready, so many at once.
    Before(u64),
    /// All old pods are deleted first.
    Recreate,
}

/// The workload that a root names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FoundTarget {
    /// It is there.
    There(Workload),
    /// One of its name and the other kind is there.
    OtherKind,
    /// There is none.
    Missing,
}

/// The kind, as an API resource.
pub(super) fn resource(kind: TargetKind) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind.as_str()))
}

/// The other kind.
pub(super) const fn other(kind: TargetKind) -> TargetKind {
    match kind {
        TargetKind::Deployment => TargetKind::StatefulSet,
        TargetKind::StatefulSet => TargetKind::Deployment,
    }
}

/// Reads the workload of this kind and name. `None` if there is none.
pub(super) async fn read(
    client: &Client,
    namespace: &str,
    target: &RootTarget,
) -> kube::Result<Option<Workload>> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &resource(target.kind));
    let found = api.get_opt(&target.name).await?;
    Ok(found.map(|object| Workload::of(target.kind, &object)))
}

/// Reads the workload that a root names, or whether there is one of the other kind.
pub(super) async fn find(
    client: &Client,
    namespace: &str,
    target: &RootTarget,
) -> kube::Result<FoundTarget> {
    if let Some(workload) = read(client, namespace, target).await? {
        return Ok(FoundTarget::There(workload));
    }
    let of_other = RootTarget { kind: other(target.kind), ..target.clone() };
    let other = read(client, namespace, &of_other).await?;
    Ok(other.map_or(FoundTarget::Missing, |_| FoundTarget::OtherKind))
}

impl Workload {
    pub(super) fn of(kind: TargetKind, object: &DynamicObject) -> Self {
        let spec = object.data.get("spec").unwrap_or(&Value::Null);
        let replicas = spec.get("replicas").and_then(Value::as_u64).unwrap_or(1);
        let replicas = u32::try_from(replicas).unwrap_or(u32::MAX);
        let rollout = match kind {
            TargetKind::StatefulSet => Rollout::OneByOne,
            TargetKind::Deployment => Rollout::of(spec.get("strategy"), replicas.into()),
        };
        Self { replicas, rollout }
    }

    fn warning(&self, target: &RootTarget) -> Option<String> {
        let RootTarget { kind, name } = target;
        let what = match self.rollout {
            Rollout::OneByOne => return None,
            Rollout::Before(count) => {
                format!("deletes {count} of its old pods in a rollout before new ones are ready")
            }
            Rollout::Recreate => {
                "deletes all of its old pods in a rollout before new ones are there".to_owned()
            }
        };
        Some(format!(
            "{} {name} {what}, and their shards are without a ready pod meanwhile: give it \
             spec.strategy.rollingUpdate with maxUnavailable: 0 and a maxSurge of 1 or more",
            kind.as_str()
        ))
    }
}

impl Rollout {
    /// The way of a Deployment with so many pods (`ResolveFenceposts` of its controller).
    fn of(strategy: Option<&Value>, replicas: u64) -> Self {
        if strategy.and_then(|strategy| strategy.get("type")?.as_str()) == Some("Recreate") {
            return Self::Recreate;
        }
        let rolling = strategy.and_then(|strategy| strategy.get("rollingUpdate"));
        let given = |field: &str| rolling.and_then(|rolling| rolling.get(field));
        let count = |field: &str, rounds_up: bool| match given(field) {
            Some(Value::Number(number)) => number.as_u64().unwrap_or(0),
            text => {
                let text = text.and_then(Value::as_str).unwrap_or("25%");
                let part = text.trim_end_matches('%').parse::<u64>().unwrap_or(0) * replicas;
                if rounds_up { part.div_ceil(100) } else { part / 100 }
            }
        };
        match (count("maxUnavailable", false), count("maxSurge", true)) {
            (0, 0) => Self::Before(1),
            (0, _) => Self::OneByOne,
            (unavailable, _) => Self::Before(unavailable),
        }
    }
}

impl FoundTarget {
    /// The reason why shards are without a ready pod in each rollout. `None` if they are not.
    pub(super) fn warning(&self, target: &RootTarget) -> Option<String> {
        match self {
            Self::There(workload) => workload.warning(target),
            Self::OtherKind | Self::Missing => None,
        }
    }

    /// The reason why it has no pods. `None` if it is there.
    pub(super) fn problem(&self, namespace: &str, target: &RootTarget) -> Option<String> {
        let RootTarget { kind, name } = target;
        let (kind, other) = (kind.as_str(), other(*kind).as_str());
        match self {
            Self::There(_) => None,
            Self::OtherKind => Some(format!(
                "{namespace}/{name} is a {other}, and spec.root names a {kind}: give spec.root.target \
                 with kind: {other}"
            )),
            Self::Missing => Some(format!(
                "there is no {kind} {namespace}/{name}: create it, or give the root the kind and name of \
                 the workload whose pods are sharded"
            )),
        }
    }
}

/// The name of the Deployment of the pods of a ReplicaSet, whose name ends with the hash of their template.
/// `None` if the owner is another, or has another name.
pub(super) fn deployment_of<'o>(
    api_version: &str,
    kind: &str,
    name: &'o str,
    template: &str,
) -> Option<&'o str> {
    let is_set = kind == "ReplicaSet" && api_version.starts_with("apps/");
    let deployment = name.strip_suffix(template)?.strip_suffix('-')?;
    (is_set && !template.is_empty() && !deployment.is_empty()).then_some(deployment)
}

/// The name of the Deployment that a pod is of, by the ReplicaSet that owns it.
pub(super) fn of_deployment(pod: &Value) -> Option<&str> {
    let owner = controller(pod)?;
    let text = |key: &str| owner.get(key).and_then(Value::as_str);
    let template = pod.pointer("/metadata/labels")?.get(keys::TEMPLATE_HASH)?.as_str()?;
    deployment_of(text("apiVersion")?, text("kind")?, text("name")?, template)
}

/// The owner that controls a pod.
pub(super) fn controller(pod: &Value) -> Option<&Value> {
    let mut owners = pod.pointer("/metadata/ownerReferences")?.as_array()?.iter();
    owners.find(|owner| owner.get("controller") == Some(&Value::Bool(true)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn warning(spec: &Value) -> Option<String> {
        let mut object = DynamicObject::new("op", &resource(TargetKind::Deployment));
        object.data = json!({ "spec": spec });
        let target = RootTarget { kind: TargetKind::Deployment, name: "op".to_owned() };
        Workload::of(TargetKind::Deployment, &object).warning(&target)
    }

    #[test]
    fn bad_a_rollout_that_deletes_before_new_pods_are_ready_is_named() {
        let rolling = |unavailable: Value, surge: Value| {
            json!({ "replicas": 8, "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": { "maxUnavailable": unavailable, "maxSurge": surge },
        } })
        };
        for (spec, expected) in [
            (json!({ "replicas": 8 }), Some("deletes 2 of its old pods")),
            (json!({ "replicas": 3 }), None),
            (json!({}), None),
            (rolling(json!(0), json!(1)), None),
            (rolling(json!(0), json!("25%")), None),
            (rolling(json!("30%"), json!(0)), Some("deletes 2 of its old pods")),
            (rolling(json!(0), json!(0)), Some("deletes 1 of its old pods")),
            (json!({ "strategy": { "type": "Recreate" } }), Some("deletes all of its old pods")),
        ] {
            let is = warning(&spec);
            match expected {
                Some(what) => assert!(is.as_ref().is_some_and(|is| is.contains(what)), "{is:?}"),
                None => assert_eq!(is, None, "{spec}"),
            }
        }
    }
}
