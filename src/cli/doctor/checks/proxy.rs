//! The proxy of a pod by its own answers.

use k8s_openapi::jiff::Timestamp;

use super::words::quoted;
use crate::doctor::{
    facts::{Answer, PodFacts},
    finding::{Check, Findings},
};
use ctrlmesh_base::sidecar::ADMIN_PORT;

/// The seconds before the end of a certificate from which on it is worth a look.
const NEAR: i64 = 3600;
/// The metric of the end of the proxy's certificate.
const NOT_AFTER: &str = "ctrlmesh_leaf_not_after_seconds ";
/// The seconds before the end of a webhook server's certificate from which on it is worth a look:
/// people renew some of them.
const WEBHOOK_NEAR: i64 = 24 * 3600;
/// The metric of the end of that certificate.
const WEBHOOK_NOT_AFTER: &str = "ctrlmesh_webhook_certificate_not_after_seconds ";

pub(super) fn judge(facts: &PodFacts, subject: &str, now: Timestamp, found: &mut Findings) {
    let Some(ready) = found.seen(Check::Readyz, subject, &facts.readyz) else { return };
    let lines: Vec<_> = ready.body.lines().filter_map(LogLine::parse).collect();
    if lines.is_empty() {
        let Answer { code, body } = ready;
        found.error(
            Check::Readyz,
            subject,
            format!("/readyz at port {ADMIN_PORT} has the code {code}: {}", quoted(body)),
            format!(
                "see that nothing keeps the API server and the kubelet from port {ADMIN_PORT} of the \
                 pod, such as a NetworkPolicy; in the pod, ask http://127.0.0.1:{ADMIN_PORT}/readyz"
            ),
        );
        return;
    }
    let is_ready = ready.code == 200;
    let says = if is_ready { "/readyz answers: ready" } else { "/readyz answers: not ready" };
    found.ok(Check::Readyz, subject, says);
    for line in &lines {
        match line.name {
            "policy" => policy(line, subject, found),
            "certificate" => certificate(line, subject, found),
            "locks" => found.warning(
                Check::Locks,
                subject,
                format!("locks: {}", quoted(line.says)),
                "name the lock that the controller uses in spec.controller of the ShardingConfig, in its \
                 namespace, and restart the pods of the shard",
            ),
            "writes" => found.warning(
                Check::Writes,
                subject,
                format!("writes: {}", quoted(line.says)),
                "do what the message says: it has the entry of spec.fence.except",
            ),
            "related" => found.warning(
                Check::Related,
                subject,
                format!("related: {}", quoted(line.says)),
                "do what the message says: it has the entry of relateResources",
            ),
            "webhook" => webhook(line, subject, found),
            _ => {}
        }
    }
    if let Some(metrics) = found.seen(Check::NotAfter, subject, &facts.metrics) {
        not_after(metrics, subject, now, found);
        webhook_not_after(metrics, subject, now, found);
    }
}

/// A line of `/readyz`.
struct LogLine<'a> {
    is_good: bool,
    name: &'a str,
    says: &'a str,
}

impl<'a> LogLine<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let good = line.strip_prefix("[+]").and_then(|line| line.split_once(" ok: "));
        let bad = line.strip_prefix("[-]").and_then(|line| line.split_once(" failed: "));
        let (name, says) = good.or(bad)?;
        Some(Self { is_good: good.is_some(), name, says })
    }
}

fn policy(line: &LogLine<'_>, subject: &str, found: &mut Findings) {
    let (check, says) = (Check::Policy, format!("policy: {}", quoted(line.says)));
    let fix = if line.says.contains("restart the pods of the shard") {
        "restart the pods of the shard: a pod goes by the locks of its start"
    } else if line.says.contains("may not list") {
        "see that the RoleBinding ctrlmesh-proxy binds the pod's account (D10)"
    } else {
        "see to it that one well-formed ShardingConfig selects the pod (D13, D14)"
    };
    match (line.is_good, line.says.contains(" stays in force: ")) {
        (true, false) => found.ok(check, subject, says),
        (true, true) => found.warning(check, subject, says, fix),
        (false, _) => found.error(check, subject, says, fix),
    }
}

