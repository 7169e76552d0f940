//! The facts that findings are judged by: objects of the cluster as they were read, and the answers
//! of one proxy.

use k8s_openapi::{
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        apps::v1::Deployment,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Event, LimitRange, Namespace, Pod, ResourceQuota, Service},
        networking::v1::NetworkPolicy,
        rbac::v1::{ClusterRole, Role, RoleBinding},
    },
    jiff::Timestamp,
};
use kube::api::DynamicObject;

/// The result of a look at the cluster.
pub type Looked<T> = Result<T, CannotLook>;

/// The reason why something could not be looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotLook {
    #[error("cannot look, needs the right to {verb} {resource}{place}")]
    Right { verb: &'static str, resource: String, place: String },
    #[error("cannot look: {0}")]
    Failed(String),
}

/// All facts.
#[derive(Clone, Debug)]
pub struct Facts {
    /// This machine's clock at the API server's answer.
    pub here: Timestamp,
    /// The API server.
    pub server: Looked<Server>,
    /// The objects of the cluster. `None` if the API server does not answer.
    pub cluster: Option<ClusterFacts>,
    /// The pod that was asked for.
    pub pod: Option<PodFacts>,
    /// The files of the proxy in whose container this runs.
    pub files: Vec<OwnFile>,
}

/// The API server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its version.
    pub version: String,
    /// Its clock, by the `Date` of its answer.
    pub date: Option<Timestamp>,
}

/// The objects of the cluster.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// The manager.
    pub manager: ManagerFacts,
    /// The admission webhooks that are called by a Service.
    pub hooks: Looked<Vec<AdmissionHook>>,
    /// The namespaces that were asked for, or those of the mesh.
    pub namespaces: Looked<Vec<NamespaceFacts>>,
}

/// The Service of an admission webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionHook {
    /// The namespace of the Service.
    pub namespace: String,
    /// Its name.
    pub service: String,
    /// Its port, if the configuration names one.
    pub port: Option<i32>,
}

/// The objects of the manager.
#[derive(Clone, Debug)]
pub struct ManagerFacts {
    /// Its namespace.
    pub namespace: String,
    /// The name of its Deployment and its Lease.
    pub name: String,
    /// Whether the API server knows ShardingConfigs.
    pub has_definition: Looked<bool>,
    /// Its webhooks.
    pub webhooks: Looked<Option<MutatingWebhookConfiguration>>,
    /// Its replicas.
    pub deployment: Looked<Option<Deployment>>,
    /// Its leader.
    pub lease: Looked<Option<Lease>>,
    /// The role that it binds to proxies.
    pub proxy_role: Looked<Option<ClusterRole>>,
}

/// The objects of one namespace.
#[derive(Clone, Debug)]
pub struct NamespaceFacts {
    /// Its name.
    pub name: String,
    /// The namespace itself.
    pub namespace: Looked<Option<Namespace>>,
    /// Its ShardingConfigs.
    pub configs: Looked<Vec<DynamicObject>>,
    /// Its pods.
    pub pods: Looked<Vec<Pod>>,
    /// Its bundle.
    pub bundle: Looked<Option<ConfigMap>>,
    /// Its RoleBindings.
    pub bindings: Looked<Vec<RoleBinding>>,
    /// Its Roles.
    pub roles: Looked<Vec<Role>>,
    /// Its Services.
    pub services: Looked<Vec<Service>>,
    /// Its NetworkPolicies.
    pub network_policies: Looked<Vec<NetworkPolicy>>,
    /// Its quotas.
    pub quotas: Looked<Vec<ResourceQuota>>,
    /// Its LimitRanges.
    pub limit_ranges: Looked<Vec<LimitRange>>,
    /// Its events of pods that could not be created.
    pub refused: Looked<Vec<Event>>,
}

/// The facts of one pod.
#[derive(Clone, Debug)]
pub struct PodFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The pod itself.
    pub pod: Looked<Option<Pod>>,
    /// The proxy's `/readyz`.
    pub readyz: Looked<Answer>,
    /// The proxy's `/metrics`.
    pub metrics: Looked<Answer>,
}

/// An answer of a proxy's admin port, or of the API server in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub code: u16,
    /// The body.
    pub body: String,
}

/// A file that a proxy needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnFile {
    /// Its path.
    pub path: String,
    /// The reason why it cannot be used. `None` if it can.
    pub problem: Option<String>,
}
