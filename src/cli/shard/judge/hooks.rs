//! The webhooks that the workload's pods serve.
//!
//! Hides how the port and the certificate of the server are found in the pod template.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::admissionregistration::v1::RuleWithOperations,
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::core::{Selector, SelectorExt};
use serde_json::Value;

use super::judgement::{Because, Judgement, Server, some};
use crate::shard::facts::{Facts, Hook, Workload};

/// The requests without which no pod of the workload starts: operation, group, resource.
const NEEDED: [(&str, &str, &str); 8] = [
    ("CREATE", "", "pods"),
    ("UPDATE", "", "pods"),
    ("UPDATE", "apps", "deployments"),
    ("CREATE", "apps", "replicasets"),
    ("UPDATE", "apps", "statefulsets"),
    ("UPDATE", "apps", "deployments/scale"),
    ("CREATE", "coordination.k8s.io", "leases"),
    ("CREATE", "ctrlmesh.kusionstack.io", "shardingconfigs"),
];

pub(super) fn judge(facts: &Facts, judgement: &mut Judgement) {
    let Some(hooks) = judgement.seen("the webhooks that call it", &facts.hooks) else { return };
    if hooks.is_empty() {
        return;
    }
    let closed: Vec<&Hook> = hooks.iter().filter(|hook| hook.fails_closed).collect();
    let empty = BTreeMap::new();
    let labels = facts.namespace.as_ref().unwrap_or(&empty);
    if let Some(hook) = closed.iter().find(|hook| keeps_down(hook, labels)) {
        judgement.refuse(
            format!(
                "{} refuses the start of its own pods while none of them runs, and all are replaced at once",
                hook.of
            ),
            "exempt this namespace in the webhook's namespaceSelector, or set its failurePolicy to Ignore meanwhile",
        );
    } else if !closed.is_empty() {
        let names: Vec<_> = closed.iter().map(|hook| hook.of.clone()).collect();
        judgement.warn(
            format!(
                "its pods serve {}: the API server refuses those requests while they are replaced, all at once",
                some(&names)
            ),
            "nothing, if a gap of a start is harmless",
        );
    }
    server(&facts.workload, hooks, judgement);
}

/// Whether the API server would refuse what the start of its pods needs.
fn keeps_down(hook: &Hook, labels: &BTreeMap<String, String>) -> bool {
    let selector = hook.namespaces.clone().map(Selector::try_from);
    let is_here = selector.is_none_or(|of| of.is_ok_and(|of| of.matches(labels)));
    is_here && hook.rules.iter().any(|rule| NEEDED.iter().any(|needed| matches(rule, *needed)))
}

fn matches(rule: &RuleWithOperations, (operation, group, resource): (&str, &str, &str)) -> bool {
    let has = |all: &Option<Vec<String>>, one: &str| {
        all.iter().flatten().any(|of| of == "*" || of == "*/*" || of == one)
    };
    has(&rule.operations, operation)
        && has(&rule.api_groups, group)
        && has(&rule.resources, resource)
        && rule.scope.as_deref() != Some("Cluster")
}

/// The server's port and certificate, by which reviews are sent to the shard that owns the object.
fn server(workload: &Workload, hooks: &[Hook], judgement: &mut Judgement) {
    let Some(hook) = hooks.first() else { return };
    let port = port(workload, hook);
    let directory = cert_dir(workload);
    match (port, directory) {
        (Some(port), Some(cert_dir)) => {
            let reason = format!("{} calls it; its certificate is in this volume.", hook.of);
            judgement.webhook = Some(Because { part: Server { cert_dir, port }, reason });
        }
        _ => judgement.warn(
            format!("{} calls its pods, and their certificate is in no volume that is known", hook.of),
            "give spec.webhook its certDir and port, or certSecret; else any pod answers a review, whose shard \
             may not have the object",
        ),
    }
}

fn port(workload: &Workload, hook: &Hook) -> Option<u16> {
    let ports = hook.service.spec.as_ref()?.ports.as_ref()?;
    let served = ports.iter().find(|one| one.port == hook.port)?;
    match served.target_port.as_ref() {
        None => u16::try_from(served.port).ok(),
        Some(IntOrString::Int(port)) => u16::try_from(*port).ok(),
        Some(IntOrString::String(name)) => {
            let ports = workload.containers().filter_map(|container| container["ports"].as_array());
            let mut named = ports.flatten().filter(|port| port["name"] == **name);
            u16::try_from(named.next()?["containerPort"].as_u64()?).ok()
        }
    }
}

/// The place of the only volume that looks like a server's certificate.
fn cert_dir(workload: &Workload) -> Option<String> {
    let volumes = workload.template().pointer("/spec/volumes").and_then(Value::as_array)?;
    let looks_so = |text: &str| ["cert", "tls", "webhook"].iter().any(|word| text.contains(word));
    let secrets = volumes.iter().filter_map(|volume| {
        let secret = volume.pointer("/secret/secretName").and_then(Value::as_str)?;
        let name = volume["name"].as_str()?;
        (looks_so(name) || looks_so(secret)).then_some(name)
    });
    let secrets: Vec<&str> = secrets.collect();
    let mounts = workload.containers().filter_map(|container| container["volumeMounts"].as_array());
    let mut places = mounts.flatten().filter_map(|mount| {
        secrets.contains(&mount["name"].as_str()?).then(|| mount["mountPath"].as_str())?
    });
    places
        .next()
        .map(|place| place.trim_end_matches('/').to_owned())
        .filter(|_| places.next().is_none())
}
