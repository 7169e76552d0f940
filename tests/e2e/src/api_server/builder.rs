//! The start of an API server.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Result;
use serde_json::json;

use super::{ApiServer, AuditLevel, Client, Trust, behind::Behind};
use crate::{
    bed::{Bed, count_cluster},
    builds::kube_binary,
    kubectl::{Kubectl, write_kubeconfig},
    pki::{self, Authority},
    port::ReservedPort,
    programs::{Network, Process},
};

const ETCD_SOCKET: &str = "etcd.sock";
const SERVER: &str = "kube-apiserver";
const AUDIT_LOG_FLAG: &str = "--audit-log-path=";
const ETCD_FLAG: &str = "--etcd-servers=";
const PORT_FLAG: &str = "--secure-port=";

/// The options of an [`ApiServer`].
#[derive(Clone, Debug)]
pub struct ApiServerBuilder {
    bind: IpAddr,
    extra_names: Vec<String>,
    feature_gates: Vec<String>,
    audit: AuditLevel,
    extra_flags: Vec<String>,
    place: Place,
}

/// The network, the addresses and the directory of a server.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The network in which it listens.
    pub(crate) network: Network,
    /// The port; `None` lets the kernel choose.
    pub(crate) port: Option<u16>,
    /// The address behind the Service `kubernetes`. `None` if pods need not reach it.
    pub(crate) advertised: Option<IpAddr>,
    /// The ranges of Service addresses, primary family first.
    pub(crate) services: Vec<String>,
    /// A shared directory. `None` for a new one.
    pub(crate) bed: Option<Arc<Bed>>,
}

impl Default for ApiServerBuilder {
    fn default() -> Self {
        Self {
            bind: Ipv4Addr::LOCALHOST.into(),
            extra_names: Vec::new(),
            feature_gates: Vec::new(),
            audit: AuditLevel::default(),
            extra_flags: Vec::new(),
            place: Place {
                network: Network::Own,
                port: None,
                advertised: None,
                services: vec!["10.96.0.0/16".to_owned()],
                bed: None,
            },
        }
    }
}

