//! The proxy of a pod by its own answers.

use k8s_openapi::jiff::Timestamp;

use super::words::quoted;
use crate::cli::doctor::{
    facts::{Answer, PodFacts},
    finding::{Check, Findings},
};

/// The seconds before the end of a certificate from which on it is worth a look.
const NEAR: i64 = 3600;
/// The metric of the end of the proxy's certificate.
const NOT_AFTER: &str = "ctrlmesh_leaf_not_after_seconds ";

pub(super) fn judge(facts: &PodFacts, subject: &str, now: Timestamp, found: &mut Findings) {
    let Some(ready) = found.seen(Check::Readyz, subject, &facts.readyz) else { return };
    let lines: Vec<_> = ready.body.lines().filter_map(Line::parse).collect();
    if lines.is_empty() {
        let Answer { code, body } = ready;
        found.error(
            Check::Readyz,
            subject,
            format!("/readyz at port 5441 has the code {code}: {}", quoted(body)),
            "see that nothing keeps the API server and the kubelet from port 5441 of the pod, such as \
             a NetworkPolicy; in the pod, ask http://127.0.0.1:5441/readyz",
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
            _ => {}
        }
    }
    if let Some(metrics) = found.seen(Check::NotAfter, subject, &facts.metrics) {
        not_after(metrics, subject, now, found);
    }
}

/// A line of `/readyz`.
struct Line<'a> {
    is_good: bool,
    name: &'a str,
    says: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let good = line.strip_prefix("[+]").and_then(|line| line.split_once(" ok: "));
        let bad = line.strip_prefix("[-]").and_then(|line| line.split_once(" failed: "));
        let (name, says) = good.or(bad)?;
        Some(Self { is_good: good.is_some(), name, says })
    }
}

fn policy(line: &Line<'_>, subject: &str, found: &mut Findings) {
    let (check, says) = (Check::Policy, format!("policy: {}", quoted(line.says)));
    let fix = if line.says.contains("may not list") {
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

fn certificate(line: &Line<'_>, subject: &str, found: &mut Findings) {
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

fn not_after(metrics: &Answer, subject: &str, now: Timestamp, found: &mut Findings) {
    let check = Check::NotAfter;
    let end = metrics.body.lines().find_map(|line| line.strip_prefix(NOT_AFTER));
    let end = end.and_then(|text| text.trim().split('.').next()?.parse::<i64>().ok());
    let Some(end) = end.and_then(|end| Timestamp::from_second(end).ok()) else {
        let says = format!("/metrics at port 5441 has the code {} and no end", metrics.code);
        found.warning(check, subject, says, "see that nothing but the proxy listens at port 5441");
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
