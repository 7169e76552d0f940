//! The objects of the mesh as they are found: the facts that count of each, by namespace and name.

use std::{collections::BTreeMap, num::NonZeroU16};

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Pod},
        rbac::v1::{ClusterRoleBinding, RoleBinding, RoleRef, Subject as Holder},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    runtime::watcher::{Config, watcher},
};
use rustls_pki_types::{CertificateDer, pem::PemObject};

pub(super) use crate::configs::{key, namespace};
use ctrlmesh_api::keys;
use ctrlmesh_base::cluster::{OwnAccess, PAGE, Reflector};
use ctrlmesh_inject::{
    CaptureMode,
    companions::{self, BUNDLE_MAP, Bundle},
    webhook_port,
};
use ctrlmesh_policy::{NotChosen, ShardingDraft};

/// The facts of a pod that asks for injection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodFacts {
    pub(super) account: String,
    pub(super) is_injected: bool,
    /// Whether it is so without redirect rules.
    pub(super) is_in_env_mode: bool,
    /// The port whose reviews come to its proxy. `None` if it takes none.
    pub(super) webhook_port: Option<NonZeroU16>,
    pub(super) has_ended: bool,
    pub(super) is_ready: bool,
    /// The start of its container that started first.
    pub(super) started: Option<Timestamp>,
    pub(super) uid: String,
    /// The labels, by which ShardingConfigs select it. `None` if none has to: the pod is not
    /// injected, has ended, or is being deleted.
    pub(super) labels: Option<BTreeMap<String, String>>,
}

/// An injected pod that follows a config: the one, or why there is none.
pub(super) struct ChosenPod<'m> {
    pub(super) key: &'m str,
    pub(super) pod: &'m PodFacts,
    pub(super) config: Result<&'m ShardingDraft, NotChosen>,
}

/// A ConfigMap with the name of the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundBundle {
    pub(super) is_ours: bool,
    pub(super) data: BTreeMap<String, String>,
    /// The time since when it has its roots.
    pub(super) since: Option<Timestamp>,
}

/// A binding with our name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundRights {
    pub(super) is_ours: bool,
    /// ServiceAccounts that the binding names; in the cluster's, each behind its namespace.
    pub(super) accounts: Vec<String>,
}

impl FoundBundle {
    /// The time since when it has the certificates of a bundle, if it has them all. A certificate
    /// that is left out makes no one wait.
    pub(super) fn since_of(&self, bundle: &Bundle) -> Option<Timestamp> {
        let has_all = bundle.data().iter().all(|(key, wanted)| {
            let certs = |text: &str| -> Vec<_> {
                CertificateDer::pem_slice_iter(text.as_bytes()).flatten().collect()
            };
            let has = self.data.get(key).map(|text| certs(text)).unwrap_or_default();
            certs(wanted).iter().all(|cert| has.contains(cert))
        });
        self.since.filter(|_| has_all)
    }
}

pub(super) fn key_of<K: kube::Resource>(object: &K) -> String {
    let meta = object.meta();
    let [namespace, name] = [&meta.namespace, &meta.name].map(|text| text.as_deref());
    key(namespace.unwrap_or_default(), name.unwrap_or_default())
}

pub(super) fn is_ours<K: kube::Resource>(object: &K) -> bool {
    let (label, value) = keys::OURS_LABEL;
    object.meta().labels.as_ref().is_some_and(|all| all.get(label).is_some_and(|is| is == value))
}

pub(super) fn pods(access: OwnAccess, prefix: &str) -> Reflector<Pod, PodFacts> {
    let label = format!("{prefix}{}=true", keys::ENABLE_PROXY);
    let config = Config::default().labels(&label).page_size(PAGE);
    let watch = move |client: Client| watcher(Api::<Pod>::all(client), config.clone());
    Reflector::new(access, watch, |pod: Pod| (key_of(&pod), PodFacts::of(pod)))
}

impl PodFacts {
    pub(super) fn of(pod: Pod) -> Self {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let of_containers = [status.init_container_statuses, status.container_statuses];
        let containers = of_containers.into_iter().flatten().flatten();
        let states = containers.filter_map(|container| container.state?.running?.started_at);
        let webhook_port = pod.spec.as_ref().and_then(webhook_port);
        let account = pod.spec.and_then(|spec| spec.service_account_name);
        let mode = annotations.get(keys::INJECTED);
        let env: &str = CaptureMode::Env.into();
        let is_injected = mode.is_some();
        let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let is_going = has_ended || pod.metadata.deletion_timestamp.is_some();
        let labels = pod.metadata.labels.unwrap_or_default();
        let mut conditions = status.conditions.iter().flatten();
        let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
        Self {
            account: account.unwrap_or_else(|| "default".to_owned()),
            is_injected,
            is_in_env_mode: mode.is_some_and(|mode| mode == env),
            webhook_port,
            has_ended,
            is_ready,
            started: states.map(|started| started.0).min(),
            uid: pod.metadata.uid.unwrap_or_default(),
            labels: (is_injected && !is_going).then_some(labels),
        }
    }
}

pub(super) fn bundles(access: OwnAccess) -> Reflector<ConfigMap, FoundBundle> {
    let config = Config::default().fields(&format!("metadata.name={BUNDLE_MAP}"));
    let watch = move |client: Client| watcher(Api::<ConfigMap>::all(client), config.clone());
    Reflector::new(access, watch, |map: ConfigMap| {
        let since = map.metadata.annotations.as_ref().and_then(|all| all.get(keys::TRUSTED_SINCE));
        let found = FoundBundle {
            is_ours: is_ours(&map),
            since: since.and_then(|text| text.parse().ok()),
            data: map.data.clone().unwrap_or_default(),
        };
        (key_of(&map), found)
    })
}

pub(super) fn rights(access: OwnAccess) -> Reflector<RoleBinding, FoundRights> {
    let config = Config::default().fields(&format!("metadata.name={}", companions::ROLE));
    let watch = move |client: Client| watcher(Api::<RoleBinding>::all(client), config.clone());
    Reflector::new(access, watch, |binding: RoleBinding| {
        let is_role = is_of_role(&binding.role_ref, companions::ROLE);
        let subjects = binding.subjects.iter().flatten().map(|subject| subject.name.clone());
        let found =
            FoundRights { is_ours: is_role && is_ours(&binding), accounts: subjects.collect() };
        (key_of(&binding), found)
    })
}

pub(super) fn cluster_rights(access: OwnAccess) -> Reflector<ClusterRoleBinding, FoundRights> {
    let config =
        Config::default().fields(&format!("metadata.name={}", companions::NAMESPACES_ROLE));
    let watch =
        move |client: Client| watcher(Api::<ClusterRoleBinding>::all(client), config.clone());
    Reflector::new(access, watch, |binding: ClusterRoleBinding| {
        let is_role = is_of_role(&binding.role_ref, companions::NAMESPACES_ROLE);
        let account =
            |holder: &Holder| key(holder.namespace.as_deref().unwrap_or_default(), &holder.name);
        let accounts = binding.subjects.iter().flatten().map(account).collect();
        let found = FoundRights { is_ours: is_role && is_ours(&binding), accounts };
        (key_of(&binding), found)
    })
}

pub(super) fn is_of_role(role: &RoleRef, name: &str) -> bool {
    role.kind == "ClusterRole" && role.name == name
}
