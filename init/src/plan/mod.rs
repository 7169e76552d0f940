//! The wanted redirect rules of a pod, as data.
//!
//! A [`Plan`] holds no iptables syntax and no resolved name, so the injector can build it before
//! the pod exists. Every value is validated by its constructor.

pub mod env_from;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::str::FromStr;

use self::env_from::EnvFrom;

/// The maximum number of upstreams of a plan, and of the addresses they resolve to. The restore
/// text then stays under 32 KiB, less than the buffer of a pipe.
pub const MAX_UPSTREAMS: usize = 64;

/// The upstreams to intercept, the exempt user, and the listeners that receive the connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    proxy_uid: ProxyUid,
    outbound_port: NonZeroU16,
    upstreams: Vec<Upstream>,
    inbound: Option<Inbound>,
    backend: BackendChoice,
}

impl Plan {
    /// Fails if two ports collide or there are too many upstreams. Empty `upstreams` mean the pod's
    /// own `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    pub fn new(
        proxy_uid: ProxyUid,
        outbound_port: NonZeroU16,
        upstreams: Vec<Upstream>,
        inbound: Option<Inbound>,
        backend: BackendChoice,
    ) -> Result<Self, PlanError> {
        if upstreams.len() > MAX_UPSTREAMS {
            return Err(PlanError::TooMany(upstreams.len()));
        }
        if let Some(inbound) = inbound {
            for (field, port) in
                [("the intercepted port", inbound.port), ("the listener", inbound.listener)]
            {
                if port == outbound_port {
                    return Err(PlanError::PortTwice { field, port });
                }
            }
        }
        Ok(Self { proxy_uid, outbound_port, upstreams, inbound, backend })
    }

    /// The user whose connections go straight to the API server.
    pub fn proxy_uid(&self) -> ProxyUid {
        self.proxy_uid
    }

    /// The proxy's listener for the pod's outgoing connections, on 127.0.0.1 and `::1`.
    pub fn outbound_port(&self) -> NonZeroU16 {
        self.outbound_port
    }

    /// The upstreams to intercept; empty means the API server that the pod's environment names.
    pub fn upstreams(&self) -> &[Upstream] {
        &self.upstreams
    }

    /// The webhook port, if one is intercepted.
    pub fn inbound(&self) -> Option<Inbound> {
        self.inbound
    }

    /// The iptables backend that may be used.
    pub fn backend(&self) -> BackendChoice {
        self.backend
    }
}

/// The numeric user that the proxy runs as.
///
/// Never 0: a rule that exempts root would exempt every root process of the pod. Never
/// 4294967295, which is not a user (`(uid_t) -1`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct ProxyUid(u32);

impl ProxyUid {
    /// The default user.
    pub const DEFAULT: Self = Self(1359);

    /// Refuses root and "no user".
    pub fn new(uid: u32) -> Result<Self, PlanError> {
        match uid {
            0 | u32::MAX => Err(PlanError::Uid(uid.to_string())),
            uid => Ok(Self(uid)),
        }
    }

    /// The number, as `chown` takes it.
    pub fn as_u32(self) -> u32 {
        self.0
    }
}

impl FromStr for ProxyUid {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let uid = text.parse().map_err(|_| PlanError::Uid(text.to_owned()))?;
        Self::new(uid)
    }
}

/// One address of the API server, written `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Upstream {
    host: Host,
    port: NonZeroU16,
}

impl Upstream {
    /// Builds an upstream from a separate host and port, as in `KUBERNETES_SERVICE_HOST` and
    /// `KUBERNETES_SERVICE_PORT`. An IPv6 address may be bare or in brackets.
    pub fn new(host: &str, port: &str) -> Result<Self, PlanError> {
        let port = port.parse().map_err(|_| PlanError::Port(port.to_owned()))?;
        Ok(Self { host: host.parse()?, port })
    }

    /// The address or the name.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The TCP port.
    pub fn port(&self) -> NonZeroU16 {
        self.port
    }
}

impl FromStr for Upstream {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        // `fd00::1:443` is valid both with and without a port: refused, never guessed.
        if text.parse::<Ipv6Addr>().is_ok() {
            return Err(PlanError::Ambiguous(text.to_owned()));
        }
        let (host, port) =
            text.rsplit_once(':').ok_or_else(|| PlanError::NoPort(text.to_owned()))?;
        Self::new(host, port)
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(address) => SocketAddr::new(*address, self.port.get()).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// The host of an upstream: an address that rules can match, or a name that resolves to such ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// An address, canonical: an IPv4-mapped IPv6 address is held as IPv4, as the kernel's rules
    /// see it.
    Address(IpAddr),
    /// A DNS name, lower case.
    Name(String),
}

