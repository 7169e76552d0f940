//! The flags of `ctrlmesh manager`, and the configuration that they make once checked together.

use std::{net::SocketAddr, num::NonZeroU16, path::PathBuf, time::Duration};

use clap::Args;
use ctrlmesh_init::{PlanError, ProxyUid};
use rustls_pki_types::{DnsName, ServerName};

use ctrlmesh_inject::{Enforces, Image, Resources, Settings, Sidecar};

use super::{
    label_keys::{LabelKey, LabelKeys},
    trust::{Lifetimes, Purpose},
};
use ctrlmesh_api::FenceMode;
use ctrlmesh_base::sidecar;
use ctrlmesh_net::{Clock, ClusterDomain, ManagerAddr, addr::BadManagerAddr};

/// The port of admission and enrolment in the manager's pod.
const LISTEN: &str = "0.0.0.0:8443";

/// The flags as they are typed.
#[derive(Args, Clone, Debug)]
pub struct ManagerArgs {
    /// The address for the API server, which asks for reviews, and for proxies, which enrol
    #[arg(long, env = "CTRLMESH_LISTEN", value_name = "ADDR", default_value = LISTEN)]
    pub listen: SocketAddr,

    /// The address of /metrics, /healthz and /readyz
    #[arg(long, env = "CTRLMESH_ADMIN", value_name = "ADDR", default_value_t = sidecar::ADMIN)]
    pub admin: SocketAddr,

    /// The Service in front of --listen: the manager serves under its names
    #[arg(long, env = "CTRLMESH_SERVICE", value_name = "NAME", default_value = "ctrlmesh-manager")]
    pub service: String,

    /// The address at which proxies enrol [default: port 443 of the Service]
    #[arg(long, env = "CTRLMESH_ADVERTISE", value_name = "HOST:PORT")]
    pub advertise: Option<ManagerAddr>,

    /// The MutatingWebhookConfiguration that gets the CA of the manager's ports
    #[arg(
        long,
        env = "CTRLMESH_WEBHOOK_CONFIGURATION",
        value_name = "NAME",
        default_value = "ctrlmesh"
    )]
    pub webhook_configuration: String,

    /// The Secret of the manager's namespace that holds the certificate authorities
    #[arg(long, env = "CTRLMESH_SECRET", value_name = "NAME", default_value = "ctrlmesh-trust")]
    pub secret: String,

    /// The Lease of the manager's namespace by which the replicas elect their leader
    #[arg(long, env = "CTRLMESH_LEASE", value_name = "NAME", default_value = "ctrlmesh-manager")]
    pub lease: String,

    /// The CA certificates of the cluster, which pods trust too; read again when they change
    #[arg(long, env = "CTRLMESH_CLUSTER_CA", value_name = "FILE",
          default_value_os_t = PathBuf::from(sidecar::cluster_ca()))]
    pub cluster_ca: PathBuf,

    /// The DNS domain of the cluster
    #[arg(long, env = "CTRLMESH_CLUSTER_DOMAIN", value_name = "DOMAIN",
          default_value = ClusterDomain::DEFAULT)]
    pub cluster_domain: ClusterDomain,

    /// More DNS names of the API server, which leaves are for as well
    #[arg(long, env = "CTRLMESH_TRUST_NAMES", value_name = "NAME,…", value_delimiter = ',')]
    pub trust_names: Vec<String>,

    /// The seconds that the leaf of a proxy is valid; proxies renew it at two thirds of that
    #[arg(long, env = "CTRLMESH_LEAF_LIFETIME", value_name = "SECONDS", default_value = "86400",
          value_parser = clap::value_parser!(u32).range(60..))]
    pub leaf_lifetime: u32,

    /// The seconds that an issuer of leaves is valid; it is replaced at two thirds of that
    #[arg(long, env = "CTRLMESH_ISSUER_LIFETIME", value_name = "SECONDS",
          default_value = "7776000", value_parser = clap::value_parser!(u32).range(60..))]
    pub issuer_lifetime: u32,

    /// The seconds that a root is valid; it is replaced at two thirds of that
    #[arg(long, env = "CTRLMESH_ROOT_LIFETIME", value_name = "SECONDS",
          default_value = "315360000", value_parser = clap::value_parser!(u32).range(60..))]
    pub root_lifetime: u32,

    /// The image of ctrlmesh-init
    #[arg(long, env = "CTRLMESH_INIT_IMAGE", value_name = "IMAGE")]
    pub init_image: Image,

    /// The image of ctrlmesh
    #[arg(long, env = "CTRLMESH_PROXY_IMAGE", value_name = "IMAGE")]
    pub proxy_image: Image,

    /// The kind of container that the proxy runs in
    #[arg(long, env = "CTRLMESH_SIDECAR", value_enum, default_value_t = Sidecar::Native)]
    pub sidecar: Sidecar,

    /// The numeric user of the proxy; no other container of the pod may run as it
    #[arg(long, env = "CTRLMESH_PROXY_UID", value_name = "UID", default_value_t = ProxyUid::DEFAULT)]
    pub proxy_uid: ProxyUid,

    /// Secrets, in the namespaces of pods, with which the kubelet pulls both images
    #[arg(long, env = "CTRLMESH_PULL_SECRETS", value_name = "NAME,…", value_delimiter = ',')]
    pub pull_secrets: Vec<String>,

    /// The requests and limits of proxies whose pods ask for none [default: 20m and 32Mi; a limit
    /// of 256Mi]
    #[arg(long, env = "CTRLMESH_PROXY_RESOURCES", value_name = "JSON")]
    pub proxy_resources: Option<Resources>,

    /// The seconds between counts of the objects of roots with auto.weight: Objects, after each of which
    /// a root moves objects to another shard once at most
    #[arg(long, env = "CTRLMESH_BALANCE_INTERVAL", value_name = "SECONDS", default_value = "600",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub balance_interval: u32,

    /// The flags of the labels that objects get.
    #[command(flatten)]
    pub stamps: StampArgs,

    /// The flags of the fence.
    #[command(flatten)]
    pub fence: FenceArgs,

    /// The seconds that open requests have to finish after SIGTERM
    #[arg(long, env = "CTRLMESH_DRAIN_TIMEOUT", value_name = "SECONDS", default_value = "5")]
    pub drain_timeout: u16,

    /// The pod's name: the replica's identity in the Lease
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub pod_name: String,

    /// The pod's namespace, in which Secret, Lease and Service are
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub pod_namespace: String,
}

