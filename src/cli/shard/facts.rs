//! The facts by which a workload is sharded: objects of the cluster as they were read.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        admissionregistration::v1::RuleWithOperations,
        autoscaling::v2::HorizontalPodAutoscaler,
        coordination::v1::Lease,
        core::v1::{Pod, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::api::DynamicObject;
use serde_json::Value;

use super::read::{release::Release, rights::Rights};
use crate::doctor::Looked;
use ctrlmesh_api::{RootTarget, TargetKind, keys};

/// All facts.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The workload.
    pub(super) workload: Workload,
    /// The mesh.
    pub(super) mesh: MeshFacts,
    /// The labels of the workload's namespace.
    pub(super) namespace: Looked<BTreeMap<String, String>>,
    /// The pods of the workload.
    pub(super) pods: Looked<Vec<Pod>>,
    /// The rights of its account.
    pub(super) rights: Looked<Rights>,
    /// All Leases.
    pub(super) leases: Looked<Vec<Lease>>,
    /// The webhooks that call its pods.
    pub(super) hooks: Looked<Vec<Hook>>,
    /// The budgets of its namespace.
    pub(super) budgets: Looked<Vec<PodDisruptionBudget>>,
    /// The autoscalers of its namespace.
    pub(super) autoscalers: Looked<Vec<HorizontalPodAutoscaler>>,
    /// The ShardingConfigs of its namespace.
    pub(super) configs: Looked<Vec<DynamicObject>>,
    /// The custom kinds that its account may list.
    pub(super) kinds: Looked<Vec<CustomKind>>,
    /// Its Helm release. `None` if Helm did not make it, or its release cannot be read.
    pub(super) release: Looked<Option<Release>>,
}

/// The workload.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// Its namespace.
    pub(super) namespace: String,
    /// Its kind and name.
    pub(super) target: RootTarget,
    /// The object.
    pub(super) object: Value,
}

/// The mesh.
#[derive(Clone, Debug)]
pub(super) struct MeshFacts {
    /// Whether the API server knows ShardingConfigs.
    pub(super) has_definition: Looked<bool>,
    /// Whether the manager may give pods of Deployments their shards.
    pub(super) has_pods_policy: Looked<bool>,
    /// The selectors of namespaces of the webhook that injects pods. `None` if there is no such webhook.
    pub(super) injected_namespaces: Looked<Option<Vec<LabelSelector>>>,
}

/// A webhook that calls the workload's pods.
#[derive(Clone, Debug)]
pub(super) struct Hook {
    /// The configuration, by kind and name.
    pub(super) of: String,
    /// The requests that it is called for. Empty for the conversions of a custom kind.
    pub(super) rules: Vec<RuleWithOperations>,
    /// The namespaces of their objects. `None` is all.
    pub(super) namespaces: Option<LabelSelector>,
    /// Whether the API server refuses them while it does not answer.
    pub(super) fails_closed: bool,
    /// The Service that it calls.
    pub(super) service: Service,
    /// The port of the Service.
    pub(super) port: i32,
}

/// A custom kind.
#[derive(Clone, Debug)]
pub(super) struct CustomKind {
    /// Its group.
    pub(super) group: String,
    /// Its plural name.
    pub(super) plural: String,
    /// Its name.
    pub(super) kind: String,
    /// Whether its objects are in namespaces.
    pub(super) is_namespaced: bool,
    /// The OpenAPI schema of its stored version.
    pub(super) schema: Value,
    /// The number of its objects in each namespace. `None` if they were not counted.
    pub(super) objects: Option<BTreeMap<String, usize>>,
}

impl Workload {
    /// The number of its replicas.
    pub(super) fn replicas(&self) -> u32 {
        let replicas = self.object.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
        u32::try_from(replicas).unwrap_or(u32::MAX)
    }

    /// Whether its pods are to have a proxy.
    pub(super) fn asks_for_proxy(&self) -> bool {
        let label = format!("{}{}", keys::PREFIX, keys::ENABLE_PROXY);
        self.pod_labels().get(&*label) == Some(&"true")
    }

    /// Whether its controller has seen that it has 0 replicas, and so creates no pod.
    pub(super) fn has_seen_zero(&self) -> bool {
        let number = |at: &str| self.object.pointer(at).and_then(Value::as_i64);
        let is_seen = number("/status/observedGeneration") >= number("/metadata/generation");
        is_seen && self.replicas() == 0 && number("/status/replicas").unwrap_or(0) == 0
    }

    /// Its pod template.
    pub(super) fn template(&self) -> &Value {
        &self.object["spec"]["template"]
    }

    /// The labels of its pods.
    pub(super) fn pod_labels(&self) -> BTreeMap<&str, &str> {
        let labels = self.template().pointer("/metadata/labels").and_then(Value::as_object);
        labels
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((&**key, value.as_str()?)))
            .collect()
    }

    /// The account of its pods.
    pub(super) fn account(&self) -> &str {
        let name = self.template().pointer("/spec/serviceAccountName").and_then(Value::as_str);
        name.filter(|name| !name.is_empty()).unwrap_or("default")
    }

    /// The pod template's containers.
    pub(super) fn containers(&self) -> impl Iterator<Item = &Value> {
        self.template().pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten()
    }

    /// Its kind and name, in words.
    pub(super) fn named(&self) -> String {
        let RootTarget { kind, name } = &self.target;
        format!("{} {}/{name}", kind.as_str(), self.namespace)
    }

    /// Its kind and name, as kubectl takes them.
    pub(super) fn argument(&self) -> String {
        let kind = match self.target.kind {
            TargetKind::Deployment => "deployment",
            TargetKind::StatefulSet => "statefulset",
        };
        format!("{kind}/{}", self.target.name)
    }

    /// The value of an annotation or a label of it.
    pub(super) fn marked(&self, key: &str) -> Option<&str> {
        let of = |field: &str| self.object["metadata"][field].get(key).and_then(Value::as_str);
        of("annotations").or_else(|| of("labels"))
    }
}

impl CustomKind {
    /// Whether the account reconciles it: it may write the status.
    pub(super) fn is_reconciled(&self, rights: &Rights) -> bool {
        let verbs = &["update", "patch"];
        rights.names(verbs, &self.group, &format!("{}/status", self.plural))
    }
}

/// Whether a pod has a proxy.
pub(super) fn is_injected(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(keys::INJECTED))
}
