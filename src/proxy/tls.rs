//! The start of a connection: from its first bytes to TLS on both legs.
//!
//! The upstream is dialled and verified *before* the client gets an answer: so the client sees an
//! outage as it would without us.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use rustls::{
    ClientConfig, InvalidMessage, ProtocolVersion, RootCertStore, client::WebPkiServerVerifier,
    server::Acceptor,
};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, TlsConnector, client, server};

use super::{
    listen::{Destination, OwnSocket, OwnSockets},
    outcome::Closed,
};
use crate::net::{
    ClientAddr, Clock,
    leaf::Leaf,
    names::LOCALHOST,
    socket,
    tls::{H2, HTTP_11, ServerConfigs, by_name_or_address, upstream_config, upstream_verifier},
};

/// A client that sends no complete ClientHello within this time is closed.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of TCP and TLS towards the upstream, together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the rest of the client's handshake.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read from the upstream's socket at once.
const READ_BUFFER: usize = 64 << 10;

/// Fatal alerts in plain text (RFC 8446 section 6), for handshakes that never begin.
const UNRECOGNIZED_NAME: u8 = 112;
const INTERNAL_ERROR: u8 = 80;

/// State shared by the handshakes of this process.
#[derive(Debug)]
pub(super) struct Tls {
    pub(super) leaf: Arc<Leaf>,
    pub(super) server: ServerConfigs,
    pub(super) upstream: ArcSwap<UpstreamTls>,
    pub(super) own: OwnSockets,
}

/// One client configuration for each set of protocols that a client may offer, all sharing one
/// session store.
#[derive(Debug)]
pub(super) struct UpstreamTls {
    verifier: Arc<WebPkiServerVerifier>,
    both: Arc<ClientConfig>,
    h2: Arc<ClientConfig>,
    http_11: Arc<ClientConfig>,
    no_alpn: Arc<ClientConfig>,
}

/// TLS reads 4 KiB from a socket at once, which is as much as the API server puts into one record
/// of a list: a buffer below it saves most of the calls.
pub(super) type UpstreamTlsStream = client::TlsStream<BufReader<TcpStream>>;

/// The upstream leg.
#[derive(Debug)]
pub(super) struct UpstreamConn {
    pub(super) stream: UpstreamTlsStream,
    /// `HOST:PORT`, as it was dialled.
    pub(super) name: String,
    pub(super) own: OwnSocket,
}

impl UpstreamTls {
    /// # Errors
    /// When rustls refuses the roots.
    pub(super) fn new(roots: RootCertStore, clock: &Clock) -> Result<Self, rustls::Error> {
        let verifier = upstream_verifier(roots)?;
        let base = upstream_config(Arc::clone(&verifier), clock)?;
        let with = |alpn: &[&[u8]]| {
            let mut config = base.clone();
            config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
            Arc::new(config)
        };
        Ok(Self {
            verifier,
            both: with(&[H2, HTTP_11]),
            h2: with(&[H2]),
            http_11: with(&[HTTP_11]),
            no_alpn: with(&[]),
        })
    }

    fn offering(&self, h2: bool, http_11: bool) -> Arc<ClientConfig> {
        Arc::clone(match (h2, http_11) {
            (true, true) => &self.both,
            (true, false) => &self.h2,
            (false, true) => &self.http_11,
            (false, false) => &self.no_alpn,
        })
    }

    /// The configuration and the name for a connection to the address that the client dialled. The
    /// name in the client's SNI is sent and verified, as the client itself would: an API server may
    /// have a certificate for its names alone, or choose it by the name.
    fn to_original(
        &self,
        config: Arc<ClientConfig>,
        dialled: IpAddr,
        asked: Option<&str>,
    ) -> (Arc<ClientConfig>, ServerName<'static>) {
        let asked = asked.filter(|name| !name.eq_ignore_ascii_case(LOCALHOST));
        match asked.map(|name| ServerName::try_from(name.to_owned())) {
            Some(Ok(name)) => {
                (Arc::new(by_name_or_address(&config, &self.verifier, dialled)), name)
            }
            _ => (config, ServerName::from(dialled)),
        }
    }
}

impl UpstreamConn {
    /// The protocol that the upstream chose.
    pub(super) fn alpn(&self) -> Option<&[u8]> {
        self.stream.get_ref().1.alpn_protocol()
    }
}

impl Tls {
    /// Reads the ClientHello. A connection that is not TLS, or names a host that the leaf does not
    /// cover, is closed: on an intercepted address nothing passes unread.
    pub(super) async fn hello(
        &self,
        stream: TcpStream,
        client: ClientAddr,
        dialled: SocketAddr,
    ) -> Result<StartHandshake<TcpStream>, Closed> {
        let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
        let hello = match timeout(HELLO_TIMEOUT, &mut acceptor).await {
            Err(_) => return Err(Closed::HelloTimeout),
            Ok(Err(error)) => {
                if let Some(mut stream) = acceptor.take_io() {
                    let _ = stream.shutdown().await;
                }
                return Err(hello_error(&error));
            }
            Ok(Ok(hello)) => hello,
        };
        if self.own.contains(client, dialled) {
            return Err(Closed::Loop);
        }
        match hello.client_hello().server_name() {
            Some(host) if !self.leaf.covers(host) => {
                alert(hello, UNRECOGNIZED_NAME).await;
                Err(Closed::UnknownServerName)
            }
            _ => Ok(hello),
        }
    }

