//! The volumes: CAs and tokens, and the state that outlives a container.

use serde_json::{Value, json};

use super::{
    companions::{BUNDLE_MAP, CA_KEY, MANAGER_CA_KEY, MESH_CA_SECRET},
    pod::{JsonObject, ParsedPod, named, text},
    pod_settings::CaptureMode,
    settings::MeshTrust,
};
use ctrlmesh_base::sidecar::{AUDIENCE, CA_FILE, LABELS_FILE, MANAGER_CA_FILE, TOKEN_FILE};

/// Token, bundle and namespace, for the pod's own containers.
pub(super) const BUNDLE: &str = "kube-api-access-ctrlmesh";
/// Token, the cluster's own CA and namespace, for the proxy.
pub(super) const PROXY_ACCESS: &str = "ctrlmesh-api-access";
/// The mesh CA, for the proxy alone.
pub(super) const MESH_CA: &str = "ctrlmesh-mesh-ca";
/// A token for the manager and the CAs to trust, for the proxy alone.
pub(super) const ENROLMENT: &str = "ctrlmesh-enrolment";
/// The proxy's certificate and its key, for the proxy alone, kept over a restart.
pub(super) const LEAF: &str = "ctrlmesh-leaf";
/// The certificate of the controller's webhook server, for the proxy alone.
pub(super) const WEBHOOK: &str = "ctrlmesh-webhook";
/// The pod's labels, kept up to date by the kubelet.
pub(super) const POD_LABELS: &str = "ctrlmesh-pod-labels";
/// The proxy's state, kept over a restart.
pub(super) const STATE: &str = "ctrlmesh-state";
/// `/run` of the init container: the lock file of iptables' legacy backend.
pub(super) const INIT_RUN: &str = "ctrlmesh-init-run";
/// An empty directory in place of the token that the init container would get otherwise.
pub(super) const NO_TOKEN: &str = "ctrlmesh-no-token";

const OURS: [&str; 10] = [
    BUNDLE,
    PROXY_ACCESS,
    MESH_CA,
    ENROLMENT,
    LEAF,
    WEBHOOK,
    POD_LABELS,
    STATE,
    INIT_RUN,
    NO_TOKEN,
];

/// The ConfigMap with the cluster's own CA, which each namespace has.
const CLUSTER_CA_MAP: &str = "kube-root-ca.crt";
/// The prefix of the volumes of ServiceAccount admission.
const TOKEN_PREFIX: &str = "kube-api-access-";
/// The lifetime in seconds that this admission requests for tokens. The odd value lets the API server recognize
/// tokens that clients may use longer (KEP-1205).
const TOKEN_SECONDS: u32 = 3607;
/// Every user may read: a volume's files belong to root, and to the group `fsGroup` only if the pod
/// sets one. The proxy is neither. Keys and tokens of the proxy are kept from others because no other
/// container mounts their volumes.
pub(super) const READABLE: u32 = 0o444;

/// Whether a volume of ours has this name.
pub(super) fn is_ours(name: &str) -> bool {
    OURS.contains(&name)
}

/// Whether ServiceAccount admission added this volume.
pub(super) fn is_token(volume: &JsonObject) -> bool {
    text(volume, "name").is_some_and(|name| name.starts_with(TOKEN_PREFIX))
        && volume.contains_key("projected")
}

/// Whether the pod's author projected a token for the API server: the token, the CA and the namespace,
/// under any name.
pub(super) fn is_projected_by_hand(volume: &JsonObject) -> bool {
    let is_for_api_server = |source: &Value| {
        source.get("serviceAccountToken").is_some_and(|token| token.get("audience").is_none())
    };
    !is_token(volume) && sources(volume).any(is_for_api_server)
}

/// The sources of a projected volume; of another there are none.
pub(super) fn sources(volume: &JsonObject) -> impl Iterator<Item = &Value> {
    let sources = volume.get("projected").and_then(|projected| projected.get("sources"));
    sources.and_then(Value::as_array).into_iter().flatten()
}

