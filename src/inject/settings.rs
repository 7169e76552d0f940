//! The operator's choices for every pod.

use std::{collections::BTreeMap, str::FromStr};

use clap::ValueEnum;
use ctrlmesh_init::{BackendChoice, Inbound, Plan, PlanError, ProxyUid};
use serde::Deserialize;
use serde_json::Value;

use super::pod_resources::Quantity;
use ctrlmesh_api::FenceMode;
use ctrlmesh_base::sidecar::OUTBOUND_PORT;
use ctrlmesh_net::{ClusterDomain, ManagerAddr};

/// The settings that are the same for every pod.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(super) proxy_image: Image,
    pub(super) init_image: Image,
    pub(super) sidecar: Sidecar,
    pub(super) cluster_domain: ClusterDomain,
    /// The pods' way here: a file, unless it is admission.
    pub(super) admission: Option<Enforces>,
    pub(super) trust: MeshTrust,
    /// The names of Secrets with which the kubelet pulls our images.
    pub(super) pull_secrets: Vec<String>,
    /// The proxy's ResourceRequirements, in place of ours.
    pub(super) proxy_resources: Option<Resources>,
    /// The mode of the fence of a config that gives none.
    pub(super) fence: FenceMode,
    /// The plan of the init container. It names no upstream: the API server is that of the
    /// kubelet's variables.
    pub(super) plan: Plan,
}

impl Settings {
    /// `proxy_image` has the entry point `ctrlmesh`, `init_image` has `ctrlmesh-init`. The proxy
    /// runs as `proxy_uid`, which the redirect rules exempt. Fails with [`PlanError`] if these give
    /// no valid plan.
    pub fn new(
        proxy_image: Image,
        init_image: Image,
        sidecar: Sidecar,
        proxy_uid: ProxyUid,
    ) -> Result<Self, PlanError> {
        let plan = Plan::new(proxy_uid, OUTBOUND_PORT, Vec::new(), None, BackendChoice::Auto)?;
        Ok(Self {
            proxy_image,
            init_image,
            sidecar,
            cluster_domain: ClusterDomain::default(),
            admission: None,
            trust: MeshTrust::Secret,
            pull_secrets: Vec::new(),
            proxy_resources: None,
            fence: FenceMode::default(),
            plan,
        })
    }

    /// The plan of the init container of a pod whose reviews are redirected too. Fails if their ports
    /// are the proxy's own.
    pub(super) fn plan_with(&self, inbound: Inbound) -> Result<Plan, PlanError> {
        let plan = &self.plan;
        let (uid, outbound) = (plan.proxy_uid(), plan.outbound_port());
        Plan::new(uid, outbound, plan.upstreams().to_vec(), Some(inbound), plan.backend())
    }

    /// The settings for a cluster with this DNS domain.
    pub fn in_domain(self, cluster_domain: ClusterDomain) -> Self {
        Self { cluster_domain, ..self }
    }

    /// The settings for pods that are admitted, in namespaces of this kind. ServiceAccount admission
    /// has seen them: those that have no token are to have none.
    pub fn at_admission(self, namespaces: Enforces) -> Self {
        Self { admission: Some(namespaces), ..self }
    }

    /// The settings for proxies that have their certificates from the manager at this address.
    pub fn with_manager(self, address: ManagerAddr) -> Self {
        Self { trust: MeshTrust::Manager { address }, ..self }
    }

    /// The settings for images that the kubelet pulls with these Secrets of the pods' namespace. A
    /// pod that was injected once keeps them: they do not say whose they are.
    pub fn with_pull_secrets(self, pull_secrets: Vec<String>) -> Self {
        Self { pull_secrets, ..self }
    }

    /// The settings with this mode of the fence of a config that gives none.
    pub fn with_fence(self, fence: FenceMode) -> Self {
        Self { fence, ..self }
    }

    /// The settings with these resources for proxies whose pods ask for none.
    pub fn with_proxy_resources(self, resources: Option<Resources>) -> Self {
        Self { proxy_resources: resources, ..self }
    }
}

/// The source of the certificates that proxies show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeshTrust {
    /// The mesh CA in a Secret of the pod's namespace.
    Secret,
    /// The manager, which signs them.
    Manager {
        /// The manager's address.
        address: ManagerAddr,
    },
}

/// The Pod Security level that a namespace enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforces {
    /// `privileged`, or none.
    Privileged,
    /// `baseline` or `restricted`: no container may have NET_ADMIN.
    Baseline,
}

/// The kind of container that the proxy runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sidecar {
    /// An init container that keeps running (KEP-753), for Kubernetes 1.29 and later
    Native,
    /// The first of the pod's containers, for older clusters
    Classic,
}

/// The reference of a container image.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub struct Image(String);

/// The error for a text that is not an image reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an image reference, for example registry.example.com/ctrlmesh:1.0")]
pub struct BadImage(String);

impl FromStr for Image {
    type Err = BadImage;

    /// Checks no more than the API server does; the rest is for the container runtime.
    fn from_str(text: &str) -> Result<Self, BadImage> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadImage(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

/// The ResourceRequirements of a container, as JSON. Whether requests are within limits is the API
/// server's to check: it names the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources(Value);

/// The error for a text that is no ResourceRequirements.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadResources(pub(super) String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceRequirements {
    #[serde(default)]
    requests: BTreeMap<String, Value>,
    #[serde(default)]
    limits: BTreeMap<String, Value>,
}

impl Resources {
    /// The object to write.
    pub(super) fn into_value(self) -> Value {
        self.0
    }
}

impl FromStr for Resources {
    type Err = BadResources;

    fn from_str(text: &str) -> Result<Self, BadResources> {
        const EXAMPLE: &str =
            "an object like {\"requests\":{\"cpu\":\"50m\"},\"limits\":{\"memory\":\"512Mi\"}}";
        let bad = |error| BadResources(format!("{error}; it must be {EXAMPLE}"));
        let resources: ResourceRequirements = serde_json::from_str(text).map_err(bad)?;
        for (list, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
            for (resource, amount) in amounts {
                let is_amount = match amount {
                    Value::String(text) => Quantity::parse(text).is_some(),
                    Value::Number(number) => Quantity::parse(&number.to_string()).is_some(),
                    _ => false,
                };
                if !is_amount {
                    return Err(BadResources(format!(
                        "{list}.{resource} is {amount}: write a quantity like \"50m\" or \"256Mi\""
                    )));
                }
            }
        }
        serde_json::from_str(text).map(Self).map_err(bad)
    }
}
