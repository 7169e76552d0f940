//! The proxy, on a thread of its own, in front of an [`Upstream`].

use std::{
    fs,
    net::SocketAddr,
    num::NonZeroUsize,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use ctrlmesh::{
    api::FenceMode,
    net::{
        Clock, ClusterDomain,
        ca::{Constraints, MeshCa},
        drain::{self, Drain},
    },
    proxy::{
        Config, ManagerFlags, PlainFlags, ProxyArgs,
        config::{Mode, OnChange, Pushdown, WebhookFlags},
        start::{Proxy as Inner, ServeError},
    },
};
use nix::unistd::{Uid, setfsuid};
use tempfile::TempDir;
use tokio::{runtime, sync::oneshot};

use super::{log, policies::POLICY, scrape, soon, until, upstream::Upstream};

/// A running proxy. Dropping it ends it at once, and checks that no log line holds the token.
pub struct Proxy {
    pub addr: SocketAddr,
    pub admin: SocketAddr,
    pub files: Files,
    drain: Drain,
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<Result<(), ServeError>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The files of a proxy. They outlive it, for a restart.
pub struct Files {
    dir: TempDir,
}

/// The settings of a proxy.
pub struct Setup {
    pub upstream: String,
    pub clock: Clock,
    /// A state directory in place of that of the files.
    pub state_dir: Option<PathBuf>,
    /// Whether the proxy runs without a state directory.
    pub forgets: bool,
    pub fence: FenceMode,
    pub pushdown: Pushdown,
    pub threads: usize,
    pub drain_timeout: u16,
    pub listen: SocketAddr,
    pub listen_names: Option<SocketAddr>,
    pub admin: SocketAddr,
    /// The user to run as in `--mode iptables`; no rule redirects this user's own connections.
    pub redirected_except: Option<u32>,
    /// The file of the leaf, in place of the mesh CA.
    pub leaf: Option<PathBuf>,
    pub manager: ManagerFlags,
    pub webhook: WebhookFlags,
}

impl Files {
    pub fn new(upstream_ca: &str) -> Self {
        Self::made_at(&Clock::system(), upstream_ca)
    }

    /// The same with a mesh CA that was made at the time of this clock.
    pub fn made_at(clock: &Clock, upstream_ca: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = Self { dir };
        let vips = ["10.96.0.1", "fd00:96::1"].map(|ip| ip.parse().unwrap());
        fs::create_dir(files.state()).unwrap();
        let constraints =
            Constraints::kubernetes_and(&ClusterDomain::default(), vec![], vips.to_vec());
        MeshCa::create(&files.mesh_ca(), &constraints, clock).unwrap();
        fs::write(files.upstream_ca(), upstream_ca).unwrap();
        files.put_policy(POLICY);
        files
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A kubeconfig for the proxy's own requests to this API server.
    pub fn put_kubeconfig(&self, server: &str) -> PathBuf {
        let path = self.path().join("kubeconfig");
        let ca = self.upstream_ca();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: \"https://{server}\", certificate-authority: {}}}}}]\n\
             users: [{{name: u, user: {{token: own}}}}]\n",
            ca.display()
        );
        fs::write(&path, text).unwrap();
        path
    }

    fn give_to(&self, uid: u32) {
        let mesh_ca = self.mesh_ca();
        let key = mesh_ca.join("ca.key");
        for path in [self.path(), &self.state(), &mesh_ca, &key] {
            chown(path, Some(uid), None).expect("these tests need root");
        }
    }

    /// The state directory: empty, that of a new pod.
    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub fn mesh_ca(&self) -> PathBuf {
        self.dir.path().join("mesh-ca")
    }

    pub fn mesh_ca_pem(&self) -> Vec<u8> {
        fs::read(self.mesh_ca().join("ca.crt")).unwrap()
    }

    pub fn leaf(&self) -> PathBuf {
        self.dir.path().join("leaf.pem")
    }

    pub fn manager_ca(&self) -> PathBuf {
        self.dir.path().join("manager.crt")
    }

    pub fn manager_token(&self) -> PathBuf {
        self.dir.path().join("token")
    }

    /// The CAs that the pod's clients trust.
    pub fn bundle(&self) -> PathBuf {
        self.dir.path().join("bundle.crt")
    }

    /// Changes the file of the leaf in one step.
    pub fn put_leaf(&self, text: &str) {
        self.put(&self.leaf(), text);
    }

    pub fn upstream_ca(&self) -> PathBuf {
        self.dir.path().join("upstream-ca.crt")
    }

    pub fn policy(&self) -> PathBuf {
        self.dir.path().join("policy.yaml")
    }

    /// Changes the policy file in one step, as a mounted ConfigMap changes.
    pub fn put_policy(&self, text: &str) {
        self.put(&self.policy(), text);
    }

    pub fn pod_labels(&self) -> PathBuf {
        self.dir.path().join("labels")
    }

    /// Changes the pod's labels, as a downwardAPI volume does.
    pub fn put_pod_labels(&self, text: &str) {
        self.put(&self.pod_labels(), text);
    }

    fn put(&self, path: &Path, text: &str) {
        let fresh = self.dir.path().join("fresh");
        fs::write(&fresh, text).unwrap();
        fs::rename(fresh, path).unwrap();
    }
}

impl Setup {
    pub fn of(upstream: &Upstream) -> Self {
        Self::to(upstream.addr)
    }

    pub fn to(upstream: SocketAddr) -> Self {
        Self {
            upstream: upstream.to_string(),
            clock: Clock::system(),
            state_dir: None,
            forgets: false,
            fence: FenceMode::default(),
            // Pushdown would send requests of the proxy's own between the client's.
            pushdown: Pushdown::Off,
            threads: 1,
            drain_timeout: 10,
            listen: "127.0.0.1:0".parse().unwrap(),
            listen_names: None,
            admin: "127.0.0.1:0".parse().unwrap(),
            redirected_except: None,
            leaf: None,
            manager: ManagerFlags::default(),
            webhook: WebhookFlags::default(),
        }
    }

    pub async fn start(self, files: Files) -> Proxy {
        log::capture();
        let uid = self.redirected_except;
        if let Some(uid) = uid {
            files.give_to(uid);
        }
        let state_dir = self.state_dir.unwrap_or_else(|| files.state());
        let mut config = Config::new(ProxyArgs {
            mode: if uid.is_some() { Mode::Iptables } else { Mode::Direct },
            upstream: uid.is_none().then(|| self.upstream.parse().unwrap()),
            policy: Some(files.policy()),
            shard: Some("blue".into()),
            mesh_ca_dir: self.leaf.is_none().then(|| files.mesh_ca()),
            leaf: self.leaf,
            manager: self.manager,
            webhook: self.webhook,
            kubernetes_service_host: uid.map(|_| "10.96.0.1".to_owned()),
            kubernetes_service_port: None,
            plain: PlainFlags {
                listen: self.listen,
                listen_names: self.listen_names,
                upstream_ca: files.upstream_ca(),
                cluster_domain: ClusterDomain::default(),
                pod_labels: None,
                admin: self.admin,
                state_dir: Some(state_dir).filter(|_| !self.forgets),
                fence: self.fence,
                pushdown: self.pushdown,
                on_change: OnChange::Difference,
                threads: NonZeroUsize::new(self.threads).unwrap(),
                drain_timeout: self.drain_timeout,
                pod_name: None,
                pod_namespace: Some("ns".into()),
                pod_uid: None,
            },
        })
        .unwrap();
        config.clock = self.clock;
        let (drain, draining) = drain::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let (told, addrs) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let thread = thread::Builder::new().name("control".into()).spawn(move || {
            // The rules match the user of the thread that creates a socket.
            uid.map(|uid| setfsuid(Uid::from_raw(uid)));
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let proxy = Inner::build(config).await.unwrap();
                told.send((proxy.listen_addr().unwrap(), proxy.admin_addr().unwrap())).unwrap();
                let served = tokio::select! {
                    served = proxy.run(draining) => served,
                    _ = stopped => Ok(()),
                };
                let _ = end.send(served);
            });
        });
        let thread = thread.unwrap();
        let (addr, admin) = soon("the proxy", addrs).await.expect("the proxy starts");
        Proxy { addr, admin, files, drain, stop: Some(stop), ended, thread: Some(thread) }
    }
}

