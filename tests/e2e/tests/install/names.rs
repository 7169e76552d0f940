//! Namespaces that admit no NET_ADMIN: clients of every kind in a pod there, by the variable and by
//! each DNS name of the API server. A test node has no DNS: the names are in the hosts file alone.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use ctrlmesh_e2e::{Binaries, Installed, Program, Rule, Tool, Tools, images, until};
use serde_json::{Value, json};

/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
const TOOL_SECONDS: &str = "120";
const POD: &str = "client";
const CONTAINER: &str = "tools";
/// Where a pod has its token and the bundle.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

const NAMES: [&str; 4] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// A pod in a namespace that is named like the level that it enforces.
struct Client<'a> {
    scene: &'a Installed,
    tools: &'a Tools,
    level: &'static str,
}

#[test]
fn i12_where_pods_are_restricted_clients_get_through_by_variable_and_by_each_name() -> Result<()> {
    let tools = Tools::find(env!("CARGO_BIN_EXE_kube-client"))?;
    let scene = Installed::start(Binaries::from_env()?, &[])?;
    for level in ["baseline", "restricted"] {
        let client = Client::start(&scene, &tools, level)?;
        for name in [None].into_iter().chain(NAMES.map(Some)) {
            let way = name.unwrap_or("the variable");
            client.gets_through(name).with_context(|| format!("{level}: by {way}"))?;
            println!("{level}: curl, kubectl, client-go, kube and Python by {way}");
        }
    }
    Ok(())
}

impl<'a> Client<'a> {
    fn start(scene: &'a Installed, tools: &'a Tools, level: &'static str) -> Result<Self> {
        let node = scene.node();
        let rules = [Rule::new(&[""], &["configmaps"], &["get", "list", "watch"])];
        node.api().service_account(level, POD, &rules)?;
        let enforce = format!("pod-security.kubernetes.io/enforce={level}");
        node.kubectl(&["label", "namespace", level, &enforce])?;
        node.apply(&shard(level).to_string())?;
        let mounted = tools.mounted()?;
        for object in volumes(level, &mounted) {
            node.apply(&object.to_string())?;
        }
        node.apply(&pod(level, &mounted).to_string())?;
        let client = Self { scene, tools, level };
        node.wait_for(level, "pod/client", "condition=Ready", LIMIT)
            .map_err(|error| error.context(scene.told()))?;
        client.is_in_env_mode()?;
        client.config_map("mine", "ant")?;
        client.config_map("theirs", "bee")?;
        Ok(client)
    }

