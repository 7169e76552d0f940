//! Quotas and default limits that stand in the way of our containers.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::LimitRange},
    apimachinery::pkg::api::resource::Quantity,
};
use serde_json::Value;

use crate::doctor::{
    facts::{ManagerFacts, NamespaceFacts},
    finding::{Check, Findings},
};

/// The CPU limit in thousandths below which a busy proxy is slow.
const ENOUGH: u64 = 500;

pub(super) fn judge(facts: &NamespaceFacts, manager: &ManagerFacts, found: &mut Findings) {
    let has_limit =
        manager.deployment.as_ref().ok().and_then(Option::as_ref).is_some_and(limits_cpu);
    let name = &facts.name;
    let subject = format!("LimitRanges of {name}");
    let ranges = found.seen(Check::LimitRange, &subject, &facts.limit_ranges);
    let defaults: Vec<_> = ranges.into_iter().flatten().filter_map(default_cpu).collect();
    let subject = format!("ResourceQuotas of {name}");
    if found.seen(Check::Quota, &subject, &facts.quotas).is_some() && ranges.is_some() {
        quota(facts, has_limit, !defaults.is_empty(), &subject, found);
    }
    let Some(ranges) = ranges else { return };
    if has_limit || ranges.is_empty() {
        return;
    }
    let small = defaults.iter().filter(|(_, millis, _)| *millis < ENOUGH);
    let mut is_enough = true;
    for (range, _, text) in small {
        is_enough = false;
        found.warning(
            Check::LimitRange,
            format!("LimitRange {name}/{range}"),
            format!(
                "its default of {text} CPU becomes the proxy's limit, which slows every request"
            ),
            "give proxies a limit of their own, by the chart's proxy.resources or the pods' \
             annotation ctrlmesh.kusionstack.io/proxy-resource, or raise the default to 500m",
        );
    }
    if is_enough {
        let subject = format!("LimitRanges of {name}");
        found.ok(Check::LimitRange, subject, "set no default that would slow the proxy");
    }
}

fn quota(
    facts: &NamespaceFacts,
    has_limit: bool,
    has_default: bool,
    subject: &str,
    found: &mut Findings,
) {
    let is_on_cpu = |hard: &BTreeMap<String, Quantity>| hard.contains_key("limits.cpu");
    let quotas = facts.quotas.iter().flatten();
    let of_cpu: Vec<_> = quotas
        .filter(|quota| {
            quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()).is_some_and(is_on_cpu)
        })
        .filter_map(|quota| quota.metadata.name.as_deref())
        .collect();
    // In env mode the proxy is the only container of ours.
    let is_covered = has_default || (has_limit && is_without_init(facts));
    if of_cpu.is_empty() || is_covered {
        found.ok(Check::Quota, subject, "none refuses our containers");
        return;
    }
    for quota in of_cpu {
        found.error(
            Check::Quota,
            format!("ResourceQuota {}/{quota}", facts.name),
            "is on limits.cpu, and containers of ours have no CPU limit: injected pods are refused",
            "add a LimitRange with a default of 500m CPU for containers, or take limits.cpu out of \
             the quota",
        );
    }
}

/// Whether the namespace's level has pods injected without an init container.
fn is_without_init(facts: &NamespaceFacts) -> bool {
    super::pods::level(facts).is_some()
}

/// Whether the manager gives proxies a CPU limit.
fn limits_cpu(deployment: &Deployment) -> bool {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let containers = pod.into_iter().flat_map(|pod| &pod.containers);
    let mut texts = containers.flat_map(|container| {
        let args = container.args.iter().flatten();
        let by_flag = args.filter_map(|arg| arg.strip_prefix("--proxy-resources="));
        let env = container.env.iter().flatten();
        let env = env.filter(|entry| entry.name == "CTRLMESH_PROXY_RESOURCES");
        by_flag.chain(env.filter_map(|entry| entry.value.as_deref()))
    });
    texts.any(|text| {
        let resources: Option<Value> = serde_json::from_str(text).ok();
        resources.is_some_and(|resources| resources.pointer("/limits/cpu").is_some())
    })
}

/// The name of a LimitRange, and its default CPU limit of containers in thousandths and as text.
fn default_cpu(range: &LimitRange) -> Option<(&str, u64, &str)> {
    let limits = range.spec.iter().flat_map(|spec| &spec.limits);
    let mut cpus = limits.filter(|limit| limit.type_ == "Container").filter_map(|limit| {
        let default = limit.default.as_ref()?.get("cpu")?;
        Some((millis(&default.0)?, default.0.as_str()))
    });
    let (millis, text) = cpus.next()?;
    Some((range.metadata.name.as_deref()?, millis, text))
}

/// A quantity of CPU in thousandths.
fn millis(text: &str) -> Option<u64> {
    if let Some(millis) = text.strip_suffix('m') {
        return millis.parse().ok();
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part: String = part.chars().chain("000".chars()).take(3).collect();
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_cpu_are_read() {
        for (text, wanted) in [
            ("100m", Some(100)),
            ("1", Some(1000)),
            ("0.5", Some(500)),
            ("2.25", Some(2250)),
            ("0.1234", Some(123)),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(millis(text), wanted, "{text}");
        }
    }
}
