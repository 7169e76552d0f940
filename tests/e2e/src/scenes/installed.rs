//! The chart on a node, as a platform team installs it, and the operator as a StatefulSet.
//!
//! 1. [`Installed::start`]: a node, our images, the operator's needs; `helm install --wait`. Or
//!    [`Installed::start_base`], by kubectl alone.
//! 2. [`Installed::label`]: the sample operator, a StatefulSet of four with our label.
//! 3. [`Installed::draw`]: a ShardingConfig for some of its pods.
//! 4. The test works: [`Installed::shards`] has the last handlers.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::shards::{NAMESPACE, Shards, config, of_namespaces, of_teams, of_the_operators};
use crate::{Binaries, Node, NodeBuilder, builds::helm_binary, images, until};

/// The time limit of an installation.
const INSTALL_LIMIT: &str = "--timeout=120s";
/// The longest that a replica takes to end: its grace period, and some.
const ENDING: Duration = Duration::from_secs(60);

/// The scene; see the module.
pub struct Installed {
    shards: Shards,
}

/// The objects of a shard.
#[derive(Clone, Copy, Debug)]
pub enum Boundary<'a> {
    /// Those of these teams, by their labels.
    Teams(&'a [&'a str]),
    /// Those of the namespaces whose hash is in this range, in the notation of a ShardingConfig.
    Namespaces(&'a str, &'a str),
}

impl Installed {
    /// The namespace of the release.
    pub const NAMESPACE: &str = "ctrlmesh-system";
    /// The name of a root.
    pub const ROOT: &str = "demo-root";
    /// The pods of the StatefulSet.
    pub const PODS: [&str; 4] =
        ["demo-operator-0", "demo-operator-1", "demo-operator-2", "demo-operator-3"];

    /// Starts a node with the operator's needs, and installs the chart.
    ///
    /// # Errors
    ///
    /// When a part does not start; the error has what the release's pods say.
    pub fn start(binaries: Binaries, more: &[&str]) -> Result<Self> {
        Self::start_on(binaries, Node::builder(), more)
    }

