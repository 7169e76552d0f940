//! The changes to the pod's own containers, and their removal.

pub(crate) mod aliases;
pub(crate) mod elections;

use std::collections::BTreeSet;

use ctrlmesh_init::{EnvFrom, EnvSource};
use serde_json::{Value, json};

use crate::{
    names::{ADDRESS, INIT, PROXY},
    pod::{Container, JsonObject, ParsedPod, named, text},
    pod_settings::CaptureMode,
    settings::Sidecar,
    volumes::{self, BUNDLE, is_ours, mount},
};
use ctrlmesh_api::keys;
use ctrlmesh_base::sidecar::{LISTEN, SERVICE_ACCOUNT};

/// The annotation that names kubectl's default container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The variables with their values in env mode.
fn proxys_address() -> [(&'static str, String); 3] {
    let (host, port) = (LISTEN.ip().to_string(), LISTEN.port().to_string());
    let [host_name, port_name, https_name] = ADDRESS;
    [(host_name, host), (port_name, port.clone()), (https_name, port)]
}

/// Removes the parts of an earlier injection, and returns its containers. A pod without our mark is
/// left alone: parts with our names are not ours there.
pub(crate) fn remove_ours(parsed: &mut ParsedPod) -> Vec<Container> {
    let Some(mode) = parsed.annotations.remove(keys::INJECTED) else { return Vec::new() };
    aliases::take(parsed);
    let is_part = |container: &mut Container| [INIT, PROXY].contains(&container.name.as_str());
    let mut former: Vec<_> = parsed.init_containers.extract_if(.., is_part).collect();
    former.extend(parsed.containers.extract_if(.., is_part));
    parsed.volumes.retain(|volume| !text(volume, "name").is_some_and(is_ours));
    for container in parsed.all_containers_mut() {
        container.mounts.retain(|mount| !text(mount, "name").is_some_and(is_ours));
        if mode == <&str>::from(CaptureMode::Env) {
            container.env.retain(|entry| !is_our_address(entry));
        }
    }
    former
}

/// The notes on what happened to the parts of an earlier injection, which will be as they were.
pub(crate) fn notes(parsed: &ParsedPod, sidecar: Sidecar) -> Vec<String> {
    let is_marked = parsed.annotations.contains_key(keys::INJECTED);
    let proxy = parsed.init_containers.iter().find(|container| container.name == PROXY);
    let is_lost = proxy.is_some_and(|proxy| !proxy.is_native_sidecar());
    match is_marked && is_lost && sidecar == Sidecar::Native {
        true => vec![format!(
            "{PROXY} had lost its restartPolicy: Always, and has it again: another webhook, older \
             than native sidecars, has written the pod"
        )],
        false => Vec::new(),
    }
}

/// Sets the mark, and keeps the pod's own first container the default of kubectl.
pub(crate) fn mark(parsed: &mut ParsedPod, mode: CaptureMode) {
    parsed.annotations.insert(keys::INJECTED.to_owned(), <&str>::from(mode).to_owned());
    let first = parsed.containers.first().map(|container| container.name.clone());
    if let Some(first) = first {
        parsed.annotations.entry(DEFAULT_CONTAINER.to_owned()).or_insert(first);
    }
}

/// Mounts the bundle in every container, also in those that end before the proxy runs: it has the
/// cluster's CA too. It replaces the mounts of ServiceAccount admission. Where the pod's author
/// projected tokens, these volumes have it, and no container gets a token that it had not.
pub(crate) fn give_bundle(parsed: &mut ParsedPod, wants_token: bool) {
    let by_hand = parsed.volumes.iter().filter(|volume| volumes::is_projected_by_hand(volume));
    let by_hand: Vec<_> =
        by_hand.filter_map(|volume| text(volume, "name").map(str::to_owned)).collect();
    let is_by_hand = |mount: &JsonObject| {
        text(mount, "name").is_some_and(|name| by_hand.iter().any(|volume| volume == name))
    };
    let is_automatic = by_hand.is_empty()
        || wants_token
        || parsed.spec.get("automountServiceAccountToken") != Some(&Value::Bool(false));
    for container in parsed.all_containers_mut() {
        container.mounts.retain(|mount| !is_at_service_account(mount) || is_by_hand(mount));
        if is_automatic && !container.mounts.iter().any(is_at_service_account) {
            container.mounts.push(mount(BUNDLE, SERVICE_ACCOUNT, true));
        }
    }
    volumes::remove_unused_tokens(parsed);
    volumes::give_bundle_by_hand(parsed);
}

/// Sets the proxy's address in every container that runs next to the proxy. First in the list, so
/// that other variables that refer to these get the same values.
///
/// Init containers before a classic sidecar can only call the API server itself, as with the order
/// of the redirect rules.
pub(crate) fn give_address(parsed: &mut ParsedPod, sidecar: Sidecar) {
    let inits = match sidecar {
        Sidecar::Native => parsed.init_containers.as_mut_slice(),
        Sidecar::Classic => &mut [],
    };
    for container in inits.iter_mut().chain(&mut parsed.containers) {
        let address = proxys_address().map(|(name, value)| named(name, "value", value.into()));
        container.env.splice(0..0, address);
    }
}

/// The variables that the init container checks before containers start: each holds an `envFrom`
/// entry that would set the API server's address, if it exists.
pub(crate) fn entries_to_look_at(parsed: &ParsedPod) -> Vec<JsonObject> {
    let all = |container: &Container| match container.fields.get("envFrom") {
        Some(Value::Array(sources)) => sources.clone(),
        _ => Vec::new(),
    };
    let sources: Vec<Value> = parsed.all_containers().flat_map(all).collect();
    let entries: BTreeSet<EnvFrom> = sources.iter().flat_map(entries_of).collect();
    entries.iter().map(look).collect()
}

/// The entries of an `envFrom` that would set one of [`ADDRESS`].
fn entries_of(from: &Value) -> Vec<EnvFrom> {
    let prefix = from.get("prefix").and_then(Value::as_str).unwrap_or_default();
    let objects = [("configMapRef", EnvSource::ConfigMap), ("secretRef", EnvSource::Secret)];
    let mut entries = Vec::new();
    for (reference, source) in objects {
        let Some(name) = from.get(reference).and_then(|object| object.get("name")?.as_str()) else {
            continue;
        };
        let keys = ADDRESS.iter().filter_map(|variable| variable.strip_prefix(prefix));
        entries.extend(keys.filter(|key| !key.is_empty()).map(|key| EnvFrom {
            source,
            name: name.to_owned(),
            key: key.to_owned(),
        }));
    }
    entries
}

fn look(entry: &EnvFrom) -> JsonObject {
    let reference = match entry.source {
        EnvSource::ConfigMap => "configMapKeyRef",
        EnvSource::Secret => "secretKeyRef",
    };
    let key = json!({ "name": entry.name, "key": entry.key, "optional": true });
    named(&entry.variable(), "valueFrom", json!({ reference: key }))
}

/// Whether the mount is at the ServiceAccount's path itself, trailing slashes or not.
pub(crate) fn is_at_service_account(mount: &JsonObject) -> bool {
    text(mount, "mountPath").is_some_and(|path| path.trim_end_matches('/') == SERVICE_ACCOUNT)
}

fn is_our_address(entry: &JsonObject) -> bool {
    proxys_address().iter().any(|(name, value)| {
        text(entry, "name") == Some(name) && text(entry, "value") == Some(value)
    })
}
