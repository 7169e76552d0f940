//! The doctor in front of a real API server and the real manager: all is well, then one thing after
//! the other is not.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Manager, ctrlmesh_binary, until};
use serde_json::{Value, json};

use crate::manager::scene::{
    BUNDLE, OPERATORS, SOON, at, bundle, cluster, config, create, get, is_injected, manager, pod,
};

const BINDING: &str =
    "/apis/rbac.authorization.k8s.io/v1/namespaces/operators/rolebindings/ctrlmesh-proxy";
const WEBHOOKS: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/ctrlmesh";

/// The findings, and the exit code.
struct Seen {
    code: i32,
    findings: Vec<Value>,
}

impl Seen {
    /// The findings of a severity, each as `ID says`.
    fn of(&self, severity: &str) -> Vec<String> {
        let told = |one: &Value| format!("{} {}", text(one, "id"), text(one, "says"));
        self.findings.iter().filter(|one| text(one, "severity") == severity).map(told).collect()
    }

    /// Checks that these are the errors, by their ids, and that the exit code says so.
    fn has_errors(&self, ids: &[&str]) -> Result<()> {
        let errors = self.of("error");
        let are: Vec<_> = errors.iter().filter_map(|error| error.split(' ').next()).collect();
        ensure!(are == ids, "other errors than {ids:?}: {errors:#?}");
        let code = if ids.is_empty() { 0 } else { 69 };
        ensure!(self.code == code, "exit code {} with {errors:?}", self.code);
        Ok(())
    }
}

fn text<'v>(finding: &'v Value, key: &str) -> &'v str {
    finding[key].as_str().unwrap_or_default()
}

fn doctor(kubeconfig: &Path, args: &[&str]) -> Result<Seen> {
    let mut command = Command::new(ctrlmesh_binary()?);
    command.args(["doctor", "--output=json"]).args(args).env("KUBECONFIG", kubeconfig);
    let output = command.output()?;
    let findings: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let findings = findings.as_array().context("an array")?.clone();
    Ok(Seen { code: output.status.code().context("an exit code")?, findings })
}

/// A pod of the shard that [`config`] is for.
fn of_shard(name: &str) -> Value {
    let mut pod = pod(OPERATORS, name);
    pod["metadata"]["labels"]["shard"] = json!("blue");
    pod
}

/// The event of a pod that a webhook refused.
fn refused() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": "refused", "namespace": OPERATORS },
        "involvedObject": { "kind": "StatefulSet", "name": "op", "namespace": OPERATORS },
        "reason": "FailedCreate",
        "message": "admission webhook \"pods.ctrlmesh.kusionstack.io\" denied the request",
    })
}

/// The controller's Service, which leads to this port of the pods, and a webhook that is called by it.
fn reviewed(target: u16) -> [Value; 2] {
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "op", "namespace": OPERATORS },
        "spec": {
            "selector": { "shard": "blue" },
            "ports": [{ "port": 443, "targetPort": target }],
        },
    });
    let rule = json!({
        "apiGroups": ["example.com"],
        "apiVersions": ["*"],
        "resources": ["widgets"],
        "operations": ["CREATE"],
    });
    let webhooks = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "op" },
        "webhooks": [{
            "name": "widgets.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "rules": [rule],
            "clientConfig": { "service": { "name": "op", "namespace": OPERATORS } },
        }],
    });
    [service, webhooks]
}

/// A policy that lets the pods of its namespace reach each other, and no one else reach them.
fn network_policy() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": "closed", "namespace": OPERATORS },
        "spec": { "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {} }] }] },
    })
}

/// A cluster in which all is well: a manager that leads, a config, and an injected pod, whose reviews
/// come to its proxy.
fn healthy() -> Result<(ApiServer, Manager)> {
    let api = cluster()?;
    let manager = manager(&api, &[])?;
    let mut config = config(OPERATORS);
    config["spec"]["webhook"] = json!({ "certDir": "/certs", "port": 9443, "certSecret": "kept" });
    create(&api, &config, &[])?;
    until("the manager knows the config", SOON, || {
        let stored = create(&api, &of_shard("op-0"), &["--dry-run=server"])?;
        Ok(stored.to_string().contains("--webhook-port=9443").then_some(()))
    })?;
    ensure!(is_injected(&create(&api, &of_shard("op-0"), &[])?));
    let [service, webhooks] = reviewed(9443);
    create(&api, &service, &[])?;
    create(&api, &webhooks, &[])?;
    bundle(&api, OPERATORS)?;
    until("rights", SOON, || Ok(get(&api, BINDING)?.map(drop)))?;
    // Here the manager is no pod of the cluster.
    let ready = r#"{"status":{"replicas":2,"readyReplicas":2}}"#;
    api.kubectl(&[
        "patch",
        "deployment",
        "ctrlmesh-manager",
        "--namespace",
        Manager::NAMESPACE,
        "--subresource=status",
        "--type=merge",
        "--patch",
        ready,
    ])?;
    Ok((api, manager))
}

