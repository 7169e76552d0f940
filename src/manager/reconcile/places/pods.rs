//! The pods of Deployments, by what counts for their shards.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    runtime::watcher::{Config, watcher},
};

use super::super::observed::key_of;
use crate::workload::deployment_of;
use ctrlmesh_api::keys;
use ctrlmesh_base::cluster::{OwnAccess, PAGE, Reflector};
use ctrlmesh_policy::roots::{Root, Shard};

/// A pod of a Deployment that has a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlacedPod {
    pub(super) uid: String,
    pub(super) labels: BTreeMap<String, String>,
    /// The name of its Deployment.
    pub(super) deployment: String,
    /// The hash of its template.
    pub(super) template: String,
    /// The child that its label names.
    pub(super) label: Option<String>,
    pub(super) is_going: bool,
    /// Whether a container of it has started, so that its proxy may have a Lease.
    pub(super) has_started: bool,
    /// The time of its creation, in seconds.
    pub(super) created: i64,
    cost: Option<String>,
}

/// The pods that ask for injection; `None` for those that are not injected, or of no Deployment.
pub(super) fn follow(access: OwnAccess, prefix: &str) -> Reflector<Pod, Option<PlacedPod>> {
    let label = format!("{prefix}{}=true", keys::ENABLE_PROXY);
    let config = Config::default().labels(&label).page_size(PAGE);
    let watch = move |client: Client| watcher(Api::<Pod>::all(client), config.clone());
    Reflector::new(access, watch, |pod: Pod| (key_of(&pod), PlacedPod::of(pod)))
}

impl PlacedPod {
    pub(super) fn of(pod: Pod) -> Option<Self> {
        let meta = pod.metadata;
        let (labels, annotations) =
            (meta.labels.unwrap_or_default(), meta.annotations.unwrap_or_default());
        if !annotations.contains_key(keys::INJECTED) {
            return None;
        }
        let owners = meta.owner_references.iter().flatten();
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true))?;
        let template = labels.get(keys::TEMPLATE_HASH)?.clone();
        let deployment = deployment_of(&owner.api_version, &owner.kind, &owner.name, &template)?;
        let status = pod.status.unwrap_or_default();
        let of_containers = [status.init_container_statuses, status.container_statuses];
        let mut containers = of_containers.into_iter().flatten().flatten();
        let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        Some(Self {
            uid: meta.uid.unwrap_or_default(),
            deployment: deployment.to_owned(),
            template,
            label: labels.get(keys::SHARD).cloned(),
            is_going: has_ended || meta.deletion_timestamp.is_some(),
            has_started: containers.any(|one| one.state.is_some_and(|is| is.running.is_some())),
            created: meta.creation_timestamp.map_or(0, |time| time.0.as_second()),
            cost: annotations.get(keys::DELETION_COST).cloned(),
            labels,
        })
    }

    /// The shard of a root that its label names.
    pub(super) fn shard(&self, root: &Root) -> Option<Shard> {
        root.shard_named(self.label.as_deref()?)
    }

    /// Whether its cost is not that of a pod of this shard.
    pub(super) fn lacks_cost(&self, shard: Shard) -> bool {
        self.label.is_some() && self.cost != Some(shard.deletion_cost().to_string())
    }
}
