//! The pod's own settings: what its labels and annotations ask of the injection.
//!
//! Keys, spellings and the form of the values are KusionStack's. A value that cannot be obeyed
//! refuses the pod: to go on without it would be noticed late.

use serde::{Deserialize, de::DeserializeOwned};
use strum::IntoStaticStr;

use super::{
    names::{ADDRESS, POD, POD_UID, PROXY},
    not_injected::NotInjected,
    pod::{Container, JsonObject, ParsedPod, named, text},
    settings::{BadResources, Enforces, Resources, Settings},
};
use ctrlmesh_api::keys;
use ctrlmesh_base::sidecar::SERVICE_ACCOUNT;

/// The settings of one pod.
#[derive(Debug)]
pub(super) struct PodSettings {
    pub(super) mode: CaptureMode,
    /// Whether the namespace chose the mode.
    is_env_by_level: bool,
    /// Whether containers get a token although the pod has `automountServiceAccountToken: false`.
    pub(super) wants_token: bool,
    /// The proxy's ResourceRequirements, in place of ours.
    pub(super) proxy_resources: Option<Resources>,
    /// The proxy's variables next to its own, one entry a name.
    pub(super) proxy_env: Vec<JsonObject>,
}

/// The way in which a pod's requests reach the proxy, by the value of its annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum CaptureMode {
    /// Redirect rules, which `ctrlmesh-init` puts in place.
    Iptables,
    /// The address of the API server in the containers' environment, and its names in their hosts
    /// file. Needs no privilege, but misses clients that have the address from elsewhere.
    Env,
}

/// An annotation with its key as the pod spells it.
#[derive(Clone, Copy)]
pub(super) struct Annotation<'a> {
    key: &'a str,
    value: &'a str,
}

/// An entry of `env-inject`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContainerEnv {
    name: String,
    env: Vec<Variable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    #[serde(alias = "name")]
    key: String,
    value: String,
}

impl PodSettings {
    /// Reads the settings of a pod without our parts, and gives its containers the variables that
    /// they ask for.
    pub(super) fn apply(parsed: &mut ParsedPod, settings: &Settings) -> Result<Self, NotInjected> {
        let annotations = parsed.annotations.clone();
        let annotation = |name| {
            let (key, value) = keys::find(&annotations, name)?;
            Some(Annotation { key, value })
        };
        let resources = |annotation: Annotation<'_>| {
            annotation.value.parse().map_err(|BadResources(problem)| annotation.refused(problem))
        };
        let proxy_resources = annotation(keys::PROXY_RESOURCE).map(resources).transpose()?;
        let injected = annotation(keys::ENV_INJECT)
            .map_or(Ok(Vec::new()), |annotation| inject_env(annotation, parsed))?;
        let mut proxy_env = match annotation(keys::ENV_SYNC) {
            Some(annotation) => synced_env(annotation, parsed)?,
            None => Vec::new(),
        };
        injected.into_iter().for_each(|entry| set(&mut proxy_env, entry));
        if let Some(annotation) = annotation(keys::LOG_PATH) {
            share_logs(annotation, parsed)?;
        }
        let (mode, is_env_by_level) = mode(parsed, settings)?;
        Ok(Self {
            mode,
            is_env_by_level,
            wants_token: annotation(keys::MOUNT_TOKEN).is_some_and(|a| a.value == "true"),
            proxy_resources,
            proxy_env,
        })
    }

    /// The notes on what was decided for the pod, and on its keys that mean nothing to us. With
    /// `has_names` the API server's names lead to the proxy.
    pub(super) fn notes(&self, parsed: &ParsedPod, has_names: bool) -> Vec<String> {
        let maps = [("label", &parsed.labels), ("annotation", &parsed.annotations)];
        let without_meaning = |(name, reason)| {
            let found = maps.iter().find_map(|(kind, map)| Some((kind, keys::find(map, name)?.0)));
            found.map(|(kind, key)| format!("{kind} {key} has no meaning here: {reason}"))
        };
        let ways = if has_names { "its variables or its DNS names" } else { "its variables" };
        let by_level = self.is_env_by_level.then(|| {
            format!(
                "the namespace enforces a Pod Security level without NET_ADMIN: injected in env \
                 mode, which a client goes past that has the API server's address from elsewhere \
                 than {ways}"
            )
        });
        by_level
            .into_iter()
            .chain(keys::WITHOUT_MEANING.into_iter().filter_map(without_meaning))
            .collect()
    }
}

/// The pod's mode, and whether the namespace chose it. The annotation takes precedence over the
/// label.
fn mode(parsed: &ParsedPod, settings: &Settings) -> Result<(CaptureMode, bool), NotInjected> {
    let wanted = keys::find(&parsed.annotations, keys::ENABLE_IPTABLES)
        .or_else(|| keys::find(&parsed.labels, keys::ENABLE_IPTABLES));
    match (wanted, settings.admission) {
        (Some((_, "false")), _) => Ok((CaptureMode::Env, false)),
        (Some((key, "true")), Some(Enforces::Baseline)) => {
            Err(NotInjected::PodSecurity(key.to_owned()))
        }
        (_, Some(Enforces::Baseline)) => Ok((CaptureMode::Env, true)),
        (_, Some(Enforces::Privileged) | None) => Ok((CaptureMode::Iptables, false)),
    }
}

