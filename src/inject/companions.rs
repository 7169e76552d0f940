//! The objects that a namespace and a cluster need next to the pods.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use ctrlmesh_api::{
    ShardingConfig,
    keys::{self, OURS_LABEL},
};

/// The Secret with the mesh CA, for proxies.
pub const MESH_CA_SECRET: &str = "ctrlmesh-mesh-ca";
/// The ConfigMap with the bundle, for all containers.
pub const BUNDLE_MAP: &str = "ctrlmesh-ca-bundle";
/// The key of a CA certificate, in both and in the cluster's own ConfigMap.
pub const CA_KEY: &str = "ca.crt";
/// The key of the CAs of the manager's own ports in the bundle.
pub const MANAGER_CA_KEY: &str = "manager.crt";
/// The role of proxies, and of what binds it.
pub const ROLE: &str = "ctrlmesh-proxy";
/// The label of the role, for people.
pub const OURS: &str = "app.kubernetes.io/managed-by: ctrlmesh";

/// The role to list and watch namespaces, and its binding.
pub const NAMESPACES_ROLE: &str = "ctrlmesh-proxy-namespaces";
const RBAC: &str = "rbac.authorization.k8s.io";

/// The certificate authorities, as PEM. Not printable, since one has its key.
#[derive(Clone)]
pub struct Trust {
    /// The certificate of the mesh CA.
    pub mesh_ca: String,
    /// The mesh CA's key.
    pub mesh_ca_key: String,
    /// The certificates of the cluster's CA.
    pub cluster_ca: String,
}

/// The certificates of a bundle, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The certificates of the cluster's CA.
    pub cluster_ca: String,
    /// The certificates of the mesh's roots.
    pub mesh_cas: String,
    /// The certificates of the CAs of the manager's own ports. Empty without a manager.
    pub manager_cas: String,
}

impl Bundle {
    /// The data of the ConfigMap.
    pub fn data(&self) -> BTreeMap<String, String> {
        let both = format!("{}{}", self.cluster_ca, self.mesh_cas);
        let manager = (!self.manager_cas.is_empty()).then(|| self.manager_cas.clone());
        let manager = manager.map(|cas| (MANAGER_CA_KEY.to_owned(), cas));
        manager.into_iter().chain([(CA_KEY.to_owned(), both)]).collect()
    }

    /// The ConfigMap of a namespace, which has its roots since then.
    pub fn config_map(&self, namespace: &str, since: &str) -> Value {
        let mut metadata = metadata(BUNDLE_MAP, namespace);
        metadata["annotations"] = json!({ keys::TRUSTED_SINCE: since });
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": self.data(),
        })
    }
}

/// The RoleBinding by which accounts may read what their proxies need.
pub fn rights(namespace: &str, accounts: &[&str]) -> Value {
    let subject = |name| json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "RoleBinding",
        "metadata": metadata(ROLE, namespace),
        "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": ROLE },
        "subjects": accounts.iter().map(subject).collect::<Vec<_>>(),
    })
}

/// The ClusterRoleBinding by which accounts, each behind its namespace, may read the labels of
/// namespaces.
pub fn cluster_rights(accounts: &[(&str, &str)]) -> Value {
    let subject = |(namespace, name): &(&str, &str)| json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": cluster_metadata(NAMESPACES_ROLE),
        "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": NAMESPACES_ROLE },
        "subjects": accounts.iter().map(subject).collect::<Vec<_>>(),
    })
}

/// The objects for a namespace with injected pods: the mesh CA, the bundle, and the rights to read
/// the policies and the pods, and to write Leases.
pub fn of_namespace(namespace: &str, trust: &Trust) -> [Value; 3] {
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(MESH_CA_SECRET, namespace),
        "type": "Opaque",
        "data": {
            CA_KEY: STANDARD.encode(&trust.mesh_ca),
            "ca.key": STANDARD.encode(&trust.mesh_ca_key),
        },
    });
    let bundle = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(BUNDLE_MAP, namespace),
        "data": { CA_KEY: format!("{}{}", trust.cluster_ca, trust.mesh_ca) },
    });
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "Role",
        "metadata": metadata(ROLE, namespace),
        "rules": [
            {
                "apiGroups": [<ShardingConfig as kube::Resource>::group(&())],
                "resources": [<ShardingConfig as kube::Resource>::plural(&())],
                "verbs": ["get", "list", "watch"],
            },
            // The pods of the other shards, which answer reviews of their objects.
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"] },
            // The own Lease, and those of the ring.
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
            },
        ],
    });
    [secret, bundle, role]
}

/// The RoleBinding for a ServiceAccount of injected pods. One object each, so that workloads
/// injected separately do not overwrite each other's.
pub fn of_service_account(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "RoleBinding",
        "metadata": metadata(&format!("{ROLE}-{name}"), namespace),
        "roleRef": { "apiGroup": RBAC, "kind": "Role", "name": ROLE },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
    })
}

/// The ClusterRole to list and watch namespaces, for clusters whose policies select namespaces by
/// their labels.
pub fn of_cluster() -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRole",
        "metadata": cluster_metadata(NAMESPACES_ROLE),
        "rules": [{ "apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"] }],
    })
}

/// The ClusterRoleBinding for one ServiceAccount of injected pods.
pub fn of_service_account_in_cluster(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRoleBinding",
        // Unambiguous: no namespace and no account has a colon in its name.
        "metadata": cluster_metadata(&format!("{NAMESPACES_ROLE}:{namespace}:{name}")),
        "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": NAMESPACES_ROLE },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
    })
}

fn cluster_metadata(name: &str) -> Value {
    let (label, value) = OURS_LABEL;
    json!({ "name": name, "labels": { label: value } })
}

fn metadata(name: &str, namespace: &str) -> Value {
    let mut metadata = cluster_metadata(name);
    metadata["namespace"] = json!(namespace);
    metadata
}