impl Proxy {
    /// Starts the usual proxy.
    pub async fn start(upstream: &Upstream) -> Self {
        Setup::of(upstream).start(Files::new(&upstream.ca.pem)).await
    }

    pub async fn with_policy(upstream: &Upstream, policy: &str) -> Self {
        let files = Files::new(&upstream.ca.pem);
        files.put_policy(policy);
        Setup::of(upstream).start(files).await
    }

    /// A sample of `/metrics`; 0 if there is none yet.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        scrape::sample(&self.admin_page("/metrics").await.1, name, labels)
    }

    /// Waits until a sample has this value.
    pub async fn until_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        let look = || self.metric(name, labels);
        until(&format!("{name}{labels:?}"), look, |now| (now - value).abs() < 0.5).await;
    }

    /// Waits until a connection was closed for this reason.
    pub async fn until_closed(&self, reason: &str) {
        let labels = [("reason", reason)];
        self.until_metric("ctrlmesh_closed_connections_total", &labels, 1.0).await;
    }

    /// Code and body of a page of the admin port.
    pub async fn admin_page(&self, path: &str) -> (u16, String) {
        soon("the admin port", scrape::page(self.admin, path)).await
    }

    pub async fn until_ready_says(&self, what: &str) {
        let look = || self.admin_page("/readyz");
        until("/readyz", look, |(_, body)| body.contains(what)).await;
    }

    /// Changes the policy and waits until it is in force.
    pub async fn change_policy(&self, text: &str) {
        let epoch = self.metric("ctrlmesh_policy_epoch", &[]).await;
        self.files.put_policy(text);
        self.until_metric("ctrlmesh_policy_epoch", &[], epoch + 1.0).await;
    }

    /// Changes the policy in its fence alone, and waits until that has this mode.
    pub async fn change_fence(&self, text: &str, mode: &str) {
        self.files.put_policy(text);
        let told = format!("\"fence\":\"{mode}\"");
        let look = || self.admin_page("/debug/config");
        until("the fence", look, |(_, page)| page.replace(' ', "").contains(&told)).await;
    }

    /// Drains, as after SIGTERM.
    pub fn drain(&self, grace: Duration) {
        self.drain.start(grace);
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) {
        self.end_of_service().await.unwrap();
    }

    /// Waits until it has ended by itself, and returns the result.
    pub async fn end_of_service(&mut self) -> Result<(), ServeError> {
        soon("the proxy's end", &mut self.ended).await.expect("it ends without a panic")
    }

    /// Stops it at once, which looks like `kill -9` to its peers, and returns its files.
    pub fn kill(mut self) -> Files {
        self.end();
        let fresh = Files { dir: tempfile::tempdir().unwrap() };
        std::mem::replace(&mut self.files, fresh)
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            panic!("the proxy's thread panicked");
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end();
        if !thread::panicking() {
            log::assert_no_token();
        }
    }
}