/// The proxy's variables of `env-sync`: `NAME=VALUE` sets one, `NAME` copies the entry of the first
/// container that has one with a value.
fn synced_env(
    annotation: Annotation<'_>,
    parsed: &ParsedPod,
) -> Result<Vec<JsonObject>, NotInjected> {
    let mut env: Vec<JsonObject> = Vec::new();
    for item in annotation.value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (name, entry) = match item.split_once('=') {
            Some((name, value)) => (name, Some(named(name, "value", value.into()))),
            None => (item, first_with_value(parsed, item).cloned()),
        };
        annotation.may_set_in_proxy(name)?;
        let Some(entry) = entry else {
            return Err(annotation.refused(format!(
                "no container of the pod gives {name} a value in its `env`: write {name}=VALUE"
            )));
        };
        set(&mut env, entry);
    }
    Ok(env)
}

fn first_with_value<'a>(parsed: &'a ParsedPod, name: &str) -> Option<&'a JsonObject> {
    let has_value = |entry: &JsonObject| {
        entry.contains_key("valueFrom") || text(entry, "value").is_some_and(|text| !text.is_empty())
    };
    let mut entries = parsed.containers.iter().chain(&parsed.init_containers).flat_map(|c| &c.env);
    entries.find(|entry| text(entry, "name") == Some(name) && has_value(entry))
}

/// Sets the variables of `env-inject` in the pod's containers; returns the proxy's.
fn inject_env(
    annotation: Annotation<'_>,
    parsed: &mut ParsedPod,
) -> Result<Vec<JsonObject>, NotInjected> {
    const EXAMPLE: &str =
        "a list like [{\"name\":\"CONTAINER\",\"env\":[{\"key\":\"NAME\",\"value\":\"VALUE\"}]}]";
    let mut proxy = Vec::new();
    for ContainerEnv { name, env } in annotation.json::<Vec<ContainerEnv>>(EXAMPLE)? {
        let container = parsed.all_containers_mut().find(|container| container.name == name);
        let into = match container {
            Some(container) => &mut container.env,
            None if name == PROXY => &mut proxy,
            None => {
                let problem = format!("no container of the pod is named {name:?}");
                return Err(annotation.refused(problem));
            }
        };
        for Variable { key, value } in env {
            match name == PROXY {
                true => annotation.may_set_in_proxy(&key)?,
                false => annotation.is_name(&key)?,
            }
            set(into, named(&key, "value", value.into()));
        }
    }
    Ok(proxy)
}

/// Sets a variable: in the place of one with its name, or as the last.
fn set(env: &mut Vec<JsonObject>, entry: JsonObject) {
    match env.iter_mut().find(|known| text(known, "name") == text(&entry, "name")) {
        Some(known) => *known = entry,
        None => env.push(entry),
    }
}

/// Shares the volume that a container mounts at `log-path` with all other containers; without one,
/// an empty one. Not with the proxy: it logs to standard error.
fn share_logs(annotation: Annotation<'_>, parsed: &mut ParsedPod) -> Result<(), NotInjected> {
    const VOLUME: &str = "app-shared-logs";
    let path = annotation.value.trim_end_matches('/');
    let has_dots = path.split('/').any(|step| step == "..");
    if !path.starts_with('/') || has_dots || path.contains(':') {
        return Err(annotation.refused(format!(
            "{:?} is no directory: write an absolute path like /var/log/app",
            annotation.value
        )));
    }
    let contains = |outer: &str, inner: &str| format!("{inner}/").starts_with(&format!("{outer}/"));
    if contains(path, SERVICE_ACCOUNT) || contains(SERVICE_ACCOUNT, path) {
        return Err(annotation.refused(format!("{path} has {SERVICE_ACCOUNT} in it, or is in it")));
    }
    let is_there = |mount: &&JsonObject| {
        text(mount, "mountPath").is_some_and(|at| at.trim_end_matches('/') == path)
    };
    let mounts = |container: &Container| container.mounts.iter().find(is_there).cloned();
    let mut known = parsed.all_containers().filter_map(mounts);
    let mount = match known.next() {
        Some(first) => {
            if known.any(|other| text(&other, "name") != text(&first, "name")) {
                let problem = format!("containers mount different volumes at {path}");
                return Err(annotation.refused(problem));
            }
            first
        }
        None => named(VOLUME, "mountPath", path.into()),
    };
    drop(known);
    let is_shared = |volume: &JsonObject| text(volume, "name") == Some(VOLUME);
    if text(&mount, "name") == Some(VOLUME) && !parsed.volumes.iter().any(is_shared) {
        parsed.volumes.push(named(VOLUME, "emptyDir", serde_json::json!({})));
    }
    for container in parsed.all_containers_mut() {
        if !container.mounts.iter().any(|mount| is_there(&mount)) {
            let mut mount = mount.clone();
            mount.remove("readOnly");
            container.mounts.push(mount);
        }
    }
    Ok(())
}

impl Annotation<'_> {
    fn refused(&self, problem: String) -> NotInjected {
        NotInjected::Annotation { key: self.key.to_owned(), problem }
    }

    fn json<T: DeserializeOwned>(&self, wanted: &str) -> Result<T, NotInjected> {
        serde_json::from_str(self.value)
            .map_err(|error| self.refused(format!("{error}; it must be {wanted}")))
    }

    /// The API server's rule for a variable's name (`IsRelaxedEnvVarName`).
    fn is_name(&self, name: &str) -> Result<(), NotInjected> {
        let is_printable = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
        match !name.is_empty() && name.bytes().all(is_printable) {
            true => Ok(()),
            false => Err(self.refused(format!("{name:?} is no name of a variable"))),
        }
    }

    fn may_set_in_proxy(&self, name: &str) -> Result<(), NotInjected> {
        self.is_name(name)?;
        match ADDRESS.iter().chain(&POD).chain([&POD_UID]).any(|own| *own == name) {
            true => Err(self.refused(format!(
                "{name} tells the proxy where it is, and is set by ctrlmesh: leave it out"
            ))),
            false => Ok(()),
        }
    }
}
