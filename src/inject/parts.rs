//! The init container and the proxy.

use ctrlmesh_init::Plan;
use serde_json::{Map, Value, json};

use super::{
    apps::entries_to_look_at,
    names::{INIT, POD, POD_UID, PROXY},
    pod::{Container, JsonObject, ParsedPod, named},
    pod_settings::{CaptureMode, PodSettings},
    reviews::Reviews,
    settings::{MeshTrust, Resources, Settings, Sidecar},
    volumes::{
        ENROLMENT, INIT_RUN, LEAF, MESH_CA, NO_TOKEN, POD_LABELS, PROXY_ACCESS, STATE, field, mount,
    },
};
use ctrlmesh_api::FenceMode;
use ctrlmesh_base::sidecar::{
    self, ADMIN_PORT, ENROLMENT_DIR, LABELS_DIR, LEAF_DIR, LISTEN_NAMES, LeafPlan, MESH_CA_DIR,
    OWN_ADMIN, ProxyPlan, SERVICE_ACCOUNT, STATE_DIR,
};

/// The time limit of the proxy's start, in seconds, before the proxy is restarted. It covers an API
/// server that is unavailable for a minute while the proxy waits for a policy.
const START_TIMEOUT: u32 = 120;
/// The time limit of a classic sidecar's wait for the pod's containers to end, in seconds. Longer
/// than pods have: the kubelet ends the wait with the pod's own grace period.
const STOP_TIMEOUT: u32 = 3600;

/// The ways to the proxy next to the one to the API server's address.
pub(super) struct Ways {
    /// Whether the API server's names lead to it.
    pub(super) has_names: bool,
    /// The reviews that come to it.
    pub(super) reviews: Option<Reviews>,
}

/// Adds both containers in their places.
///
/// Native: init container, proxy, then all others, so that all of them are covered. Classic: the
/// init container comes last of its kind, since later ones could reach nothing while no proxy runs,
/// and the proxy first of the containers.
pub(super) fn add(parsed: &mut ParsedPod, own: PodSettings, ways: &Ways, settings: &Settings) {
    let plan = ways.reviews.as_ref().map_or(&settings.plan, |reviews| &reviews.plan);
    let init = match own.mode {
        CaptureMode::Iptables => Some(init(settings, plan, entries_to_look_at(parsed))),
        CaptureMode::Env => None,
    };
    let proxy = proxy(own, ways, settings);
    match settings.sidecar {
        Sidecar::Native => {
            parsed.init_containers.splice(0..0, init.into_iter().chain([proxy]));
        }
        Sidecar::Classic => {
            parsed.init_containers.extend(init);
            parsed.containers.insert(0, proxy);
        }
    }
}

/// Gives our containers the amounts of resources that they had in the former injection and that ours
/// do not set. Between two reviews of one pod the API server gives every container the defaults of
/// the namespace's LimitRange, and not again after the second.
pub(super) fn keep_defaults(parsed: &mut ParsedPod, former: &[Container]) {
    for former in former {
        let mut ours = parsed.all_containers_mut().filter(|ours| ours.name == former.name);
        let resources = ours.next().and_then(|ours| ours.fields.get_mut("resources"));
        let (Some(ours), Some(former)) = (resources, former.fields.get("resources")) else {
            continue;
        };
        for list in ["requests", "limits"] {
            let amounts = former.get(list).and_then(Value::as_object).into_iter().flatten();
            for (resource, amount) in amounts {
                if ours[list].get(resource).is_none() {
                    ours[list][resource] = amount.clone();
                }
            }
        }
    }
}

