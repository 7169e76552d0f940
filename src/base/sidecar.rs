//! The sidecar of a pod: its ports, its files, and the arguments that it runs with.
//!
//! The injection writes them into the pod, `ctrlmesh proxy` and `ctrlmesh wait` read them there.
//! Neither side knows the other: both know this module.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZeroU16,
};

use clap::ValueEnum;

use ctrlmesh_net::{ClusterDomain, ManagerAddr};

/// The audience of the tokens that proxies enrol with.
pub const AUDIENCE: &str = "ctrlmesh.kusionstack.io";
/// The subcommand that the sidecar runs.
pub const PROXY: &str = "proxy";
/// The subcommand of a classic sidecar's hooks.
pub const WAIT: &str = "wait";

/// The port of the listener for clients.
pub const OUTBOUND_PORT: NonZeroU16 = port(5443);
/// The port of metrics and health.
pub const ADMIN_PORT: NonZeroU16 = port(5441);

/// The port of the listener for reviews.
pub const INBOUND_PORT: NonZeroU16 = port(5445);

/// The listener for clients. A loopback address means both families' loopback.
pub const LISTEN: SocketAddr = at(Ipv4Addr::LOCALHOST, OUTBOUND_PORT);
/// The listener for clients that dial a name of the API server, at the port of its Service: in env
/// mode host aliases lead the names here.
pub const LISTEN_NAMES: SocketAddr = at(Ipv4Addr::LOCALHOST, port(443));
/// The flag of [`LISTEN_NAMES`]: the host aliases of an injected pod are ours if its proxy has it.
pub const LISTEN_NAMES_FLAG: &str = "--listen-names";
/// The listener of metrics and health. The unspecified address means all addresses of both
/// families.
pub const ADMIN: SocketAddr = at(Ipv4Addr::UNSPECIFIED, ADMIN_PORT);
/// The listener for reviews: the kernel redirects them to the address that the API server dialled.
pub const INBOUND: SocketAddr =
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), INBOUND_PORT.get());
/// Metrics and health, as the pod's own containers reach them.
pub const OWN_ADMIN: SocketAddr = at(Ipv4Addr::LOCALHOST, ADMIN_PORT);

/// The directory in which every official client looks for token and CA.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The file of the cluster's CA in [`SERVICE_ACCOUNT`].
pub const CA_FILE: &str = "ca.crt";
/// The directory of the mesh CA.
pub const MESH_CA_DIR: &str = "/etc/ctrlmesh/mesh-ca";
/// The directory of what the proxy enrols with: [`TOKEN_FILE`], [`MANAGER_CA_FILE`], [`CA_FILE`] (the
/// bundle).
pub const ENROLMENT_DIR: &str = "/etc/ctrlmesh/enrolment";
/// The file of the token for the manager.
pub const TOKEN_FILE: &str = "token";
/// The file of the CAs of the manager's certificate.
pub const MANAGER_CA_FILE: &str = "manager.crt";
/// The directory of the certificate that the manager signed.
pub const LEAF_DIR: &str = "/run/ctrlmesh";
/// The file of the certificate and its key in [`LEAF_DIR`].
pub const LEAF_FILE: &str = "leaf.pem";
/// The directory of the pod's labels.
pub const LABELS_DIR: &str = "/etc/ctrlmesh/pod";
/// The file of the pod's labels in [`LABELS_DIR`].
pub const LABELS_FILE: &str = "labels";
/// The argument of a proxy that takes reviews, in front of the port.
const WEBHOOK_PORT: &str = "--webhook-port=";
/// The directory of the certificate of the controller's webhook server.
pub const WEBHOOK_CERT_DIR: &str = "/etc/ctrlmesh/webhook";
/// The directory that outlives the proxy's process.
pub const STATE_DIR: &str = "/var/lib/ctrlmesh";

const fn port(number: u16) -> NonZeroU16 {
    match NonZeroU16::new(number) {
        Some(port) => port,
        None => NonZeroU16::MIN,
    }
}

const fn at(ip: Ipv4Addr, port: NonZeroU16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(ip), port.get())
}

/// The path of the cluster's CA.
pub fn cluster_ca() -> String {
    format!("{SERVICE_ACCOUNT}/{CA_FILE}")
}

/// The values of `--mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Mode {
    /// The original destination of a redirected connection
    Iptables,
    /// The address given by --upstream
    Direct,
}

/// The source of the certificate for clients. Paths are text, as in a pod, and never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafPlan {
    /// A mesh CA, whose key the sidecar has.
    MeshCa {
        /// The directory of the mesh CA.
        dir: String,
    },
    /// A manager, which signs.
    Manager {
        /// The manager's address.
        address: ManagerAddr,
        /// The file of the CAs of the manager's certificate.
        ca: String,
        /// The file of the token for the manager.
        token: String,
        /// The file of the CAs that clients trust.
        bundle: String,
        /// The file in which the proxy keeps certificate and key.
        leaf: String,
    },
}

