//! The objects of rings, as the cluster has them.
//!
//! Hides which objects are listed, and how an object is read. Does not know what the objects say together.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::api::DynamicObject;
use serde::Deserialize;

use crate::cluster::{Cluster, ClusterError};
use ctrlmesh_api::{
    Condition, ShardingConfigStatus, keys,
    lease::{self, PodLease},
};
use ctrlmesh_inject::names::PROXY;
use ctrlmesh_policy::{
    Checked, Draft, Kind, NamespaceLabels, ObjectRef, ShardingDraft, draft, object_of, shard_of,
};

/// The objects of the rings of one namespace, or of all.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) configs: Vec<Checked>,
    /// The roots that are not as they say and the shards that do not lead, each with the reason.
    pub(crate) unready: Vec<(ObjectRef, String)>,
    pub(crate) leases: Vec<FoundLease>,
    pub(crate) pods: Vec<FoundPod>,
    /// The pods that ask for injection and are not injected.
    pub(crate) bare: Vec<FoundPod>,
    /// The pods that do not ask for it, in the namespaces of configs.
    pub(crate) others: Vec<FoundPod>,
    /// The labels of all namespaces. `None` if no config needs them.
    pub(crate) namespaces: Option<NamespaceLabels>,
}

/// The Lease of a pod.
#[derive(Clone, Debug)]
pub(crate) struct FoundLease {
    pub(crate) namespace: String,
    pub(crate) version: String,
    pub(crate) says: PodLease,
}

/// A pod that asks for injection and has not ended.
#[derive(Clone, Debug)]
pub(crate) struct FoundPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) is_ready: bool,
    /// The image of the proxy. `None` if the pod is not injected.
    pub(crate) proxy: Option<String>,
}

impl Found {
    /// Asks the cluster.
    pub(crate) async fn of(
        cluster: &Cluster,
        namespace: Option<&str>,
    ) -> Result<Self, ClusterError> {
        let leases = cluster.labelled::<Lease>(namespace, lease::RING, "leases").await?;
        let objects = cluster.config_objects(namespace).await?;
        let configs: Vec<_> =
            objects.iter().map(|config| draft(Kind::ShardingConfig, config)).collect();
        let unready = objects.iter().zip(&configs).filter_map(unready).collect();
        let mut pods = Vec::new();
        for prefix in [keys::PREFIX, keys::KRIDGE_PREFIX] {
            let label = format!("{prefix}{}=true", keys::ENABLE_PROXY);
            pods.extend(cluster.labelled::<Pod>(namespace, &label, "pods").await?);
        }
        let needs = |checked| shard_of(checked).is_some_and(ShardingDraft::needs_namespaces);
        let namespaces = match configs.iter().any(needs) {
            true => Some(cluster.list_namespaces().await?),
            false => None,
        };
        let others = others(cluster, &configs).await?;
        let mut found = Self { configs, unready, others, namespaces, ..Self::default() };
        found.leases.extend(leases.into_iter().filter_map(FoundLease::of));
        let mut pods: Vec<_> = pods.into_iter().filter_map(FoundPod::of).collect();
        // A pod may have the label of either dialect, or of both.
        pods.sort_by(|one, other| one.uid.cmp(&other.uid));
        pods.dedup_by(|one, other| one.uid == other.uid);
        (found.pods, found.bare) = pods.into_iter().partition(|pod| pod.proxy.is_some());
        Ok(found)
    }
}

/// A config that the manager reports as unready, with the message of the manager's condition. It is a root that
/// is not ready, or a shard that does not lead, was refused writes or does not limit related resources.
fn unready((object, checked): (&DynamicObject, &Checked)) -> Option<(ObjectRef, String)> {
    let bad: &[(&str, &str)] = match checked {
        Ok(Draft::Root(_)) => &[("Ready", "False")],
        Ok(Draft::Sharding(_)) => &[
            ("LocksRenamed", "False"),
            ("WritesRefused", "True"),
            ("RelatedResourcesLimited", "False"),
        ],
        Err(_) => return None,
    };
    let status = ShardingConfigStatus::deserialize(object.data.get("status")?).ok()?;
    let mut found = bad.iter().filter_map(|(of, is)| {
        let is_bad = |one: &&Condition| one.r#type == *of && one.status == *is;
        status.conditions.iter().find(is_bad)
    });
    let condition = found.next()?;
    Some((object_of(checked).clone(), condition.message.clone()))
}

/// The pods that do not ask for injection and have not ended, in the namespaces of configs.
async fn others(cluster: &Cluster, configs: &[Checked]) -> Result<Vec<FoundPod>, ClusterError> {
    let label =
        [keys::PREFIX, keys::KRIDGE_PREFIX].map(|of| format!("!{of}{}", keys::ENABLE_PROXY));
    let namespaces: BTreeSet<_> =
        configs.iter().map(|config| &*object_of(config).namespace).collect();
    let mut others = Vec::new();
    for namespace in namespaces {
        let pods = cluster.labelled::<Pod>(Some(namespace), &label.join(","), "pods").await?;
        others.extend(pods.into_iter().filter_map(FoundPod::of).filter(|pod| pod.proxy.is_none()));
    }
    Ok(others)
}

impl FoundLease {
    fn of(lease: Lease) -> Option<Self> {
        let says = PodLease::read(&lease)?;
        let meta = lease.metadata;
        let [namespace, version] =
            [meta.namespace, meta.resource_version].map(Option::unwrap_or_default);
        Some(Self { namespace, version, says })
    }
}

impl FoundPod {
    fn of(pod: Pod) -> Option<Self> {
        let meta = pod.metadata;
        let status = pod.status.unwrap_or_default();
        if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return None;
        }
        let is_injected =
            meta.annotations.is_some_and(|annotations| annotations.contains_key(keys::INJECTED));
        let spec = pod.spec.unwrap_or_default();
        let containers =
            spec.containers.into_iter().chain(spec.init_containers.into_iter().flatten());
        let mut proxies = containers.filter(|container| container.name == PROXY);
        let image = proxies.next().and_then(|container| container.image).unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
        let [namespace, name, uid] =
            [meta.namespace, meta.name, meta.uid].map(Option::unwrap_or_default);
        let labels = meta.labels.unwrap_or_default();
        let proxy = is_injected.then_some(image);
        Some(Self { namespace, name, uid, labels, is_ready, proxy })
    }
}
