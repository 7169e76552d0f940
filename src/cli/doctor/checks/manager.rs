//! The manager: its definition, its webhooks, its replicas, its leader.

use k8s_openapi::{
    api::{
        admissionregistration::v1::MutatingWebhook, apps::v1::Deployment, coordination::v1::Lease,
    },
    jiff::Timestamp,
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use crate::doctor::{
    facts::ManagerFacts,
    finding::{Check, Findings},
};
use ctrlmesh_base::sidecar::ADMIN_PORT;

/// The age of a Lease in seconds from which on no one holds it: twice the leader's own limit.
const STALE: i64 = 30;

pub(super) fn judge(manager: &ManagerFacts, now: Timestamp, found: &mut Findings) {
    definition(manager, found);
    webhooks(manager, now, found);
    let name = format!("{}/{}", manager.namespace, manager.name);
    let subject = format!("Deployment {name}");
    if let Some(deployment) = found.seen(Check::Deployment, &subject, &manager.deployment) {
        replicas(deployment.as_ref(), &subject, found);
    }
    let subject = format!("Lease {name}");
    if let Some(lease) = found.seen(Check::Lease, &subject, &manager.lease) {
        leader(lease.as_ref(), &subject, now, found);
    }
}

fn definition(manager: &ManagerFacts, found: &mut Findings) {
    let (check, subject) = (Check::Definition, "ShardingConfig");
    match found.seen(check, subject, &manager.has_definition) {
        None => {}
        Some(true) => found.ok(check, subject, "is defined"),
        Some(false) => found.error(
            check,
            subject,
            "the API server does not know the kind",
            "install the chart, or apply the definition: ctrlmesh crds | kubectl apply -f -",
        ),
    }
}

fn webhooks(manager: &ManagerFacts, now: Timestamp, found: &mut Findings) {
    let (check, subject) = (Check::Webhooks, "MutatingWebhookConfiguration ctrlmesh");
    let Some(webhooks) = found.seen(check, subject, &manager.webhooks) else { return };
    let fix = "install the chart, or upgrade it: it brings the webhooks";
    let Some(webhooks) = webhooks else {
        found.error(check, subject, "is not there, so no pod is injected", fix);
        return;
    };
    match webhooks.webhooks.as_deref().unwrap_or_default() {
        [] => found.error(check, subject, "has no webhook, so no pod is injected", fix),
        all => {
            let plural = if all.len() == 1 { "" } else { "s" };
            found.ok(check, subject, format!("is there, with {} webhook{plural}", all.len()));
            all.iter().for_each(|webhook| ca_bundle(webhook, now, found));
        }
    }
}

fn ca_bundle(webhook: &MutatingWebhook, now: Timestamp, found: &mut Findings) {
    let (check, subject) = (Check::CaBundle, format!("webhook {}", webhook.name));
    let pem = webhook.client_config.ca_bundle.as_ref().map(|pem| pem.0.as_slice());
    let says = match pem {
        None | Some([]) => "its caBundle is empty".to_owned(),
        Some(pem) => match ends(pem).into_iter().max() {
            None => "its caBundle has no certificate".to_owned(),
            Some(end) if end <= now => format!("its caBundle ended at {end}"),
            Some(end) => {
                found.ok(check, subject, format!("its caBundle is valid until {end}"));
                return;
            }
        },
    };
    found.error(
        check,
        subject,
        format!("{says}, so pods that ask for injection are refused"),
        "see that a replica of the manager leads (D06, D07): the leader writes it within seconds",
    );
}

/// The ends of the certificates in a PEM text.
fn ends(pem: &[u8]) -> Vec<Timestamp> {
    let certificates = CertificateDer::pem_slice_iter(pem).flatten();
    let end = |der: CertificateDer<'_>| {
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
    };
    certificates.filter_map(end).collect()
}

fn replicas(deployment: Option<&Deployment>, subject: &str, found: &mut Findings) {
    let check = Check::Deployment;
    let Some(deployment) = deployment else {
        let fix = "install the chart, or say where it is by --manager-namespace";
        found.error(check, subject, "is not there", fix);
        return;
    };
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    let says = format!("{ready} of {wanted} replicas are ready");
    let fix = format!(
        "ask the pods of this Deployment: kubectl describe and kubectl logs, and their /readyz at port \
         {ADMIN_PORT} says what is missing"
    );
    match ready {
        ready if ready >= wanted && ready > 0 => found.ok(check, subject, says),
        0 => found.error(check, subject, format!("{says}: new pods are refused"), fix),
        _ => found.warning(check, subject, says, fix),
    }
}

fn leader(lease: Option<&Lease>, subject: &str, now: Timestamp, found: &mut Findings) {
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
    let age = renewed.map(|renewed| now.as_second() - renewed.0.as_second());
    let says = match (lease, holder.filter(|holder| !holder.is_empty()), age) {
        (None, ..) => "is not there".to_owned(),
        (_, Some(holder), Some(age)) if age <= STALE => {
            found.ok(Check::Lease, subject, format!("is held by {holder}"));
            return;
        }
        (_, Some(holder), Some(age)) => format!("{holder} has not renewed it for {age} s"),
        _ => "no one holds it".to_owned(),
    };
    found.error(
        Check::Lease,
        subject,
        format!("{says}: no one keeps caBundle, bundles and rights"),
        "see that the manager runs (D06) and may write this Lease: its log says why it does not",
    );
}
