//! `spec.webhook`.

use crate::dialect::{
    problem::Problems,
    webhook::{BadWebhook, CertFiles, Webhook},
};
use ctrlmesh_api as api;

/// Checks the settings of the webhook server, each field by itself.
pub(super) fn webhook(given: Option<&api::Webhook>, problems: &mut Problems) -> Option<Webhook> {
    let given = given?;
    let at = |field: &str| format!("spec.webhook.{field}");
    let cert_dir = problems.ok(at("certDir"), Webhook::directory(&given.cert_dir));
    let port = problems.ok(at("port"), Webhook::port(given.port));
    let cert_secret = given.cert_secret.as_deref();
    let cert_secret =
        cert_secret.and_then(|name| problems.ok(at("certSecret"), Webhook::secret(name)));
    let mut file = |field: &str, name: &Option<String>| {
        name.as_deref().and_then(|name| problems.ok(at(field), Webhook::file(name)))
    };
    let pair = (file("certName", &given.cert_name), file("keyName", &given.key_name));
    match (&given.cert_name, &given.key_name) {
        (Some(_), None) => problems.add(at("keyName"), BadWebhook::OneOfTwo),
        (None, Some(_)) => problems.add(at("certName"), BadWebhook::OneOfTwo),
        _ => {}
    }
    Some(Webhook {
        cert_dir: cert_dir?,
        port: port?,
        cert_secret,
        files: pair.0.zip(pair.1).map(|(cert, key)| CertFiles { cert, key }),
        route: given.route.unwrap_or_default(),
        unowned: given.unowned.unwrap_or_default(),
        owner_down: given.owner_down.unwrap_or_default(),
    })
}
