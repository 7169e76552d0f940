//! The flags of `ctrlmesh proxy`, and the configuration that they make once checked together.

mod inbound;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::{NonZeroU16, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, ValueEnum};
use rustls_pki_types::ServerName;

pub use self::inbound::{BadInbound, Inbound, WebhookFlags};
pub use super::enrol::Manager;
use ctrlmesh_api::FenceMode;
use ctrlmesh_base::sidecar;
pub use ctrlmesh_base::sidecar::Mode;
use ctrlmesh_net::{
    Clock, ClusterDomain, ManagerAddr, UpstreamAddr,
    addr::BadUpstream,
    identity::{BadIdentity, PodIdentity},
    leaf::{LeafSource, enrolment::Kept},
    peer::RootsPlace,
};

/// The flags as they are typed.
#[derive(Args, Clone, Debug)]
pub struct ProxyArgs {
    /// The source of the API server's address: the destination that the client dialled before a
    /// redirect rule changed it, or --upstream
    #[arg(long, env = "CTRLMESH_MODE", value_enum, default_value_t = Mode::Iptables)]
    pub mode: Mode,

    /// The API server in direct mode [default: KUBERNETES_SERVICE_HOST and
    /// KUBERNETES_SERVICE_PORT]
    #[arg(long, env = "CTRLMESH_UPSTREAM", value_name = "HOST:PORT")]
    pub upstream: Option<UpstreamAddr>,

    /// Read the policy from this file instead of the cluster; read again when it changes
    #[arg(long, env = "CTRLMESH_POLICY", value_name = "FILE", requires = "shard")]
    pub policy: Option<PathBuf>,

    /// The metadata.name of the ShardingConfig in --policy to put in force
    #[arg(long, env = "CTRLMESH_SHARD", value_name = "NAME", requires = "policy")]
    pub shard: Option<String>,

    /// The directory of the mesh CA, as `ctrlmesh mesh-ca` makes it: ca.crt and ca.key. It signs the
    /// certificate for clients
    #[arg(long, env = "CTRLMESH_MESH_CA_DIR", value_name = "DIR")]
    pub mesh_ca_dir: Option<PathBuf>,

    /// In place of --mesh-ca-dir, the certificate for clients: a PEM file with a private key, its
    /// certificate and those of the issuers; read again when it changes. With --manager, the file in
    /// which the proxy keeps them over a restart
    #[arg(long, env = "CTRLMESH_LEAF", value_name = "FILE")]
    pub leaf: Option<PathBuf>,

    /// The flags of the manager.
    #[command(flatten)]
    pub manager: ManagerFlags,

    /// The flags of the controller's webhook server.
    #[command(flatten)]
    pub webhook: WebhookFlags,

    /// The flags that the configuration takes as they are typed.
    #[command(flatten)]
    pub plain: PlainFlags,

    /// The API server's address as this container's clients see it
    #[arg(long, env = "KUBERNETES_SERVICE_HOST", hide = true)]
    pub kubernetes_service_host: Option<String>,

    /// The port of that address
    #[arg(long, env = "KUBERNETES_SERVICE_PORT", hide = true)]
    pub kubernetes_service_port: Option<String>,
}

/// The flags of a manager that signs the certificate for clients.
#[derive(Args, Clone, Debug, Default)]
pub struct ManagerFlags {
    /// In place of --mesh-ca-dir, the manager, which signs the certificate for clients. Needs
    /// --manager-ca, --manager-token and --leaf
    #[arg(long, env = "CTRLMESH_MANAGER", value_name = "HOST:PORT")]
    pub manager: Option<ManagerAddr>,

    /// The CA certificates that verify the manager's certificate; read for each request
    #[arg(long, env = "CTRLMESH_MANAGER_CA", value_name = "FILE")]
    pub manager_ca: Option<PathBuf>,

    /// The token that tells the manager which pod this is, as the kubelet keeps it; read for each
    /// request
    #[arg(long, env = "CTRLMESH_MANAGER_TOKEN", value_name = "FILE")]
    pub manager_token: Option<PathBuf>,

    /// The CA certificates that clients trust. A certificate of the manager that they do not accept
    /// is replaced at once
    #[arg(long, env = "CTRLMESH_MESH_BUNDLE", value_name = "FILE")]
    pub mesh_bundle: Option<PathBuf>,
}

/// The flags that the configuration takes as they are typed.
#[derive(Args, Clone, Debug)]
pub struct PlainFlags {
    /// The address that clients connect to; a loopback address means that of both families
    #[arg(long, env = "CTRLMESH_LISTEN", value_name = "ADDR", default_value_t = sidecar::LISTEN)]
    pub listen: SocketAddr,

