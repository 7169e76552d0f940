//! Start and end of the process: everything is checked and bound before anything is served.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{BoxFuture, OptionFuture},
};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    time::{Instant, interval, sleep_until},
};

use super::{
    admin,
    config::{Certificate, Config, PolicySource},
    data_thread,
    enrol::{Enrol, Manager},
    inbound::{self, Webhook},
    listen::{self, Dispatcher, Leads, Listener, Queue},
    metrics::Metrics,
    peers,
    policy_store::{OwnPod, PolicyFile, PolicyStore, follow_cluster, follow_moves},
    ring::{KeptLease, PodLease},
    shared::Shared,
    tls::Tls,
    upstream::{Abilities, BadTls, OwnSockets, PositionStore, RootedTls, Server},
};
use ctrlmesh_base::{
    cluster::{OwnAccess, chain},
    process::supervisor::{Lost, SupervisedTasks, SupervisedThread, Supervisor},
    sidecar::LISTEN_NAMES_FLAG,
};
use ctrlmesh_net::{
    Clock,
    drain::{self, Draining},
    identity::PodIdentity,
    leaf::{Leaf, LeafError, enrolment::Enrolment},
    peer::{BadMeshRoots, PeerTls},
    socket,
    tls::{BadRoots, ClientTls},
};

/// Interval of checks for what others may change: the upstream's CA file, the end of the leaf.
const LOOK: Duration = Duration::from_secs(10);

/// A proxy that is bound and has not served yet.
pub struct Proxy {
    config: Config,
    shared: Arc<Shared>,
    /// The inbound leg. `None` if the pod has none.
    webhook: Option<Arc<Webhook>>,
    server: Arc<Server>,
    registry: Registry,
    listeners: Vec<Listener>,
    admin: TcpListener,
    /// The enrolment, where a manager signs.
    enrol: Option<Enrol<Manager>>,
    /// Follows the policy for as long as it is polled.
    follow_policy: BoxFuture<'static, ()>,
    /// The pod's Lease. `None` outside of a pod, and with a policy in a file.
    lease: Option<PodLease>,
}

