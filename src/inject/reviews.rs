//! The reviews for the controller's webhook server: they come to the proxy, which shows the server's
//! own certificate.
//!
//! Hides where in the pod that certificate is. The first choice is `certSecret`. The second is the volume that is
//! mounted at `certDir` or above it. A Secret gets a second volume, which the proxy's user can read whatever the
//! modes of the first. Any other volume is mounted in the proxy too, read-only.
//!
//! The proxy mounts volumes whole: the kubelet never renews files that are mounted by a `subPath`.

use std::num::NonZeroU16;

use ctrlmesh_init::{Inbound, Plan};
use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use super::{
    apps::is_at_service_account,
    check,
    names::PROXY,
    not_injected::NotInjected,
    pod::{Container, JsonObject, ParsedPod, named, text},
    pod_settings::CaptureMode,
    settings::Settings,
    volumes::{READABLE, WEBHOOK, mount},
};
use ctrlmesh_base::sidecar::{INBOUND_PORT, InboundPlan, WEBHOOK_CERT_DIR};
use ctrlmesh_policy::ShardingDraft;

/// The interception of a pod's reviews.
pub(super) struct Reviews {
    /// The plan of the init container.
    pub(super) plan: Plan,
    /// The arguments of the proxy.
    pub(super) inbound: InboundPlan,
    /// The proxy's mount of the certificate.
    pub(super) mount: JsonObject,
    /// The volume of that mount. `None` if the pod has it already.
    pub(super) volume: Option<JsonObject>,
}

/// The place of the certificate in a container.
struct Place<'a> {
    container: &'a str,
    mount: &'a JsonObject,
    /// The steps from the mount to the certificate.
    rest: Vec<&'a str>,
}

/// The port whose reviews come to the proxy of a pod. `None` if it takes none.
pub fn webhook_port(pod: &PodSpec) -> Option<NonZeroU16> {
    let mut all = pod.init_containers.iter().flatten().chain(&pod.containers);
    let proxy = all.find(|container| container.name == PROXY)?;
    InboundPlan::port_in(proxy.args.iter().flatten().map(String::as_str))
}

/// The note on reviews that do not come to the proxy.
pub fn note(config: &ShardingDraft, mode: CaptureMode) -> Option<String> {
    let is_without = config.webhook.is_some() && mode == CaptureMode::Env;
    is_without.then(|| {
        format!(
            "{}: spec.webhook has no effect on the pod: nothing is redirected in env mode, so its \
             reviews are answered by the pod that gets them",
            config.config.object
        )
    })
}

impl Reviews {
    /// The interception, if the config names a webhook server. The pod has none of our parts. Fails
    /// with [`NotInjected`].
    pub(super) fn of(
        parsed: &ParsedPod,
        config: &ShardingDraft,
        settings: &Settings,
    ) -> Result<Option<Self>, NotInjected> {
        let Some(webhook) = &config.webhook else { return Ok(None) };
        let named = || config.config.object.to_string().into_boxed_str();
        let plan = Inbound::new(webhook.port, INBOUND_PORT);
        let plan = plan.and_then(|inbound| settings.plan_with(inbound));
        let plan = plan.map_err(|problem| NotInjected::WebhookPort { config: named(), problem })?;
        let mut containers = parsed.all_containers();
        containers.try_for_each(|of| check::port(of, INBOUND_PORT, "takes reviews"))?;
        let inbound = InboundPlan::of_pod(webhook.port);
        if let Some(secret) = &webhook.cert_secret {
            // Optional: it may be the controller that writes the Secret, once it runs.
            let secret = json!({ "secretName": secret, "optional": true });
            return Ok(Some(Self::with(plan, inbound, readable("secret", secret))));
        }
        let place = Place::find(parsed, &webhook.cert_dir, &named)?;
        let volume = place.volume(parsed);
        match volume.and_then(|volume| place.copy_of(volume)) {
            Some(Some(copy)) => Ok(Some(Self::with(plan, inbound, copy))),
            Some(None) => {
                Err(NotInjected::NoCertificate { config: named(), dir: webhook.cert_dir.clone() })
            }
            None => {
                let (mount, certs) = place.shared();
                let inbound = InboundPlan { certs, ..inbound };
                Ok(Some(Self { plan, inbound, mount, volume: None }))
            }
        }
    }

    fn with(plan: Plan, inbound: InboundPlan, volume: JsonObject) -> Self {
        let mount = mount(WEBHOOK, WEBHOOK_CERT_DIR, true);
        Self { plan, inbound, mount, volume: Some(volume) }
    }
}