    fn is_in_env_mode(&self) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods/{POD}", self.level);
        let pod = self.scene.node().api().client().get(&path)?.json()?;
        let mode = &pod["metadata"]["annotations"]["ctrlmesh.kusionstack.io/injected"];
        ensure!(mode == "env", "{mode}");
        let aliases = &pod["spec"]["hostAliases"];
        ensure!(*aliases == json!([{ "ip": "127.0.0.1", "hostnames": NAMES }]), "{aliases}");
        Ok(())
    }

    /// A command line that runs a tool in the pod.
    fn command(&self, tool: Tool, args: &[&str]) -> Result<Command> {
        let mut command = self.scene.node().api().kubectl_client().command();
        command.args(["--namespace", self.level, "exec", "-i", POD, "--container", CONTAINER]);
        // What hangs in the pod must not hang the test.
        command.args(["--", "/usr/bin/timeout", TOOL_SECONDS, "/usr/bin/env", "HOME=/tmp"]);
        command.args(self.tools.line(tool)?).args(args);
        Ok(command)
    }

    /// The output of a line of a shell; it must succeed.
    fn sh(&self, line: &str) -> Result<String> {
        let output = self.command(Tool::Shell, &[line])?.output()?;
        if !output.status.success() {
            bail!("{line}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Each client lists its shard's ConfigMaps and nothing else, and the proxy has seen it.
    fn gets_through(&self, name: Option<&str>) -> Result<()> {
        let counts = || Ok::<_, anyhow::Error>((self.requests("list")?, self.requests("watch")?));
        let before = counts()?;
        self.curl(name).context("curl")?;
        self.kubectl(name).context("kubectl")?;
        self.controllers(name)?;
        // curl, kubectl, kube and Python list; client-go, kube and Python watch. A watch counts at
        // its end.
        let mut more = (0.0, 0.0);
        until("the proxy has counted them", LIMIT, || {
            let now = counts()?;
            more = (now.0 - before.0, now.1 - before.1);
            Ok((more == (4.0, 3.0)).then_some(()))
        })
        .with_context(|| format!("lists and watches: {more:?}"))
    }

    fn curl(&self, name: Option<&str>) -> Result<()> {
        let variable = "$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT";
        let list = self.sh(&format!(
            "/usr/bin/curl -sS --fail --cacert {ACCOUNT}/ca.crt \
             -H \"Authorization: Bearer $(cat {ACCOUNT}/token)\" \
             https://{}/api/v1/namespaces/{}/configmaps",
            name.unwrap_or(variable),
            self.level
        ))?;
        let list: Value = serde_json::from_str(&list)?;
        let items = list["items"].as_array().context("items")?;
        ensure!(items.len() == 1 && items[0]["metadata"]["name"] == "mine", "{list}");
        Ok(())
    }

    fn kubectl(&self, name: Option<&str>) -> Result<()> {
        let server = name.map_or(String::new(), |name| {
            format!(
                "--server https://{name} --certificate-authority {ACCOUNT}/ca.crt \
                 --token \"$(cat {ACCOUNT}/token)\""
            )
        });
        let kubectl = self.tools.line(Tool::Kubectl)?.join(" ");
        let namespace = self.level;
        let listed =
            self.sh(&format!("{kubectl} get configmaps --namespace {namespace} -o name {server}"))?;
        ensure!(listed == "configmap/mine\n", "{listed}");
        Ok(())
    }

    /// client-go, kube and Python at once.
    fn controllers(&self, name: Option<&str>) -> Result<()> {
        let server = name.map(|name| format!("https://{name}"));
        let start = |tool, subcommand: &[&str]| -> Result<Program> {
            let mut args = [subcommand, &["--namespace", self.level]].concat();
            args.extend(server.iter().flat_map(|server| ["--server", server.as_str()]));
            let log =
                self.scene.node().api().directory().join(format!("{}-{tool:?}.log", self.level));
            Program::start(&format!("{tool:?} by {name:?}"), &self.command(tool, &args)?, &log)
        };
        let programs = [
            (Tool::Go, start(Tool::Go, &["informer", "--wire"])?, "wire"),
            (Tool::Rust, start(Tool::Rust, &[])?, "list"),
            (Tool::Python, start(Tool::Python, &["listwatch"])?, "watch"),
        ];
        for (tool, program, first) in &programs {
            program
                .wait_for(LIMIT, |line| line["event"] == *first)
                .with_context(|| format!("the start of {tool:?}"))?;
        }
        self.config_map("new", "ant")?;
        for (tool, program, _) in programs {
            let is_new = |line: &Value| line["event"] == "wire" && line["object"]["name"] == "new";
            program.wait_for(LIMIT, is_new).with_context(|| format!("the watch of {tool:?}"))?;
            let lines = program.finish(LIMIT).with_context(|| format!("the end of {tool:?}"))?;
            let all = Value::from(lines).to_string();
            ensure!(all.contains("\"mine\"") && !all.contains("\"theirs"), "{tool:?} saw {all}");
        }
        let delete = ["--namespace", self.level, "delete", "configmap", "new"];
        self.scene.node().kubectl(&delete).map(drop)
    }

    /// Makes a ConfigMap of a team as the administrator.
    fn config_map(&self, name: &str, team: &str) -> Result<()> {
        let map = json!({ "metadata": { "name": name, "labels": { "team": team } } });
        let path = format!("/api/v1/namespaces/{}/configmaps", self.level);
        self.scene.node().api().client().post(&path, &map)?.json().map(drop)
    }

    /// Requests for ConfigMaps that the pod's proxy has counted.
    fn requests(&self, verb: &str) -> Result<f64> {
        let path = format!("/api/v1/namespaces/{}/pods/{POD}:5441/proxy/metrics", self.level);
        let metrics = self.scene.node().kubectl(&["get", "--raw", &path])?;
        let labels = ["leg=\"outbound\"", "resource=\"configmaps\"", &format!("verb=\"{verb}\"")];
        let mut sum = 0.0;
        for line in metrics.lines() {
            let is_it = line.starts_with("ctrlmesh_requests_total{");
            if is_it && labels.iter().all(|label| line.contains(label)) {
                let (_, value) = line.rsplit_once(' ').context("a series has a value")?;
                sum += value.parse::<f64>()?;
            }
        }
        Ok(sum)
    }
}

fn shard(namespace: &str) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "ant", "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": { "app": POD } },
            "limits": [{
                "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
                "selector": { "matchLabels": { "team": "ant" } },
            }],
        },
    })
}

/// The programs as claims: these levels admit no hostPath in a pod.
fn volumes(namespace: &str, mounted: &[&Path]) -> Vec<Value> {
    let of = |(at, path): (usize, &&Path)| {
        let (claim, volume) = (format!("host-{at}"), format!("{namespace}-{at}"));
        let size = json!({ "storage": "1Gi" });
        [
            json!({
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": { "name": volume },
                "spec": {
                    "capacity": size,
                    "accessModes": ["ReadOnlyMany"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": { "path": path },
                    "claimRef": { "namespace": namespace, "name": claim },
                },
            }),
            json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": { "name": claim, "namespace": namespace },
                "spec": {
                    "accessModes": ["ReadOnlyMany"],
                    "storageClassName": "",
                    "volumeName": volume,
                    "resources": { "requests": size },
                },
            }),
        ]
    };
    mounted.iter().enumerate().flat_map(of).collect()
}

/// A pod that keeps the standard `restricted` by itself, with our label and nothing else of ours.
fn pod(namespace: &str, mounted: &[&Path]) -> Value {
    let claims = mounted.iter().enumerate().map(|(at, path)| (format!("host-{at}"), path));
    let mounts: Vec<Value> = claims
        .clone()
        .map(|(claim, path)| json!({ "name": claim, "mountPath": path, "readOnly": true }))
        .collect();
    let volume =
        |claim: String| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": POD,
            "namespace": namespace,
            "labels": { "app": POD, "ctrlmesh.kusionstack.io/enable-proxy": "true" },
        },
        "spec": {
            "serviceAccountName": POD,
            "containers": [{
                "name": CONTAINER,
                "image": images::BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["/bin/sleep", "1000000"],
                "volumeMounts": mounts,
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] },
                    "runAsNonRoot": true,
                    "runAsUser": 65532,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
            }],
            "volumes": claims.map(|(claim, _)| volume(claim)).collect::<Vec<_>>(),
            "terminationGracePeriodSeconds": 1,
        },
    })
}
