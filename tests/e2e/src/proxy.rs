//! The real proxy binary in direct mode, in front of an [`ApiServer`].

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    api_server::{ApiServer, Client},
    kubectl::Kubectl,
    manager::Manager,
    port::ReservedPort,
    programs::{Lines, Network, Process, tied},
};

/// The time limit for the proxy to log its address, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The path of the `ctrlmesh` binary: `$CTRLMESH_BIN`, else `ctrlmesh` of the target directory
/// that the test was built in.
///
/// # Errors
///
/// When it is not there.
pub fn ctrlmesh_binary() -> Result<PathBuf> {
    let path = match env::var_os("CTRLMESH_BIN").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => {
            // target/PROFILE/deps/TEST
            let test = env::current_exe().context("finding the test's own path")?;
            let profile =
                test.ancestors().nth(2).context("the test is not in a target directory")?;
            profile.join("ctrlmesh")
        }
    };
    ensure!(
        path.is_file(),
        "{} is not there: `cargo build --bin ctrlmesh` builds it (scripts/test does), or \
         CTRLMESH_BIN names it",
        path.display()
    );
    Ok(path)
}

/// The options of a [`Proxy`].
#[derive(Debug)]
pub struct ProxyBuilder {
    shard: String,
    policy: String,
    port: Option<ReservedPort>,
    upstream: Option<String>,
    state: bool,
    cluster: Option<(PathBuf, String)>,
    app: String,
    enrolment: Option<(String, PathBuf)>,
    flags: Vec<String>,
    env: Vec<(String, String)>,
}

impl ProxyBuilder {
    /// Gets its certificate from a manager instead of a mesh CA of its own. It uses the files
    /// `ca.crt`, `manager.crt` and `token` of this directory, as in an injected pod.
    #[must_use]
    pub fn enrols_with(mut self, manager: &Manager, directory: &Path) -> Self {
        let address = format!("localhost:{}", manager.address().port());
        self.enrolment = Some((address, directory.to_owned()));
        self
    }

    /// The port of the loopback addresses to listen on, instead of any free one.
    #[must_use]
    pub fn port(mut self, port: ReservedPort) -> Self {
        self.port = Some(port);
        self
    }

    /// `HOST:PORT` of the upstream instead of the API server's address.
    #[must_use]
    pub fn upstream(mut self, host_port: &str) -> Self {
        self.upstream = Some(host_port.to_owned());
        self
    }

    /// Keeps positions over a restart (`--state-dir`).
    #[must_use]
    pub fn keeps_state(mut self) -> Self {
        self.state = true;
        self
    }

    /// Takes the policy from the cluster instead of a file, with this kubeconfig. The proxy acts as
    /// in a pod of `namespace` with the label `app: operator`.
    #[must_use]
    pub fn policy_of_cluster(mut self, kubeconfig: &Path, namespace: &str) -> Self {
        self.cluster = Some((kubeconfig.to_owned(), namespace.to_owned()));
        self
    }

    /// Another value of the pod's label `app`.
    #[must_use]
    pub fn labelled(mut self, app: &str) -> Self {
        app.clone_into(&mut self.app);
        self
    }

    /// Adds a flag, as `--name=value`.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the proxy and waits until it listens.
    ///
    /// # Errors
    ///
    /// When it does not; the error quotes its log.
    pub fn start(self, api: &ApiServer) -> Result<Proxy> {
        let name: String = std::iter::repeat_with(fastrand::lowercase).take(8).collect();
        let directory = api.bed().subdirectory(&format!("proxy-{name}"))?;
        let (ca_file, of_certificate) = certificate_flags(self.enrolment, &directory)?;
        let ca_pem = fs::read_to_string(&ca_file)?;

        let path = |name: &str| directory.join(name).display().to_string();
        let mut flags = vec![
            "--mode=direct".to_owned(),
            format!("--upstream={}", self.upstream.unwrap_or_else(|| api.address().to_string())),
            format!("--upstream-ca={}", api.ca_file().display()),
            "--admin=127.0.0.1:0".to_owned(),
        ];
        flags.extend(of_certificate);
        match &self.cluster {
            None => flags.extend([
                format!("--policy={}", path("policy.yaml")),
                format!("--shard={}", self.shard),
            ]),
            Some((_, namespace)) => {
                fs::write(path("labels"), format!("app=\"{}\"\n", self.app))?;
                flags.extend([
                    format!("--pod-labels={}", path("labels")),
                    format!("--pod-namespace={namespace}"),
                ]);
            }
        }
        if self.state {
            fs::create_dir(directory.join("state"))?;
            flags.push(format!("--state-dir={}", path("state")));
        }
        flags.extend(self.flags);
        let port = self.port.map_or_else(ReservedPort::of_loopbacks, Ok)?;
        let mut proxy = Proxy {
            process: None,
            kubeconfig: self.cluster.map(|(kubeconfig, _)| kubeconfig),
            flags,
            env: self.env,
            port,
            admin: SocketAddr::from(([127, 0, 0, 1], 0)),
            ca_pem,
            ca_file,
            starts: 0,
            directory,
        };
        proxy.set_policy(&self.policy)?;
        proxy.launch()?;
        Ok(proxy)
    }
}

