//! The way to a server: its address, TCP and TLS.

use std::{io, sync::Arc, time::Duration};

use rustls::{ClientConfig, server::ClientHello};
use rustls_pki_types::ServerName;
use tokio::{io::BufReader, net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client};

use super::server::{Capabilities, OwnSocket, Server};
use crate::{config::Route, outcome::Closed};
use ctrlmesh_net::{
    OrigDst, UpstreamAddr,
    addr::NotRedirected,
    names::LOCALHOST,
    socket,
    tls::{HTTP_11, tls_error},
};

/// Timeout of TCP and TLS, together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read from the socket at once.
const READ_BUFFER: usize = 64 << 10;

/// The server of one connection, and the address at which it is dialled.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) server: Arc<Server>,
    address: Address,
}

#[derive(Clone, Debug)]
enum Address {
    Original(OrigDst),
    Fixed(UpstreamAddr),
}

/// The wishes of who dials: a client's, by its ClientHello, or our own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish<'a> {
    /// The protocols (ALPN).
    pub(crate) protocols: Vec<&'a [u8]>,
    /// The name of the server (SNI).
    pub(crate) name: Option<&'a str>,
}

/// A buffered socket. TLS reads 4 KiB at once, which is as much as the API server puts into one
/// record of a list: a buffer below it saves most of the calls.
pub(crate) type UpstreamTlsStream = client::TlsStream<BufReader<TcpStream>>;

/// The upstream leg.
#[derive(Debug)]
pub(crate) struct UpstreamConn {
    pub(crate) stream: UpstreamTlsStream,
    pub(crate) server: Arc<Server>,
    /// The dialled `HOST:PORT`.
    pub(crate) name: String,
    pub(crate) understood: Arc<Capabilities>,
    pub(crate) own: OwnSocket,
    pub(crate) redial: Redial,
}

/// The way of a connection to its server, for another connection to the same.
#[derive(Clone, Debug)]
pub(crate) struct Redial {
    to: Destination,
    name: Option<Box<str>>,
}

impl Redial {
    /// Connects in HTTP/1.1, and verifies the server.
    pub(super) async fn dial(&self) -> Result<UpstreamConn, Closed> {
        self.to.dial(Wish { protocols: vec![HTTP_11], name: self.name.as_deref() }).await
    }
}

impl UpstreamConn {
    /// The protocol that the upstream chose.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        self.stream.get_ref().1.alpn_protocol()
    }
}

impl<'a> From<&'a ClientHello<'_>> for Wish<'a> {
    fn from(hello: &'a ClientHello<'_>) -> Self {
        Self { protocols: hello.alpn().into_iter().flatten().collect(), name: hello.server_name() }
    }
}

impl Destination {
    /// The destination of a connection that a listener for `server` accepted. Fails when the
    /// server's address is the one that the client dialled, and that is not known.
    pub(crate) fn new(
        server: &Arc<Server>,
        redirected: Result<OrigDst, NotRedirected>,
    ) -> Result<Self, Closed> {
        let address = match &server.route {
            Route::Fixed(upstream) => Address::Fixed(upstream.clone()),
            Route::Original => Address::Original(redirected?),
        };
        Ok(Self { server: Arc::clone(server), address })
    }

    /// Connects, and verifies the server.
    pub(crate) async fn dial(&self, wish: Wish<'_>) -> Result<UpstreamConn, Closed> {
        let redial = Redial { to: self.clone(), name: wish.name.map(Into::into) };
        let (config, name) = self.verified(wish);
        let connecting = async {
            let tcp = self.address.connect().await.map_err(|_| Closed::UpstreamUnreachable)?;
            let ends = tcp.local_addr().and_then(|local| Ok((local, tcp.peer_addr()?)));
            let (local, dialled) = ends.map_err(|_| Closed::UpstreamUnreachable)?;
            let own = self.server.sockets.remember(local, dialled);
            let stream = TlsConnector::from(Arc::new(config))
                .connect(name, BufReader::with_capacity(READ_BUFFER, tcp))
                .await
                .map_err(|error| upstream_error(&error))?;
            let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let certificate = certificates.first().map_or(&[][..], AsRef::as_ref);
            let understood = self.server.abilities.of(dialled, certificate);
            let (server, name) = (Arc::clone(&self.server), self.address.host_port());
            Ok(UpstreamConn { stream, server, name, understood, own, redial })
        };
        timeout(DIAL_TIMEOUT, connecting).await.unwrap_or(Err(Closed::UpstreamUnreachable))
    }

    /// The configuration, and the name for which the certificate must be valid. At the address that
    /// the client dialled, the name that it asked for is sent and verified, as the client itself
    /// would: an API server may have a certificate for its names alone, or choose it by the name.
    fn verified(&self, wish: Wish<'_>) -> (ClientConfig, ServerName<'static>) {
        let tls = self.server.tls.get();
        let config = tls.offering(wish.protocols.into_iter());
        let dialled = match &self.address {
            Address::Original(dst) => dst.get().ip(),
            Address::Fixed(addr) => return (config, addr.host().clone()),
        };
        let asked = wish.name.filter(|name| !name.eq_ignore_ascii_case(LOCALHOST));
        match asked.map(|name| ServerName::try_from(name.to_owned())) {
            Some(Ok(name)) => (tls.by_name_or_address(config, dialled), name),
            _ => (config, ServerName::from(dialled)),
        }
    }
}

impl Address {
    async fn connect(&self) -> io::Result<TcpStream> {
        let upstream = match self {
            Self::Original(dst) => return socket::dial(dst.get()).await,
            Self::Fixed(upstream) => upstream,
        };
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let host = upstream.host().to_str().into_owned();
        for addr in tokio::net::lookup_host((host, upstream.port())).await? {
            match socket::dial(addr).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn host_port(&self) -> String {
        match self {
            Self::Original(dst) => dst.get().to_string(),
            Self::Fixed(upstream) => upstream.to_string(),
        }
    }
}

fn upstream_error(error: &io::Error) -> Closed {
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(_)) => Closed::UpstreamUntrusted,
        _ => Closed::UpstreamUnreachable,
    }
}
