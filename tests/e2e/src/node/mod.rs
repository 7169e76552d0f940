//! A whole single-node cluster that runs pods.

mod builder;
mod sandbox;
mod settings;

use std::{
    ffi::OsStr,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

pub use self::{builder::NodeBuilder, settings::Families};
use self::{sandbox::Sandbox, settings::NODE};
use crate::{
    api_server::ApiServer,
    bed::Bed,
    builds::Image,
    programs::{Network, Process},
};

/// The time limit for the kubelet to report the node ready, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// A running node with its control plane, in namespaces of its own. Dropping it ends everything and
/// removes all files.
pub struct Node {
    // Dropped in this order: users before the resources that they use.
    kubelet: Mutex<Option<Process>>,
    control: Mutex<Vec<Process>>,
    _containerd: Process,
    sandbox: Sandbox,
    api: ApiServer,
    bed: Arc<Bed>,
    families: Families,
}

impl Node {
    /// A builder with defaults for all options.
    #[must_use]
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// A node with the defaults: IPv4, all feature gates as released. Needs root.
    ///
    /// # Errors
    ///
    /// When a part does not become ready; the error quotes its log.
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// Its API server. The address is inside [`Self::network`]; [`ApiServer::kubectl`],
    /// [`ApiServer::client`] and the audit log work from the test process as they are.
    #[must_use]
    pub fn api(&self) -> &ApiServer {
        &self.api
    }

    /// The node's network: the host side of all pods.
    #[must_use]
    pub fn network(&self) -> Network {
        self.sandbox.network()
    }

    pub(crate) fn families(&self) -> Families {
        self.families
    }

    /// A command in the namespaces of the node (processes, mounts, network), such as `crictl`,
    /// `nft` or `nsenter` into a pod.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.sandbox.command(program)
    }

    /// Runs kubectl as the administrator and returns its output.
    ///
    /// # Errors
    ///
    /// When it fails; the error quotes its stderr.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.api.kubectl(args)
    }

    /// Applies a manifest as the administrator.
    ///
    /// # Errors
    ///
    /// As [`Self::kubectl`].
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.api.apply(manifest)
    }

    /// Waits until `object` (`pod/NAME`, `deployment/NAME`) exists and then for `what`, as in
    /// `kubectl wait --for`: `condition=Ready`, `delete`, `jsonpath={.status.phase}=Failed`.
    ///
    /// # Errors
    ///
    /// When it is not so in time; the error quotes the object's events.
    pub fn wait_for(
        &self,
        namespace: &str,
        object: &str,
        what: &str,
        limit: Duration,
    ) -> Result<()> {
        let timeout = format!("--timeout={}s", limit.as_secs());
        let wait = |what: &str| {
            let what = format!("--for={what}");
            self.kubectl(&["--namespace", namespace, "wait", object, &what, &timeout])
        };
        let waited =
            if what == "delete" { wait(what) } else { wait("create").and_then(|_| wait(what)) };
        waited.map(drop).map_err(|error| {
            let described = self.kubectl(&["--namespace", namespace, "describe", object]);
            error.context(described.unwrap_or_default())
        })
    }

    /// Runs a program in a container and returns its output.
    ///
    /// # Errors
    ///
    /// When it fails; the error quotes its stderr.
    pub fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        program: &[&str],
    ) -> Result<String> {
        let mut args = vec!["--namespace", namespace, "exec", pod, "--container", container, "--"];
        args.extend(program);
        self.kubectl(&args)
    }

    /// The output of a container so far.
    ///
    /// # Errors
    ///
    /// When there is no such container.
    pub fn logs(&self, namespace: &str, pod: &str, container: &str) -> Result<String> {
        self.kubectl(&["--namespace", namespace, "logs", pod, "--container", container])
    }

    /// Imports an image into the node; pods use it with `imagePullPolicy: Never`.
    ///
    /// # Errors
    ///
    /// When containerd refuses it.
    pub fn import_image(&self, image: &Image) -> Result<()> {
        builder::import(self.bed.path(), image)
    }

    /// A command in the network of a container, by the container's id: its arguments are a program's.
    ///
    /// # Errors
    ///
    /// When there is no such container.
    pub fn command_beside(&self, id: &str) -> Result<Command> {
        let mut tasks = self.command("ctr");
        tasks.arg("--address").arg(self.api.directory().join("containerd.sock"));
        let output = tasks.args(["--namespace", "k8s.io", "tasks", "ls"]).output();
        let output = output.context("running ctr")?;
        let tasks = String::from_utf8_lossy(&output.stdout);
        let mut of_id = tasks.lines().filter_map(|line| line.strip_prefix(id));
        let pid = of_id.find_map(|rest| rest.split_whitespace().next());
        let pid = pid.with_context(|| format!("container {id} does not run: {tasks}"))?;
        let mut command = self.command("nsenter");
        command.arg(format!("--net=/proc/{pid}/ns/net")).arg("--");
        Ok(command)
    }

    /// Sends SIGKILL to the first process of a container, by the container's id.
    ///
    /// # Errors
    ///
    /// When there is no such container.
    pub fn kill_container(&self, id: &str) -> Result<()> {
        let mut kill = self.command("ctr");
        kill.arg("--address").arg(self.api.directory().join("containerd.sock"));
        kill.args(["--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id]);
        let output = kill.output().context("running ctr")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "killing {id}: {errors}");
        Ok(())
    }

    /// Ends the kubelet by SIGTERM and starts it again; pods keep running meanwhile.
    ///
    /// # Errors
    ///
    /// When it does not end, or the node does not become ready.
    pub fn restart_kubelet(&self) -> Result<()> {
        let mut kubelet = self.kubelet.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut running) = kubelet.take() {
            running.end_inner(Signal::SIGTERM)?;
        }
        *kubelet = Some(builder::start_kubelet(&self.bed, &self.sandbox, self.families)?);
        drop(kubelet);
        self.await_ready()
    }

    fn new(
        kubelet: Process,
        control: Vec<Process>,
        containerd: Process,
        sandbox: Sandbox,
        api: ApiServer,
        bed: Arc<Bed>,
        families: Families,
    ) -> Self {
        Self {
            kubelet: Mutex::new(Some(kubelet)),
            control: Mutex::new(control),
            _containerd: containerd,
            sandbox,
            api,
            bed,
            families,
        }
    }

    /// Waits until the kubelet reports the node ready and knows its pods. Also waits until the
    /// default ServiceAccount exists and Services have their rules.
    fn await_ready(&self) -> Result<()> {
        let waited = self
            .wait_for("default", &format!("node/{NODE}"), "condition=Ready", READY_LIMIT)
            .and_then(|()| {
                self.wait_for("default", "serviceaccount/default", "create", READY_LIMIT)
            })
            .and_then(|()| builder::await_kubelet(&self.api))
            .and_then(|()| builder::await_kube_proxy(&self.sandbox, &self.api));
        waited.map_err(|error| {
            let mut kubelet = self.kubelet.lock().unwrap_or_else(PoisonError::into_inner);
            let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
            let ended = control.iter_mut().chain(kubelet.as_mut()).find_map(|p| p.must_run().err());
            ended.unwrap_or(error)
        })
    }
}