/// Reasons why the proxy does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Leaf(#[from] LeafError),
    #[error("--upstream-ca")]
    UpstreamCa(#[from] BadRoots),
    #[error(transparent)]
    Peers(#[from] BadMeshRoots),
    #[error("TLS")]
    Tls(#[from] rustls::Error),
    #[error("--state-dir")]
    StateDir(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the policy")]
    Policy(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the policy: {0} needs the labels of namespaces, from the API server")]
    Labels(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("how the API server is reached")]
    Cluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{0} {1}")]
    Listen(&'static str, SocketAddr, #[source] io::Error),
}

/// Reasons why the proxy stops serving.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl ServeError {
    /// The exit code, as sysexits names it.
    pub fn exit_code(&self) -> u8 {
        70
    }
}

impl StartError {
    /// The exit code, as sysexits names it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Leaf(LeafError::MeshCa(_) | LeafError::File(..)) => 64,
            Self::UpstreamCa(_) | Self::Peers(_) | Self::Policy(_) => 64,
            Self::Labels(..) | Self::Cluster(_) => 64,
            Self::Listen(.., error) if error.kind() == io::ErrorKind::PermissionDenied => 77,
            Self::Listen(..) | Self::StateDir(_) => 69,
            Self::Leaf(_) | Self::Tls(_) => 70,
        }
    }
}

impl Proxy {
    /// Reads the certificates, checks the policy file, binds the ports. Must be called on the
    /// runtime of the control thread. Fails with [`StartError`]; nothing was served.
    pub async fn build(config: Config) -> Result<Self, StartError> {
        let (metrics, registry) = Metrics::new();
        let metrics = Arc::new(metrics);
        let (tls, enrol) = tls(&config, &metrics)?;
        let server = Arc::new(server(&config)?);
        let state_dir = config.plain.state_dir.clone();
        let policy_store =
            PolicyStore::new(vec![Arc::clone(&server)], state_dir, Arc::clone(&metrics))
                .with_fence_mode(config.plain.fence);
        let policy_store = Arc::new(policy_store);
        let lease = lease(&config, &policy_store, &metrics);
        let follow_policy = policy(&config, &policy_store, lease.is_some()).await?;
        let cannot = |flag, addr| move |error| StartError::Listen(flag, addr, error);
        let flags = [
            ("--listen", Some(config.plain.listen)),
            (LISTEN_NAMES_FLAG, config.plain.listen_names),
        ];
        let mut listeners = Vec::new();
        for (flag, addr) in flags.into_iter().filter_map(|(flag, addr)| Some((flag, addr?))) {
            let sockets = socket::listen_on_loopbacks(addr).map_err(cannot(flag, addr))?;
            let outbound =
                |socket| Listener { socket, leads: Leads::Outbound(Arc::clone(&server)) };
            listeners.extend(sockets.into_iter().map(outbound));
        }
        let admin = socket::listen_on_all(config.plain.admin)
            .map_err(cannot("--admin", config.plain.admin))?;
        let webhook = webhook(&config, &tls, &policy_store, &metrics)?;
        let shared = Arc::new(Shared::new(&config, metrics, tls, policy_store));
        Ok(Self {
            config,
            shared,
            webhook,
            server,
            registry,
            listeners,
            admin,
            enrol,
            follow_policy,
            lease,
        })
    }

    /// The address for clients.
    pub fn listen_addr(&self) -> Option<SocketAddr> {
        self.listeners.first()?.socket.local_addr().ok()
    }

    /// The address for metrics and health.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.local_addr().ok()
    }

    /// Serves until the drain has ended. The loss of a supervised task starts a drain too. Fails with
    /// [`ServeError`].
    pub async fn run(self, mut draining: Draining) -> Result<(), ServeError> {
        let addr = self.listen_addr().map(tracing::field::display);
        let admin_addr = self.admin_addr().map(tracing::field::display);
        let (config, shared, webhook) = (self.config, self.shared, self.webhook);
        let (pod, namespace) =
            (config.plain.pod_name.as_deref(), config.plain.pod_namespace.as_deref());
        let names = config.plain.listen_names.map(tracing::field::display);
        tracing::info!(addr, names, admin = admin_addr, pod, namespace, "listening");
        let (drain, inner) = drain::channel();
        let supervisor = Supervisor::new(shared.metrics.panics.clone(), inner.clone());
        let (hands, queues) = listen::hands(config.plain.threads.get(), socket::most_connections());
        let threads = start_threads(queues, &shared, webhook.as_ref(), &inner, &supervisor)?;
        let idle = hands.idle();
        let closed = webhook.clone().map(inbound::closed);
        let mut tasks = SupervisedTasks::default();
        let mut supervise = |name, task: BoxFuture<'static, ()>| {
            supervisor.spawn(&mut tasks, name, task);
        };
        supervise(
            "admin port",
            admin::serve(self.admin, Arc::clone(&shared), webhook.clone(), self.registry).boxed(),
        );
        let ports = acceptors(self.listeners, &hands, &shared);
        let ports = ports.chain(inbound_tasks(webhook, &hands, &shared, config.identity.clone()));
        ports.for_each(|(name, task)| supervise(name, task));
        drop(hands);
        let policy_store = Arc::clone(&shared.policy_store);
        supervise("moves of the boundary", follow_moves(Arc::clone(&policy_store)).boxed());
        supervise("state directory", async move { policy_store.keep_past().await }.boxed());
        let certificates =
            keep_certificates(config.clock.clone(), Arc::clone(&shared), vec![self.server]);
        supervise("certificates", certificates.boxed());
        if let Some(enrol) = self.enrol {
            supervise("enrolment", enrol.keep().boxed());
        }
        supervise("policy policy_store", self.follow_policy);
        let lease = self.lease.map(|lease| lease.start(&supervisor));

        let deadline = tokio::select! {
            deadline = draining.begun() => deadline,
            _ = supervisor.loss() => Instant::now() + config.plain.drain_timeout(),
        };
        drain.start_until(deadline);
        let quiet = async {
            // The API server may still call a pod that has just lost its operator.
            OptionFuture::from(closed).await;
            idle.await;
        };
        tokio::select! {
            () = quiet => {}
            () = sleep_until(deadline) => {}
        }
        tasks.stop().await;
        for thread in threads {
            thread.ended().await;
        }
        // Nothing is under way any more.
        OptionFuture::from(lease.map(KeptLease::end)).await;
        supervisor.lost().map_or(Ok(()), |lost| Err(lost.into()))
    }
}

