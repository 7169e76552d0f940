//! The start of a node.

use std::{path::Path, process::Command, sync::Arc, thread, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;

use super::{
    Node,
    sandbox::Sandbox,
    settings::{self, Families, NODE},
};
use crate::{
    api_server::{ApiServer, ApiServerBuilder, AuditLevel, Client, Place},
    bed::{Bed, count_cluster},
    builds::{
        images::{self, Image},
        kube_binary,
    },
    kubectl::write_kubeconfig,
    programs::{Process, until},
};

const CONTAINERD_LIMIT: Duration = Duration::from_secs(30);
const KUBELET_LIMIT: Duration = Duration::from_secs(60);
const KUBE_PROXY_LIMIT: Duration = Duration::from_secs(60);
const DEFINITIONS_LIMIT: Duration = Duration::from_secs(60);

/// The options of a [`Node`].
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    families: Families,
    api: ApiServerBuilder,
    definitions: Vec<String>,
}

impl Default for NodeBuilder {
    fn default() -> Self {
        Self { families: Families::Ipv4, api: ApiServer::builder(), definitions: Vec::new() }
    }
}

impl NodeBuilder {
    /// The address families of pods and Services; IPv4 by default.
    #[must_use]
    pub fn families(mut self, families: Families) -> Self {
        self.families = families;
        self
    }

    /// As [`ApiServerBuilder::feature_gate`].
    #[must_use]
    pub fn feature_gate(mut self, gate: &str, on: bool) -> Self {
        self.api = self.api.feature_gate(gate, on);
        self
    }

    /// As [`ApiServerBuilder::audit`].
    #[must_use]
    pub fn audit(mut self, level: AuditLevel) -> Self {
        self.api = self.api.audit(level);
        self
    }

    /// As [`ApiServerBuilder::flag`].
    #[must_use]
    pub fn api_server_flag(mut self, flag: &str) -> Self {
        self.api = self.api.flag(flag);
        self
    }

    /// A manifest of CustomResourceDefinitions that are served before the controllers start.
    ///
    /// A garbage collector that learns of a kind later cannot look up owners of that kind, and
    /// retries after 5 ms, 10 ms and so on up to 1000 s (`attemptToDeleteWorker` of the Kubernetes
    /// controller manager).
    #[must_use]
    pub fn custom_resource_definitions(mut self, manifest: String) -> Self {
        self.definitions.push(manifest);
        self
    }

    /// Starts everything and waits until a pod could run: about ten seconds. Needs root.
    ///
    /// # Errors
    ///
    /// When a part does not become ready; the error quotes its log.
    pub fn start(self) -> Result<Node> {
        count_cluster("node")?;
        let families = self.families;
        let bed = Arc::new(Bed::make()?);
        let sandbox = Sandbox::open(&bed, families)?;
        // These two do not depend on each other, so they start in parallel.
        let (containerd, api) = thread::scope(|scope| {
            let containerd = scope.spawn(|| start_containerd(&bed, &sandbox, families));
            let api = self.start_api_server(&bed, &sandbox);
            (containerd.join(), api)
        });
        let containerd = containerd.map_err(|_| anyhow!("starting containerd panicked"))??;
        let api = api?;
        serve(&api, &self.definitions)?;
        let control = start_control_plane(&bed, &sandbox, families)?;
        write_kubelet_files(&bed, &api)?;
        let kubelet = start_kubelet(&bed, &sandbox, families)?;
        let node = Node::new(kubelet, control, containerd, sandbox, api, bed, families);
        node.await_ready()?;
        Ok(node)
    }

    fn start_api_server(&self, bed: &Arc<Bed>, sandbox: &Sandbox) -> Result<ApiServer> {
        let families = self.families;
        let address = *families.node_addresses().first().context("a node has an address")?;
        let (certificate, key) = (bed.path().join("admin.crt"), bed.path().join("admin.key"));
        self.api
            .clone()
            .bind(families.any_address().parse()?)
            .flag("--kubelet-preferred-address-types=InternalIP")
            .flag(&format!("--kubelet-client-certificate={}", certificate.display()))
            .flag(&format!("--kubelet-client-key={}", key.display()))
            .place(Place {
                network: sandbox.network(),
                port: Some(6443),
                advertised: Some(address.parse()?),
                services: families.services().into_iter().map(str::to_owned).collect(),
                bed: Some(Arc::clone(bed)),
            })
            .start()
    }
}

/// Applies definitions, and waits until the API server's discovery lists their resources.
fn serve(api: &ApiServer, definitions: &[String]) -> Result<()> {
    for manifest in definitions {
        api.apply(manifest)?;
    }
    let defined = api.kubectl(&["get", "customresourcedefinitions", "-o=name"])?;
    let names = || defined.lines().filter_map(|line| line.rsplit('/').next());
    until("the custom resources are served", DEFINITIONS_LIMIT, || {
        let served = api.kubectl(&["api-resources", "--cached=false", "-o=name"])?;
        let is_served = |name: &str| served.lines().any(|line| line == name);
        Ok(names().all(is_served).then_some(()))
    })
}