fn certificate(line: &LogLine<'_>, subject: &str, found: &mut Findings) {
    let (check, says) = (Check::Certificate, format!("certificate: {}", quoted(line.says)));
    let fix = if line.says.contains("the manager ") {
        "see that the manager is ready (D06), that the pod's DNS knows it, and that no NetworkPolicy \
         keeps the pod from it; what it refuses, its answer explains"
    } else {
        "look at the log of the container ctrlmesh-proxy"
    };
    match (line.is_good, line.says.contains("not renewed")) {
        (true, false) => found.ok(check, subject, says),
        (true, true) => found.warning(check, subject, says, fix),
        (false, _) => found.error(check, subject, says, fix),
    }
}

fn webhook(line: &LogLine<'_>, subject: &str, found: &mut Findings) {
    let (check, says) = (Check::Webhook, format!("webhook: {}", quoted(line.says)));
    let has = |part: &str| line.says.contains(part);
    let fix = if has("create the pod again") {
        "restart the workload: the rules of a pod are made when it is created"
    } else if has("may not list and watch pods") {
        "see that the role ctrlmesh-proxy is bound, and grants that (D10, D29)"
    } else if has("waits: ") {
        "see the log of the controller: it serves no webhook, or at another port than \
         spec.webhook.port"
    } else if has("env mode") {
        "have the pod injected with redirect rules, or remove spec.webhook"
    } else {
        "see that the pair of the webhook server is in spec.webhook.certDir, valid, and shown by the \
         controller; a file that cannot be read is named with its mode"
    };
    let is_plain = line.says.strip_prefix("port ").is_some_and(|it| it.parse::<u16>().is_ok());
    match (line.is_good, is_plain) {
        (true, true) => found.ok(check, subject, says),
        (true, false) => found.warning(check, subject, says, fix),
        (false, _) => found.error(check, subject, says, fix),
    }
}

/// The time of a metric, in the page of them.
fn end_of(metrics: &Answer, metric: &str) -> Option<Timestamp> {
    let end = metrics.body.lines().find_map(|line| line.strip_prefix(metric))?;
    let end = end.trim().split('.').next()?.parse().ok()?;
    Timestamp::from_second(end).ok()
}

/// A pod without such a certificate has other findings.
fn webhook_not_after(metrics: &Answer, subject: &str, now: Timestamp, found: &mut Findings) {
    let check = Check::WebhookCertificate;
    let end = end_of(metrics, WEBHOOK_NOT_AFTER).filter(|end| *end != Timestamp::UNIX_EPOCH);
    let Some(end) = end else { return };
    let left = end.as_second() - now.as_second();
    let fix = "renew it, or see why who issues it has not: the proxy and the API server see what \
               spec.webhook.certDir holds";
    if left <= 0 {
        let says = format!("its webhook server's certificate ended at {end}");
        found.error(check, subject, says, fix);
    } else if left < WEBHOOK_NEAR {
        let says = format!("its webhook server's certificate ends in {left} s, at {end}");
        found.warning(check, subject, says, fix);
    } else {
        let says = format!("its webhook server's certificate is valid until {end}");
        found.ok(check, subject, says);
    }
}

fn not_after(metrics: &Answer, subject: &str, now: Timestamp, found: &mut Findings) {
    let check = Check::NotAfter;
    let Some(end) = end_of(metrics, NOT_AFTER) else {
        let says =
            format!("/metrics at port {ADMIN_PORT} has the code {} and no end", metrics.code);
        let fix = format!("see that nothing but the proxy listens at port {ADMIN_PORT}");
        found.warning(check, subject, says, fix);
        return;
    };
    let left = end.as_second() - now.as_second();
    let fix = "see that the manager is ready and can be reached (D06, D24): the proxy asks it for the \
               next one";
    if end == Timestamp::UNIX_EPOCH {
        found.error(check, subject, "the proxy has no certificate yet", fix);
    } else if left <= 0 {
        found.error(check, subject, format!("its certificate ended at {end}"), fix);
    } else if left < NEAR {
        let says = format!("its certificate ends in {left} s, at {end}");
        found.warning(check, subject, says, fix);
    } else {
        found.ok(check, subject, format!("its certificate is valid until {end}"));
    }
}
