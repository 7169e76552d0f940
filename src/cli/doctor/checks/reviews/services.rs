//! The Services in webhook configurations: whether they lead to the ports whose reviews come to proxies.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Pod, Service},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::network::containers;
use crate::doctor::{
    checks::{pods::Reviewed, words::named},
    facts::AdmissionHook,
    finding::{Check, Findings},
};

/// The port of a Service that a webhook configuration means if it names none.
const PORT: i32 = 443;

pub(super) fn judge(
    reviewed: &[Reviewed<'_>],
    hooks: &[AdmissionHook],
    services: &[Service],
    subject: &str,
    found: &mut Findings,
) {
    let check = Check::Services;
    let (mut well, mut unreached, mut elsewhere) = (0, Vec::new(), BTreeMap::<_, Vec<_>>::new());
    for of in reviewed {
        let ports: BTreeSet<_> =
            hooks.iter().filter_map(|hook| port_of(hook, services, of.pod)).collect();
        if ports.contains(&of.port.into()) {
            well += 1;
        } else if ports.is_empty() {
            unreached.push(of.name);
        } else {
            elsewhere.entry((ports, of.port)).or_default().push(of.name);
        }
    }
    for ((ports, port), names) in elsewhere {
        let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
        let ports: Vec<_> = ports.iter().map(String::as_str).collect();
        let (at, pods) = (named("port", &ports), named("pod", &names));
        found.error(
            check,
            subject,
            format!("lead to {at} of {pods}, and reviews at port {port} alone come to the proxy"),
            "write the targetPort of the Service in spec.webhook.port, and restart the workload",
        );
    }
    if !unreached.is_empty() {
        found.warning(
            check,
            subject,
            format!("none leads to {}", named("pod", &unreached)),
            "see that the Service in the clientConfig of the controller's webhook configurations \
             selects the pods; a controller with conversion webhooks alone needs none",
        );
    } else if well == reviewed.len() {
        found.ok(check, subject, "lead to the proxies");
    }
}

/// The port of a pod to which a webhook leads, by its Service. `None` if it leads elsewhere.
fn port_of(hook: &AdmissionHook, services: &[Service], pod: &Pod) -> Option<i32> {
    let named = |service: &&Service| service.metadata.name.as_deref() == Some(&*hook.service);
    let spec = services.iter().find(named)?.spec.as_ref()?;
    let labels = pod.metadata.labels.as_ref()?;
    let mut selector = spec.selector.as_ref().filter(|all| !all.is_empty())?.iter();
    if !selector.all(|(key, value)| labels.get(key) == Some(value)) {
        return None;
    }
    let port = hook.port.unwrap_or(PORT);
    let port = spec.ports.as_ref()?.iter().find(|one| one.port == port)?;
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(target)) => Some(*target),
        Some(IntOrString::String(name)) => {
            let mut ports = containers(pod).flat_map(|container| container.ports.iter().flatten());
            ports.find(|port| port.name.as_ref() == Some(name)).map(|port| port.container_port)
        }
    }
}
