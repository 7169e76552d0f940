//! The objects of rings, as the cluster has them.
//!
//! Hides what is listed, and how an object is read. Does not know what they say together.

use std::collections::BTreeMap;

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};

use crate::{
    api::{keys, lease, lease::PodLease},
    cli::cluster::{Cluster, ClusterError},
    policy::{Checked, Draft, NamespaceLabels},
};

/// The objects of the rings of one namespace, or of all.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) configs: Vec<Checked>,
    pub(super) leases: Vec<FoundLease>,
    pub(super) pods: Vec<FoundPod>,
    /// The labels of all namespaces. `None` if no config needs them.
    pub(super) namespaces: Option<NamespaceLabels>,
}

/// The Lease of a pod.
#[derive(Clone, Debug)]
pub(super) struct FoundLease {
    pub(super) namespace: String,
    pub(super) version: String,
    pub(super) says: PodLease,
}

/// An injected pod that has not ended.
#[derive(Clone, Debug)]
pub(super) struct FoundPod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) labels: BTreeMap<String, String>,
}

impl Found {
    /// Asks the cluster.
    pub(super) async fn of(
        cluster: &Cluster,
        namespace: Option<&str>,
    ) -> Result<Self, ClusterError> {
        let leases = cluster.labelled::<Lease>(namespace, lease::RING, "leases").await?;
        let configs = cluster.configs(namespace).await?;
        let mut pods = Vec::new();
        for prefix in [keys::PREFIX, keys::KRIDGE_PREFIX] {
            let label = format!("{prefix}{}=true", keys::ENABLE_PROXY);
            pods.extend(cluster.labelled::<Pod>(namespace, &label, "pods").await?);
        }
        let needs = |checked: &Checked| matches!(checked, Ok(Draft::Sharding(draft)) if draft.needs_namespaces());
        let namespaces = match configs.iter().any(needs) {
            true => Some(cluster.list_namespaces().await?),
            false => None,
        };
        let mut found = Self { configs, namespaces, ..Self::default() };
        found.leases.extend(leases.into_iter().filter_map(FoundLease::of));
        found.pods.extend(pods.into_iter().filter_map(FoundPod::of));
        // A pod may have the label of either dialect, or of both.
        found.pods.sort_by(|one, other| one.uid.cmp(&other.uid));
        found.pods.dedup_by(|one, other| one.uid == other.uid);
        Ok(found)
    }
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
        let is_injected = meta.annotations?.contains_key(keys::INJECTED);
        let phase = pod.status.and_then(|status| status.phase);
        let has_ended = matches!(phase.as_deref(), Some("Succeeded" | "Failed"));
        let [namespace, name, uid] =
            [meta.namespace, meta.name, meta.uid].map(Option::unwrap_or_default);
        let labels = meta.labels.unwrap_or_default();
        (is_injected && !has_ended).then_some(Self { namespace, name, uid, labels })
    }
}
