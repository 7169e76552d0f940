//! The API server's trust in us: `caBundle` in each webhook of our configurations.
//!
//! Written by JSON patch (RFC 6902) with a test of each webhook's name: by server-side apply we
//! would own the entry, and a chart that renames a webhook could not be upgraded.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};

use crate::{
    reconcile::{
        key::{NotWritten, WorkKey},
        reconciler::{Reconciler, Round, Work},
    },
    shared::{Hook, OwnObjects},
    trust::Trust,
};

/// Keeps the `caBundle` of our webhooks.
pub(super) struct WebhookConfigurations;

/// The configurations of webhooks that call us.
#[derive(Clone, Copy)]
enum Hooks {
    /// Those for pods.
    Mutating,
    /// Those for ShardingConfigs.
    Validating,
}

/// A patch of the webhooks of a configuration.
struct HookPatch {
    of: Hooks,
    operations: Value,
}

impl Reconciler for WebhookConfigurations {
    fn due(&mut self, round: &Round<'_>) -> Vec<(WorkKey, Work)> {
        let Some(trusted) = round.trusted else { return Vec::new() };
        let write = |of: Hooks| {
            let patch = due(of, round.own, &trusted.trust)?;
            let name = round.shared.config.objects.webhooks.clone();
            let work = round.work(async move |client| patch.send(&client, &name).await);
            Some((WorkKey::own(of.kind(), ""), work))
        };
        [Hooks::Mutating, Hooks::Validating].into_iter().filter_map(write).collect()
    }
}

impl Hooks {
    fn kind(self) -> &'static str {
        match self {
            Self::Mutating => "MutatingWebhookConfiguration",
            Self::Validating => "ValidatingWebhookConfiguration",
        }
    }
}

/// The plural name of the kind, as paths have it.
fn plural(of: Hooks) -> &'static str {
    match of {
        Hooks::Mutating => "mutatingwebhookconfigurations",
        Hooks::Validating => "validatingwebhookconfigurations",
    }
}

/// The patch of a configuration that is due, if one is.
fn due(of: Hooks, own: &OwnObjects, trust: &Trust) -> Option<HookPatch> {
    let bundle = trust.serving_pem();
    let operations = |(at, hook): (usize, &Hook)| {
        [
            json!({ "op": "test", "path": format!("/webhooks/{at}/name"), "value": hook.name }),
            json!({
                "op": "add",
                "path": format!("/webhooks/{at}/clientConfig/caBundle"),
                "value": STANDARD.encode(&bundle),
            }),
        ]
    };
    let hooks = match of {
        Hooks::Mutating => own.hooks.as_deref().unwrap_or_default(),
        Hooks::Validating => &own.validating,
    };
    let others = hooks.iter().enumerate().filter(|(_, hook)| hook.ca_bundle != bundle.as_bytes());
    let operations: Vec<Value> = others.flat_map(operations).collect();
    (!operations.is_empty()).then_some(HookPatch { of, operations: Value::Array(operations) })
}

impl HookPatch {
    async fn send(self, client: &Client, name: &str) -> Result<(), NotWritten> {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{}", plural(self.of));
        let request = Request::patch(format!("{path}/{name}?fieldManager=ctrlmesh-manager"))
            .header(header::CONTENT_TYPE, "application/json-patch+json")
            .body(self.operations.to_string().into_bytes())?;
        let _: Value = client.request(request).await?;
        Ok(())
    }
}