    /// [`Self::start`] on a given node.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_on(binaries: Binaries, node: NodeBuilder, more: &[&str]) -> Result<Self> {
        let installed = Self::bare(binaries, node)?;
        installed.helm("install", &[&["--create-namespace"], more].concat())?;
        Ok(installed)
    }

    /// Starts a node with our images and the operator's needs, on which nothing is installed.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn bare(binaries: Binaries, node: NodeBuilder) -> Result<Self> {
        Ok(Self { shards: Shards::bare_on(binaries, node)? })
    }

    /// Starts a node with the operator's needs, and applies `deploy/base` as it stands.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_base(binaries: Binaries) -> Result<Self> {
        let installed = Self::bare(binaries, Node::builder())?;
        for (image, name) in [(images::PROXY, "ctrlmesh"), (images::INIT, "ctrlmesh-init")] {
            let version = env!("CARGO_PKG_VERSION");
            let name = format!("registry.example.com/{name}:{version}");
            installed.name_image(image, &name)?;
        }
        installed.apply_base()?;
        Ok(installed)
    }

    /// Applies `deploy/base`, and waits until the manager is ready.
    fn apply_base(&self) -> Result<()> {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/base");
        let base = base.to_str().context("a path in UTF-8")?;
        let node = self.node();
        node.kubectl(&["apply", "--server-side", "-k", base])?;
        let in_namespace =
            |args: &[&str]| node.kubectl(&[args, &["--namespace", Self::NAMESPACE]].concat());
        let service = ["get", "service", "ctrlmesh-manager", "-o", "jsonpath={.spec.clusterIP}"];
        let address = format!("CTRLMESH_ADVERTISE={}:443", in_namespace(&service)?);
        in_namespace(&["set", "env", "deployment/ctrlmesh-manager", &address])?;
        let rollout = ["rollout", "status", "deployment/ctrlmesh-manager", "--timeout=120s"];
        in_namespace(&rollout).map_err(|error| error.context(self.told()))?;
        self.until_replaced()
    }

    /// Waits until the former replicas of the manager are gone: one that is ending answers reviews
    /// still, by what it was told.
    ///
    /// # Errors
    ///
    /// When they are not in time.
    pub fn until_replaced(&self) -> Result<()> {
        until("the former replicas are gone", ENDING, || {
            let ending = "jsonpath={.items[*].metadata.deletionTimestamp}";
            let replicas = "--selector=app.kubernetes.io/component=manager";
            let of = ["--namespace", Self::NAMESPACE, "get", "pods", replicas, "-o", ending];
            Ok(self.node().kubectl(&of)?.trim().is_empty().then_some(()))
        })
    }

    /// Waits until the API server reaches the manager: a Service has no endpoint for a moment after its pods
    /// are ready.
    ///
    /// # Errors
    ///
    /// When it does not in time.
    pub fn until_reached(&self) -> Result<()> {
        let path =
            "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/default/shardingconfigs?dryRun=All";
        let config = json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
            "kind": "ShardingConfig",
            "metadata": { "name": "any", "namespace": "default" },
            "spec": { "selector": { "matchLabels": { "any": "pod" } } },
        });
        until("the API server reaches the manager", ENDING, || {
            let body = config.to_string().into_bytes();
            let answer =
                self.node().api().client().request("POST", path, "application/json", body)?;
            Ok((answer.status == 201).then_some(()))
        })
    }

    /// The operator's objects, and those that it makes.
    #[must_use]
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Installs or upgrades the release, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// When it is not; the error has what the release's pods say.
    pub fn helm(&self, verb: &str, more: &[&str]) -> Result<String> {
        self.helm_with(&Self::chart(), verb, more)
    }

    /// The chart.
    #[must_use]
    pub fn chart() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/chart")
    }

    /// [`Self::helm`] with another chart.
    ///
    /// # Errors
    ///
    /// As [`Self::helm`].
    pub fn helm_with(&self, chart: &Path, verb: &str, more: &[&str]) -> Result<String> {
        let [manager, manager_tag] = split(images::PROXY)?;
        let [init, init_tag] = split(images::INIT)?;
        let service = self.node().families().manager();
        let mut helm = self.helm_command()?;
        helm.args([verb, "ctrlmesh"]).arg(chart).args(["--wait", INSTALL_LIMIT]);
        for value in [
            format!("manager.image.repo={manager}"),
            format!("manager.image.tag={manager_tag}"),
            format!("init.image.repo={init}"),
            format!("init.image.tag={init_tag}"),
            format!("manager.address={}", SocketAddr::new(service, 443)),
            format!("manager.clusterIP={service}"),
        ] {
            helm.args(["--set", &value]);
        }
        helm.args(more);
        run(&mut helm).map_err(|error| error.context(self.told()))
    }

    /// Helm for this cluster, in the release's namespace.
    ///
    /// # Errors
    ///
    /// When it cannot be installed.
    pub fn helm_command(&self) -> Result<Command> {
        let mut helm = self.node().network().command(helm_binary()?);
        let directory = self.node().api().directory();
        helm.arg("--kubeconfig").arg(self.node().api().kubeconfig());
        helm.args(["--namespace", Self::NAMESPACE]);
        for (name, of) in [
            ("HELM_CACHE_HOME", "helm-cache"),
            ("HELM_CONFIG_HOME", "helm-config"),
            ("HELM_DATA_HOME", "helm-data"),
        ] {
            helm.env(name, directory.join(of));
        }
        Ok(helm)
    }

    /// The descriptions and logs of the pods of the release, for an error.
    #[must_use]
    pub fn told(&self) -> String {
        let selector = "--selector=app.kubernetes.io/component=manager";
        let ask = |args: &[&str]| {
            let args = [&["--namespace", Self::NAMESPACE], args, &[selector]].concat();
            self.node().kubectl(&args).unwrap_or_else(|error| error.to_string())
        };
        let logs = ["logs", "--all-containers", "--prefix", "--tail=30"];
        format!("{}\n{}", ask(&["describe", "pods"]), ask(&logs))
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Node {
        self.shards.node()
    }

    /// Applies the sample operator: a StatefulSet of four, whose pod template has our label and
    /// nothing else of ours.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn label(&self) -> Result<()> {
        self.node().apply(&self.shards.stateful_set()?.to_string()).map(drop)
    }

    /// Runs this many pods of the sample operator, as [`Self::label`] does four.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn run(&self, replicas: u32) -> Result<()> {
        let mut set = self.shards.stateful_set()?;
        set["spec"]["replicas"] = json!(replicas);
        self.node().apply(&set.to_string()).map(drop)
    }

    /// Runs this many pods of the sample operator as a Deployment, which replaces one after the other.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn deploy(&self, replicas: u32) -> Result<()> {
        self.node().apply(&self.deployment(replicas)?.to_string()).map(drop)
    }

    /// Runs the sample operator as a Deployment that knows nothing of us, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// When the API server refuses, or it is not ready in time.
    pub fn deploy_bare(&self, replicas: u32) -> Result<()> {
        let mut deployment = self.deployment(replicas)?;
        deployment["spec"]["strategy"] = json!({ "type": "Recreate" });
        let labels = deployment.pointer_mut("/spec/template/metadata/labels");
        let labels = labels.and_then(Value::as_object_mut).context("labels")?;
        labels.remove("ctrlmesh.kusionstack.io/enable-proxy");
        self.node().apply(&deployment.to_string())?;
        let rollout = ["rollout", "status", "deployment/demo-operator", "--timeout=120s"];
        self.node().kubectl(&[&["--namespace", NAMESPACE], &rollout[..]].concat()).map(drop)
    }

    fn deployment(&self, replicas: u32) -> Result<Value> {
        let mut deployment = self.shards.stateful_set()?;
        deployment["kind"] = json!("Deployment");
        let spec = deployment["spec"].as_object_mut().context("a spec")?;
        spec.remove("serviceName");
        spec.remove("updateStrategy");
        spec.insert("replicas".to_owned(), json!(replicas));
        let rolling = json!({ "maxSurge": 1, "maxUnavailable": 0 });
        spec.insert("strategy".to_owned(), json!({ "rollingUpdate": rolling }));
        // On a busy machine a probe may take long. A pod that was ready is to stay so.
        let probe = &mut deployment["spec"]["template"]["spec"]["containers"][0]["readinessProbe"];
        probe["timeoutSeconds"] = json!(10);
        probe["failureThreshold"] = json!(6);
        Ok(deployment)
    }

    /// Draws this many shards of one pod each by a root, [`Self::ROOT`].
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn draw_root(&self, size: u32) -> Result<()> {
        self.draw_root_beside(&Value::Null, size, "Even")
    }

    /// [`Self::draw_root`] next to a canary, null is none, by this weight of namespaces.
    ///
    /// # Errors
    ///
    /// As [`Self::draw_root`].
    pub fn draw_root_beside(&self, canary: &Value, size: u32, weight: &str) -> Result<()> {
        let auto = json!({
            "shardingSize": size, "everyShardReplicas": 1, "by": "Namespace", "weight": weight,
        });
        self.draw_root_of("StatefulSet", canary, &auto)
    }

    /// Draws the shards of a workload of this kind by a root, [`Self::ROOT`].
    ///
    /// # Errors
    ///
    /// As [`Self::draw_root`].
    pub fn draw_root_of(&self, kind: &str, canary: &Value, auto: &Value) -> Result<()> {
        let mut root = config(Self::ROOT, &Value::Null, &Value::Null);
        root["spec"] = json!({
            "controller": { "leaderElectionName": "demo-operator" },
            "root": {
                "prefix": "demo",
                "target": { "kind": kind, "name": "demo-operator" },
                "canary": canary,
                "auto": auto,
                "resourceSelector": [of_the_operators(json!({}))],
            },
        });
        self.node().apply(&root.to_string()).map(drop)
    }

    /// Waits until the children of a root are as it says, and open.
    ///
    /// # Errors
    ///
    /// When they are not in time; the error has the root's status.
    pub fn wait_drawn(&self, root: &str, size: usize, limit: Duration) -> Result<()> {
        let path = format!(
            "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{NAMESPACE}/shardingconfigs/{root}"
        );
        let mut last = Value::Null;
        let drawn = until("the root is laid out", limit, || {
            let root = self.node().api().client().get(&path)?.json()?;
            last = root["status"].clone();
            let children = last["root"]["childShardingConfigs"].as_array().map_or(0, Vec::len);
            let mut all = last["conditions"].as_array().into_iter().flatten();
            // Pods that are not scaled down yet are in no shard.
            let is_laid_out = all.any(|one| {
                ["LaidOut", "Surplus"].iter().any(|reason| one["reason"] == *reason)
                    && one["observedGeneration"] == root["metadata"]["generation"]
            });
            Ok((is_laid_out && children == size).then_some(()))
        });
        drawn.map_err(|error| error.context(format!("{last}\n{}", self.told())))
    }

    /// Gives the pods with these indexes the Widgets and ConfigMaps within a boundary.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn draw(&self, shard: &str, indexes: &[&str], boundary: Boundary<'_>) -> Result<()> {
        let config = Self::drawn(shard, indexes, boundary);
        self.node().apply(&config.to_string()).map(drop)
    }

    /// [`Self::draw`], whatever the manager says, or while it is away.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn draw_over(&self, shard: &str, indexes: &[&str], boundary: Boundary<'_>) -> Result<()> {
        let mut config = Self::drawn(shard, indexes, boundary);
        config["metadata"]["labels"] = json!({ "ctrlmesh.kusionstack.io/ignore-validate": "" });
        self.node().apply(&config.to_string()).map(drop)
    }

    fn drawn(shard: &str, indexes: &[&str], boundary: Boundary<'_>) -> Value {
        let key = "apps.kubernetes.io/pod-index";
        let selector =
            json!({ "matchExpressions": [{ "key": key, "operator": "In", "values": indexes }] });
        let limit = of_the_operators(match boundary {
            Boundary::Teams(teams) => of_teams(teams),
            Boundary::Namespaces(from, to) => of_namespaces(from, to),
        });
        config(shard, &selector, &limit)
    }

    /// Waits until a pod is ready.
    ///
    /// # Errors
    ///
    /// When it is not in time; the error quotes its events.
    pub fn wait_ready(&self, pod: &str, limit: Duration) -> Result<()> {
        let waited =
            self.node().wait_for(NAMESPACE, &format!("pod/{pod}"), "condition=Ready", limit);
        waited.map_err(|error| {
            let logs = self.node().logs(NAMESPACE, pod, "ctrlmesh-proxy");
            let logs = logs.unwrap_or_else(|error| error.to_string());
            error.context(format!("{pod} is not ready\n{logs}\n{}", self.told()))
        })
    }

    /// Kills a container's first process by SIGKILL.
    ///
    /// # Errors
    ///
    /// When it has none.
    pub fn kill(&self, pod: &str, container: &str) -> Result<()> {
        self.node().kill_container(&self.container(pod, container)?)
    }

    /// A process of a container, by its id on this machine.
    ///
    /// # Errors
    ///
    /// When it has none.
    pub fn process(&self, pod: &str, container: &str) -> Result<u32> {
        let id = self.container(pod, container)?;
        for process in fs::read_dir("/proc")? {
            let path = process?.path();
            let groups = fs::read_to_string(path.join("cgroup")).unwrap_or_default();
            let name = path.file_name().and_then(|name| name.to_str());
            if groups.contains(&id)
                && let Some(Ok(pid)) = name.map(str::parse)
            {
                return Ok(pid);
            }
        }
        bail!("{container} of {pod} has no process")
    }

    /// The id of a container, as containerd names it.
    fn container(&self, pod: &str, container: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}");
        let object = self.node().api().client().get(&path)?.json()?;
        let lists = ["initContainerStatuses", "containerStatuses"];
        let mut all = lists.iter().filter_map(|list| object["status"][list].as_array()).flatten();
        let status = all.find(|status| status["name"] == container);
        let id = status.and_then(|status| status["containerID"].as_str());
        let id = id.and_then(|id| id.strip_prefix("containerd://")).context("a container")?;
        Ok(id.to_owned())
    }

    /// Gives an image of the node another tag too.
    ///
    /// # Errors
    ///
    /// When it is not there.
    pub fn tag(&self, image: &str, tag: &str) -> Result<()> {
        let [repository, _] = split(image)?;
        self.name_image(image, &format!("{repository}:{tag}"))
    }

    /// Imports the images of these programs, under this tag too.
    ///
    /// # Errors
    ///
    /// When containerd does not take them.
    pub fn import(&self, binaries: &Binaries, tag: &str) -> Result<()> {
        self.shards.mesh().import(binaries)?;
        [images::PROXY, images::INIT].iter().try_for_each(|image| self.tag(image, tag))
    }

    fn name_image(&self, image: &str, name: &str) -> Result<()> {
        let mut ctr = self.node().command("ctr");
        ctr.arg("--address").arg(self.node().api().directory().join("containerd.sock"));
        ctr.args(["--namespace", "k8s.io", "images", "tag"]);
        ctr.args([image, name]);
        let output = ctr.output().context("running ctr")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tagging {image}: {errors}");
        Ok(())
    }

    /// A page of the admin port of a pod's proxy.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn page(&self, pod: &str, page: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:5441/proxy{page}");
        self.node().kubectl(&["get", "--raw", &path])
    }
}