/// The flags of the fence.
#[derive(Args, Clone, Copy, Debug)]
pub struct FenceArgs {
    /// The mode of the fence of a ShardingConfig that is no root and gives none: Enforce, Warn or Disabled.
    /// Pods get it when they are created
    #[arg(long, env = "CTRLMESH_FENCE", value_name = "MODE", default_value = "Warn")]
    pub fence: FenceMode,

    /// The mode of the fence of a root that gives none
    #[arg(long, env = "CTRLMESH_FENCE_ROOTS", value_name = "MODE", default_value = "Enforce")]
    pub fence_roots: FenceMode,
}

/// The flags of the labels that objects get.
#[derive(Args, Clone, Debug)]
pub struct StampArgs {
    /// The ConfigMap that names the kinds whose objects get the labels of their namespace. It is in the manager's
    /// namespace, as KusionStack has it
    #[arg(
        long,
        env = "CTRLMESH_RESOURCE_CONFIGMAP_NAME",
        value_name = "NAME",
        default_value = "ctrlmesh-sharding-resource"
    )]
    pub resource_configmap_name: String,

    /// The label of such an object: the name of its namespace
    #[arg(
        long,
        env = "CTRLMESH_LABEL_NAMESPACE",
        value_name = "KEY",
        default_value = "ctrlmesh.kusionstack.io/namespace"
    )]
    pub label_namespace: LabelKey,

    /// The label of such an object: the bucket of its namespace, 0 to 31
    #[arg(
        long,
        env = "CTRLMESH_LABEL_SHARD_HASH",
        value_name = "KEY",
        default_value = "ctrlmesh.kusionstack.io/shard-hash"
    )]
    pub label_shard_hash: LabelKey,

    /// The label of such an object that is `true`
    #[arg(
        long,
        env = "CTRLMESH_LABEL_MESH_CONTROL",
        value_name = "KEY",
        default_value = "ctrlmesh.kusionstack.io/control"
    )]
    pub label_mesh_control: LabelKey,

    /// The requests a second, at most, by which objects get these labels
    #[arg(long, env = "CTRLMESH_STAMP_RATE", value_name = "COUNT", default_value = "20")]
    pub stamp_rate: NonZeroU16,
}

impl StampArgs {
    fn label_keys(&self) -> Result<LabelKeys, BadConfig> {
        let keys = LabelKeys {
            namespace: self.label_namespace.clone(),
            shard_hash: self.label_shard_hash.clone(),
            control: self.label_mesh_control.clone(),
        };
        match keys.twice() {
            Some(key) => Err(BadConfig::SameLabel(key.clone())),
            None => Ok(keys),
        }
    }
}

/// The checked configuration of the manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address for the API server and proxies.
    pub listen: SocketAddr,
    /// The address of metrics and health.
    pub admin: SocketAddr,
    /// The objects that the manager keeps, by name.
    pub objects: Objects,
    /// The file of the cluster's CA.
    pub cluster_ca: PathBuf,
    /// The purpose of the authorities, without the addresses of the API server.
    pub purpose: Purpose,
    /// The settings of pods, by their namespace's level.
    pub settings: PodSettings,
    /// The keys of the labels that objects get.
    pub label_keys: LabelKeys,
    /// The requests a second, at most, by which they get them.
    pub stamp_rate: NonZeroU16,
    /// The modes of the fence of configs that give none.
    pub fence: FenceArgs,
    /// The time between counts of objects.
    pub balance_interval: Duration,
    /// The longest time that a drain may take.
    pub drain_timeout: Duration,
    /// The clock by which certificates are made and verified.
    pub clock: Clock,
}

