//! One pod: its mode, its init container, its proxy's container and user.

use ctrlmesh_init::ExitCode;
use k8s_openapi::{
    api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, Pod},
    jiff::Timestamp,
};

use super::{
    proxy,
    words::{named, quoted},
};
use crate::doctor::{
    facts::PodFacts,
    finding::{Check, Findings},
};
use ctrlmesh_api::keys;
use ctrlmesh_inject::{
    CaptureMode,
    names::{INIT, PROXY},
};

/// A look at a waiting or crashing container.
const DESCRIBE: &str = "look at the pod's events and at the container's log: kubectl describe pod, \
                        kubectl logs --previous";

pub(super) fn judge(facts: &PodFacts, now: Timestamp, found: &mut Findings) {
    let subject = format!("pod {}/{}", facts.namespace, facts.name);
    let Some(pod) = found.seen(Check::Pod, &subject, &facts.pod) else {
        // The proxy may answer all the same.
        proxy::judge(facts, &subject, now, found);
        return;
    };
    let Some(pod) = pod else {
        let fix = "see whether the name is right; if the pod cannot be created, D18 has the reason";
        found.error(Check::Pod, &subject, "is not there", fix);
        return;
    };
    let annotations = pod.metadata.annotations.as_ref();
    let Some(mode) = annotations.and_then(|all| all.get(keys::INJECTED)) else {
        let fix = "put the label ctrlmesh.kusionstack.io/enable-proxy: \"true\" on its pod template \
                   and restart the workload; if it is there, D11 has the reason";
        found.error(Check::Pod, &subject, "is not injected", fix);
        return;
    };
    found.ok(Check::Pod, &subject, format!("is injected, in mode {mode}"));
    let rules: &str = CaptureMode::Iptables.into();
    if mode == rules {
        init(pod, &subject, found);
    }
    user(pod, &subject, found);
    if runs(pod, &subject, found) {
        proxy::judge(facts, &subject, now, found);
    }
}

/// The state of a container by its name.
fn status<'p>(pod: &'p Pod, name: &str) -> Option<&'p ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = [&status.init_container_statuses, &status.container_statuses];
    all.into_iter().flatten().flatten().find(|status| status.name == name)
}

/// The reason for which a container waits.
fn waits(status: &ContainerStatus) -> Option<String> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().unwrap_or("it has not started");
    let message = waiting.message.as_deref().map(|text| format!(": {}", quoted(text)));
    Some(format!("{reason}{}", message.unwrap_or_default()))
}

/// The last end of a container.
fn ended(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let states = [&status.state, &status.last_state];
    states.into_iter().flatten().find_map(|state| state.terminated.as_ref())
}

fn exit_of(end: &ContainerStateTerminated) -> String {
    let message = end.message.as_deref().filter(|text| !text.trim().is_empty());
    let message = message.map(|text| format!(": {}", quoted(text)));
    format!("exited with {}{}", end.exit_code, message.unwrap_or_default())
}

fn init(pod: &Pod, subject: &str, found: &mut Findings) {
    let check = Check::Init;
    let status = status(pod, INIT);
    match status.and_then(ended) {
        Some(end) if end.exit_code == 0 => {
            found.ok(check, subject, format!("{INIT} has put the redirect rules in place"));
        }
        Some(end) => {
            let remedy = ExitCode::of(end.exit_code).and_then(ExitCode::remedy).unwrap_or(DESCRIBE);
            found.error(check, subject, format!("{INIT} {}", exit_of(end)), remedy);
        }
        None => {
            let why = status.and_then(waits);
            let why = why.map(|why| format!(", {why}")).unwrap_or_default();
            found.warning(check, subject, format!("{INIT} has not ended{why}"), DESCRIBE);
        }
    }
}

/// The reason why no node has the pod.
fn not_scheduled(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let wanted = |type_: &str, status: &str| type_ == "PodScheduled" && status == "False";
    conditions.iter().find(|one| wanted(&one.type_, &one.status))?.message.as_deref()
}

/// Whether the proxy's container runs.
fn runs(pod: &Pod, subject: &str, found: &mut Findings) -> bool {
    let check = Check::Proxy;
    let Some(status) = status(pod, PROXY) else {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let why = not_scheduled(pod).map(|why| format!(": {}", quoted(why))).unwrap_or_default();
        let phase = phase.unwrap_or("unknown");
        let says = format!("{PROXY} has not started: the pod is {phase}{why}");
        found.error(check, subject, says, DESCRIBE);
        return false;
    };
    let is_running = status.state.as_ref().is_some_and(|state| state.running.is_some());
    match (is_running, ended(status)) {
        (true, Some(end)) if end.reason.as_deref() == Some("OOMKilled") => found.warning(
            check,
            subject,
            format!("{PROXY} runs, and was killed before for want of memory"),
            "raise limits.memory by the pods' annotation ctrlmesh.kusionstack.io/proxy-resource or \
             the chart's proxy.resources",
        ),
        (true, Some(end)) if end.exit_code != 0 => {
            let says = format!("{PROXY} runs, and {} before", exit_of(end));
            found.warning(check, subject, says, DESCRIBE);
        }
        (true, _) => found.ok(check, subject, format!("{PROXY} runs")),
        (false, end) => {
            let waiting = waits(status).map(|why| format!(", {why}")).unwrap_or_default();
            let end = end.map(|end| format!(", {}", exit_of(end))).unwrap_or_default();
            found.error(check, subject, format!("{PROXY} does not run{waiting}{end}"), DESCRIBE);
        }
    }
    is_running
}

fn user(pod: &Pod, subject: &str, found: &mut Findings) {
    let Some(spec) = &pod.spec else { return };
    let of_pod = spec.security_context.as_ref().and_then(|security| security.run_as_user);
    let own = |container: &Container| container.security_context.as_ref()?.run_as_user;
    let all = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let Some(proxy) = all().find(|container| container.name == PROXY).and_then(own) else { return };
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| {
        let user = container.security_context.as_ref().and_then(|security| security.run_as_user);
        (container.name.as_str(), user)
    });
    let users = all().map(|container| (container.name.as_str(), own(container))).chain(ephemeral);
    let others = users.filter(|(name, _)| *name != PROXY);
    let same: Vec<_> =
        others.filter(|(_, user)| user.or(of_pod) == Some(proxy)).map(|(name, _)| name).collect();
    if same.is_empty() {
        found.ok(
            Check::User,
            subject,
            format!("no other container is said to run as user {proxy}"),
        );
        return;
    }
    found.error(
        Check::User,
        subject,
        format!(
            "{} runs as user {proxy}, the proxy's, and goes past it",
            named("container", &same)
        ),
        "give it another runAsUser, or the proxy another user by the chart's proxy.uid",
    );
}
