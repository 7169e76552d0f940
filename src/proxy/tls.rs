//! TLS to the client, from the first bytes of its connection.
//!
//! The upstream is dialled and verified *before* the client gets an answer: so the client sees an
//! outage as it would without us.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::{InvalidMessage, ProtocolVersion, ServerConfig, server::Acceptor};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, server};

use super::{outcome::Closed, upstream::Server};
use ctrlmesh_net::{
    ClientAddr,
    leaf::Leaf,
    tls::{ClientTls, tls_error},
};

/// A client that sends no complete ClientHello within this time is closed.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the rest of the client's handshake.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Fatal alerts in plain text (RFC 8446 section 6), for handshakes that never begin.
const UNRECOGNIZED_NAME: u8 = 112;
const INTERNAL_ERROR: u8 = 80;

/// State shared by the handshakes with clients.
#[derive(Debug)]
pub(super) struct Tls {
    pub(super) leaf: Arc<Leaf>,
    pub(super) client: ClientTls,
}

impl Tls {
    /// Reads the ClientHello. A connection that is not TLS, or names a host that the leaf does not
    /// cover, is closed: on an intercepted address nothing passes unread. Without a certificate all
    /// are reset, as by a server that is not there yet.
    pub(super) async fn hello(
        &self,
        stream: TcpStream,
        client: ClientAddr,
        dialled: SocketAddr,
        server: &Server,
    ) -> Result<StartHandshake<TcpStream>, Closed> {
        let hello = read_hello(stream).await?;
        if server.sockets.contains(client, dialled) {
            return Err(Closed::Loop);
        }
        if !self.leaf.is_present() {
            reset(&hello);
            return Err(Closed::NoCertificate);
        }
        match hello.client_hello().server_name() {
            Some(host) if !self.leaf.covers(host) => {
                alert(hello, UNRECOGNIZED_NAME).await;
                Err(Closed::UnknownServerName)
            }
            _ => Ok(hello),
        }
    }

    /// Turns the client away: with a TLS alert if the upstream answered and was not trusted, with a
    /// TCP reset if it did not answer.
    pub(super) async fn turn_away(&self, hello: StartHandshake<TcpStream>, why: Closed) {
        if why == Closed::UpstreamUntrusted {
            alert(hello, INTERNAL_ERROR).await;
        } else {
            reset(&hello);
        }
    }

    /// Finishes the client's handshake in the protocol of the upstream connection.
    pub(super) async fn answer(
        &self,
        hello: StartHandshake<TcpStream>,
        alpn: Option<&[u8]>,
    ) -> Result<server::TlsStream<TcpStream>, Closed> {
        answer_hello(hello, Arc::new(self.client.speaking(alpn))).await
    }
}

/// Reads the ClientHello. A connection that is not TLS is closed.
pub(super) async fn read_hello(stream: TcpStream) -> Result<StartHandshake<TcpStream>, Closed> {
    let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
    match timeout(HELLO_TIMEOUT, &mut acceptor).await {
        Err(_) => Err(Closed::HelloTimeout),
        Ok(Err(error)) => {
            if let Some(mut stream) = acceptor.take_io() {
                let _ = stream.shutdown().await;
            }
            Err(hello_error(&error))
        }
        Ok(Ok(hello)) => Ok(hello),
    }
}

/// Finishes a client's handshake.
pub(super) async fn answer_hello(
    hello: StartHandshake<TcpStream>,
    config: Arc<ServerConfig>,
) -> Result<server::TlsStream<TcpStream>, Closed> {
    match timeout(ANSWER_TIMEOUT, hello.into_stream(config)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(answer_error(&error)),
        Err(_) => Err(Closed::HelloTimeout),
    }
}

/// Has the kernel reset the connection when it is dropped.
fn reset(hello: &StartHandshake<TcpStream>) {
    let _ = socket2::SockRef::from(&hello.io).set_linger(Some(Duration::ZERO));
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

fn hello_error(error: &io::Error) -> Closed {
    match tls_error(error) {
        Some(rustls::Error::InvalidMessage(
            InvalidMessage::HandshakePayloadTooLarge | InvalidMessage::MessageTooLarge,
        )) => Closed::HelloTooLarge,
        Some(_) => Closed::NotTls,
        None => Closed::ClientGone,
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
