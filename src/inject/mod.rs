//! Makes a pod part of the mesh: a function of the pod, the [`Settings`] and the ShardingConfig that
//! selects the pod only.
//!
//! [`inject`] reads top-down:
//!
//! 1. whether the pod asks for it;
//! 2. the parts of an earlier injection are removed, so that injecting twice equals injecting once;
//! 3. the pod's own settings are read: how its requests reach the proxy ([`CaptureMode`]), what
//!    else its annotations ask for (`pod_settings`); the pod is refused if the mesh could not keep
//!    its promises ([`NotInjected`]);
//! 4. where the ShardingConfig names a webhook server, its reviews are to come to the proxy, which
//!    needs the server's certificate (`reviews`);
//! 5. every container gets the bundle, and in env mode the proxy's address, to which the API
//!    server's names lead too (`apps`);
//! 6. volumes, init container and proxy are added (`volumes`, `parts`), in an order in which no
//!    container starts before the proxy and bypasses it later; where the pod has resources as a whole,
//!    these cover ours, too (`pod_resources`).
//!
//! The pod stays JSON throughout, so that unknown fields survive. Next to the pod, its namespace
//! needs four objects, and the cluster two if policies select namespaces by labels
//! ([`companions`]; where a manager signs certificates, these are its work); [`workload`] finds the
//! pods in other objects.

mod apps;
mod check;
pub mod companions;
pub mod names;
mod not_injected;
mod parts;
mod pod;
mod pod_resources;
mod pod_settings;
mod reviews;
mod settings;
mod volumes;
pub mod workload;

use serde_json::Value;

pub use self::reviews::note as note_on_reviews;
use self::{
    apps::aliases,
    parts::Ways,
    pod::{ParsedPod, unquoted},
    pod_settings::PodSettings,
    reviews::Reviews,
};
pub use self::{
    not_injected::NotInjected,
    pod_settings::CaptureMode,
    reviews::webhook_port,
    settings::{BadImage, BadResources, Enforces, Image, MeshTrust, Resources, Settings, Sidecar},
};
use ctrlmesh_api::keys;
use ctrlmesh_policy::ShardingDraft;

/// The result of [`inject`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injected {
    /// The pod does not ask for injection, and is unchanged.
    NotAsked,
    /// The pod is part of the mesh.
    Done {
        /// The mode.
        mode: CaptureMode,
        /// The ServiceAccount that needs to read the policies.
        service_account: String,
        /// Remarks for the author of the pod, a sentence each.
        notes: Vec<String>,
    },
}

/// Injects `pod`, a Pod or a PodTemplateSpec, if it asks for that; `config` is the ShardingConfig that
/// selects it. Injecting an injected pod, with any settings, gives the same as injecting the original;
/// at admission, the resources that a LimitRange gave our containers in between stay. Fails with
/// [`NotInjected`]; the pod is unchanged.
pub fn inject(
    pod: &mut Value,
    settings: &Settings,
    config: Option<&ShardingDraft>,
) -> Result<Injected, NotInjected> {
    if !is_asked_for(pod)? {
        return Ok(Injected::NotAsked);
    }
    let mut parsed = ParsedPod::of(pod)?;
    let service_account = service_account(&parsed)?;
    let mut notes = apps::notes(&parsed, settings.sidecar);
    let is_token = |volume| volumes::is_token(volume) || volumes::is_projected_by_hand(volume);
    let has_token = parsed.volumes.iter().any(is_token);
    let former = apps::remove_ours(&mut parsed);
    pod_resources::take_back(&mut parsed);
    let own = PodSettings::apply(&mut parsed, settings)?;
    check::refuse(&parsed, settings, &own)?;
    if settings.admission.is_some() && !has_token && !own.wants_token {
        return Err(NotInjected::NoToken("the pod's ServiceAccount"));
    }

    let mode = own.mode;
    let reviews = match mode {
        CaptureMode::Iptables => config.map_or(Ok(None), |c| Reviews::of(&parsed, c, settings))?,
        CaptureMode::Env => None,
    };
    notes.extend(config.and_then(|config| reviews::note(config, mode)));
    notes.extend(config.into_iter().flat_map(|config| apps::elections::notes(&parsed, config)));
    apps::mark(&mut parsed, mode);
    apps::give_bundle(&mut parsed, own.wants_token);
    let names = match mode {
        CaptureMode::Iptables => None,
        CaptureMode::Env => {
            apps::give_address(&mut parsed, settings.sidecar);
            Some(aliases::give(&mut parsed, settings))
        }
    };
    let has_names = matches!(names, Some(Ok(())));
    volumes::add(&mut parsed, mode, &settings.trust);
    parsed.volumes.extend(reviews.as_ref().and_then(|reviews| reviews.volume.clone()));
    parsed.add_pull_secrets(&settings.pull_secrets)?;
    notes.extend(own.notes(&parsed, has_names));
    notes.extend(names.and_then(Result::err).map(|taken| taken.to_string()));
    parts::add(&mut parsed, own, &Ways { has_names, reviews }, settings);
    if settings.admission.is_some() {
        parts::keep_defaults(&mut parsed, &former);
    }
    notes.extend(pod_resources::add(&mut parsed));
    *pod = parsed.into_value();
    Ok(Injected::Done { mode, service_account, notes })
}

/// Whether the pod carries the label, in either dialect's spelling. Fails with
/// [`NotInjected::Malformed`] if the label's value is not a string, as an unquoted `true` in YAML.
pub fn is_asked_for(pod: &Value) -> Result<bool, NotInjected> {
    let Some(labels) = pod.pointer("/metadata/labels") else { return Ok(false) };
    let spellings = [keys::PREFIX, keys::KRIDGE_PREFIX];
    for key in spellings.map(|prefix| format!("{prefix}{}", keys::ENABLE_PROXY)) {
        match labels.get(&key) {
            None => {}
            Some(Value::String(text)) => return Ok(text == "true"),
            Some(_) => return Err(unquoted(format!("metadata.labels[{key:?}]"))),
        }
    }
    Ok(false)
}

/// The ServiceAccount that the API server chooses; `serviceAccount` is the field's old name.
fn service_account(parsed: &ParsedPod) -> Result<String, NotInjected> {
    for key in ["serviceAccountName", "serviceAccount"] {
        match parsed.spec.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::String(name)) if name.is_empty() => {}
            Some(Value::String(name)) => return Ok(name.clone()),
            Some(_) => return Err(unquoted(format!("spec.{key}"))),
        }
    }
    Ok("default".to_owned())
}
