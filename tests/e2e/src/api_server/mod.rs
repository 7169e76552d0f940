//! etcd and kube-apiserver, without a node.

mod account;
mod audit;
mod behind;
mod builder;
mod client;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::Signal;

use self::behind::Behind;
pub(crate) use self::builder::Place;
pub use self::{
    account::{Rule, ServiceAccount},
    audit::{AuditEntry, AuditLevel, AuditLog, AuditObject, AuditReader, AuditStatus, AuditUser},
    builder::ApiServerBuilder,
    client::{Client, Response},
};
use crate::{
    bed::Bed,
    builds::kube_binary,
    kubectl::Kubectl,
    pki::Authority,
    port::ReservedPort,
    programs::{Network, Process, until},
};

/// The time limit until the API server is ready, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// A running API server with its etcd. Dropping it ends both and removes their files.
pub struct ApiServer {
    // Dropped in this order: processes before their resources.
    server: Mutex<Option<Process>>,
    etcd: Arc<Process>,
    /// The line on which this server is behind. `None` if it speaks with etcd itself.
    behind: Option<Behind>,
    /// The name of its log file; the name of its audit log derives from it.
    name: String,
    flags: Vec<String>,
    address: SocketAddr,
    network: Network,
    trust: Arc<Trust>,
    client: Client,
    kubectl: Kubectl,
    /// Its port while it restarts. `None` in a network of its own.
    _port: Option<ReservedPort>,
    bed: Arc<Bed>,
}

/// The cluster's CA and its administrator.
struct Trust {
    authority: Authority,
    ca_pem: String,
    admin_token: String,
}

impl ApiServer {
    /// A builder with defaults for all options.
    #[must_use]
    pub fn builder() -> ApiServerBuilder {
        ApiServerBuilder::default()
    }

    /// An API server with the defaults: IPv4 loopback, all feature gates as released.
    ///
    /// # Errors
    ///
    /// When it does not become ready; the error quotes its log.
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// Another server of the same cluster and the same etcd. It has an audit log of its own; kubectl
    /// and kubeconfigs use the first server.
    ///
    /// # Errors
    ///
    /// When it does not become ready; the error quotes its log.
    pub fn beside(&self) -> Result<Self> {
        builder::beside(self)
    }