#[test]
fn i12_the_doctor_finds_no_error_where_all_is_well_and_each_that_is_made() -> Result<()> {
    let (api, mut manager) = healthy()?;
    let look = |args: &[&str]| doctor(&api.kubeconfig(), args);
    let seen = look(&[])?;
    seen.has_errors(&[])?;
    ensure!(seen.of("warning").is_empty(), "{:?}", seen.of("warning"));
    for id in ["D01", "D02", "D03", "D04", "D05", "D06", "D07", "D08", "D09", "D10", "D11", "D13"] {
        let is_told = seen.of("ok").iter().any(|told| told.starts_with(id));
        ensure!(is_told, "{id} is not told");
    }

    let mut more = config(OPERATORS);
    more["metadata"]["name"] = json!("more");
    create(&api, &more, &[])?;
    look(&[])?.has_errors(&["D13"])?;
    api.kubectl(&["delete", "shardingconfig", "more", "-n", OPERATORS])?;

    api.kubectl(&["create", "quota", "cpus", "--hard=limits.cpu=10", "-n", OPERATORS])?;
    look(&["--namespace", OPERATORS])?.has_errors(&["D15"])?;
    look(&["--namespace", "default"])?.has_errors(&[])?;
    api.kubectl(&["delete", "quota", "cpus", "-n", OPERATORS])?;

    let level = "pod-security.kubernetes.io/enforce";
    api.kubectl(&["label", "namespace", OPERATORS, &format!("{level}=baseline")])?;
    let warnings = look(&[])?.of("warning");
    ensure!(warnings.len() == 1 && warnings[0].starts_with("D17"), "{warnings:?}");
    api.kubectl(&["label", "namespace", OPERATORS, &format!("{level}-")])?;

    create(&api, &refused(), &[])?;
    look(&[])?.has_errors(&["D18"])?;
    api.kubectl(&["delete", "events", "--all", "-n", OPERATORS])?;

    manager.stop()?;
    look(&[])?.has_errors(&["D07"])?;
    api.kubectl(&["delete", "configmap", BUNDLE, "-n", OPERATORS])?;
    look(&[])?.has_errors(&["D07", "D09"])?;
    let patch = r#"[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]"#;
    let webhooks = ["mutatingwebhookconfiguration", "ctrlmesh"];
    api.kubectl(&[&["patch"], &webhooks[..], &["--type=json", "-p", patch]].concat())?;
    look(&[])?.has_errors(&["D05", "D07", "D09"])?;

    let mut plain = of_shard("op-1");
    plain["metadata"]["labels"] = json!({ "shard": "blue" });
    create(&api, &plain, &[])?;
    look(&[])?.has_errors(&["D05", "D07", "D09", "D12"])?;
    let label = "ctrlmesh.kusionstack.io/enable-proxy=true";
    api.kubectl(&["label", "pod", "op-1", label, "-n", OPERATORS])?;
    look(&[])?.has_errors(&["D05", "D07", "D09", "D11"])?;

    // All is put right by a manager that runs.
    manager.start_again()?;
    until("all is right again", SOON, || {
        let errors = look(&[])?.of("error");
        Ok((errors.len() == 1 && errors[0].starts_with("D11")).then_some(()))
    })?;
    ensure!(get(&api, &at(OPERATORS, "configmaps", BUNDLE))?.is_some());
    api.kubectl(&[&["delete"], &webhooks[..]].concat())?;
    look(&[])?.has_errors(&["D04", "D11"])?;
    ensure!(get(&api, WEBHOOKS)?.is_none(), "the doctor changes nothing");
    Ok(())
}