    /// A second address that clients connect to, as --listen: the port of the API server, where its
    /// DNS names lead to this host
    #[arg(long, env = "CTRLMESH_LISTEN_NAMES", value_name = "ADDR")]
    pub listen_names: Option<SocketAddr>,

    /// The CA certificates that verify the API server's certificate
    #[arg(long, env = "CTRLMESH_UPSTREAM_CA", value_name = "FILE",
          default_value_os_t = PathBuf::from(sidecar::cluster_ca()))]
    pub upstream_ca: PathBuf,

    /// The DNS domain of the cluster: clients may call the API server kubernetes.default.svc.DOMAIN
    #[arg(long, env = "CTRLMESH_CLUSTER_DOMAIN", value_name = "DOMAIN",
          default_value = ClusterDomain::DEFAULT)]
    pub cluster_domain: ClusterDomain,

    /// The file with the labels of this pod, as a downwardAPI volume writes it. The proxy uses the ShardingConfig
    /// that selects them
    #[arg(long, env = "CTRLMESH_POD_LABELS", value_name = "FILE")]
    pub pod_labels: Option<PathBuf>,

    /// The address of metrics and health checks; 0.0.0.0 means all addresses of both families.
    /// /debug is served to loopback peers only
    #[arg(long, env = "CTRLMESH_ADMIN", value_name = "ADDR", default_value_t = sidecar::ADMIN)]
    pub admin: SocketAddr,

    /// A directory that outlives this process but not the pod. It keeps the positions that clients
    /// were shown, so that a restart costs no relist, and which certificates the webhook server may
    /// still show
    #[arg(long, env = "CTRLMESH_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// The mode of the fence of a ShardingConfig that gives none: Enforce, Warn or Disabled
    #[arg(long, env = "CTRLMESH_FENCE", value_name = "MODE", default_value = "Warn")]
    pub fence: FenceMode,

    /// The boundaries other than labels that are sent to an API server that supports them. The proxy judges each
    /// object in any case
    #[arg(long, env = "CTRLMESH_PUSHDOWN", value_enum, default_value_t = Pushdown::Auto)]
    pub pushdown: Pushdown,

    /// The way in which a live watch learns that objects move between shards
    #[arg(long, env = "CTRLMESH_ON_CHANGE", value_enum, default_value_t = OnChange::Difference)]
    pub on_change: OnChange,

    /// The number of threads that carry connections; a connection stays on one of them
    #[arg(long, env = "CTRLMESH_THREADS", value_name = "COUNT", default_value = "2")]
    pub threads: NonZeroUsize,

    /// The seconds that open requests have to finish after SIGTERM
    #[arg(long, env = "CTRLMESH_DRAIN_TIMEOUT", value_name = "SECONDS", default_value = "15")]
    pub drain_timeout: u16,

    /// The pod's name, for the first line of the log
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,

    /// The pod's namespace; leader election locks are renamed only in it
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub pod_namespace: Option<String>,

    /// The pod's uid; with its name and namespace the identity that other pods' proxies demand
    #[arg(long, env = "POD_UID", value_name = "UID")]
    pub pod_uid: Option<String>,
}

/// The values of `--pushdown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pushdown {
    /// All boundaries that it supports
    Auto,
    /// No pushdown: it sends all objects, and the proxy leaves out those of other shards
    Off,
}

/// The values of `--on-change`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnChange {
    /// Send DELETED and ADDED events in the open stream, where that is possible
    Difference,
    /// Send an ERROR event 410, which ends the watch: its client lists again
    Expire,
}

/// The destination of upstream connections.
#[derive(Clone, Debug)]
pub enum Route {
    /// The address that the client dialled.
    Original,
    /// A fixed address.
    Fixed(UpstreamAddr),
}

/// The source of the policy.
#[derive(Clone, Debug)]
pub enum PolicySource {
    /// A file, and the name of one document in it.
    File {
        /// The file.
        path: PathBuf,
        /// The document's `metadata.name`.
        shard: String,
    },
    /// The ShardingConfig of the pod's namespace that selects the pod's labels.
    Cluster {
        /// The pod's namespace.
        namespace: String,
        /// The downwardAPI file with the pod's labels.
        pod_labels: PathBuf,
    },
}

/// The source of the certificate for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// A certificate that the process makes, or that others put into a file.
    Own(LeafSource),
    /// A certificate that the manager signs.
    Manager {
        /// The manager.
        manager: Manager,
        /// The file that keeps it, and what it must be good for.
        kept: Kept,
    },
}