fn start_containerd(bed: &Bed, sandbox: &Sandbox, families: Families) -> Result<Process> {
    let pause = images::pause()?;
    let config = bed.write("containerd.toml", &settings::containerd(bed.path(), &pause.name))?;
    bed.subdirectory("cni")?;
    bed.write("cni/pods.conflist", &settings::cni(bed.path(), families).to_string())?;
    let mut command = sandbox.tied("containerd");
    command.arg("--config").arg(config);
    let log = bed.path().join("containerd.log");
    let mut containerd = Process::spawn("containerd", command, &log)?;
    until("containerd answers", CONTAINERD_LIMIT, || {
        containerd.must_run()?;
        let asked = ctr(bed.path()).arg("version").output().context("running ctr")?;
        Ok(asked.status.success().then_some(()))
    })
    .map_err(|error| containerd.failure(&error.to_string()))?;
    import(bed.path(), &pause)?;
    import(bed.path(), &images::busybox()?)?;
    Ok(containerd)
}

pub(super) fn import(bed: &Path, image: &Image) -> Result<()> {
    let output = ctr(bed)
        .args(["--namespace=k8s.io", "images", "import"])
        .arg(&image.archive)
        .output()
        .context("running ctr")?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("importing {} from {}: {errors}", image.name, image.archive.display());
    }
    Ok(())
}

fn ctr(bed: &Path) -> Command {
    let mut command = Command::new("ctr");
    command.arg("--address").arg(bed.join("containerd.sock"));
    command
}

fn start_control_plane(bed: &Bed, sandbox: &Sandbox, families: Families) -> Result<Vec<Process>> {
    let path = |name: &str| bed.path().join(name).display().to_string();
    let kubeconfig = format!("--kubeconfig={}", path("admin.kubeconfig"));
    let config = settings::kube_proxy(bed.path(), families).to_string();
    let config = bed.write("kube-proxy.json", &config)?;
    let components = [
        (
            "kube-controller-manager",
            vec![
                kubeconfig.clone(),
                "--leader-elect=false".to_owned(),
                "--use-service-account-credentials=true".to_owned(),
                format!("--service-account-private-key-file={}", path("accounts.key")),
                format!("--root-ca-file={}", path("ca.crt")),
                format!("--cluster-signing-cert-file={}", path("ca.crt")),
                format!("--cluster-signing-key-file={}", path("ca.key")),
                format!("--cluster-cidr={}", families.pods().join(",")),
            ],
        ),
        ("kube-scheduler", vec![kubeconfig, "--leader-elect=false".to_owned()]),
        ("kube-proxy", vec![format!("--config={}", config.display())]),
    ];
    let start = |(name, flags): (&str, Vec<String>)| {
        let mut command = sandbox.network().tied(kube_binary()?);
        command.arg(name).args(flags).current_dir(bed.path());
        Process::spawn(name, command, &bed.path().join(format!("{name}.log")))
    };
    components.into_iter().map(start).collect()
}

fn write_kubelet_files(bed: &Bed, api: &ApiServer) -> Result<()> {
    let identity = api.authority().client(&format!("system:node:{NODE}"), "system:nodes")?;
    let certificate = bed.write("node.crt", &identity.cert_pem)?;
    let key = bed.write("node.key", &identity.key_pem)?;
    let user = json!({ "client-certificate": certificate, "client-key": key });
    let kubeconfig = bed.path().join("node.kubeconfig");
    write_kubeconfig(&kubeconfig, &api.url(), &api.ca_file(), &user)?;
    // There is no DNS server here. A machine's own settings would send pods to one.
    bed.write("resolv.conf", "options timeout:1 attempts:1\n")?;
    let config = settings::kubelet(bed.path(), &bed.make_cgroup()?);
    bed.write("kubelet.json", &config.to_string())?;
    Ok(())
}

pub(super) fn start_kubelet(bed: &Bed, sandbox: &Sandbox, families: Families) -> Result<Process> {
    let path = |name: &str| bed.path().join(name).display().to_string();
    let mut command = sandbox.tied(kube_binary()?);
    command.arg("kubelet").args([
        format!("--config={}", path("kubelet.json")),
        format!("--kubeconfig={}", path("node.kubeconfig")),
        format!("--root-dir={}", path("kubelet")),
        format!("--cert-dir={}", path("kubelet/pki")),
        format!("--hostname-override={NODE}"),
        format!("--node-ip={}", families.node_addresses().join(",")),
    ]);
    Process::spawn("kubelet", command, &bed.path().join("kubelet.log"))
}

/// Waits until this kubelet, asked through the API server, knows all its pods: before that it
/// refuses `exec` and `logs`. The node's condition may be an earlier kubelet's.
pub(super) fn await_kubelet(api: &ApiServer) -> Result<()> {
    let count = |path: &str| -> Option<usize> {
        let pods = api.client().get(path).ok()?.json().ok()?;
        // An empty list may be null.
        Some(pods["items"].as_array().map_or(0, Vec::len))
    };
    let known = format!("/api/v1/nodes/{NODE}/proxy/pods");
    let all = format!("/api/v1/pods?fieldSelector=spec.nodeName={NODE}");
    until("the kubelet knows its pods", KUBELET_LIMIT, || {
        let known = count(&known);
        Ok((known.is_some() && known == count(&all)).then_some(()))
    })
}

/// Waits for its rules: without them a pod's first connection to a Service would be refused.
pub(super) fn await_kube_proxy(sandbox: &Sandbox, api: &ApiServer) -> Result<()> {
    let health = Client::new("http://127.0.0.1:10256", api.ca_pem(), "", &sandbox.network())?;
    until("kube-proxy has written its rules", KUBE_PROXY_LIMIT, || {
        Ok(health.get("/healthz").is_ok_and(|answer| answer.status == 200).then_some(()))
    })
}
