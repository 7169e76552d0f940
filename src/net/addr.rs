//! The roles of an address. A value of one role cannot be passed where another is meant.

use std::{fmt, io, net::SocketAddr, num::NonZeroU16, str::FromStr};

use ctrlmesh_init::prove::original_destination;
use rustls_pki_types::ServerName;

/// The source of the client's connection. IPv4-mapped addresses are IPv4 here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, derive_more::Display)]
pub struct ClientAddr(SocketAddr);

impl ClientAddr {
    /// The peer of an accepted socket.
    pub fn new(peer: SocketAddr) -> Self {
        Self(canonical(peer))
    }

    /// The address.
    pub fn get(self) -> SocketAddr {
        self.0
    }
}

/// The destination that the client dialled, before the redirect rule changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OrigDst(SocketAddr);

/// Reasons why a connection has no usable original destination.
#[derive(Debug, thiserror::Error)]
pub enum NotRedirected {
    /// The kernel answers with our own address when no rule redirected the connection.
    #[error("the connection came straight to the listener {0}, no rule redirected it")]
    Direct(SocketAddr),
    /// A connection that connection tracking does not know.
    #[error("the kernel knows no original destination")]
    Unknown(#[source] io::Error),
}

impl OrigDst {
    /// Asks the kernel for the socket's original destination.
    pub fn of(socket: &tokio::net::TcpStream) -> Result<Self, NotRedirected> {
        let local = canonical(socket.local_addr().map_err(NotRedirected::Unknown)?);
        match original_destination(socket, local) {
            Ok(dst) if canonical(dst) == local => Err(NotRedirected::Direct(local)),
            Ok(dst) => Ok(Self(canonical(dst))),
            Err(error) => Err(NotRedirected::Unknown(error)),
        }
    }

    /// The address.
    pub fn get(self) -> SocketAddr {
        self.0
    }
}

/// The API server's address, `HOST:PORT` as text. The host is a name, an IPv4 address, or an IPv6
/// address, in brackets in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAddr {
    host: ServerName<'static>,
    port: u16,
}

/// The reason why a text is not `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not HOST:PORT, for example 10.96.0.1:443 or [fd00::1]:6443")]
pub struct BadUpstream(String);

impl UpstreamAddr {
    /// Makes it from the two environment variables that the kubelet sets in every container.
    pub fn from_host_port(host: &str, port: u16) -> Result<Self, BadUpstream> {
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let host = ServerName::try_from(bare.to_owned())
            .map_err(|_| BadUpstream(format!("{host}:{port}")))?;
        Ok(Self { host, port })
    }

    /// The name or address for which the upstream's certificate must be valid.
    pub fn host(&self) -> &ServerName<'static> {
        &self.host
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for UpstreamAddr {
    type Err = BadUpstream;

    fn from_str(text: &str) -> Result<Self, BadUpstream> {
        let bad = || BadUpstream(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port: NonZeroU16 = port.parse().map_err(|_| bad())?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(bad());
        }
        Self::from_host_port(host, port.get()).map_err(|_| bad())
    }
}

impl fmt::Display for UpstreamAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            ServerName::IpAddress(ip) => SocketAddr::new((*ip).into(), self.port).fmt(f),
            name => write!(f, "{}:{}", name.to_str(), self.port),
        }
    }
}

/// The manager's address, `HOST:PORT` as text.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub struct ManagerAddr(UpstreamAddr);

/// The reason why a text is not the manager's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not HOST:PORT, for example ctrlmesh-manager.ctrlmesh-system.svc:9443")]
pub struct BadManagerAddr(String);

impl ManagerAddr {
    /// The name or address for which the manager's certificate must be valid.
    pub fn host(&self) -> &ServerName<'static> {
        self.0.host()
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.0.port()
    }
}

impl FromStr for ManagerAddr {
    type Err = BadManagerAddr;

    fn from_str(text: &str) -> Result<Self, BadManagerAddr> {
        text.parse().map(Self).map_err(|_| BadManagerAddr(text.to_owned()))
    }
}

/// Turns an IPv4-mapped IPv6 address into the IPv4 address.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_is_host_and_port() {
        for (text, shown) in [
            ("10.96.0.1:443", "10.96.0.1:443"),
            ("[fd00::1]:6443", "[fd00::1]:6443"),
            ("kubernetes.default.svc:443", "kubernetes.default.svc:443"),
        ] {
            let parsed: UpstreamAddr = text.parse().unwrap();
            assert_eq!(parsed.to_string(), shown);
        }
        for text in ["10.96.0.1", "fd00::1:443", ":443", "a b:443", "host:0", "host:65536"] {
            let error = text.parse::<UpstreamAddr>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn the_managers_address_has_a_name_of_its_own_in_its_error() {
        let addr: ManagerAddr = "ctrlmesh-manager.mesh.svc:9443".parse().unwrap();
        assert_eq!(
            (addr.to_string().as_str(), addr.port()),
            ("ctrlmesh-manager.mesh.svc:9443", 9443)
        );
        let error = "ctrlmesh-manager".parse::<ManagerAddr>().unwrap_err().to_string();
        assert!(error.contains("\"ctrlmesh-manager\"") && error.contains("svc:9443"), "{error}");
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:80".parse().unwrap();
        assert_eq!(ClientAddr::new(mapped).get(), "10.0.0.1:80".parse().unwrap());
    }
}