fn init(settings: &Settings, plan: &Plan, to_look_at: Vec<JsonObject>) -> Container {
    let fields = json!({
        "image": settings.init_image.to_string(),
        "imagePullPolicy": "IfNotPresent",
        "args": plan.to_args(),
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

fn proxy(own: PodSettings, ways: &Ways, settings: &Settings) -> Container {
    let uid = settings.plan.proxy_uid().as_u32();
    let mode = match own.mode {
        CaptureMode::Iptables => sidecar::Mode::Iptables,
        CaptureMode::Env => sidecar::Mode::Direct,
    };
    let (leaf, leaf_mounts) = leaf(&settings.trust);
    let plan = ProxyPlan {
        listen_names: ways.has_names.then_some(LISTEN_NAMES),
        inbound: ways.reviews.as_ref().map(|reviews| reviews.inbound.clone()),
        ..ProxyPlan::of_pod(mode, settings.cluster_domain.clone(), leaf)
    };
    let resources = own.proxy_resources.or_else(|| settings.proxy_resources.clone());
    let mut fields = into_object(json!({
        "image": settings.proxy_image.to_string(),
        "imagePullPolicy": "IfNotPresent",
        "args": plan.to_args(),
        "ports": [{ "name": "ctrlmesh-admin", "containerPort": ADMIN_PORT, "protocol": "TCP" }],
        // No livenessProbe: to restart every proxy while the API server is away would not help.
        "readinessProbe": probe("/readyz", 5, 3),
        "resources": resources.map(Resources::into_value).unwrap_or_else(|| json!({
            "requests": { "cpu": "20m", "memory": "32Mi" },
            "limits": { "memory": "256Mi" },
        })),
        "securityContext": security(uid, &[]),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }));
    match settings.sidecar {
        Sidecar::Native => {
            fields.insert("restartPolicy".to_owned(), json!("Always"));
            fields.insert("startupProbe".to_owned(), probe("/startupz", 1, START_TIMEOUT));
        }
        // The kubelet starts the next container once postStart has ended, and kills the proxy if it
        // failed. It stops all containers of a pod at once, the proxy once preStop has ended: a
        // leader can release its lock through it.
        Sidecar::Classic => {
            let (start, stop) =
                (wait_command("started", START_TIMEOUT), wait_command("no-clients", STOP_TIMEOUT));
            fields.insert(
                "lifecycle".to_owned(),
                json!({
                    "postStart": { "exec": { "command": start } },
                    "preStop": { "exec": { "command": stop } },
                }),
            );
        }
    }
    let mut mounts = vec![mount(PROXY_ACCESS, SERVICE_ACCOUNT, true)];
    mounts.extend(leaf_mounts);
    mounts.push(mount(POD_LABELS, LABELS_DIR, true));
    mounts.push(mount(STATE, STATE_DIR, false));
    let mut env = pod_env();
    env.push(env_field(POD_UID, "metadata.uid"));
    if let Some(reviews) = &ways.reviews {
        mounts.push(reviews.mount.clone());
    }
    if settings.fence != FenceMode::default() {
        env.push(named("CTRLMESH_FENCE", "value", json!(settings.fence.as_str())));
    }
    env.extend(own.proxy_env);
    Container::new(PROXY, fields, env, mounts)
}

/// The source of the proxy's certificate, and the volumes that it needs.
fn leaf(trust: &MeshTrust) -> (LeafPlan, Vec<JsonObject>) {
    match trust {
        MeshTrust::Secret => (LeafPlan::mesh_ca_of_pod(), vec![mount(MESH_CA, MESH_CA_DIR, true)]),
        MeshTrust::Manager { address } => {
            let mounts = [mount(ENROLMENT, ENROLMENT_DIR, true), mount(LEAF, LEAF_DIR, false)];
            (LeafPlan::manager_of_pod(address.clone()), mounts.to_vec())
        }
    }
}

/// The command of a hook: the proxy's image holds this one program and no shell.
fn wait_command(what: &str, seconds: u32) -> Value {
    json!([
        "/ctrlmesh",
        sidecar::WAIT,
        format!("--for={what}"),
        format!("--admin={OWN_ADMIN}"),
        format!("--timeout={seconds}")
    ])
}

/// A probe of a page of the proxy. The containers start behind `/startupz`; `/readyz` may wait for
/// what they do.
fn probe(page: &str, period: u32, failures: u32) -> Value {
    json!({
        "httpGet": { "path": page, "port": ADMIN_PORT, "scheme": "HTTP" },
        "periodSeconds": period,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    })
}

/// Sets every field, so that none is the pod's: a pod's `runAsNonRoot`, `runAsGroup` or
/// `privileged` for its own containers must not change ours. SELinux and AppArmor are left to the
/// node and the pod.
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

fn pod_env() -> Vec<JsonObject> {
    let fields = ["metadata.name", "metadata.namespace", "status.podIP"];
    POD.iter().zip(fields).map(|(name, field)| env_field(name, field)).collect()
}

fn env_field(name: &str, path: &str) -> JsonObject {
    named(name, "valueFrom", json!({ "fieldRef": field(path) }))
}

/// The object of a `json!` value.
fn into_object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