/// The file of the CAs by which clients verify the proxy, and the flags of its certificate: a
/// manager's, or that of a mesh CA which is made here.
fn certificate_flags(
    enrolment: Option<(String, PathBuf)>,
    directory: &Path,
) -> Result<(PathBuf, Vec<String>)> {
    if let Some((manager, files)) = enrolment {
        let file = |name: &str| files.join(name).display().to_string();
        let flags = vec![
            format!("--manager={manager}"),
            format!("--manager-ca={}", file("manager.crt")),
            format!("--manager-token={}", file("token")),
            format!("--mesh-bundle={}", file("ca.crt")),
            format!("--leaf={}", directory.join("leaf.pem").display()),
        ];
        return Ok((files.join("ca.crt"), flags));
    }
    let mesh_ca = directory.join("mesh-ca");
    let made = Command::new(ctrlmesh_binary()?).arg("mesh-ca").arg(&mesh_ca).output()?;
    ensure!(made.status.success(), "mesh-ca: {}", String::from_utf8_lossy(&made.stderr));
    Ok((mesh_ca.join("ca.crt"), vec![format!("--mesh-ca-dir={}", mesh_ca.display())]))
}

/// A running proxy. Dropping it kills it.
#[derive(Debug)]
pub struct Proxy {
    process: Option<Process>,
    kubeconfig: Option<PathBuf>,
    flags: Vec<String>,
    env: Vec<(String, String)>,
    port: ReservedPort,
    admin: SocketAddr,
    ca_pem: String,
    ca_file: PathBuf,
    starts: u32,
    directory: PathBuf,
}

impl Proxy {
    /// A builder for a proxy of the shard `shard` with this policy file.
    #[must_use]
    pub fn builder(shard: &str, policy: &str) -> ProxyBuilder {
        ProxyBuilder {
            shard: shard.to_owned(),
            policy: policy.to_owned(),
            port: None,
            upstream: None,
            state: false,
            cluster: None,
            app: "operator".to_owned(),
            enrolment: None,
            flags: Vec::new(),
            env: Vec::new(),
        }
    }