/// A task that must not end, and its name.
type Supervised = (&'static str, BoxFuture<'static, ()>);

fn acceptors(
    listeners: Vec<Listener>,
    hands: &Dispatcher,
    shared: &Arc<Shared>,
) -> impl Iterator<Item = Supervised> {
    listeners.into_iter().map(|listener| {
        let (hands, shared) = (hands.clone(), Arc::clone(shared));
        let accept = async move {
            listen::accept(listener, hands, &shared.accept_backoff, &shared.metrics).await;
        };
        ("acceptor", accept.boxed())
    })
}

/// The tasks of the inbound leg. A pod without an identity has no peers.
fn inbound_tasks(
    webhook: Option<Arc<Webhook>>,
    hands: &Dispatcher,
    shared: &Arc<Shared>,
    own: Option<PodIdentity>,
) -> impl Iterator<Item = Supervised> + use<> {
    let (hands, shared) = (hands.clone(), Arc::clone(shared));
    webhook.into_iter().flat_map(move |webhook| {
        let (peers, siblings) = (webhook.peers(), shared.policy_store.siblings());
        let follow = own.clone().map(|own| {
            let access = OwnAccess::Environment;
            ("peers", peers::follow(peers, access, own, siblings).boxed())
        });
        let port = inbound::keep_port(webhook, hands.clone(), Arc::clone(&shared));
        [("webhook port", port.boxed())].into_iter().chain(follow)
    })
}

fn start_threads(
    queues: Vec<Queue>,
    shared: &Arc<Shared>,
    webhook: Option<&Arc<Webhook>>,
    draining: &Draining,
    supervisor: &Supervisor,
) -> Result<Vec<SupervisedThread>, ServeError> {
    let start = |(at, queue)| {
        let (shared, draining, inner) = (Arc::clone(shared), draining.clone(), supervisor.clone());
        let webhook = webhook.cloned();
        let served = move || Box::pin(data_thread(queue, shared, webhook, draining, inner));
        supervisor
            .start_thread(format!("data-{at}"), "data thread", served)
            .map_err(ServeError::Thread)
    };
    queues.into_iter().enumerate().map(start).collect()
}

/// TLS towards clients, and what keeps its certificate valid if a manager signs that.
fn tls(
    config: &Config,
    metrics: &Arc<Metrics>,
) -> Result<(Tls, Option<Enrol<Manager>>), StartError> {
    let clock = &config.clock;
    let (leaf, enrol) = match config.certificate.clone() {
        Certificate::Own(source) => (Arc::new(Leaf::new(source, clock)?), None),
        Certificate::Manager { manager: signer, kept } => {
            let (enrolment, problem) = Enrolment::new(kept, clock);
            let leaf = Arc::clone(enrolment.leaf());
            if let Some(problem) = problem {
                let problem = chain(&problem);
                tracing::info!(problem, "no certificate yet, the manager is asked");
                leaf.report(Some(problem));
            }
            let (metrics, clock) = (Arc::clone(metrics), clock.clone());
            (leaf, Some(Enrol { signer, enrolment, metrics, clock }))
        }
    };
    let client = ClientTls::new(Arc::clone(&leaf) as _, clock)?;
    Ok((Tls { leaf, client }, enrol))
}

