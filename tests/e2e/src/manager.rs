//! A replica of the real manager, outside of the cluster, in front of an [`ApiServer`].

use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    api_server::{ApiServer, Client, Response},
    port::ReservedPort,
    programs::{Network, Process, tied, until},
    proxy::ctrlmesh_binary,
};

/// The time limit of a start, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// A replica of the manager. Dropping it kills it.
#[derive(Debug)]
pub struct Manager {
    name: String,
    process: Option<Process>,
    kubeconfig: PathBuf,
    cluster_ca: PathBuf,
    port: ReservedPort,
    admin: ReservedPort,
    flags: Vec<String>,
    directory: PathBuf,
    starts: u32,
}

impl Manager {
    /// The namespace of its objects.
    pub const NAMESPACE: &str = "ctrlmesh-system";

    /// Starts a replica with the rights of `deploy/base`, which was applied, and waits until it
    /// answers probes.
    ///
    /// # Errors
    ///
    /// When it does not; the error quotes its log.
    pub fn start(api: &ApiServer, name: &str, flags: &[&str]) -> Result<Self> {
        Self::start_at(api, &api.url(), name, flags)
    }

    /// [`Self::start`] with another way to the API server, whose certificate its CA has signed.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_at(api: &ApiServer, url: &str, name: &str, flags: &[&str]) -> Result<Self> {
        let directory = api.bed().subdirectory(&format!("manager-{name}"))?;
        let token = api.token(Self::NAMESPACE, "ctrlmesh-manager")?;
        let mut manager = Self {
            name: name.to_owned(),
            process: None,
            kubeconfig: api.kubeconfig_for(url, api.ca_pem(), &token)?,
            cluster_ca: api.ca_file(),
            port: ReservedPort::of_loopbacks()?,
            admin: ReservedPort::of_loopbacks()?,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            directory,
            starts: 0,
        };
        manager.start_again()?;
        Ok(manager)
    }

    /// Starts it, after a kill too.
    ///
    /// # Errors
    ///
    /// When it does not answer; the error quotes its log.
    pub fn start_again(&mut self) -> Result<()> {
        self.starts += 1;
        let mut command = tied(ctrlmesh_binary()?);
        command
            .args(["manager", "--secret=ctrlmesh-trust", "--init-image=localhost/ctrlmesh-init:1"])
            .args(["--proxy-image=localhost/ctrlmesh:1"])
            .arg(format!("--cluster-ca={}", self.cluster_ca.display()))
            .arg(format!("--listen=127.0.0.1:{}", self.port.number()))
            .arg(format!("--admin=127.0.0.1:{}", self.admin.number()))
            .arg(format!("--advertise=localhost:{}", self.port.number()))
            .args(&self.flags)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("POD_NAMESPACE", Self::NAMESPACE)
            .env("POD_NAME", &self.name);
        self.process = Some(Process::spawn("manager", command, &self.log_file())?);
        until("the manager answers probes", START_LIMIT, || {
            self.process.as_mut().context("it runs")?.must_run()?;
            Ok(self.admin_page("/healthz").is_ok().then_some(()))
        })
    }

    /// Starts it with one flag more, from now on.
    ///
    /// # Errors
    ///
    /// As [`Self::start_again`].
    pub fn start_again_with(&mut self, flag: &str) -> Result<()> {
        self.flags.push(flag.to_owned());
        self.start_again()
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join(format!("log-{}", self.starts))
    }

    /// Its log since its last start.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.log_file())?)
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    ///
    /// When it does not end.
    pub fn kill(&mut self) -> Result<()> {
        let process = self.process.take().context("it does not run")?;
        process.kill().map(drop)
    }

    /// Asks it to end, and waits for that. Fails if it does not end well.
    ///
    /// # Errors
    ///
    /// When it does not end, or with another exit code than 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.process.take().context("it does not run")?.stop()?;
        ensure!(status.success(), "{status}: {}", self.log()?);
        Ok(())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("it does not run")?.signal(signal)
    }

    /// Its process. `None` if it does not run.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// The address of admission and enrolment.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.number()))
    }

    /// A page of the admin port: its code and text.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn admin_page(&self, path: &str) -> Result<(u16, String)> {
        let url = format!("http://127.0.0.1:{}{path}", self.admin.number());
        let agent = ureq::Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .timeout_global(Some(START_LIMIT))
            .build()
            .new_agent();
        let mut answer = agent.get(&url).call().context(url)?;
        Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?))
    }

    /// The value of a series, 0 if there is none.
    ///
    /// # Errors
    ///
    /// When the metrics cannot be read.
    pub fn metric(&self, series: &str) -> Result<f64> {
        let (_, text) = self.admin_page("/metrics")?;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(Ok(0.0), |value| Ok(value.trim().parse()?))
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    ///
    /// When it is not in time; the error has what it says.
    pub fn wait_ready(&self) -> Result<()> {
        let mut last = String::new();
        let ready = until("the manager is ready", START_LIMIT, || {
            let (code, text) = self.admin_page("/readyz")?;
            last = text;
            Ok((code == 200).then_some(()))
        });
        ready.with_context(|| format!("{last}\n{}", self.log().unwrap_or_default()))
    }

    /// Asks it for a leaf, as a proxy does: with these CAs of its port, a token, and a certificate
    /// request.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn ask_for_leaf(&self, cas: &str, token: &str, request: &[u8]) -> Result<Response> {
        let base = format!("https://localhost:{}", self.port.number());
        let client = Client::new(&base, cas, token, &Network::Own)?;
        client.request("POST", "/v1/leaf", "application/pkcs10", request.to_vec())
    }

    /// The webhooks of `deploy/base` with the address of this replica in place of a Service's.
    ///
    /// # Errors
    ///
    /// When they are not there, or cannot be replaced.
    pub fn receive_reviews(&self, api: &ApiServer) -> Result<()> {
        for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
            self.receive_reviews_of(api, kind)?;
        }
        Ok(())
    }

    fn receive_reviews_of(&self, api: &ApiServer, kind: &str) -> Result<()> {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}/ctrlmesh");
        let mut configuration = api.client().get(&path)?.json()?;
        let port = self.port.number();
        for webhook in configuration["webhooks"].as_array_mut().context("webhooks")? {
            let config = &mut webhook["clientConfig"];
            let of_service = config["service"]["path"].as_str();
            let of_url = config["url"].as_str().and_then(|url| url.split_once("localhost:"));
            let of_url = of_url.and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..]));
            let path = of_service.or(of_url).context("a path")?;
            let url = format!("https://localhost:{port}{path}");
            *config = json!({ "url": url });
        }
        // Whatever the leader writes meanwhile: a patch names no version.
        let patch = json!({ "webhooks": configuration["webhooks"].take() }).to_string();
        let kind = "application/merge-patch+json";
        api.client().request("PATCH", &path, kind, patch.into_bytes())?.json().map(drop)
    }
}