#[test]
fn i13_the_doctor_finds_what_keeps_reviews_from_the_proxies() -> Result<()> {
    let (api, _manager) = healthy()?;
    let look = || doctor(&api.kubeconfig(), &["--namespace", OPERATORS]);
    let seen = look()?;
    for id in ["D28", "D29", "D32"] {
        let is_told = seen.of("ok").iter().any(|told| told.starts_with(id));
        ensure!(is_told, "{id} is not told");
    }

    create(&api, &network_policy(), &[])?;
    let told =
        "D28 NetworkPolicy closed: the API server does not reach the webhook port of pod op-0";
    let warnings = look()?.of("warning");
    ensure!(warnings == [told], "{warnings:?}");
    api.kubectl(&["delete", "networkpolicy", "closed", "-n", OPERATORS])?;

    let role = ["clusterrole", "ctrlmesh-proxy"];
    let rules = api.kubectl(&[&["get"], &role[..], &["-o", "jsonpath={.rules}"]].concat())?;
    let put = |rules: &str| {
        let patch = format!(r#"[{{"op":"replace","path":"/rules","value":{rules}}}]"#);
        api.kubectl(&[&["patch"], &role[..], &["--type=json", "-p", &patch]].concat())
    };
    put(&rules.replace("\"pods\"", "\"pods/log\""))?;
    look()?.has_errors(&["D29"])?;
    put(&rules)?;

    let lead_to = |port: u16| {
        let at = "/spec/ports/0/targetPort";
        let patch = format!(r#"[{{"op":"replace","path":"{at}","value":{port}}}]"#);
        api.kubectl(&["patch", "service", "op", "-n", OPERATORS, "--type=json", "-p", &patch])
    };
    lead_to(9444)?;
    look()?.has_errors(&["D32"])?;
    lead_to(9443)?;
    let seen = look()?;
    seen.has_errors(&[])?;
    ensure!(seen.of("warning").is_empty(), "{:?}", seen.of("warning"));
    Ok(())
}

#[test]
fn i12_the_doctor_looks_at_one_pod_and_says_what_it_may_not_look_at() -> Result<()> {
    let (api, _manager) = healthy()?;
    // No node runs it.
    let seen = doctor(&api.kubeconfig(), &["--namespace", OPERATORS, "op-0"])?;
    seen.has_errors(&["D21"])?;
    let all = [seen.of("ok"), seen.of("warning"), seen.of("error")].concat();
    for told in ["D19 is injected, in mode iptables", "D20 ctrlmesh-init has not ended", "D26 no"] {
        ensure!(all.iter().any(|one| one.starts_with(told)), "no {told:?} in {all:#?}");
    }
    doctor(&api.kubeconfig(), &["-n", OPERATORS, "gone"])?.has_errors(&["D19"])?;
    doctor(&api.kubeconfig(), &["-n", "gone"])?.has_errors(&["D08"])?;

    let nobody = api.service_account("people", "nobody", &[])?;
    let seen = doctor(&nobody.kubeconfig, &["-n", OPERATORS, "op-0"])?;
    seen.has_errors(&[])?;
    let warnings = seen.of("warning");
    for told in [
        "D04 cannot look, needs the right to get \
         mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "D06 cannot look, needs the right to get deployments.apps in namespace ctrlmesh-system",
        "D11 cannot look, needs the right to list pods in namespace operators",
        "D14 cannot look, needs the right to list \
         shardingconfigs.ctrlmesh.kusionstack.io in namespace operators",
        "D19 cannot look, needs the right to get pods in namespace operators",
        "D22 cannot look, needs the right to get pods/proxy in namespace operators",
    ] {
        let is_told = warnings.iter().any(|warning| warning.starts_with(told));
        ensure!(is_told, "no {told:?} in {warnings:#?}");
    }
    let seen = doctor(&nobody.kubeconfig, &[])?;
    ensure!(seen.of("warning").iter().any(|one| one.starts_with("D08 cannot look")));
    Ok(())
}

#[test]
fn i12_the_doctors_exit_code_says_who_is_to_blame() -> Result<()> {
    let api = ApiServer::start()?;
    let seen = doctor(&api.kubeconfig(), &[])?;
    seen.has_errors(&["D03", "D04", "D06", "D07"])?;
    api.stop()?;
    let seen = doctor(&api.kubeconfig(), &[])?;
    seen.has_errors(&["D01"])?;
    ensure!(seen.findings.len() == 1, "{:?}", seen.findings);
    doctor(Path::new("/nowhere"), &[])?.has_errors(&["D01"])?;
    let usage = Command::new(ctrlmesh_binary()?).args(["doctor", "--output=x"]).output()?;
    ensure!(usage.status.code() == Some(64), "{usage:?}");
    Ok(())
}