impl Installed {
    /// A client in a pod, with the pod's network and account, as its controller.
    ///
    /// # Errors
    ///
    /// When there is no such pod.
    pub fn client_in(&self, pod: &str) -> Result<PodClient<'_>> {
        let node = self.node();
        let of_pod = |path: &str| {
            let output = format!("jsonpath={path}");
            node.kubectl(&["--namespace", NAMESPACE, "get", "pod", pod, "--output", &output])
        };
        let account = of_pod("{.spec.serviceAccountName}")?;
        let id = of_pod("{.status.containerStatuses[0].containerID}")?;
        let token = node.kubectl(&["--namespace", NAMESPACE, "create", "token", account.trim()])?;
        let server = node.kubectl(&[
            "get",
            "service",
            "kubernetes",
            "--output",
            "jsonpath={.spec.clusterIP}",
        ])?;
        Ok(PodClient {
            node,
            container: id.trim().trim_start_matches("containerd://").to_owned(),
            token: token.trim().to_owned(),
            server: server.trim().to_owned(),
        })
    }

    /// The answer to one request of a pod.
    ///
    /// # Errors
    ///
    /// As [`Self::client_in`] and [`PodClient::request`].
    pub fn request_of(&self, pod: &str, method: &str, path: &str) -> Result<Value> {
        self.client_in(pod)?.request(method, path)
    }

    /// Runs `ctrlmesh handover` about the operator's ring, and returns its output.
    ///
    /// # Errors
    ///
    /// As [`Self::ctrlmesh`].
    pub fn handover(&self, args: &[&str]) -> Result<String> {
        let ring = format!("{NAMESPACE}/demo-operator");
        self.ctrlmesh(&[&["handover", &ring], args].concat())
    }

    /// Runs `ctrlmesh` with these arguments, as the administrator, and returns its output.
    ///
    /// # Errors
    ///
    /// When it fails; the error quotes its stderr.
    pub fn ctrlmesh(&self, args: &[&str]) -> Result<String> {
        let api = self.node().api();
        let mut command = api.network().command(self.shards.mesh().binary());
        let output = command.args(args).env("KUBECONFIG", api.kubeconfig()).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ctrlmesh {args:?}: {}: {errors}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }
}

fn split(image: &str) -> Result<[&str; 2]> {
    let (repository, tag) = image.rsplit_once(':').context("an image has a tag")?;
    Ok([repository, tag])
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().context("running helm")?;
    if !output.status.success() {
        bail!("helm: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A client in a pod.
pub struct PodClient<'n> {
    node: &'n Node,
    container: String,
    token: String,
    server: String,
}

impl PodClient<'_> {
    /// The answer of the API server, or of the proxy, to a request without a body.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn request(&self, method: &str, path: &str) -> Result<Value> {
        let mut curl = self.node.command_beside(&self.container)?;
        // The certificate of the mesh is another test's matter.
        curl.args(["curl", "-sS", "--insecure", "--max-time", "20", "--request", method]);
        curl.arg("--header").arg(format!("Authorization: Bearer {}", self.token));
        curl.arg(format!("https://{}{path}", self.server));
        let output = curl.output().context("running curl")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).with_context(|| format!("{method} {path}: {errors}"))
    }
}
