//! The API server's trust in us: `caBundle` in each webhook of our configurations.
//!
//! Written by JSON patch (RFC 6902) with a test of each webhook's name: by server-side apply we
//! would own the entry, and a chart that renames a webhook could not be upgraded.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};

use super::subject::{Hooks, NotWritten};
use crate::{
    shared::{Hook, OwnObjects},
    trust::Trust,
};
use ctrlmesh_net::ca::certificate_pem;

/// A patch of the webhooks of a configuration.
pub(super) struct Patch {
    of: Hooks,
    operations: Value,
}

/// The plural name of the kind, as paths have it.
fn plural(of: Hooks) -> &'static str {
    match of {
        Hooks::Mutating => "mutatingwebhookconfigurations",
        Hooks::Validating => "validatingwebhookconfigurations",
    }
}

/// The CAs that the API server is to trust, as PEM.
pub(super) fn bundle(trust: &Trust) -> String {
    trust.serving().published().map(certificate_pem).collect()
}

/// The patch of a configuration that is due, if one is.
pub(super) fn due(of: Hooks, own: &OwnObjects, trust: &Trust) -> Option<Patch> {
    let bundle = bundle(trust);
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
    (!operations.is_empty()).then_some(Patch { of, operations: Value::Array(operations) })
}

impl Patch {
    pub(super) async fn send(self, client: &Client, name: &str) -> Result<(), NotWritten> {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{}", plural(self.of));
        let request = Request::patch(format!("{path}/{name}?fieldManager=ctrlmesh-manager"))
            .header(header::CONTENT_TYPE, "application/json-patch+json")
            .body(self.operations.to_string().into_bytes())?;
        let _: Value = client.request(request).await?;
        Ok(())
    }
}
