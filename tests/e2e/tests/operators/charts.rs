//! The pods of six charts, as they are and hardened, are injected and get ready.
//!
//! A shell stands for the operators, whose images no node here can pull. All else of a pod is as its
//! chart writes it: the account, the volumes, the security contexts, the variables.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, Installed, go_module, images::BUSYBOX, until};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);
const TOKEN_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
pub(super) const HASH_OF_ARGO: &str = "v0.0.0-20260904222229-3bbb4305eea9";
const HASH_OF_KEDA: &str = "v2.20.3-0.20260903105638-fe065f4d8938+incompatible";

/// A change of a pod's spec.
type Change = fn(&mut Value);

/// A chart, and its workload that runs the operator.
struct Chart {
    name: &'static str,
    module: &'static str,
    version: &'static str,
    path: &'static str,
    /// The plural of the workload, and its name.
    workload: (&'static str, &'static str),
}

const CHARTS: [Chart; 6] = [
    Chart {
        name: "cert-manager",
        module: "github.com/cert-manager/cert-manager",
        version: "v1.21.1",
        path: "deploy/charts/cert-manager",
        workload: ("deployments", "cert-manager"),
    },
    Chart {
        name: "argo-rollouts",
        module: "github.com/argoproj/argo-helm",
        version: HASH_OF_ARGO,
        path: "charts/argo-rollouts",
        workload: ("deployments", "argo-rollouts"),
    },
    Chart {
        name: "argo-workflows",
        module: "github.com/argoproj/argo-helm",
        version: HASH_OF_ARGO,
        path: "charts/argo-workflows",
        workload: ("deployments", "argo-workflows-workflow-controller"),
    },
    Chart {
        name: "keda",
        module: "github.com/kedacore/charts",
        version: HASH_OF_KEDA,
        path: "keda",
        workload: ("deployments", "keda-operator"),
    },
    Chart {
        name: "eck-operator",
        module: "github.com/elastic/cloud-on-k8s/v3",
        version: "v3.5.0",
        path: "deploy/eck-operator",
        workload: ("statefulsets", "elastic-operator"),
    },
    Chart {
        name: "gatekeeper",
        module: "github.com/open-policy-agent/gatekeeper/v3",
        version: "v3.23.1",
        path: "charts/gatekeeper",
        workload: ("deployments", "gatekeeper-controller-manager"),
    },
];

impl Chart {
    fn directory(&self) -> Result<PathBuf> {
        Ok(go_module(self.module, self.version)?.join(self.path))
    }

    fn helm(&self, scene: &Installed, verb: &str, more: &[&str]) -> Result<()> {
        let mut helm = scene.helm_command()?;
        helm.args(["--namespace", self.name, verb, self.name, "--no-hooks"]).args(more);
        let output = helm.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn workload_path(&self) -> String {
        let (plural, name) = self.workload;
        format!("/apis/apps/v1/namespaces/{}/{plural}/{name}", self.name)
    }

    /// Gives the workload's pods our label, with a shell in place of each program.
    fn label(&self, scene: &Installed, change: Option<Change>) -> Result<()> {
        let client = scene.node().api().client();
        // A controller of workloads may write its status meanwhile.
        until("the workload is written", LIMIT, || {
            let mut workload = client.get(&self.workload_path())?.json()?;
            workload["spec"]["replicas"] = json!(1);
            let template = &mut workload["spec"]["template"];
            template["metadata"]["labels"]["e2e-chart"] = self.name.into();
            template["metadata"]["labels"]["ctrlmesh.kusionstack.io/enable-proxy"] = "true".into();
            replace_programs(&mut template["spec"]);
            if let Some(change) = change {
                change(&mut template["spec"]);
            }
            let body = workload.to_string().into_bytes();
            let kind = "application/json";
            let answer = client.request("PUT", &self.workload_path(), kind, body)?;
            ensure!(answer.status == 200 || answer.status == 409, "{:?}", answer.json());
            Ok((answer.status == 200).then_some(()))
        })
    }

    fn pod(&self, scene: &Installed) -> Result<Option<Value>> {
        let path = format!("/api/v1/namespaces/{}/pods?labelSelector=e2e-chart", self.name);
        let list = scene.node().api().client().get(&path)?.json()?;
        let pods = list["items"].as_array().context("items")?;
        Ok(pods.iter().find(|pod| pod["metadata"]["deletionTimestamp"].is_null()).cloned())
    }

    /// Waits for the pod, which must be injected; returns the name of its first container.
    fn is_injected(&self, scene: &Installed) -> Result<()> {
        let mut last = Value::Null;
        let ready = until("the pod is ready", LIMIT, || {
            last = self.pod(scene)?.unwrap_or_default();
            let mut all = last["status"]["conditions"].as_array().into_iter().flatten();
            Ok(all.any(|one| one["type"] == "Ready" && one["status"] == "True").then_some(()))
        });
        ready.with_context(|| format!("{}: {}", self.name, last["status"]))?;
        let spec = &last["spec"];
        let parts = [&spec["initContainers"], &spec["containers"]];
        let mut names = parts.iter().filter_map(|part| part.as_array()).flatten();
        ensure!(names.any(|one| one["name"] == "ctrlmesh-proxy"), "{spec}");

        let pod = last["metadata"]["name"].as_str().context("a pod has a name")?;
        let app = spec["containers"][0]["name"].as_str().context("a container has a name")?;
        let read = |file: &str| {
            let path = format!("{TOKEN_DIRECTORY}/{file}");
            scene.node().exec(self.name, pod, app, &["/bin/busybox", "cat", &path])
        };
        let ca = read("ca.crt")?;
        ensure!(ca.contains("BEGIN CERTIFICATE"), "{}: {ca}", self.name);
        ensure!(ca.trim() != scene.node().api().ca_pem().trim(), "{}: no CA of ours", self.name);
        ensure!(!read("token")?.is_empty() && read("namespace")? == self.name);
        Ok(())
    }
}

/// A shell that sleeps in place of each program.
fn replace_programs(spec: &mut Value) {
    // The operators' images name a user; the shell's does not.
    let names_user = spec["securityContext"]["runAsUser"].is_number();
    for (part, program) in [("containers", "sleep 2147483647"), ("initContainers", "true")] {
        for container in spec[part].as_array_mut().into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            for field in ["args", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"] {
                container.remove(field);
            }
            container.insert("image".to_owned(), BUSYBOX.into());
            container.insert("imagePullPolicy".to_owned(), "Never".into());
            let command: Vec<_> = ["/bin/busybox"].into_iter().chain(program.split(' ')).collect();
            container.insert("command".to_owned(), json!(command));
            if !names_user && container.get("securityContext").is_some_and(Value::is_object) {
                container["securityContext"]["runAsUser"] = json!(65532);
            }
        }
    }
    // What hooks and operators would have made.
    for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
        for kind in ["secret", "configMap"] {
            if volume[kind].is_object() {
                volume[kind]["optional"] = json!(true);
            }
        }
    }
}

