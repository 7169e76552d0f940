//! Makes a pod a part of the mesh: a function of the pod and the [`Settings`], no more.
//!
//! [`inject`] reads top-down:
//!
//! 1. whether the pod asks for it, and by which way its requests reach the proxy ([`Mode`]);
//! 2. what an earlier injection added is taken out, so that injecting twice is injecting once;
//! 3. the pod is refused where the mesh could not hold what it promises ([`Refused`]);
//! 4. every container gets the bundle, and in env mode the proxy's address (`apps`);
//! 5. volumes, init container and proxy are added (`volumes`, `parts`), in an order that lets no
//!    container run before the proxy and call past it later.
//!
//! The pod is JSON throughout: fields that are not ours to know survive. Beside the pod, its
//! namespace needs four objects, and the cluster two where shards are drawn by the labels of
//! namespaces ([`companions`]); where pods are found in other objects is known to [`workload`].

mod apps;
mod check;
pub mod companions;
mod draft;
mod parts;
mod refused;
mod settings;
mod volumes;
pub mod workload;

use serde_json::Value;

use self::draft::Draft;
pub use self::{
    refused::Refused,
    settings::{BadImage, Image, Settings, Sidecar},
};
use crate::api::keys;

/// What [`inject`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injected {
    /// The pod does not carry the label; it is as it was.
    NotAsked,
    /// The pod is part of the mesh.
    Done {
        /// By which way.
        mode: Mode,
        /// The ServiceAccount that needs to read the policies.
        service_account: String,
    },
}

/// The way of a pod's requests to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Redirect rules, which `ctrlmesh-init` puts in place.
    Iptables,
    /// The address of the API server in the containers' environment. Needs no privilege, and does
    /// not see clients that take the address from elsewhere.
    Env,
}

impl Mode {
    /// As the annotation has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Env => "env",
        }
    }
}

/// Makes `pod`, a Pod or a PodTemplateSpec, part of the mesh where it asks for that. Injecting what
/// was injected before, with whatever settings, gives what injecting the original would.
///
/// # Errors
/// [`Refused`]; the pod is as it was.
pub fn inject(pod: &mut Value, settings: &Settings) -> Result<Injected, Refused> {
    if !is_asked_for(pod)? {
        return Ok(Injected::NotAsked);
    }
    let mut draft = Draft::of(pod)?;
    let mode = mode(&draft);
    let service_account = service_account(&draft)?;
    apps::remove_ours(&mut draft);
    check::refuse(&draft, settings)?;

    apps::mark(&mut draft, mode);
    apps::give_bundle(&mut draft);
    if mode == Mode::Env {
        apps::give_address(&mut draft, settings.sidecar);
    }
    volumes::add(&mut draft, mode);
    parts::add(&mut draft, mode, settings);
    *pod = draft.into_value();
    Ok(Injected::Done { mode, service_account })
}

/// Whether the pod carries the label, in either dialect's spelling.
///
/// # Errors
/// [`Refused::Malformed`] when the label's value is no string: YAML reads an unquoted `true` so.
pub fn is_asked_for(pod: &Value) -> Result<bool, Refused> {
    let Some(labels) = pod.pointer("/metadata/labels") else { return Ok(false) };
    let spellings = [keys::PREFIX, keys::KRIDGE_PREFIX];
    for key in spellings.map(|prefix| format!("{prefix}{}", keys::ENABLE_PROXY)) {
        match labels.get(&key) {
            None => {}
            Some(Value::String(text)) => return Ok(text == "true"),
            Some(_) => {
                let field = format!("metadata.labels[{key:?}]");
                return Err(Refused::Malformed { field, wanted: "a string: put it into quotes" });
            }
        }
    }
    Ok(false)
}

/// The annotation decides before the label.
fn mode(draft: &Draft) -> Mode {
    let wanted = keys::find(&draft.annotations, keys::ENABLE_IPTABLES)
        .or_else(|| keys::find(&draft.labels, keys::ENABLE_IPTABLES));
    match wanted {
        Some("false") => Mode::Env,
        _ => Mode::Iptables,
    }
}

/// As the API server chooses it; `serviceAccount` is the field's old name.
fn service_account(draft: &Draft) -> Result<String, Refused> {
    for key in ["serviceAccountName", "serviceAccount"] {
        match draft.spec.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::String(name)) if name.is_empty() => {}
            Some(Value::String(name)) => return Ok(name.clone()),
            Some(_) => {
                let field = format!("spec.{key}");
                return Err(Refused::Malformed { field, wanted: "a string: put it into quotes" });
            }
        }
    }
    Ok("default".to_owned())
}
