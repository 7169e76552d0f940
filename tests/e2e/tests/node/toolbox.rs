//! A pod with every client program in it, injected, and the shard that it sees.
//!
//! 1. [`Toolbox::start`]: a [`Mesh`], which all tests share that call this; in a namespace of the test,
//!    the shard (ConfigMaps of the test's team, and the pods of the namespace, whatever their labels),
//!    and the pod. The programs come into it from this machine, each at its own path.
//! 2. The test works: [`Toolbox::run`] and [`Toolbox::start_program`] run something in the pod.
//! 3. What was done is read from the proxy's metrics and access log, and from the audit log.

use std::{
    path::Path,
    process::{Command, Output},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
pub(crate) use ctrlmesh_e2e::Tool;
use ctrlmesh_e2e::{AuditEntry, Binaries, Families, Mesh, Node, Program, Rule, Tools, images};
use serde_json::{Value, json};

/// Longer than anything takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Where a pod has its token and the bundle.
pub(crate) const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The names that every cluster's DNS has for the API server. A test node has no DNS.
pub(crate) const NAMES: [&str; 4] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

const TOOL_SECONDS: &str = "120";
const POD: &str = "toolbox";
const CONTAINER: &str = "tools";

/// See the module.
pub(crate) struct Toolbox {
    mesh: Arc<Mesh>,
    tools: Tools,
    /// Where the pod lives.
    pub(crate) namespace: String,
    /// The label of the ConfigMaps that the pod sees.
    pub(crate) team: String,
    /// The API server's address, as the kubelet tells it to pods.
    pub(crate) service: String,
    /// The pod's address.
    pub(crate) address: String,
}

impl Toolbox {
    /// Starts the pod in a new namespace called `ants-NAME`, and makes the shard that it sees. The
    /// node ends with the last test that uses it.
    pub(crate) fn start(name: &str) -> Result<Self> {
        let tools = Tools::find(env!("CARGO_BIN_EXE_kube-client"))?;
        let mesh = shared_mesh()?;
        let node = mesh.node();
        let (namespace, team) = (format!("ants-{name}"), format!("ant-{name}"));
        let of_pods = ["pods", "pods/exec", "pods/attach", "pods/portforward", "pods/log"];
        let rules = [
            Rule::new(&[""], &of_pods, &["get", "list", "watch", "create"]),
            Rule::new(&[""], &["configmaps"], &["*"]),
        ];
        node.api().service_account(&namespace, POD, &rules)?;
        node.apply(&shard(&namespace, &team).to_string())?;
        let of_default = ["get", "service/kubernetes", "-o", "jsonpath={.spec.clusterIP}"];
        let service = node.kubectl(&of_default)?;
        let pod = pod(&namespace, &service, &tools.mounted()?);
        node.apply(&mesh.inject(&pod.to_string(), &[])?)?;
        node.wait_for(&namespace, "pod/toolbox", "condition=Ready", LIMIT)?;
        let of_pod = ["get", "pod/toolbox", "-o", "jsonpath={.status.podIP}"];
        let address = node.kubectl(&[&["--namespace", &namespace], &of_pod[..]].concat())?;
        Ok(Self { mesh, tools, namespace, team, service, address })
    }

    pub(crate) fn node(&self) -> &Node {
        self.mesh.node()
    }

    /// A command line that runs a tool in the pod, with these environment variables.
    pub(crate) fn command(
        &self,
        variables: &[(&str, &str)],
        tool: Tool,
        args: &[&str],
    ) -> Result<Command> {
        let mut command = self.node().api().kubectl_client().command();
        command.args(["--namespace", &self.namespace, "exec", "-i", POD]);
        command.args(["--container", CONTAINER, "--"]);
        // What hangs in the pod must not hang the test.
        command.args(["/usr/bin/timeout", TOOL_SECONDS, "/usr/bin/env"]);
        command.args(variables.iter().map(|(name, value)| format!("{name}={value}")));
        command.args(self.tools.line(tool)?).args(args);
        Ok(command)
    }

    /// What a tool printed and how it ended.
    pub(crate) fn output(
        &self,
        variables: &[(&str, &str)],
        tool: Tool,
        args: &[&str],
    ) -> Result<Output> {
        Ok(self.command(variables, tool, args)?.output()?)
    }

    /// What a tool printed; it must succeed.
    pub(crate) fn run(&self, tool: Tool, args: &[&str]) -> Result<String> {
        printed(self.output(&[], tool, args)?).with_context(|| format!("{tool:?} {args:?}"))
    }

    /// kubectl as a person in the pod types it.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.run(Tool::Kubectl, args)
    }

    /// A tool of which the test reads the lines.
    pub(crate) fn start_program(
        &self,
        variables: &[(&str, &str)],
        tool: Tool,
        args: &[&str],
    ) -> Result<Program> {
        let command = self.command(variables, tool, args)?;
        let unique: String = std::iter::repeat_with(fastrand::lowercase).take(6).collect();
        let log = self.node().api().directory().join(format!("{tool:?}-{unique}.log"));
        Program::start(&format!("{tool:?} {args:?}"), &command, &log)
    }

    /// The same program of this machine, as the pod has it.
    pub(crate) fn path(&self, tool: Tool) -> Result<String> {
        Ok(self.tools.line(tool)?.join(" "))
    }

    /// Makes a ConfigMap of a team as the administrator.
    pub(crate) fn config_map(&self, name: &str, team: &str) -> Result<()> {
        let map = json!({ "metadata": { "name": name, "labels": { "team": team } } });
        let path = format!("/api/v1/namespaces/{}/configmaps", self.namespace);
        self.node().api().client().post(&path, &map)?.json().map(drop)
    }

    /// The sum of the pod's proxy's values of a metric that have all of these labels.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        let metrics = self.mesh.metrics(&self.namespace, POD)?;
        let wanted: Vec<_> =
            labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        let mut sum = 0.0;
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').context("a series has a value")?;
            let (metric, labels) = series.split_once('{').unwrap_or((series, ""));
            if metric == name && wanted.iter().all(|label| labels.contains(label)) {
                sum += value.parse::<f64>()?;
            }
        }
        Ok(sum)
    }

    /// What the API server was asked from the pod's address, apart from the proxy's own calls.
    /// Every entry is of the pod's ServiceAccount, or this fails.
    pub(crate) fn asked(&self) -> Result<Vec<AuditEntry>> {
        let mut asked = self.node().api().audit().entries()?;
        asked.retain(|entry| {
            let agent = entry.user_agent.as_deref().unwrap_or_default();
            entry.source_ips.contains(&self.address) && !agent.starts_with("ctrlmesh/")
        });
        let user = format!("system:serviceaccount:{}:{POD}", self.namespace);
        for entry in &asked {
            ensure!(entry.user.username == user, "{} by {entry:?}", entry.user.username);
        }
        Ok(asked)
    }
}

