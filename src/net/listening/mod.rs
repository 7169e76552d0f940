//! Whether a server of this pod listens on a port, without a connection to it.
//!
//! Hides the kernel's tables of sockets. Does not know whose socket it is, nor when to ask. A socket
//! *counts* if a connection to the wanted address would reach it.
//!
//! A connection of ours would be seen: it fills the log of a TLS server, and one that is accepted by a
//! backlog alone says nothing. `/proc` shows sockets of all users without any privilege.

mod table;

use std::{
    fs::File,
    io::{self, BufReader, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZeroU16,
    path::Path,
};

use self::table::Sockets;

/// The tables of this process's network namespace. There is no second one without IPv6.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// Longest part of a table that is read, in bytes: 7,000 sockets. Linux lists those that listen
/// first; in whatever order another kernel does, this is where a search ends.
const MAX_BYTES: u64 = 1 << 20;
/// Bytes of a read, some sockets, since most searches end early.
const CHUNK: usize = 2048;

/// The address that a server must be reached at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A port of the pod's own addresses, which others dial.
    OfPod(NonZeroU16),
    /// One address.
    At(SocketAddr),
}

/// Whether a server listens where it is wanted. Fails if the kernel's tables cannot be read.
pub fn is_listening(wanted: Wanted) -> io::Result<bool> {
    is_in_tables(TABLES.map(Path::new), wanted)
}

/// Whether a socket in a table, as the kernel writes it, counts.
pub fn listens(table: &str, wanted: Wanted) -> bool {
    Sockets::of(table.as_bytes()).flatten().any(|bound| wanted.is_reached_by(bound))
}

/// The second table comes first: most servers listen on `[::]`, and a table without the wanted socket is
/// the dear one, since the kernel looks for connections in all of its hash table, which is the node's.
fn is_in_tables([first, second]: [&Path; 2], wanted: Wanted) -> io::Result<bool> {
    match is_in(second, wanted) {
        Ok(true) => return Ok(true),
        Ok(false) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    is_in(first, wanted)
}

fn is_in(table: &Path, wanted: Wanted) -> io::Result<bool> {
    let table = BufReader::with_capacity(CHUNK, File::open(table)?.take(MAX_BYTES));
    for bound in Sockets::of(table) {
        if wanted.is_reached_by(bound?) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Wanted {
    /// Whether a connection to this address reaches a socket that is bound there.
    ///
    /// `[::]` counts for IPv4 too. A socket that takes IPv6 alone (`IPV6_V6ONLY`) looks the same in
    /// the tables; what dials such a one by IPv4 is refused, as it would be without this question.
    fn is_reached_by(self, bound: SocketAddr) -> bool {
        let ip = bound.ip().to_canonical();
        match self {
            Self::OfPod(port) => bound.port() == port.get() && !ip.is_loopback(),
            Self::At(wanted) => {
                let covers = match (ip, dialled(wanted.ip())) {
                    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), _) => true,
                    (IpAddr::V4(Ipv4Addr::UNSPECIFIED), wanted) => wanted.is_ipv4(),
                    (ip, wanted) => ip == wanted,
                };
                bound.port() == wanted.port() && covers
            }
        }
    }
}

/// The address that a connection goes to: the kernel takes an unspecified one for loopback.
fn dialled(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests;
