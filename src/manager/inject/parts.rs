//! The init container and the proxy.

use serde_json::{Map, Value, json};

use super::{
    Mode, Settings, Sidecar,
    apps::{SERVICE_ACCOUNT, entries_to_look_at},
    draft::{Container, Draft, Object},
    settings::OUTBOUND_PORT,
    volumes::{INIT_RUN, MESH_CA, NO_TOKEN, POD_LABELS, PROXY_ACCESS, STATE, field, mount},
};
use crate::net::ClusterDomain;

/// The container that programs the redirect rules and ends.
pub(super) const INIT: &str = "ctrlmesh-init";
/// The container that stands between.
pub(super) const PROXY: &str = "ctrlmesh-proxy";
/// The port of metrics and health.
pub(super) const ADMIN_PORT: u16 = 5441;

const MESH_CA_DIR: &str = "/etc/ctrlmesh/mesh-ca";
const LABELS_DIR: &str = "/etc/ctrlmesh/pod";
const STATE_DIR: &str = "/var/lib/ctrlmesh";

/// How long a pod's start may wait for the proxy, in seconds, before the proxy is started anew.
/// It covers an API server that is away for a minute while a policy is waited for.
const START_TIMEOUT: u32 = 120;
/// How long a classic sidecar may wait for the pod's containers to end, in seconds: longer than
/// pods have, the kubelet ends it with the pod's own grace period.
const STOP_TIMEOUT: u32 = 3600;

/// Adds both where they belong.
///
/// Native: rules, proxy, then everything else, so that all of it is covered. Classic: the rules
/// come last of the init containers, which could reach nothing behind them while no proxy runs, and
/// the proxy first of the containers.
pub(super) fn add(draft: &mut Draft, mode: Mode, settings: &Settings) {
    let init = match mode {
        Mode::Iptables => Some(init(settings, entries_to_look_at(draft))),
        Mode::Env => None,
    };
    let proxy = proxy(mode, settings);
    match settings.sidecar {
        Sidecar::Native => {
            draft.init_containers.splice(0..0, init.into_iter().chain([proxy]));
        }
        Sidecar::Classic => {
            draft.init_containers.extend(init);
            draft.containers.insert(0, proxy);
        }
    }
}

fn init(settings: &Settings, to_look_at: Vec<Object>) -> Container {
    let fields = json!({
        "image": settings.init_image.to_string(),
        "imagePullPolicy": "IfNotPresent",
        "args": settings.plan.to_args(),
        "resources": {
            "requests": { "cpu": "10m", "memory": "16Mi" },
            "limits": { "memory": "64Mi" },
        },
        "securityContext": security(0, &["NET_ADMIN"]),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let mounts = vec![mount(INIT_RUN, "/run", false), mount(NO_TOKEN, SERVICE_ACCOUNT, true)];
    let mut env = pod_env();
    env.push(env_field("POD_IPS", "status.podIPs"));
    env.extend(to_look_at);
    Container::new(INIT, into_object(fields), env, mounts)
}

fn proxy(mode: Mode, settings: &Settings) -> Container {
    let uid = settings.plan.proxy_uid().as_u32();
    let mut fields = into_object(json!({
        "image": settings.proxy_image.to_string(),
        "imagePullPolicy": "IfNotPresent",
        "args": proxy_args(mode, &settings.cluster_domain),
        "ports": [{ "name": "ctrlmesh-admin", "containerPort": ADMIN_PORT, "protocol": "TCP" }],
        // No liveness: while the API server is away, a restart of every proxy would help nobody.
        "readinessProbe": ready(5, 3),
        "resources": {
            "requests": { "cpu": "20m", "memory": "32Mi" },
            "limits": { "memory": "256Mi" },
        },
        "securityContext": security(uid, &[]),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }));
    match settings.sidecar {
        Sidecar::Native => {
            fields.insert("restartPolicy".to_owned(), json!("Always"));
            fields.insert("startupProbe".to_owned(), ready(1, START_TIMEOUT));
        }
        // The kubelet starts the next container when the first hook has ended, and kills the proxy
        // when it failed. It ends all containers of a pod at once, the proxy when the second hook
        // has ended: a leader can release its lock through it.
        Sidecar::Classic => {
            let (start, stop) =
                (wait_command("ready", START_TIMEOUT), wait_command("no-clients", STOP_TIMEOUT));
            fields.insert(
                "lifecycle".to_owned(),
                json!({
                    "postStart": { "exec": { "command": start } },
                    "preStop": { "exec": { "command": stop } },
                }),
            );
        }
    }
    let mounts = vec![
        mount(PROXY_ACCESS, SERVICE_ACCOUNT, true),
        mount(MESH_CA, MESH_CA_DIR, true),
        mount(POD_LABELS, LABELS_DIR, true),
        mount(STATE, STATE_DIR, false),
    ];
    Container::new(PROXY, fields, pod_env(), mounts)
}

/// Every value that the pod depends on is written out: another version's default then changes
/// nothing. In direct mode the API server is the one that the kubelet names to the proxy.
fn proxy_args(mode: Mode, domain: &ClusterDomain) -> Vec<String> {
    let mode = match mode {
        Mode::Iptables => "iptables",
        Mode::Env => "direct",
    };
    vec![
        "proxy".to_owned(),
        format!("--mode={mode}"),
        format!("--listen=127.0.0.1:{OUTBOUND_PORT}"),
        format!("--admin=0.0.0.0:{ADMIN_PORT}"),
        format!("--upstream-ca={SERVICE_ACCOUNT}/ca.crt"),
        format!("--mesh-ca-dir={MESH_CA_DIR}"),
        format!("--cluster-domain={domain}"),
        format!("--pod-labels={LABELS_DIR}/labels"),
        format!("--state-dir={STATE_DIR}"),
    ]
}

/// The proxy's image holds one program and no shell, so that program waits too.
fn wait_command(what: &str, seconds: u32) -> Value {
    json!([
        "/ctrlmesh",
        "wait",
        format!("--for={what}"),
        format!("--admin=127.0.0.1:{ADMIN_PORT}"),
        format!("--timeout={seconds}")
    ])
}

fn ready(period: u32, failures: u32) -> Value {
    json!({
        "httpGet": { "path": "/readyz", "port": ADMIN_PORT, "scheme": "HTTP" },
        "periodSeconds": period,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    })
}

/// Every field, so that none is the pod's: a pod that says `runAsNonRoot`, `runAsGroup` or
/// `privileged` for its own containers must not change ours. SELinux and AppArmor stay the node's
/// and the pod's.
fn security(user: u32, capabilities: &[&str]) -> Value {
    let mut allowed = json!({ "drop": ["ALL"] });
    if !capabilities.is_empty() {
        allowed["add"] = json!(capabilities);
    }
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": allowed,
        "privileged": false,
        "procMount": "Default",
        "readOnlyRootFilesystem": true,
        "runAsGroup": user,
        "runAsNonRoot": user != 0,
        "runAsUser": user,
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

fn pod_env() -> Vec<Object> {
    vec![
        env_field("POD_NAME", "metadata.name"),
        env_field("POD_NAMESPACE", "metadata.namespace"),
        env_field("POD_IP", "status.podIP"),
    ]
}

fn env_field(name: &str, path: &str) -> Object {
    Object::from_iter([
        ("name".to_owned(), json!(name)),
        ("valueFrom".to_owned(), json!({ "fieldRef": field(path) })),
    ])
}

/// The object that `json!` was given.
fn into_object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
