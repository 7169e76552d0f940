//! The API server's DNS names in env mode: host aliases lead them to the proxy, which listens at the
//! port of the API server's Service too.
//!
//! A pod that uses one of the means itself keeps what it has ([`Taken`]).

use serde_json::{Value, json};

use crate::{
    names::PROXY,
    pod::{Container, JsonObject, ParsedPod, named, text},
    settings::{Settings, Sidecar},
};
use ctrlmesh_base::sidecar::{LISTEN_NAMES, LISTEN_NAMES_FLAG};
use ctrlmesh_net::is_api_servers_name;

/// The lowest port that needs no capability, as a sysctl of the pod's own network. Every level of
/// Pod Security admits it, and the kubelet counts it among the safe ones (since Kubernetes 1.22).
const LOWEST_PORT: &str = "net.ipv4.ip_unprivileged_port_start";
/// The value of the sysctl with which no port needs a capability. Container runtimes set it for pods that set no
/// value.
const EVERY_PORT: &str = "0";

/// The reason why the names do not lead to the proxy.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}: requests reach the proxy by the variables KUBERNETES_SERVICE_HOST and _PORT alone, and go \
     past it by the DNS names of the API server"
)]
pub(crate) struct Taken(String);

/// Leads the names to the proxy. Fails with [`Taken`]; the pod is unchanged.
pub(crate) fn give(parsed: &mut ParsedPod, settings: &Settings) -> Result<(), Taken> {
    let own = own_port(parsed).or_else(|| own_sysctl(parsed)).or_else(|| own_alias(parsed));
    if let Some(own) = own.or_else(|| early(parsed, settings.sidecar)) {
        return Err(Taken(own));
    }
    let names = settings.cluster_domain.service_names().map(Value::String);
    // An address has one entry in this list of the API.
    match parsed.host_aliases.iter_mut().find_map(names_at_proxy) {
        Some(others) => others.extend(names),
        None => parsed.host_aliases.push(JsonObject::from_iter([
            ("ip".to_owned(), json!(LISTEN_NAMES.ip())),
            ("hostnames".to_owned(), names.collect()),
        ])),
    }
    parsed.sysctls.push(named(LOWEST_PORT, "value", EVERY_PORT.into()));
    Ok(())
}

/// Takes away what an earlier injection has given, as the arguments of its proxy show.
pub(super) fn take(parsed: &mut ParsedPod) {
    if !parsed.all_containers().any(listens_for_names) {
        return;
    }
    parsed.host_aliases.retain_mut(|alias| match names_at_proxy(alias) {
        Some(names) => {
            names.retain(|name| !name.as_str().is_some_and(is_api_servers_name));
            !names.is_empty()
        }
        None => true,
    });
    parsed.sysctls.retain(|sysctl| !is_lowest_port(sysctl));
}

fn listens_for_names(container: &Container) -> bool {
    let args = container.fields.get("args").and_then(Value::as_array).into_iter().flatten();
    let is_flag =
        |arg: &str| arg.strip_prefix(LISTEN_NAMES_FLAG).is_some_and(|value| value.starts_with('='));
    container.name == PROXY && args.filter_map(Value::as_str).any(is_flag)
}

fn own_port(parsed: &ParsedPod) -> Option<String> {
    let port = LISTEN_NAMES.port();
    let has_port = |container: &&Container| container.tcp_ports().any(|own| own == u64::from(port));
    let container = parsed.all_containers().find(has_port)?;
    Some(format!("container `{}` has containerPort {port}", container.name))
}

fn own_sysctl(parsed: &ParsedPod) -> Option<String> {
    let is_own = parsed.sysctls.iter().any(is_lowest_port);
    is_own.then(|| format!("the pod sets the sysctl {LOWEST_PORT}"))
}

fn own_alias(parsed: &ParsedPod) -> Option<String> {
    let names = |alias| JsonObject::get(alias, "hostnames").and_then(Value::as_array);
    let mut all = parsed.host_aliases.iter().filter_map(names).flatten().filter_map(Value::as_str);
    let name = all.find(|name| is_api_servers_name(name))?;
    Some(format!("the pod has a host alias for {name}"))
}

/// Aliases are the whole pod's, and nothing listens yet while these containers run.
fn early(parsed: &ParsedPod, sidecar: Sidecar) -> Option<String> {
    let first = parsed.init_containers.first().filter(|_| sidecar == Sidecar::Classic)?;
    Some(format!("init container `{}` runs before the classic sidecar", first.name))
}

/// The names of an alias for the proxy's address, if it has any.
fn names_at_proxy(alias: &mut JsonObject) -> Option<&mut Vec<Value>> {
    if text(alias, "ip") != Some(&LISTEN_NAMES.ip().to_string()) {
        return None;
    }
    alias.get_mut("hostnames")?.as_array_mut().filter(|names| !names.is_empty())
}

/// Whether the entry is the sysctl of ours; the API takes slashes too.
fn is_lowest_port(sysctl: &JsonObject) -> bool {
    text(sysctl, "name").is_some_and(|name| name.replace('/', ".") == LOWEST_PORT)
}
