//! The API server's trust in us: `caBundle` in each webhook of our configuration.
//!
//! Written by JSON patch (RFC 6902) with a test of each webhook's name: by server-side apply we
//! would own the entry, and a chart that renames a webhook could not be upgraded.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};

use super::subject::NotWritten;
use crate::{
    manager::{
        shared::{Hook, OwnObjects},
        trust::Trust,
    },
    net::ca::certificate_pem,
};

/// A patch of the webhooks.
pub(super) struct Patch(Value);

/// The CAs that the API server is to trust, as PEM.
pub(super) fn bundle(trust: &Trust) -> String {
    trust.serving().published().map(certificate_pem).collect()
}

/// The patch that is due, if one is.
pub(super) fn due(own: &OwnObjects, trust: &Trust) -> Option<Patch> {
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
    let all = own.hooks.iter().flatten().enumerate();
    let others = all.filter(|(_, hook)| hook.ca_bundle != bundle.as_bytes());
    let patch: Vec<Value> = others.flat_map(operations).collect();
    (!patch.is_empty()).then_some(Patch(Value::Array(patch)))
}

impl Patch {
    pub(super) async fn send(self, client: &Client, name: &str) -> Result<(), NotWritten> {
        let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
        let request = Request::patch(format!("{path}/{name}?fieldManager=ctrlmesh-manager"))
            .header(header::CONTENT_TYPE, "application/json-patch+json")
            .body(self.0.to_string().into_bytes())?;
        let _: Value = client.request(request).await?;
        Ok(())
    }
}