impl ApiServerBuilder {
    /// Listens on this address instead of 127.0.0.1; `::` listens on all addresses of both
    /// families.
    #[must_use]
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = address;
        self
    }

    /// Adds a DNS name or an address to the serving certificate. The certificate already covers
    /// Kubernetes' own names, localhost, both loopback addresses, 10.96.0.1 and the bound address.
    #[must_use]
    pub fn extra_name(mut self, name: &str) -> Self {
        self.extra_names.push(name.to_owned());
        self
    }

    /// Turns a feature gate on or off, such as `ShardedListAndWatch`.
    #[must_use]
    pub fn feature_gate(mut self, gate: &str, on: bool) -> Self {
        self.feature_gates.push(format!("{gate}={on}"));
        self
    }

    /// The level of the audit log; [`AuditLevel::Metadata`] by default.
    #[must_use]
    pub fn audit(mut self, level: AuditLevel) -> Self {
        self.audit = level;
        self
    }

    /// Compacts etcd on this interval instead of every five minutes.
    #[must_use]
    pub fn compact_every(self, interval: Duration) -> Self {
        self.flag(&format!("--etcd-compaction-interval={}ms", interval.as_millis()))
    }

    /// Adds a flag of kube-apiserver, as `--name=value`; it overrides the bed's own.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.extra_flags.push(flag.to_owned());
        self
    }

    pub(crate) fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// Starts etcd and the server and waits until it is ready: about two seconds.
    ///
    /// # Errors
    ///
    /// When it does not become ready; the error quotes its log.
    pub fn start(mut self) -> Result<ApiServer> {
        count_cluster("api-server")?;
        let bed = self.place.bed.take().map_or_else(|| Bed::make().map(Arc::new), Ok)?;
        let etcd = Arc::new(start_etcd(&bed)?);
        let (port, reserved) = match self.place.port {
            Some(port) => (port, None),
            None => ReservedPort::of(self.bind).map(|port| (port.number(), Some(port)))?,
        };
        let address = SocketAddr::new(self.reached_at(), port);
        let url = format!("https://{address}");
        let trust = Arc::new(self.write_trust(&bed, &url)?);
        bed.write(&audit_log(SERVER), "")?;
        bed.write("audit-policy.json", &self.audit.policy().to_string())?;

        let network = self.place.network.clone();
        let client = Client::new(&url, &trust.ca_pem, &trust.admin_token, &network)?;
        let kubectl = Kubectl::new(&bed, &bed.path().join("admin.kubeconfig"), &network)?;
        let api = ApiServer {
            server: Mutex::new(None),
            etcd,
            behind: None,
            name: SERVER.to_owned(),
            flags: self.flags(&bed, port),
            address,
            network,
            trust,
            client,
            kubectl,
            _port: reserved,
            bed,
        };
        api.start_again()?;
        Ok(api)
    }

    /// The address at which the bed itself reaches the server.
    fn reached_at(&self) -> IpAddr {
        match (self.place.advertised, self.bind) {
            (Some(advertised), _) => advertised,
            (None, bound) if !bound.is_unspecified() => bound,
            (None, IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
            (None, IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
        }
    }

    fn write_trust(&self, bed: &Bed, url: &str) -> Result<Trust> {
        let authority = Authority::new("kubernetes-ca")?;
        let ca_pem = authority.cert_pem();
        let ca_file = bed.write("ca.crt", &ca_pem)?;
        bed.write("ca.key", &authority.key_pem())?;

        let serving = authority.server("kube-apiserver", &self.names())?;
        bed.write("apiserver.crt", &serving.cert_pem)?;
        bed.write("apiserver.key", &serving.key_pem)?;

        let (private, public) = pki::signing_key()?;
        bed.write("accounts.key", &private)?;
        bed.write("accounts.pub", &public)?;

        let admin = authority.client("admin", "system:masters")?;
        let certificate = bed.write("admin.crt", &admin.cert_pem)?;
        let key = bed.write("admin.key", &admin.key_pem)?;
        let user = json!({ "client-certificate": certificate, "client-key": key });
        write_kubeconfig(&bed.path().join("admin.kubeconfig"), url, &ca_file, &user)?;

        let admin_token: String = std::iter::repeat_with(fastrand::alphanumeric).take(32).collect();
        bed.write("tokens.csv", &format!("{admin_token},admin,admin,system:masters\n"))?;
        Ok(Trust { authority, ca_pem, admin_token })
    }

    fn names(&self) -> Vec<String> {
        let fixed = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "localhost",
            "127.0.0.1",
            "::1",
        ];
        let mut names: Vec<String> = fixed.map(str::to_owned).into();
        names.extend(self.place.services.iter().filter_map(|range| first_address(range)));
        names.push(self.reached_at().to_string());
        names.extend(self.extra_names.iter().cloned());
        names
    }

    fn flags(&self, bed: &Bed, port: u16) -> Vec<String> {
        let path = |name: &str| bed.path().join(name).display().to_string();
        let advertised = self.place.advertised.unwrap_or_else(|| self.reached_at());
        // Pods cannot reach a loopback address, and the server refuses to publish one.
        let reconciler = if self.place.advertised.is_some() { "lease" } else { "none" };
        let mut flags = vec![
            format!("{ETCD_FLAG}{}", etcd_url(bed)),
            format!("--bind-address={}", self.bind),
            format!("--advertise-address={advertised}"),
            format!("--endpoint-reconciler-type={reconciler}"),
            format!("{PORT_FLAG}{port}"),
            format!("--tls-cert-file={}", path("apiserver.crt")),
            format!("--tls-private-key-file={}", path("apiserver.key")),
            format!("--client-ca-file={}", path("ca.crt")),
            format!("--token-auth-file={}", path("tokens.csv")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", path("accounts.pub")),
            format!("--service-account-signing-key-file={}", path("accounts.key")),
            format!("--service-cluster-ip-range={}", self.place.services.join(",")),
            "--allow-privileged=true".to_owned(),
            // A stopping server ends its watches itself, instead of waiting a minute for them.
            "--shutdown-watch-termination-grace-period=5s".to_owned(),
            format!("--audit-policy-file={}", path("audit-policy.json")),
            format!("{AUDIT_LOG_FLAG}{}", path(&audit_log(SERVER))),
            "--audit-log-maxsize=0".to_owned(),
        ];
        if !self.feature_gates.is_empty() {
            flags.push(format!("--feature-gates={}", self.feature_gates.join(",")));
        }
        flags.extend(self.extra_flags.iter().cloned());
        flags
    }
}

/// See [`ApiServer::next to`].
pub(super) fn beside(first: &ApiServer) -> Result<ApiServer> {
    let bed = Arc::clone(&first.bed);
    let reserved = ReservedPort::of(first.address.ip())?;
    let port = reserved.number();
    let address = SocketAddr::new(first.address.ip(), port);
    let name = format!("{SERVER}-{port}");
    let etcd = bed.path().join(format!("etcd-of-{port}.sock"));
    let behind = Behind::start(etcd.clone(), &bed.path().join(ETCD_SOCKET))?;
    bed.write(&audit_log(&name), "")?;
    let own = [
        (ETCD_FLAG, format!("unix://{}", etcd.display())),
        (PORT_FLAG, port.to_string()),
        (AUDIT_LOG_FLAG, bed.path().join(audit_log(&name)).display().to_string()),
    ];
    let flag = |flag: &String| {
        let value = own.iter().find(|(name, _)| flag.starts_with(name));
        value.map_or_else(|| flag.clone(), |(name, value)| format!("{name}{value}"))
    };
    let (url, trust) = (format!("https://{address}"), Arc::clone(&first.trust));
    let api = ApiServer {
        server: Mutex::new(None),
        etcd: Arc::clone(&first.etcd),
        behind: Some(behind),
        flags: first.flags.iter().map(flag).collect(),
        name,
        address,
        network: first.network.clone(),
        client: Client::new(&url, &trust.ca_pem, &trust.admin_token, &first.network)?,
        kubectl: first.kubectl.clone(),
        trust,
        _port: Some(reserved),
        bed,
    };
    api.start_again()?;
    Ok(api)
}

/// The file of a server's audit log.
pub(super) fn audit_log(server: &str) -> String {
    match server {
        SERVER => "audit.log".to_owned(),
        other => format!("audit-{other}.log"),
    }
}

/// The URL of etcd: a Unix socket, so that no port collides and no network is needed.
pub(super) fn etcd_url(bed: &Bed) -> String {
    format!("unix://{}", bed.path().join(ETCD_SOCKET).display())
}

fn start_etcd(bed: &Bed) -> Result<Process> {
    // etcd takes the part after `unix://` for a file name relative to its directory.
    let (clients, peers) = (format!("unix://{ETCD_SOCKET}"), "unix://etcd-peers.sock");
    let mut command = Network::Own.tied(kube_binary()?);
    command
        .current_dir(bed.path())
        .arg("etcd")
        .args(["--data-dir=etcd", "--unsafe-no-fsync", "--log-level=warn"])
        .args([
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
        ]);
    Process::spawn("etcd", command, &bed.path().join("etcd.log"))
}

/// The address of the Service `kubernetes` in a range.
fn first_address(range: &str) -> Option<String> {
    let (base, _) = range.split_once('/')?;
    match base.parse().ok()? {
        IpAddr::V4(base) => Some(Ipv4Addr::from(u32::from(base) + 1).to_string()),
        IpAddr::V6(base) => Some(Ipv6Addr::from(u128::from(base) + 1).to_string()),
    }
}