    /// Connects to the upstream with the protocols that the client offers, and verifies it.
    pub(super) async fn dial(
        &self,
        to: &Destination,
        hello: &StartHandshake<TcpStream>,
    ) -> Result<UpstreamConn, Closed> {
        let (mut h2, mut http_11) = (false, false);
        for protocol in hello.client_hello().alpn().into_iter().flatten() {
            h2 |= protocol == H2;
            http_11 |= protocol == HTTP_11;
        }
        let asked = hello.client_hello().server_name().map(str::to_owned);
        let upstream = self.upstream.load_full();
        let config = upstream.offering(h2, http_11);
        let (config, name) = match to {
            Destination::Original(dst) => {
                upstream.to_original(config, dst.get().ip(), asked.as_deref())
            }
            Destination::Fixed(addr) => (config, addr.host().clone()),
        };
        let connecting = async {
            let tcp = connect(to).await.map_err(|_| Closed::UpstreamUnreachable)?;
            let ends = tcp.local_addr().and_then(|local| Ok((local, tcp.peer_addr()?)));
            let (local, dialled) = ends.map_err(|_| Closed::UpstreamUnreachable)?;
            let own = self.own.remember(local, dialled);
            let stream = TlsConnector::from(config)
                .connect(name, BufReader::with_capacity(READ_BUFFER, tcp))
                .await
                .map_err(|error| upstream_error(&error))?;
            Ok(UpstreamConn { stream, name: host_port(to), own })
        };
        timeout(DIAL_TIMEOUT, connecting).await.unwrap_or(Err(Closed::UpstreamUnreachable))
    }

    /// Turns the client away: with a TLS alert if the upstream answered and was not trusted, with a
    /// TCP reset if it did not answer.
    pub(super) async fn turn_away(&self, hello: StartHandshake<TcpStream>, why: Closed) {
        if why == Closed::UpstreamUntrusted {
            alert(hello, INTERNAL_ERROR).await;
        } else {
            let _ = socket2::SockRef::from(&hello.io).set_linger(Some(Duration::ZERO));
        }
    }

    /// Finishes the client's handshake in the protocol of the upstream connection.
    pub(super) async fn answer(
        &self,
        hello: StartHandshake<TcpStream>,
        alpn: Option<&[u8]>,
    ) -> Result<server::TlsStream<TcpStream>, Closed> {
        let config = self.server.speaking(alpn);
        match timeout(ANSWER_TIMEOUT, hello.into_stream(config)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(answer_error(&error)),
            Err(_) => Err(Closed::HelloTimeout),
        }
    }
}

async fn connect(to: &Destination) -> io::Result<TcpStream> {
    match to {
        Destination::Original(dst) => socket::dial(dst.get()).await,
        Destination::Fixed(upstream) => {
            if let Some(ip) = upstream.ip() {
                return socket::dial(SocketAddr::new(ip, upstream.port())).await;
            }
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
    }
}

fn host_port(to: &Destination) -> String {
    match to {
        Destination::Original(dst) => dst.get().to_string(),
        Destination::Fixed(upstream) => upstream.to_string(),
    }
}

/// Sends one fatal alert as the first and last record of the connection.
async fn alert(hello: StartHandshake<TcpStream>, description: u8) {
    const FATAL: u8 = 2;
    const ALERT: u8 = 21;
    let [major, minor] = u16::from(ProtocolVersion::TLSv1_2).to_be_bytes();
    let mut stream = hello.io;
    let record = [ALERT, major, minor, 0, 2, FATAL, description];
    let _ = timeout(ANSWER_TIMEOUT, async {
        stream.write_all(&record).await?;
        stream.shutdown().await
    })
    .await;
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn hello_error(error: &io::Error) -> Closed {
    match tls_error(error) {
        Some(rustls::Error::InvalidMessage(
            InvalidMessage::HandshakePayloadTooLarge | InvalidMessage::MessageTooLarge,
        )) => Closed::HelloTooLarge,
        Some(_) => Closed::NotTls,
        None => Closed::ClientGone,
    }
}

fn upstream_error(error: &io::Error) -> Closed {
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(_)) => Closed::UpstreamUntrusted,
        _ => Closed::UpstreamUnreachable,
    }
}

fn answer_error(error: &io::Error) -> Closed {
    use rustls::AlertDescription::{
        BadCertificate, CertificateExpired, CertificateUnknown, UnknownCA,
    };
    match tls_error(error) {
        Some(rustls::Error::AlertReceived(
            UnknownCA | BadCertificate | CertificateUnknown | CertificateExpired,
        )) => Closed::ClientDistrusts,
        Some(_) => Closed::ClientHandshake,
        None => Closed::ClientGone,
    }
}
