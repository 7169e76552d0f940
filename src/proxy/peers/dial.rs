//! The way to a peer: TCP, and TLS in which both prove themselves.

use std::{io, sync::Arc, time::Duration};

use rustls_pki_types::ServerName;
use tokio::{io::BufReader, net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client};

use super::{failed::Reason, table::Peer};
use crate::upstream::http2::{self, Bounds, Connection, Sender};
use ctrlmesh_net::{
    peer::{PEER_NAME, PeerTls, Proof},
    socket,
};

/// Timeout of TCP, TLS and the first words of HTTP/2, together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that are read from the socket at once.
const READ_BUFFER: usize = 16 << 10;
/// The bounds of a connection to a peer. It is near, and its responses are small, so that small
/// windows are as fast. One that is gone is noticed before the calls that wait for it are over: the
/// API server gives them 10 s by default.
const TO_PEER: Bounds = Bounds {
    stream_window: 128 << 10,
    connection_window: 16 << 20,
    ping_interval: Duration::from_secs(3),
    ping_timeout: Duration::from_secs(3),
};

pub(super) type Stream = client::TlsStream<BufReader<TcpStream>>;

/// A connection to a peer, and by what that has proved itself.
pub(super) struct Dialled {
    pub(super) sender: Sender,
    pub(super) connection: Connection<Stream>,
    pub(super) proof: Proof,
}

/// Connects to a peer, and verifies that it is the one.
pub(super) async fn dial(peer: &Peer, tls: &PeerTls) -> Result<Dialled, Reason> {
    let connecting = async {
        let tcp = connect(peer).await.ok_or(Reason::Unreachable)?;
        let config = tls.dialling(peer.identity.clone()).map_err(|_| Reason::Untrusted)?;
        let name = ServerName::try_from(PEER_NAME).map_err(|_| Reason::Untrusted)?;
        let stream = BufReader::with_capacity(READ_BUFFER, tcp);
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, stream).await.map_err(|error| reason(&error))?;
        // In TLS 1.3 a server refuses the client's proof when the client has begun.
        let proof = Proof::of_server(stream.get_ref().1);
        let connected = http2::connect(stream, TO_PEER).await;
        let (sender, connection) =
            connected.map_err(|error| error.get_io().map_or(Reason::Unreachable, reason))?;
        Ok(Dialled { sender, connection, proof })
    };
    timeout(DIAL_TIMEOUT, connecting).await.unwrap_or(Err(Reason::Unreachable))
}

/// Connects to the first of the peer's addresses that answers; each has its part of the time.
async fn connect(peer: &Peer) -> Option<TcpStream> {
    let limit = DIAL_TIMEOUT / u32::try_from(peer.addrs.len()).unwrap_or(u32::MAX).max(1);
    for addr in &peer.addrs {
        if let Ok(Ok(stream)) = timeout(limit, socket::dial(*addr)).await {
            return Some(stream);
        }
    }
    None
}

/// The reason of an error in TLS, which has this kind if it is not the connection's.
fn reason(error: &io::Error) -> Reason {
    match error.kind() {
        io::ErrorKind::InvalidData => Reason::Untrusted,
        _ => Reason::Unreachable,
    }
}