/// The inbound leg, where the pod has one.
fn webhook(
    config: &Config,
    tls: &Tls,
    policy_store: &PolicyStore,
    metrics: &Metrics,
) -> Result<Option<Arc<Webhook>>, StartError> {
    let Some(inbound) = config.inbound.clone() else { return Ok(None) };
    let peers = match (&config.identity, config.mesh_roots()) {
        (Some(own), Some(place)) => {
            let tls =
                PeerTls::new(Arc::clone(&tls.leaf), own.namespace(), place, config.clock.clone());
            Some(tls?)
        }
        _ => None,
    };
    let webhook = Webhook::new(
        inbound,
        config.plain.state_dir.as_deref(),
        peers,
        policy_store.siblings(),
        metrics,
        &config.clock,
    )?;
    Ok(Some(Arc::new(webhook)))
}

fn server(config: &Config) -> Result<Server, StartError> {
    let tls = RootedTls::read(config.plain.upstream_ca.clone(), config.clock.clone());
    let positions = PositionStore::open(config.plain.state_dir.clone());
    Ok(Server {
        route: config.route.clone(),
        tls: tls.map_err(|bad| match bad {
            BadTls::Roots(bad) => StartError::UpstreamCa(bad),
            BadTls::Library(bad) => StartError::Tls(bad),
        })?,
        sockets: OwnSockets::default(),
        pushdown: config.plain.pushdown,
        abilities: Abilities::default(),
        positions: positions.map_err(|error| StartError::StateDir(error.into()))?,
    })
}

/// The pod's Lease, where the pod has one.
fn lease(
    config: &Config,
    policy_store: &Arc<PolicyStore>,
    metrics: &Arc<Metrics>,
) -> Option<PodLease> {
    let PolicySource::Cluster { .. } = &config.policy else { return None };
    let own = config.identity.clone()?;
    Some(PodLease::new(OwnAccess::Environment, own, Arc::clone(policy_store), Arc::clone(metrics)))
}

/// The future that follows the policy. Its source was found usable, and is in force if it can be.
async fn policy(
    config: &Config,
    policy_store: &Arc<PolicyStore>,
    has_lease: bool,
) -> Result<BoxFuture<'static, ()>, StartError> {
    let policy_store = Arc::clone(policy_store);
    match config.policy.clone() {
        PolicySource::File { path, shard } => {
            let file = PolicyFile { path, shard, namespace: config.plain.pod_namespace.clone() };
            let draft = file.read().map_err(|error| StartError::Policy(error.into()))?;
            match draft.resolve(None) {
                Ok(policy) => drop(policy_store.install(policy_store.with_kept_locks(policy))),
                // The labels come from the API server: without one the policy would wait for ever.
                Err(unknown) => {
                    let client = OwnAccess::Environment.client().await;
                    let field = format!("{}: {}", unknown.object, unknown.field);
                    client.map_err(|error| StartError::Labels(field, error.into()))?;
                }
            }
            Ok(file.follow(policy_store).boxed())
        }
        PolicySource::Cluster { namespace, pod_labels } => {
            let client = OwnAccess::Environment.client().await;
            let client = client.map_err(|error| StartError::Cluster(error.into()))?;
            let pod = OwnPod { labels: pod_labels, namespace, name: config.plain.pod_name.clone() };
            Ok(follow_cluster(client, pod, policy_store, has_lease).boxed())
        }
    }
}

/// Keeps the leaf from expiring, and loads new CAs of the API servers.
async fn keep_certificates(clock: Clock, shared: Arc<Shared>, servers: Vec<Arc<Server>>) {
    let mut looks = interval(LOOK);
    loop {
        looks.tick().await;
        match shared.tls.leaf.refresh(&clock) {
            Ok(false) => {}
            Ok(true) => tracing::info!("certificate renewed"),
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "certificate not renewed, the present one stays");
            }
        }
        for server in &servers {
            match server.tls.refresh() {
                Ok(false) => {}
                Ok(true) => tracing::info!("the upstream's CA was read again"),
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(error, "the upstream's new CA cannot be used");
                }
            }
        }
    }
}
