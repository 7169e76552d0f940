//! A handshake in memory.

use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection};
use rustls_pki_types::ServerName;

/// Both ends of a connection after its handshake, or why an end has given up.
pub(super) struct Met {
    pub(super) client: Result<ClientConnection, Error>,
    pub(super) server: Result<ServerConnection, Error>,
}

impl Met {
    /// Both ends of a handshake that succeeded.
    pub(super) fn unwrap(self) -> (ClientConnection, ServerConnection) {
        let (client, server) = (self.client.unwrap(), self.server.unwrap());
        assert!(!client.is_handshaking() && !server.is_handshaking());
        (client, server)
    }
}

/// Does a handshake.
pub(super) fn meet(client: ClientConfig, server: ServerConfig, name: &'static str) -> Met {
    let name = ServerName::try_from(name).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let (mut client_error, mut server_error) = (None, None);
    loop {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut there).unwrap();
        }
        for mut rest in [&there[..]].into_iter().filter(|rest| !rest.is_empty()) {
            while server_error.is_none() && !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server_error = server.process_new_packets().err();
            }
        }
        while server.wants_write() {
            server.write_tls(&mut back).unwrap();
        }
        for mut rest in [&back[..]].into_iter().filter(|rest| !rest.is_empty()) {
            while client_error.is_none() && !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client_error = client.process_new_packets().err();
            }
        }
        if there.is_empty() && back.is_empty() {
            break;
        }
    }
    Met {
        client: client_error.map_or(Ok(client), Err),
        server: server_error.map_or(Ok(server), Err),
    }
}