    /// Delays everything that this server receives from etcd by `time`, as if it were short of CPU.
    /// (To become ready a server asks hundreds of times in turn, so it cannot be behind then.)
    ///
    /// # Errors
    ///
    /// If [`Self::next to`] did not start it.
    pub fn fall_behind(&self, time: Duration) -> Result<()> {
        self.behind.as_ref().context("this server speaks with etcd itself")?.set(time);
        Ok(())
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `https://HOST:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The CA that issued its serving certificate and its clients' certificates, PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.trust.ca_pem
    }

    /// The file of [`Self::ca_pem`].
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.bed.path().join("ca.crt")
    }

    /// The authority itself, to issue more certificates that this cluster trusts.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.trust.authority
    }

    /// A bearer token of group `system:masters`.
    #[must_use]
    pub fn admin_token(&self) -> &str {
        &self.trust.admin_token
    }

    /// The files of a client certificate of group `system:masters` and of its key.
    #[must_use]
    pub fn admin_certificate(&self) -> (PathBuf, PathBuf) {
        (self.bed.path().join("admin.crt"), self.bed.path().join("admin.key"))
    }

    /// The administrator's kubeconfig, by client certificate.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.bed.path().join("admin.kubeconfig")
    }

    /// A directory for a test's own files, removed with the cluster.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.bed.path()
    }

    /// The network in which [`Self::address`] is.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Requests by the administrator.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// kubectl of the administrator.
    #[must_use]
    pub fn kubectl_client(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Runs kubectl as the administrator and returns its output.
    ///
    /// # Errors
    ///
    /// When it fails; the error quotes its stderr.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl.run(args)
    }

    /// Applies a manifest as the administrator.
    ///
    /// # Errors
    ///
    /// As [`Self::kubectl`].
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.kubectl.run_with_input(&["apply", "-f", "-"], manifest)
    }

    /// The audit log of the server.
    #[must_use]
    pub fn audit(&self) -> AuditLog {
        AuditLog::new(self.bed.path().join(builder::audit_log(&self.name)))
    }

    /// The process id of the API server, while it runs.
    #[must_use]
    pub fn server_pid(&self) -> Option<u32> {
        self.server().as_ref().map(Process::id)
    }

    /// The process id of etcd.
    #[must_use]
    pub fn etcd_pid(&self) -> u32 {
        self.etcd.id()
    }

    /// Freezes the server (SIGSTOP): connections stay open, without responses.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn pause(&self) -> Result<()> {
        let server = self.server();
        let server = server.as_ref().context("the API server is stopped")?;
        server.signal(Signal::SIGSTOP)?;
        server.await_pause()
    }

    /// Ends [`Self::pause`].
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn resume(&self) -> Result<()> {
        let server = self.server();
        server.as_ref().context("the API server is stopped")?.signal(Signal::SIGCONT)
    }

    /// Ends the server by SIGTERM, as a rolling update does; etcd stays.
    ///
    /// # Errors
    ///
    /// When it has not ended after 60 s.
    pub fn stop(&self) -> Result<()> {
        self.server().take().map_or(Ok(()), |server| server.stop().map(drop))
    }

    /// Ends the server by SIGKILL; etcd stays.
    ///
    /// # Errors
    ///
    /// When it cannot be killed.
    pub fn kill(&self) -> Result<()> {
        self.server().take().map_or(Ok(()), |server| server.kill().map(drop))
    }

    /// Starts the server again, on the same port with the same data, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// When it runs already, or does not become ready.
    pub fn start_again(&self) -> Result<()> {
        self.start_again_with(&[])
    }

    /// [`Self::start_again`] with more flags, as `--name=value`, until it is stopped.
    ///
    /// # Errors
    ///
    /// As [`Self::start_again`].
    pub fn start_again_with(&self, more: &[&str]) -> Result<()> {
        let mut server = self.server();
        if server.is_some() {
            return Err(anyhow!("the API server runs already"));
        }
        *server = Some(self.launch(more)?);
        self.await_ready(server)
    }

    /// Compacts etcd at its current revision and returns that revision: a list at an older
    /// resourceVersion with `Exact`, or with an older continue token, gets 410. (A watch that the
    /// server's cache can still serve does not.)
    ///
    /// # Errors
    ///
    /// When etcd refuses.
    pub fn compact(&self) -> Result<u64> {
        let list = self.client.get("/api/v1/namespaces?limit=1")?.json()?;
        let revision = list["metadata"]["resourceVersion"]
            .as_str()
            .context("the list of namespaces has no resourceVersion")?;
        let output = Command::new(kube_binary()?)
            .args(["etcd-compact", &builder::etcd_url(&self.bed), revision])
            .output()?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(anyhow!("compacting etcd at {revision}: {errors}"));
        }
        Ok(revision.parse()?)
    }

    pub(crate) fn bed(&self) -> &Bed {
        &self.bed
    }

    fn launch(&self, more: &[&str]) -> Result<Process> {
        let mut command = self.network.tied(kube_binary()?);
        command.arg("kube-apiserver").args(&self.flags).args(more).current_dir(self.bed.path());
        let log = self.bed.path().join(format!("{}.log", self.name));
        Process::spawn("kube-apiserver", command, &log)
    }

    /// Waits for `/readyz`, and for the namespace `default`: it is created by a loop that `/readyz`
    /// does not wait for.
    fn await_ready(&self, mut server: MutexGuard<'_, Option<Process>>) -> Result<()> {
        let server = server.as_mut().context("the API server is stopped")?;
        let answers =
            |path: &str| matches!(self.client.get(path), Ok(response) if response.status == 200);
        let ready = until("the API server is ready", READY_LIMIT, || {
            server.must_run()?;
            Ok((answers("/readyz") && answers("/api/v1/namespaces/default")).then_some(()))
        });
        ready.map_err(|error| server.failure(&error.to_string()))
    }

    fn server(&self) -> MutexGuard<'_, Option<Process>> {
        // A poisoned lock holds a process or `None`: both are valid.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