impl<'a> Place<'a> {
    /// The mount that is nearest to the directory, in a container that keeps running: others may
    /// write the certificate, and none of them serves.
    fn find(
        parsed: &'a ParsedPod,
        dir: &'a str,
        config: &dyn Fn() -> Box<str>,
    ) -> Result<Self, NotInjected> {
        let sidecars = parsed.init_containers.iter().filter(|init| init.is_native_sidecar());
        let places = parsed.containers.iter().chain(sidecars).flat_map(|of| Self::all_of(of, dir));
        let mut nearest: Vec<Self> = Vec::new();
        for place in places {
            let best = nearest.first().map_or(usize::MAX, |best| best.rest.len());
            if place.rest.len() < best {
                nearest.clear();
            }
            if place.rest.len() <= best {
                nearest.push(place);
            }
        }
        let dir = || dir.into();
        let mut nearest = nearest.into_iter();
        let Some(first) = nearest.next() else {
            return Err(NotInjected::NoCertificate { config: config(), dir: dir() });
        };
        if let Some(other) = nearest.find(|other| !other.is_same(&first)) {
            let (one, other) = (first.container.into(), other.container.into());
            return Err(NotInjected::TwoCertificates { config: config(), dir: dir(), one, other });
        }
        if text(first.mount, "subPathExpr").is_some_and(|expression| !expression.is_empty()) {
            return Err(NotInjected::CertificatePath {
                config: config(),
                container: first.container.into(),
                volume: first.name().into(),
            });
        }
        Ok(first)
    }

    fn all_of(container: &'a Container, dir: &'a str) -> impl Iterator<Item = Self> {
        container.mounts.iter().filter(|mount| !is_at_service_account(mount)).filter_map(|mount| {
            let rest = below(dir, text(mount, "mountPath")?)?;
            Some(Self { container: &container.name, mount, rest })
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        let same = |key| text(self.mount, key) == text(other.mount, key);
        ["name", "subPath", "subPathExpr"].into_iter().all(same)
    }

    fn name(&self) -> &'a str {
        text(self.mount, "name").unwrap_or_default()
    }

    fn sub_path(&self) -> &'a str {
        text(self.mount, "subPath").unwrap_or_default()
    }

    /// The volume. `None` if it is a claim that a StatefulSet makes.
    fn volume(&self, parsed: &'a ParsedPod) -> Option<&'a JsonObject> {
        parsed.volumes.iter().find(|volume| text(volume, "name") == Some(self.name()))
    }

    /// A volume of ours with the same Secrets, whose files are where the certificate is: `Some(None)`
    /// if there would be none. `None` if the volume has other sources.
    fn copy_of(&self, volume: &JsonObject) -> Option<Option<JsonObject>> {
        let at: Vec<_> = steps(self.sub_path()).chain(self.rest.iter().copied()).collect();
        if let Some(secret) = volume.get("secret") {
            let secret = files_at(secret, &at);
            return Some(secret.map(|secret| readable("secret", secret)));
        }
        let sources = volume.get("projected")?.get("sources")?.as_array()?;
        let mut copies = Vec::new();
        for source in sources {
            let (kind, object) =
                source.as_object()?.iter().find(|(_, object)| !object.is_null())?;
            // Another source may be given to each volume again, such as a key.
            if !["secret", "configMap"].contains(&kind.as_str()) {
                return None;
            }
            copies.extend(files_at(object, &at).map(|object| json!({ kind: object })));
        }
        let copy = || readable("projected", json!({ "sources": copies }));
        Some((!copies.is_empty()).then(copy))
    }

    /// The certificate's volume in the proxy, and the directory of the certificate there.
    fn shared(&self) -> (JsonObject, String) {
        let mut mount = mount(self.name(), WEBHOOK_CERT_DIR, true);
        if !self.sub_path().is_empty() {
            mount.insert("subPath".to_owned(), self.sub_path().into());
        }
        let steps = [WEBHOOK_CERT_DIR].into_iter().chain(self.rest.iter().copied());
        (mount, steps.collect::<Vec<_>>().join("/"))
    }
}

/// The steps of a path.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|step| !step.is_empty() && *step != ".")
}

/// The steps from one directory to another that is it, or in it.
fn below<'a>(inner: &'a str, outer: &str) -> Option<Vec<&'a str>> {
    let mut rest = steps(inner);
    steps(outer).all(|step| rest.next() == Some(step)).then(|| rest.collect())
}

/// A source of files with those alone that are in a directory, at its root. `None` if there are none.
/// Without `items` each key is a file at the root.
fn files_at(source: &Value, at: &[&str]) -> Option<Value> {
    let mut source = source.clone();
    let fields = source.as_object_mut()?;
    fields.remove("defaultMode");
    let items = fields.get_mut("items").and_then(Value::as_array_mut);
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return at.is_empty().then_some(source);
    };
    items.retain_mut(|item| {
        let path = item.get("path").and_then(Value::as_str).unwrap_or_default();
        let mut rest = steps(path);
        let is_in = at.iter().all(|step| rest.next() == Some(step));
        let rest = rest.collect::<Vec<_>>().join("/");
        let Some(item) = item.as_object_mut().filter(|_| is_in && !rest.is_empty()) else {
            return false;
        };
        item.remove("mode");
        item.insert("path".to_owned(), rest.into());
        true
    });
    (!items.is_empty()).then_some(source)
}

/// The volume of ours, of this kind.
fn readable(kind: &str, mut source: Value) -> JsonObject {
    source["defaultMode"] = json!(READABLE);
    named(WEBHOOK, kind, source)
}