/// The checked configuration of the proxy.
#[derive(Clone, Debug)]
pub struct Config {
    /// The way in which connections come to the proxy.
    pub mode: Mode,
    /// The destination of upstream connections.
    pub route: Route,
    /// The source of the policy.
    pub policy: PolicySource,
    /// The source of the certificate for clients.
    pub certificate: Certificate,
    /// The interception of reviews. `None` if there is none.
    pub inbound: Option<Inbound>,
    /// This pod, as others' proxies know it. `None` outside of one.
    pub identity: Option<PodIdentity>,
    /// The flags that are taken as they are typed.
    pub plain: PlainFlags,
    /// The clock by which certificates are made and verified.
    pub clock: Clock,
}

/// Flags that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    #[error(
        "--mode direct needs --upstream HOST:PORT, or KUBERNETES_SERVICE_HOST and \
         KUBERNETES_SERVICE_PORT, which the kubelet sets"
    )]
    DirectWithoutUpstream,
    #[error(
        "--upstream {0} has no effect in --mode iptables, where the client's destination is used: \
         remove it, or give --mode direct"
    )]
    UpstreamWithoutDirect(UpstreamAddr),
    #[error(
        "the certificate for clients is missing: give --manager HOST:PORT, --mesh-ca-dir DIR or \
         --leaf FILE"
    )]
    NoLeaf,
    #[error("--mesh-ca-dir and --leaf both give the certificate for clients: remove one of them")]
    TwoLeaves,
    #[error(
        "--mesh-ca-dir and --manager both give the certificate for clients: remove one of them"
    )]
    ManagerAndMeshCa,
    #[error("--manager {0} signs the certificate for clients by more flags: give {1} too")]
    ManagerNeeds(ManagerAddr, String),
    #[error("{0} has no effect without --manager HOST:PORT: give that, or remove it")]
    WithoutManager(&'static str),
    #[error("without --policy the pod's labels select the ShardingConfig: give {0}")]
    NoPod(&'static str),
    #[error("POD_NAMESPACE, POD_NAME, POD_UID")]
    Pod(#[from] BadIdentity),
    #[error(transparent)]
    Inbound(#[from] BadInbound),
    #[error("KUBERNETES_SERVICE_HOST")]
    ServiceHost(#[from] BadUpstream),
    #[error("KUBERNETES_SERVICE_PORT is {0:?}, which is not a number from 1 to 65535")]
    ServicePort(String),
}

impl Config {
    /// Checks the flags against each other. Fails with [`BadConfig`], which names the flag.
    pub fn new(args: ProxyArgs) -> Result<Self, BadConfig> {
        let mode = args.mode;
        let route = match (mode, args.upstream) {
            (Mode::Iptables, None) => Route::Original,
            (Mode::Iptables, Some(addr)) => return Err(BadConfig::UpstreamWithoutDirect(addr)),
            (Mode::Direct, Some(addr)) => Route::Fixed(addr),
            (Mode::Direct, None) => Route::Fixed(kubelets_upstream(
                args.kubernetes_service_host.as_deref(),
                args.kubernetes_service_port.as_deref(),
            )?),
        };
        let inbound = args.webhook.checked(mode)?;
        let plain = args.plain;
        let identity = plain.identity()?;
        let policy = match (args.policy, args.shard) {
            (Some(path), Some(shard)) => PolicySource::File { path, shard },
            _ => PolicySource::Cluster {
                namespace: plain
                    .pod_namespace
                    .clone()
                    .ok_or(BadConfig::NoPod("POD_NAMESPACE or --pod-namespace"))?,
                pod_labels: plain.pod_labels.clone().ok_or(BadConfig::NoPod("--pod-labels"))?,
            },
        };
        let service_host = args.kubernetes_service_host.as_deref();
        let called = called(&route, plain.listen.ip(), service_host)?;
        let certificate = match (args.manager.checked()?, args.mesh_ca_dir, args.leaf) {
            (Some(_), Some(_), _) => return Err(BadConfig::ManagerAndMeshCa),
            (Some(manager), None, leaf) => manager.certificate(leaf, called)?,
            (None, Some(dir), None) => {
                let names = leaf_names(&route, called, &plain.cluster_domain);
                Certificate::Own(LeafSource::MeshCa { dir, names, identity: identity.clone() })
            }
            (None, None, Some(path)) => Certificate::Own(LeafSource::File { path, called }),
            (None, Some(_), Some(_)) => return Err(BadConfig::TwoLeaves),
            (None, None, None) => return Err(BadConfig::NoLeaf),
        };
        let clock = Clock::system();
        Ok(Self { mode, route, policy, certificate, inbound, identity, plain, clock })
    }

    /// The files with the CAs of other pods' proxies. `None` if nothing says which they are.
    pub fn mesh_roots(&self) -> Option<RootsPlace> {
        match &self.certificate {
            Certificate::Own(LeafSource::MeshCa { dir, .. }) => {
                Some(RootsPlace::MeshCa(dir.clone()))
            }
            Certificate::Manager { kept, .. } => kept.bundle.clone().map(|bundle| {
                RootsPlace::Bundle { bundle, upstream_ca: self.plain.upstream_ca.clone() }
            }),
            Certificate::Own(LeafSource::File { .. }) => None,
        }
    }
}

/// A manager, and the flags that go with it.
struct WithManager {
    addr: ManagerAddr,
    ca: Option<PathBuf>,
    token: Option<PathBuf>,
    bundle: Option<PathBuf>,
}

impl ManagerFlags {
    /// The manager, if there is one. Without it the other flags are refused.
    fn checked(self) -> Result<Option<WithManager>, BadConfig> {
        let Self { manager, manager_ca: ca, manager_token: token, mesh_bundle: bundle } = self;
        if let Some(addr) = manager {
            return Ok(Some(WithManager { addr, ca, token, bundle }));
        }
        let others = [("--manager-ca", ca), ("--manager-token", token), ("--mesh-bundle", bundle)];
        match others.iter().find(|(_, file)| file.is_some()) {
            Some((flag, _)) => Err(BadConfig::WithoutManager(flag)),
            None => Ok(None),
        }
    }
}

impl WithManager {
    fn certificate(
        self,
        leaf: Option<PathBuf>,
        called: Option<ServerName<'static>>,
    ) -> Result<Certificate, BadConfig> {
        let Self { addr, ca, token, bundle } = self;
        match (ca, token, leaf) {
            (Some(ca), Some(token), Some(path)) => Ok(Certificate::Manager {
                manager: Manager { addr, ca, token },
                kept: Kept { path, called, bundle },
            }),
            (ca, token, leaf) => {
                let needed = [("--manager-ca", ca), ("--manager-token", token), ("--leaf", leaf)];
                let missing = needed.iter().filter(|(_, file)| file.is_none());
                let missing: Vec<_> = missing.map(|(flag, _)| format!("{flag} FILE")).collect();
                Err(BadConfig::ManagerNeeds(addr, missing.join(" and ")))
            }
        }
    }
}

impl PlainFlags {
    /// The identity of the pod, if all of its parts are given.
    fn identity(&self) -> Result<Option<PodIdentity>, BadConfig> {
        match (&self.pod_namespace, &self.pod_name, &self.pod_uid) {
            (Some(namespace), Some(name), Some(uid)) => {
                Ok(Some(PodIdentity::new(namespace, name, uid)?))
            }
            _ => Ok(None),
        }
    }

    /// The longest time that a drain may take.
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_secs(self.drain_timeout.into())
    }
}

/// The API server that the kubelet names to every container.
fn kubelets_upstream(host: Option<&str>, port: Option<&str>) -> Result<UpstreamAddr, BadConfig> {
    let (Some(host), Some(port)) = (host, port) else {
        return Err(BadConfig::DirectWithoutUpstream);
    };
    let number: NonZeroU16 = port.parse().map_err(|_| BadConfig::ServicePort(port.to_owned()))?;
    Ok(UpstreamAddr::from_host_port(host, number.get())?)
}

/// The address or name by which clients call the API server through us if no one tells them another:
/// the listener's in direct mode, else that which the kubelet names to every container.
fn called(
    route: &Route,
    listen: IpAddr,
    service_host: Option<&str>,
) -> Result<Option<ServerName<'static>>, BadUpstream> {
    Ok(match (route, service_host) {
        (Route::Fixed(_), _) => (!listen.is_unspecified()).then(|| ServerName::from(listen)),
        (Route::Original, None) => None,
        (Route::Original, Some(host)) => {
            Some(UpstreamAddr::from_host_port(host, 443)?.host().clone())
        }
    })
}

/// Every name and address by which a client may call the API server through us.
fn leaf_names(
    route: &Route,
    called: Option<ServerName<'static>>,
    domain: &ClusterDomain,
) -> Vec<ServerName<'static>> {
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let upstream = match route {
        Route::Fixed(upstream) => Some(upstream.host().clone()),
        Route::Original => None,
    };
    let mut names = Vec::new();
    let clusters = domain.names().filter_map(|name| ServerName::try_from(name).ok());
    for name in clusters.chain(loopback.map(|ip: IpAddr| ip.into())).chain(upstream).chain(called) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests;