/// Standard output of a program that must have succeeded.
pub(crate) fn printed(output: Output) -> Result<String> {
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The node of the toolboxes.
fn shared_mesh() -> Result<Arc<Mesh>> {
    static SHARED: Mutex<Weak<Mesh>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mesh) = shared.upgrade() {
        return Ok(mesh);
    }
    let mesh = Arc::new(Mesh::start(Binaries::from_env()?, Families::Ipv4)?);
    *shared = Arc::downgrade(&mesh);
    Ok(mesh)
}

fn shard(namespace: &str, team: &str) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "ant", "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": { "app": POD } },
            "limits": [
                {
                    "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
                    "selector": { "matchLabels": { "team": team } },
                },
                {
                    "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
                    "namespaces": { "pattern": format!("^{namespace}$") },
                    "clusterScoped": "Exclude",
                },
            ],
        },
    })
}

fn pod(namespace: &str, service: &str, mounted: &[&Path]) -> Value {
    let volume = |(at, path): (usize, &&Path)| json!({ "name": format!("host-{at}"), "hostPath": { "path": path } });
    let mount = |(at, path): (usize, &&Path)| json!({ "name": format!("host-{at}"), "mountPath": path, "readOnly": true });
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
            "hostAliases": [{ "ip": service, "hostnames": NAMES }],
            "containers": [{
                "name": CONTAINER,
                "image": images::BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["/bin/sleep", "1000000"],
                "volumeMounts": mounted.iter().enumerate().map(mount).collect::<Vec<_>>(),
            }],
            "volumes": mounted.iter().enumerate().map(volume).collect::<Vec<_>>(),
            "terminationGracePeriodSeconds": 1,
        },
    })
}