/// As teams write it that mount no token by themselves, and that bound the pod as a whole.
fn harden(spec: &mut Value) {
    spec["automountServiceAccountToken"] = json!(false);
    spec["resources"] = json!({
        "requests": { "cpu": "20m", "memory": "32Mi" },
        "limits": { "cpu": "500m", "memory": "256Mi" },
    });
    spec["securityContext"] = json!({
        "runAsNonRoot": true, "runAsUser": 1234, "runAsGroup": 1234, "fsGroup": 1234,
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    let volume = json!({
        "name": "api-by-hand",
        "projected": { "defaultMode": 0o440, "sources": [
            { "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } },
            { "configMap": {
                "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }],
            } },
            { "downwardAPI": { "items": [
                { "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } },
            ] } },
        ] },
    });
    push(&mut spec["volumes"], volume);
    for container in spec["containers"].as_array_mut().into_iter().flatten() {
        container["securityContext"] = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        });
        if let Some(container) = container.as_object_mut() {
            container.remove("resources");
        }
        let mount =
            json!({ "name": "api-by-hand", "mountPath": TOKEN_DIRECTORY, "readOnly": true });
        push(&mut container["volumeMounts"], mount);
    }
}

fn push(list: &mut Value, value: Value) {
    match list {
        Value::Array(all) => all.push(value),
        _ => *list = json!([value]),
    }
}

#[test]
fn pods_of_six_charts_are_injected_and_ready_as_they_are_and_hardened() -> Result<()> {
    let scene = Installed::start(Binaries::from_env()?, &[])?;
    for chart in &CHARTS {
        let directory = chart.directory()?;
        let directory = directory.to_str().context("a path in UTF-8")?;
        let crds = ["--create-namespace", directory, "--set", "crds.enabled=true"];
        chart.helm(&scene, "install", &crds)?;
        let config = json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
            "kind": "ShardingConfig",
            "metadata": { "name": chart.name, "namespace": chart.name },
            "spec": {
                "selector": { "matchLabels": { "e2e-chart": chart.name } },
                "limits": [{
                    "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
                    "selector": { "matchLabels": { "team": "a" } },
                }],
            },
        });
        scene.node().apply(&config.to_string())?;
        for (what, change) in [("as it is", None), ("hardened", Some(harden as Change))] {
            let context = || format!("{}, {what}", chart.name);
            chart.label(&scene, change).with_context(context)?;
            let (plural, name) = chart.workload;
            if plural == "statefulsets" {
                // Its controller waits for a pod that never gets ready.
                let pods = ["delete", "pods", "--all", "--wait=false", "--namespace", chart.name];
                scene.node().kubectl(&pods)?;
            }
            let of = ["--namespace", chart.name, "rollout", "status"];
            let workload = format!("{}/{name}", plural.trim_end_matches('s'));
            let rollout = [&of[..], &[&workload, "--timeout=120s"]].concat();
            let rolled = scene.node().kubectl(&rollout);
            rolled.with_context(|| format!("{:?}", chart.pod(&scene))).with_context(context)?;
            chart.is_injected(&scene).with_context(context)?;
            println!("charts: {}, {what}: injected and ready", chart.name);
        }
        chart.helm(&scene, "uninstall", &[])?;
    }
    Ok(())
}
