//! The facts of a pod that decide whether it answers reviews.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
};

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::Time};
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, Deserializer};

use ctrlmesh_base::sidecar::{InboundPlan, PROXY};
use ctrlmesh_net::identity::PodIdentity;

/// The facts of a pod whose proxy takes reviews.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodFacts {
    pub(super) identity: PodIdentity,
    pub(super) labels: BTreeMap<String, String>,
    /// The pod's addresses, the one that Kubernetes prefers first, at the port of its webhook.
    pub(super) addrs: Vec<SocketAddr>,
    pub(super) is_ready: bool,
    /// Whether it is being deleted.
    pub(super) is_leaving: bool,
    /// Whether its containers have ended for good.
    pub(super) has_ended: bool,
}

/// A pod as it is watched: of all that the API server sends, only this is kept.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WatchedPod {
    #[serde(deserialize_with = "least_of")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    host_network: bool,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
}

/// A container: of its arguments, the port alone is kept.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    #[serde(rename = "args", deserialize_with = "webhook_port")]
    webhook_port: Option<NonZeroU16>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    conditions: Vec<Condition>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

#[derive(Clone, Debug, Deserialize)]
struct PodIp {
    ip: String,
}

/// The part of the metadata that is read: managed fields and annotations are most of it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<Time>,
}

fn least_of<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    let Meta { name, namespace, uid, resource_version, labels, deletion_timestamp } =
        Meta::deserialize(from)?;
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        labels,
        deletion_timestamp,
        ..ObjectMeta::default()
    })
}

fn webhook_port<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NonZeroU16>, D::Error> {
    let args = Option::<Vec<String>>::deserialize(from)?.unwrap_or_default();
    let is_proxy = args.first().is_some_and(|command| command == PROXY);
    let port = InboundPlan::port_in(args.iter().map(String::as_str));
    Ok(port.filter(|_| is_proxy))
}

impl PodFacts {
    /// The facts of a pod. `None` if its proxy takes no reviews, which never changes in the life of
    /// a pod.
    pub(super) fn of(pod: WatchedPod) -> Option<Self> {
        let WatchedPod { metadata: meta, spec, status } = pod;
        let port = spec.webhook_port()?.get();
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let identity =
            PodIdentity::new(&part(&meta.namespace), &part(&meta.name), &part(&meta.uid)).ok()?;
        let is_ready = |condition: &Condition| {
            (condition.r#type.as_str(), condition.status.as_str()) == ("Ready", "True")
        };
        Some(Self {
            identity,
            labels: meta.labels.unwrap_or_default(),
            is_ready: status.conditions.iter().any(is_ready),
            is_leaving: meta.deletion_timestamp.is_some(),
            has_ended: ["Succeeded", "Failed"].contains(&status.phase.as_str()),
            addrs: status.ips().map(|ip| SocketAddr::new(ip, port)).collect(),
        })
    }

    /// Whether a review may be sent to it.
    pub(super) fn is_usable(&self) -> bool {
        self.is_ready && !self.is_leaving && !self.has_ended && !self.addrs.is_empty()
    }
}

impl Spec {
    /// The webhook port of the pod's proxy, if it takes reviews.
    fn webhook_port(&self) -> Option<NonZeroU16> {
        let mut all = self.containers.iter().chain(&self.init_containers);
        let port = all.find_map(|container| container.webhook_port);
        // The redirect rules of a pod in the node's network would be the node's.
        port.filter(|_| !self.host_network)
    }
}

impl Status {
    /// The addresses of the pod, the one that Kubernetes prefers first.
    fn ips(&self) -> impl Iterator<Item = IpAddr> {
        let listed = self.pod_ips.iter().map(|pod_ip| &pod_ip.ip);
        let single = self.pod_ip.iter().filter(|_| self.pod_ips.is_empty());
        listed.chain(single).filter_map(|ip| ip.parse().ok())
    }
}

impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