impl FromStr for Host {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(inner) = bracketed {
            let address: Ipv6Addr = inner.parse().map_err(|_| PlanError::Host(text.to_owned()))?;
            return interceptable(address.into()).map(Host::Address);
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return interceptable(address).map(Host::Address);
        }
        if !is_dns_name(text) {
            return Err(PlanError::Host(text.to_owned()));
        }
        Ok(Self::Name(text.to_ascii_lowercase()))
    }
}

/// The canonical form of an address. An error if no redirect rule makes sense for it.
pub(crate) fn interceptable(address: IpAddr) -> Result<IpAddr, PlanError> {
    let address = address.to_canonical();
    let kind = match address {
        _ if address.is_loopback() => "a loopback",
        _ if address.is_unspecified() => "the unspecified",
        _ if address.is_multicast() => "a multicast",
        IpAddr::V4(v4) if v4.is_broadcast() => "the broadcast",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local",
        _ => return Ok(address),
    };
    Err(PlanError::Address { address, kind })
}

/// Whether `text` is RFC 1123 labels, 253 bytes at most; a numeric last label is a mistyped IPv4.
fn is_dns_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= 253
        && text.split('.').all(is_label)
        && !text.rsplit('.').next().is_some_and(is_number)
}

/// The webhook port of the pod and the proxy's listener for it, written `PORT:LISTENER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display("{port}:{listener}")]
pub struct Inbound {
    port: NonZeroU16,
    listener: NonZeroU16,
}

impl Inbound {
    /// Fails if the two ports are equal.
    pub fn new(port: NonZeroU16, listener: NonZeroU16) -> Result<Self, PlanError> {
        if port == listener {
            return Err(PlanError::PortTwice { field: "the listener", port });
        }
        Ok(Self { port, listener })
    }

    /// The port that the API server calls.
    pub fn port(self) -> NonZeroU16 {
        self.port
    }

    /// The proxy's listener, on all of the pod's addresses: the kernel redirects to the address of
    /// the incoming interface.
    pub fn listener(self) -> NonZeroU16 {
        self.listener
    }
}

impl FromStr for Inbound {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let malformed = || PlanError::Inbound(text.to_owned());
        let (port, listener) = text.split_once(':').ok_or_else(malformed)?;
        Self::new(
            port.parse().map_err(|_| malformed())?,
            listener.parse().map_err(|_| malformed())?,
        )
    }
}

/// The iptables backend that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum BackendChoice {
    /// The nft backend if this kernel is shown to accept it, else legacy.
    Auto,
    /// The backend over nf_tables only.
    Nft,
    /// The backend over ip_tables only.
    Legacy,
}

/// The reason why a plan is invalid. Each message names the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum PlanError {
    #[error(
        "upstream {address} is {kind} address: an address that pods reach over the network is needed"
    )]
    Address {
        address: IpAddr,
        /// The kind of address, with its article.
        kind: &'static str,
    },
    #[error("upstream `{0}` is ambiguous: write an IPv6 address as [ADDRESS]:PORT")]
    Ambiguous(String),
    /// An `envFrom` gives a container another API server than the kubelet does.
    #[error(
        "an envFrom of the pod refers to the {0}, which sets the API server's address in a \
         container: its requests would go past the proxy; remove the key, or give the envFrom a \
         prefix"
    )]
    EnvFrom(EnvFrom),
    #[error("upstream host `{0}` is neither an IP address nor a DNS name")]
    Host(String),
    #[error("inbound `{0}` is not PORT:LISTENER, two numbers from 1 to 65535")]
    Inbound(String),
    #[error("upstream `{0}` has no port: write HOST:PORT, for instance 10.96.0.1:443")]
    NoPort(String),
    #[error("no API server to intercept: {0}; set both or give --upstream HOST:PORT")]
    NoUpstream(&'static str),
    #[error("upstream port `{0}` is not a number from 1 to 65535")]
    Port(String),
    #[error("port {port} is used twice: {field} of --inbound needs a port of its own")]
    PortTwice { field: &'static str, port: NonZeroU16 },
    #[error("POD_IPS has `{0}`, which is not an IP address: use the field status.podIPs")]
    PodIp(String),
    /// Upstreams beyond [`MAX_UPSTREAMS`].
    #[error("{0} upstream addresses are too many: the limit is {MAX_UPSTREAMS}")]
    TooMany(usize),
    #[error("proxy uid `{0}` is not a numeric unprivileged user from 1 to 4294967294")]
    Uid(String),
}
