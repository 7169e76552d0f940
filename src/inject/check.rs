//! Checks that refuse pods for which the mesh could not keep its promises.

use std::num::NonZeroU16;

use serde_json::Value;

use super::{
    apps::is_at_service_account,
    names::ADDRESS,
    not_injected::NotInjected,
    pod::{Container, JsonObject, ParsedPod, text},
    pod_settings::PodSettings,
    settings::{Settings, Sidecar},
    volumes::{self, is_projected_by_hand, is_token},
};
use ctrlmesh_base::sidecar::{ADMIN_PORT, AUDIENCE, OUTBOUND_PORT, SERVICE_ACCOUNT};

/// The prefix of our containers' names.
const RESERVED: &str = "ctrlmesh-";

/// Refuses unsuitable pods. Parts of an earlier injection must be removed before.
pub(super) fn refuse(
    parsed: &ParsedPod,
    settings: &Settings,
    own: &PodSettings,
) -> Result<(), NotInjected> {
    node(parsed)?;
    names(parsed)?;
    users(parsed, settings)?;
    token(parsed, own)?;
    audience(parsed)?;
    if settings.sidecar == Sidecar::Classic {
        classic(parsed)?;
    }
    parsed.all_containers().try_for_each(|container| {
        ports(container)?;
        variables(container)?;
        token_mounts(container, &parsed.volumes)
    })
}

fn node(parsed: &ParsedPod) -> Result<(), NotInjected> {
    let spec = &parsed.spec;
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        return Err(NotInjected::HostNetwork);
    }
    // No capability need be added for it: container runtimes let root change its user by default.
    for field in ["shareProcessNamespace", "hostPID"] {
        if spec.get(field) == Some(&Value::Bool(true)) {
            return Err(NotInjected::SharedProcesses(field));
        }
    }
    let selector = |key| spec.get("nodeSelector").and_then(|selector| selector.get(key));
    let says = [
        ("spec.os.name", spec.get("os").and_then(|os| os.get("name"))),
        ("spec.nodeSelector[\"kubernetes.io/os\"]", selector("kubernetes.io/os")),
        ("spec.nodeSelector[\"beta.kubernetes.io/os\"]", selector("beta.kubernetes.io/os")),
    ];
    match says.iter().find(|(_, os)| os.is_some_and(|os| os == "windows")) {
        Some((field, _)) => Err(NotInjected::Windows(field)),
        None => Ok(()),
    }
}

fn names(parsed: &ParsedPod) -> Result<(), NotInjected> {
    let foreign = |kind, name: &str| NotInjected::ForeignName { kind, name: name.to_owned() };
    for container in parsed.all_containers() {
        if container.name.starts_with(RESERVED) {
            return Err(foreign("container", &container.name));
        }
    }
    // A mount alone would reach a volume of ours as soon as we add it.
    let volumes = parsed.volumes.iter();
    let mounts = parsed.all_containers().flat_map(|container| &container.mounts);
    let mut named = volumes.chain(mounts).filter_map(|object| text(object, "name"));
    match named.find(|name| volumes::is_ours(name)) {
        Some(name) => Err(foreign("volume", name)),
        None => Ok(()),
    }
}

/// The pod's own user counts too: debug containers run as it, and come later and unseen.
fn users(parsed: &ParsedPod, settings: &Settings) -> Result<(), NotInjected> {
    let uid = settings.plan.proxy_uid();
    let is_proxys = |user: Option<u64>| user == Some(uid.as_u32().into());
    if is_proxys(parsed.security.get("runAsUser").and_then(Value::as_u64)) {
        return Err(NotInjected::ProxyUser { who: "the pod's securityContext".to_owned(), uid });
    }
    match parsed.all_containers().find(|container| is_proxys(container.user())) {
        Some(container) => {
            Err(NotInjected::ProxyUser { who: format!("container `{}`", container.name), uid })
        }
        None => Ok(()),
    }
}

fn token(parsed: &ParsedPod, own: &PodSettings) -> Result<(), NotInjected> {
    let is_unwanted = parsed.spec.get("automountServiceAccountToken") == Some(&Value::Bool(false));
    let has_own = parsed.volumes.iter().any(is_projected_by_hand);
    match is_unwanted && !has_own && !own.wants_token {
        true => Err(NotInjected::NoToken("the pod")),
        false => Ok(()),
    }
}

/// Any holder of a pod token that is good for the manager can get a certificate.
fn audience(parsed: &ParsedPod) -> Result<(), NotInjected> {
    let is_for_manager = |source: &Value| {
        let token = source.get("serviceAccountToken");
        token.and_then(|token| token.get("audience")?.as_str()) == Some(AUDIENCE)
    };
    let has_one = |volume: &&JsonObject| volumes::sources(volume).any(is_for_manager);
    match parsed.volumes.iter().find(has_one) {
        Some(volume) => {
            Err(NotInjected::Audience(text(volume, "name").unwrap_or_default().to_owned()))
        }
        None => Ok(()),
    }
}

fn classic(parsed: &ParsedPod) -> Result<(), NotInjected> {
    if let Some(policy @ ("Never" | "OnFailure")) = text(&parsed.spec, "restartPolicy") {
        return Err(NotInjected::RunsToCompletion(policy.to_owned()));
    }
    match parsed.init_containers.iter().find(|container| container.is_native_sidecar()) {
        Some(container) => Err(NotInjected::NeedsNative(container.name.clone())),
        None => Ok(()),
    }
}

fn ports(container: &Container) -> Result<(), NotInjected> {
    let needed = [(ADMIN_PORT, "serves metrics and health"), (OUTBOUND_PORT, "takes requests")];
    needed.into_iter().try_for_each(|(own, purpose)| port(container, own, purpose))
}

/// Refuses a container that serves at a port of the proxy.
pub(super) fn port(
    container: &Container,
    own: NonZeroU16,
    purpose: &'static str,
) -> Result<(), NotInjected> {
    let port = own.get();
    match container.tcp_ports().any(|taken| taken == u64::from(port)) {
        true => Err(NotInjected::Port { container: container.name.clone(), port, purpose }),
        false => Ok(()),
    }
}

fn variables(container: &Container) -> Result<(), NotInjected> {
    let sets = |name: &str| container.env.iter().any(|entry| text(entry, "name") == Some(name));
    match ADDRESS.iter().find(|name| sets(name)) {
        Some(variable) => {
            Err(NotInjected::ApiServerVariable { container: container.name.clone(), variable })
        }
        None => Ok(()),
    }
}

/// Checks the mounts at and below the ServiceAccount's path. The bundle goes only into admission's own volume at
/// that path, or into a volume that is projected in its place. Nothing can be mounted below the path: the volume
/// is read-only, and its files change.
fn token_mounts(container: &Container, volumes: &[JsonObject]) -> Result<(), NotInjected> {
    let is_tokens = |name: &str| {
        volumes.iter().any(|volume| {
            let is_one = is_token(volume) || is_projected_by_hand(volume);
            text(volume, "name") == Some(name) && is_one
        })
    };
    for mount in &container.mounts {
        let (Some(path), Some(volume)) = (text(mount, "mountPath"), text(mount, "name")) else {
            continue;
        };
        let is_below = path.starts_with(SERVICE_ACCOUNT)
            && path[SERVICE_ACCOUNT.len()..].starts_with('/')
            && !is_at_service_account(mount);
        if is_below || (is_at_service_account(mount) && !is_tokens(volume)) {
            return Err(NotInjected::TokenMount {
                container: container.name.clone(),
                volume: volume.to_owned(),
                path: path.to_owned(),
            });
        }
    }
    Ok(())
}