/// Puts the bundle in place of the cluster's CA in such volumes.
pub(super) fn give_bundle_by_hand(parsed: &mut ParsedPod) {
    for volume in parsed.volumes.iter_mut().filter(|volume| is_projected_by_hand(volume)) {
        let sources =
            volume.get_mut("projected").and_then(|projected| projected.get_mut("sources"));
        for source in sources.and_then(Value::as_array_mut).into_iter().flatten() {
            let name = source.get_mut("configMap").and_then(|map| map.get_mut("name"));
            if let Some(name) = name.filter(|name| *name == CLUSTER_CA_MAP) {
                *name = BUNDLE_MAP.into();
            }
        }
    }
}

/// The mount of a volume.
pub(super) fn mount(volume: &str, path: &str, is_read_only: bool) -> JsonObject {
    let mut mount = named(volume, "mountPath", json!(path));
    if is_read_only {
        mount.insert("readOnly".to_owned(), Value::Bool(true));
    }
    mount
}

/// Removes the volumes of admission that no container mounts any more.
pub(super) fn remove_unused_tokens(parsed: &mut ParsedPod) {
    let mounted: Vec<String> = parsed
        .all_containers()
        .flat_map(|container| &container.mounts)
        .filter_map(|mount| text(mount, "name").map(str::to_owned))
        .collect();
    parsed.volumes.retain(|volume| {
        !is_token(volume)
            || text(volume, "name").is_some_and(|name| mounted.iter().any(|m| m == name))
    });
}

/// Adds our volumes behind the pod's own.
pub(super) fn add(parsed: &mut ParsedPod, mode: CaptureMode, trust: &MeshTrust) {
    parsed.volumes.push(api_access(BUNDLE, BUNDLE_MAP));
    parsed.volumes.push(api_access(PROXY_ACCESS, CLUSTER_CA_MAP));
    let small = json!({ "medium": "Memory", "sizeLimit": "1Mi" });
    match trust {
        MeshTrust::Secret => {
            let secret = json!({ "secretName": MESH_CA_SECRET, "defaultMode": READABLE });
            parsed.volumes.push(named(MESH_CA, "secret", secret));
        }
        MeshTrust::Manager { .. } => {
            parsed.volumes.push(enrolment());
            parsed.volumes.push(named(LEAF, "emptyDir", small.clone()));
        }
    }
    let common = [
        named(
            POD_LABELS,
            "downwardAPI",
            json!({
                "defaultMode": READABLE,
                "items": [{ "path": LABELS_FILE, "fieldRef": field("metadata.labels") }],
            }),
        ),
        named(STATE, "emptyDir", json!({ "sizeLimit": "16Mi" })),
    ];
    parsed.volumes.extend(common);
    if mode == CaptureMode::Iptables {
        parsed.volumes.push(named(INIT_RUN, "emptyDir", small.clone()));
        parsed.volumes.push(named(NO_TOKEN, "emptyDir", small));
    }
}

/// A `fieldRef`.
pub(super) fn field(path: &str) -> Value {
    json!({ "apiVersion": "v1", "fieldPath": path })
}

/// The token and the CAs with which the proxy enrols. The token is good for the manager alone. The CAs are those
/// of the manager's certificate and those that the pod trusts.
fn enrolment() -> JsonObject {
    let sources = json!([
        {
            "serviceAccountToken": {
                "audience": AUDIENCE,
                "expirationSeconds": TOKEN_SECONDS,
                "path": TOKEN_FILE,
            },
        },
        {
            "configMap": {
                "name": BUNDLE_MAP,
                "items": [
                    { "key": MANAGER_CA_KEY, "path": MANAGER_CA_FILE },
                    { "key": CA_KEY, "path": CA_FILE },
                ],
            },
        },
    ]);
    named(ENROLMENT, "projected", json!({ "defaultMode": READABLE, "sources": sources }))
}

/// A volume as ServiceAccount admission adds it, with the CA of our choice.
fn api_access(name: &str, ca_map: &str) -> JsonObject {
    let sources = json!([
        { "serviceAccountToken": { "expirationSeconds": TOKEN_SECONDS, "path": "token" } },
        { "configMap": { "name": ca_map, "items": [{ "key": CA_KEY, "path": CA_FILE }] } },
        {
            "downwardAPI": {
                "items": [{ "path": "namespace", "fieldRef": field("metadata.namespace") }],
            },
        },
    ]);
    named(name, "projected", json!({ "defaultMode": 0o644, "sources": sources }))
}
