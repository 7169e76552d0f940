//! From the first bytes of a connection to TLS on both legs.
//!
//! The upstream is dialled and verified *before* the client gets an answer: what the client then
//! sees of an outage is what it would have seen without us.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use rustls::{ClientConfig, InvalidMessage, ProtocolVersion, server::Acceptor};
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
    ClientAddr,
    leaf::Leaf,
    socket,
    tls::{H2, HTTP_11, ServerConfigs},
};

/// A client that sends no complete ClientHello within this time is closed.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// TCP and TLS towards the upstream, together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The rest of the client's handshake.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are taken off the upstream's socket at once.
const READ_BUFFER: usize = 64 << 10;

/// Fatal alerts in plain text (RFC 8446 section 6), for handshakes that never begin.
const UNRECOGNIZED_NAME: u8 = 112;
const INTERNAL_ERROR: u8 = 80;

/// What every handshake of this process needs.
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
    both: Arc<ClientConfig>,
    h2: Arc<ClientConfig>,
    http_11: Arc<ClientConfig>,
    no_alpn: Arc<ClientConfig>,
}

/// TLS takes 4 KiB off a socket at once, which is as much as the API server puts into one record of
/// a list: a buffer below it saves most of the calls.
pub(super) type UpstreamTlsStream = client::TlsStream<BufReader<TcpStream>>;

/// The upstream leg.
#[derive(Debug)]
pub(super) struct UpstreamConn {
    pub(super) stream: UpstreamTlsStream,
    pub(super) own: OwnSocket,
}

impl UpstreamTls {
    pub(super) fn new(base: ClientConfig) -> Self {
        let with = |alpn: &[&[u8]]| {
            let mut config = base.clone();
            config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
            Arc::new(config)
        };
        Self {
            both: with(&[H2, HTTP_11]),
            h2: with(&[H2]),
            http_11: with(&[HTTP_11]),
            no_alpn: with(&[]),
        }
    }

    fn offering(&self, h2: bool, http_11: bool) -> Arc<ClientConfig> {
        Arc::clone(match (h2, http_11) {
            (true, true) => &self.both,
            (true, false) => &self.h2,
            (false, true) => &self.http_11,
            (false, false) => &self.no_alpn,
        })
    }
}

impl UpstreamConn {
    /// The protocol that the upstream chose.
    pub(super) fn alpn(&self) -> Option<&[u8]> {
        self.stream.get_ref().1.alpn_protocol()
    }
}

impl Tls {
    /// Reads the ClientHello. What is not TLS, or names a host that the leaf does not cover, is
    /// closed: on an intercepted address nothing passes unread.
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
        let config = self.upstream.load().offering(h2, http_11);
        let connecting = async {
            let (tcp, name) = connect(to).await.map_err(|_| Closed::UpstreamUnreachable)?;
            let ends = tcp.local_addr().and_then(|local| Ok((local, tcp.peer_addr()?)));
            let (local, dialled) = ends.map_err(|_| Closed::UpstreamUnreachable)?;
            let own = self.own.remember(local, dialled);
            let stream = TlsConnector::from(config)
                .connect(name, BufReader::with_capacity(READ_BUFFER, tcp))
                .await
                .map_err(|error| upstream_error(&error))?;
            Ok(UpstreamConn { stream, own })
        };
        timeout(DIAL_TIMEOUT, connecting).await.unwrap_or(Err(Closed::UpstreamUnreachable))
    }

    /// Tells the client in TLS that there will be no connection: an alert where the upstream
    /// answered and was not trusted, a reset where it did not answer.
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

async fn connect(to: &Destination) -> io::Result<(TcpStream, ServerName<'static>)> {
    match to {
        Destination::Original(dst) => {
            let addr = dst.get();
            Ok((socket::dial(addr).await?, ServerName::from(addr.ip())))
        }
        Destination::Fixed(upstream) => {
            let name = upstream.host().clone();
            if let Some(ip) = upstream.ip() {
                return Ok((socket::dial(SocketAddr::new(ip, upstream.port())).await?, name));
            }
            let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
            let host = upstream.host().to_str().into_owned();
            for addr in tokio::net::lookup_host((host, upstream.port())).await? {
                match socket::dial(addr).await {
                    Ok(stream) => return Ok((stream, name)),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
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