/// The objects that the manager keeps, by name.
#[derive(Clone, Debug)]
pub struct Objects {
    /// The manager's namespace.
    pub namespace: String,
    /// The name of this replica.
    pub replica: String,
    /// The Secret with the authorities.
    pub secret: String,
    /// The Lease of the leader.
    pub lease: String,
    /// The MutatingWebhookConfiguration.
    pub webhooks: String,
    /// The ConfigMap of kinds whose objects get labels.
    pub stamped: String,
}

/// The settings of pods, by the level that their namespace enforces.
#[derive(Clone, Debug)]
pub struct PodSettings {
    /// The settings in namespaces that enforce no level below `privileged`.
    pub privileged: Settings,
    /// The settings in the other namespaces.
    pub baseline: Settings,
}

/// Flags that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadConfig {
    #[error("{0} {1:?} is not a DNS name, for example {2}")]
    Name(&'static str, String, &'static str),
    #[error("--service")]
    Service(#[from] BadManagerAddr),
    #[error("--proxy-uid")]
    Plan(#[from] PlanError),
    #[error(
        "--label-namespace, --label-shard-hash and --label-mesh-control: two of them are {0}: give three keys"
    )]
    SameLabel(LabelKey),
}

fn trusted(name: String) -> Result<DnsName<'static>, BadConfig> {
    DnsName::try_from(name.clone())
        .map_err(|_| BadConfig::Name("--trust-names", name, "api.example.com"))
}

impl Config {
    /// Checks the flags. Fails with [`BadConfig`], which names the flag.
    pub fn new(args: ManagerArgs) -> Result<Self, BadConfig> {
        let ManagerArgs { service, pod_namespace: namespace, cluster_domain: domain, .. } = args;
        let label_keys = args.stamps.label_keys()?;
        let named = |suffix: &str| {
            let name = format!("{service}.{namespace}{suffix}");
            let name = DnsName::try_from(name).map(ServerName::DnsName);
            name.map_err(|_| BadConfig::Name("--service", service.clone(), "ctrlmesh-manager"))
        };
        let address = match args.advertise {
            Some(address) => address,
            None => format!("{service}.{namespace}.svc:443").parse()?,
        };
        let mut serving = vec![named(".svc")?, named(&format!(".svc.{domain}"))?, named("")?];
        if !serving.contains(address.host()) {
            serving.push(address.host().clone());
        }
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let purpose = Purpose {
            serving,
            domain: domain.clone(),
            addresses: Vec::new(),
            names: args.trust_names.into_iter().map(trusted).collect::<Result<_, _>>()?,
            lifetimes: Lifetimes {
                root: seconds(args.root_lifetime),
                issuer: seconds(args.issuer_lifetime),
                leaf: seconds(args.leaf_lifetime),
            },
        };
        let settings =
            Settings::new(args.proxy_image, args.init_image, args.sidecar, args.proxy_uid)?
                .in_domain(domain)
                .with_manager(address)
                .with_pull_secrets(args.pull_secrets)
                .with_fence(args.fence.fence);
        let settings = settings.with_proxy_resources(args.proxy_resources);
        Ok(Self {
            listen: args.listen,
            admin: args.admin,
            objects: Objects {
                namespace,
                replica: args.pod_name,
                secret: args.secret,
                lease: args.lease,
                webhooks: args.webhook_configuration,
                stamped: args.stamps.resource_configmap_name,
            },
            cluster_ca: args.cluster_ca,
            purpose,
            settings: PodSettings {
                privileged: settings.clone().at_admission(Enforces::Privileged),
                baseline: settings.at_admission(Enforces::Baseline),
            },
            label_keys,
            stamp_rate: args.stamps.stamp_rate,
            fence: args.fence,
            balance_interval: seconds(args.balance_interval),
            drain_timeout: Duration::from_secs(args.drain_timeout.into()),
            clock: Clock::system(),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        stamps: StampArgs,
    }

    fn keys(flags: &[&str]) -> Result<LabelKeys, String> {
        let line = CommandLine::try_parse_from(["manager"].iter().chain(flags));
        let line = line.map_err(|error| error.to_string())?;
        line.stamps.label_keys().map_err(|error| error.to_string())
    }

    #[test]
    fn bad_i15_labels_with_one_key_are_refused() {
        let one = "--label-namespace=example.com/a";
        let said = keys(&[one, "--label-shard-hash=example.com/a"]).unwrap_err();
        assert!(said.ends_with("two of them are example.com/a: give three keys"), "{said}");
        keys(&[one, "--label-mesh-control=example.com/a"]).unwrap_err();
        keys(&["--label-mesh-control=b", "--label-shard-hash=b"]).unwrap_err();
        let said = keys(&["--label-namespace=/a"]).unwrap_err();
        assert!(said.contains("invalid value '/a' for '--label-namespace <KEY>'"), "{said}");
        assert_eq!(keys(&[one]).unwrap().namespace.to_string(), "example.com/a");
    }
}
