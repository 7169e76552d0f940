//! Ports that stay a server's own while it is down.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};

/// A free port, reserved against all other processes of this machine.
///
/// The sockets that reserve it are bound with SO_REUSEADDR and never listen. A server that binds
/// with SO_REUSEADDR, as Go's and ours do, can listen next to them; the kernel chooses no reserved
/// port for a bind to port 0, nor for the local end of a connection.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    sockets: Vec<Socket>,
}

impl ReservedPort {
    /// A port of `127.0.0.1` and, where there is IPv6, of `::1`.
    ///
    /// # Errors
    ///
    /// When no port is free.
    pub fn of_loopbacks() -> Result<Self> {
        loop {
            let mut port = Self::of(Ipv4Addr::LOCALHOST.into())?;
            match bind(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port.number)) {
                Ok(second) => port.sockets.push(second),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                // A machine without IPv6.
                Err(_) => {}
            }
            return Ok(port);
        }
    }

    /// A port of `address`.
    pub(crate) fn of(address: IpAddr) -> Result<Self> {
        let socket =
            bind(SocketAddr::new(address, 0)).with_context(|| format!("binding {address}"))?;
        let bound = socket.local_addr()?.as_socket().context("a bound socket has an address")?;
        Ok(Self { number: bound.port(), sockets: vec![socket] })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}

fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        // As the server's own sockets: one of both families would take the other's port too.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_reserved_port_is_its_servers_over_restarts_and_nobody_elses() {
        let port = ReservedPort::of_loopbacks().unwrap();
        for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let address = SocketAddr::new(address, port.number());
            for _ in 0..2 {
                // Listens with SO_REUSEADDR.
                drop(TcpListener::bind(address).unwrap());
            }
            let other = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
            let refused = other.bind(&address.into()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        }
    }
}