/// The interception of the reviews that come for the controller's webhook server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundPlan {
    /// The port that the API server calls.
    pub port: NonZeroU16,
    /// The directory of the server's certificate.
    pub certs: String,
}

/// The arguments of a pod's sidecar, as data. Paths are text, as in a pod, and never empty.
///
/// A plan names no upstream: in direct mode the API server is that of the kubelet's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyPlan {
    /// The way to the API server.
    pub mode: Mode,
    /// The listener for clients.
    pub listen: SocketAddr,
    /// The listener for clients that dial a name of the API server, where the names lead to it.
    pub listen_names: Option<SocketAddr>,
    /// The listener of metrics and health.
    pub admin: SocketAddr,
    /// The file of the cluster's CA.
    pub upstream_ca: String,
    /// The source of the certificate for clients.
    pub leaf: LeafPlan,
    /// The webhook server's reviews, where they are redirected.
    pub inbound: Option<InboundPlan>,
    /// The DNS domain of the cluster.
    pub cluster_domain: ClusterDomain,
    /// The file of the pod's labels.
    pub pod_labels: String,
    /// The directory that outlives the proxy's process.
    pub state_dir: String,
}

impl LeafPlan {
    /// The mesh CA of an injected pod's namespace.
    pub fn mesh_ca_of_pod() -> Self {
        Self::MeshCa { dir: MESH_CA_DIR.to_owned() }
    }

    /// The manager, with the paths of an injected pod.
    pub fn manager_of_pod(address: ManagerAddr) -> Self {
        let with = |file| format!("{ENROLMENT_DIR}/{file}");
        Self::Manager {
            address,
            ca: with(MANAGER_CA_FILE),
            token: with(TOKEN_FILE),
            bundle: with(CA_FILE),
            leaf: format!("{LEAF_DIR}/{LEAF_FILE}"),
        }
    }

    fn to_args(&self) -> Vec<String> {
        match self {
            Self::MeshCa { dir } => vec![format!("--mesh-ca-dir={dir}")],
            Self::Manager { address, ca, token, bundle, leaf } => vec![
                format!("--manager={address}"),
                format!("--manager-ca={ca}"),
                format!("--manager-token={token}"),
                format!("--mesh-bundle={bundle}"),
                format!("--leaf={leaf}"),
            ],
        }
    }
}

impl InboundPlan {
    /// The plan with the paths of an injected pod.
    pub fn of_pod(port: NonZeroU16) -> Self {
        Self { port, certs: WEBHOOK_CERT_DIR.to_owned() }
    }

    /// The port in a proxy's arguments, or `None` if it takes no reviews.
    pub fn port_in<'a>(args: impl IntoIterator<Item = &'a str>) -> Option<NonZeroU16> {
        args.into_iter().find_map(|arg| arg.strip_prefix(WEBHOOK_PORT)?.parse().ok())
    }

    fn to_args(&self) -> [String; 3] {
        [
            format!("--inbound={INBOUND}"),
            format!("{WEBHOOK_PORT}{}", self.port),
            format!("--webhook-certs={}", self.certs),
        ]
    }
}

impl ProxyPlan {
    /// The plan with the ports and paths of an injected pod.
    pub fn of_pod(mode: Mode, cluster_domain: ClusterDomain, leaf: LeafPlan) -> Self {
        Self {
            mode,
            listen: LISTEN,
            listen_names: None,
            admin: ADMIN,
            upstream_ca: cluster_ca(),
            leaf,
            inbound: None,
            cluster_domain,
            pod_labels: format!("{LABELS_DIR}/{LABELS_FILE}"),
            state_dir: STATE_DIR.to_owned(),
        }
    }

    /// The arguments of the container, subcommand first.
    ///
    /// Every value that has a default is written out, so that another version's defaults change
    /// nothing.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![
            PROXY.to_owned(),
            format!("--mode={}", self.mode),
            format!("--listen={}", self.listen),
        ];
        args.extend(self.listen_names.map(|addr| format!("{LISTEN_NAMES_FLAG}={addr}")));
        args.extend([
            format!("--admin={}", self.admin),
            format!("--upstream-ca={}", self.upstream_ca),
        ]);
        args.extend(self.leaf.to_args());
        args.extend(self.inbound.iter().flat_map(InboundPlan::to_args));
        args.extend([
            format!("--cluster-domain={}", self.cluster_domain),
            format!("--pod-labels={}", self.pod_labels),
            format!("--state-dir={}", self.state_dir),
        ]);
        args
    }
}