    /// The address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number()))
    }

    /// `https://HOST:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// The address of the admin port.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The mesh CA, by which clients verify it.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The file of [`Self::ca_pem`].
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.ca_file.clone()
    }

    /// A kubeconfig for the proxy with this token.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn kubeconfig(&self, api: &ApiServer, token: &str) -> Result<PathBuf> {
        api.kubeconfig_for(&self.url(), &self.ca_pem, token)
    }

    /// kubectl through the proxy with this token.
    ///
    /// # Errors
    ///
    /// As [`Self::kubeconfig`].
    pub fn kubectl(&self, api: &ApiServer, token: &str) -> Result<Kubectl> {
        Ok(api.kubectl_client().with_kubeconfig(&self.kubeconfig(api, token)?))
    }

    /// Single requests through the proxy with this token.
    ///
    /// # Errors
    ///
    /// When the mesh CA is not PEM.
    pub fn client(&self, token: &str) -> Result<Client> {
        Client::new(&self.url(), &self.ca_pem, token, &Network::Own)
    }

    /// Replaces the policy file as a whole, as a tool does, and returns the time.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn set_policy(&self, policy: &str) -> Result<SystemTime> {
        let path = self.directory.join("policy.yaml");
        let fresh = self.directory.join("policy.new");
        fs::write(&fresh, policy)?;
        fs::rename(&fresh, &path)?;
        Ok(SystemTime::now())
    }

    /// [`Self::set_policy`], then waits until the proxy logs that the policy is in force; returns
    /// the timestamp of that line.
    ///
    /// # Errors
    ///
    /// When it does not log that.
    pub fn change_policy(&self, policy: &str) -> Result<String> {
        let is_change = |line: &Value| line["message"] == "policy in force";
        let before = self.log()?.iter().filter(|line| is_change(line)).count();
        self.set_policy(policy)?;
        let mut seen = 0;
        let line = self.wait_for_line(START_LIMIT, |line| {
            seen += usize::from(is_change(line));
            seen > before
        })?;
        Ok(line["timestamp"].as_str().unwrap_or_default().to_owned())
    }

    /// The process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Ends it by SIGKILL.
    ///
    /// # Errors
    ///
    /// When it cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |process| process.kill().map(drop))
    }

    /// Sends SIGTERM and waits for its end.
    ///
    /// # Errors
    ///
    /// When it has not ended after 60 s.
    pub fn stop(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |process| process.stop().map(drop))
    }

    /// Sends a signal.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("the proxy does not run")?.signal(signal)
    }

    /// Starts it again on the same port, with the policy file as it is now.
    ///
    /// # Errors
    ///
    /// When it runs already, or does not listen.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "the proxy runs already");
        self.launch()
    }

    /// The log since its last start, without lines that are not JSON.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub fn log(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(self.log_file())?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The first line of the log since its last start that `wanted` accepts.
    ///
    /// # Errors
    ///
    /// When there is none in time, or the proxy has ended.
    pub fn wait_for_line(
        &self,
        limit: Duration,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> Result<Value> {
        let deadline = Instant::now() + limit;
        let mut lines = Lines::open(&self.log_file())?;
        loop {
            while let Some(line) = lines.next_written()? {
                if let Ok(line) = serde_json::from_str(&line)
                    && wanted(&line)
                {
                    return Ok(line);
                }
            }
            let is_there =
                self.pid().is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists());
            if !is_there || Instant::now() >= deadline {
                let tail = fs::read_to_string(self.log_file())?;
                bail!("the proxy did not log the line waited for:\n{tail}");
            }
            lines.wait(deadline)?;
        }
    }

    /// The value of one time series, such as `ctrlmesh_connections{leg="outbound"}`; 0 when there
    /// is none.
    ///
    /// # Errors
    ///
    /// When the metrics cannot be read.
    pub fn metric(&self, series: &str) -> Result<f64> {
        let text = self.admin_text("/metrics")?;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(Ok(0.0), |value| Ok(value.trim().parse()?))
    }

    /// The response body of the admin port.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn admin_text(&self, path: &str) -> Result<String> {
        let url = format!("http://{}{path}", self.admin);
        let agent = ureq::Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .timeout_global(Some(START_LIMIT))
            .build()
            .new_agent();
        let text = agent.get(&url).call().context(url)?.body_mut().read_to_string()?;
        Ok(text)
    }

    /// Resident memory in KiB.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn rss_kib(&self) -> Result<u64> {
        let pid = self.pid().context("the proxy does not run")?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).context("VmRSS")?;
        Ok(kib.parse()?)
    }

    /// CPU time so far, in seconds.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let pid = self.pid().context("the proxy does not run")?;
        // Each thread has its own count, in nanoseconds.
        let mut nanoseconds = 0.0;
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            nanoseconds += text.split(' ').next().context("schedstat")?.parse::<f64>()?;
        }
        Ok(nanoseconds / 1e9)
    }

    /// The number of open files and sockets.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn open_files(&self) -> Result<usize> {
        let pid = self.pid().context("the proxy does not run")?;
        Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join(format!("proxy-{}.log", self.starts))
    }

    fn launch(&mut self) -> Result<()> {
        self.starts += 1;
        let mut command = tied(ctrlmesh_binary()?);
        command.arg("proxy").args(&self.flags).arg(format!("--listen={}", self.address()));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.envs(self.kubeconfig.as_ref().map(|path| ("KUBECONFIG", path)));
        self.process = Some(Process::spawn("ctrlmesh proxy", command, &self.log_file())?);
        let line = self.wait_for_line(START_LIMIT, |line| line["message"] == "listening")?;
        let admin = line["admin"].as_str().context("the line names no admin port")?;
        self.admin = admin.parse()?;
        Ok(())
    }
}
