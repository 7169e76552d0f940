//! Whether a server of this pod listens on a port, without a connection to it.
//!
//! Hides the kernel's tables of sockets. Does not know whose socket it is, nor when to ask. A socket
//! *counts* if a connection to the wanted address would reach it.
//!
//! A connection of ours would be seen: it fills the log of a TLS server, and one that is accepted by a
//! backlog alone says nothing. The kernel shows sockets of all users without any privilege: by
//! `sock_diag`, and where that is missing (a sandbox, a kernel without it) by `/proc`.

mod diag;
mod table;

use std::{
    fs::File,
    io::{self, BufReader, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZeroU16,
    path::{Path, PathBuf},
};

use self::{diag::Diag, table::Sockets};

/// The tables of this process's network namespace. There is no second one without IPv6.
const IPV4: &str = "/proc/net/tcp";
const IPV6: &str = "/proc/net/tcp6";
/// Longest part of a table that is read, in bytes: 7,000 sockets. Linux lists those that listen
/// first; in whatever order another kernel does, this is where a search ends.
const MAX_BYTES: u64 = 1 << 20;
/// Bytes of a read: few enough that a line's state is read before the kernel looks for the next socket
/// (`seq_read_iter` of Linux's `fs/seq_file.c` fills the question for). Behind the last that listens
/// it walks the hash table of all connections, which is the node's: 2 to 10 ms of a core.
const CHUNK: usize = 32;

/// The address that a server must be reached at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A port of the pod's own addresses, which others dial.
    OfPod(NonZeroU16),
    /// One address.
    At(SocketAddr),
}

/// A search for a server that listens, done again and again. In `/proc` it begins in the table where the
/// server was last: one without it is the dear one, which is walked to its end.
#[derive(Debug)]
pub struct Search {
    /// `None` once it has failed.
    diag: Option<Diag>,
    tables: [Table; 2],
}

#[derive(Debug)]
struct Table {
    path: PathBuf,
    /// Whether a kernel may be without it.
    is_optional: bool,
}

/// Whether a socket in a table, as the kernel writes it, counts.
pub fn listens(table: &str, wanted: Wanted) -> bool {
    Sockets::of(table.as_bytes()).flatten().any(|bound| wanted.is_reached_by(bound))
}

impl Default for Search {
    /// A search in the kernel's tables. Most servers listen on `[::]`.
    fn default() -> Self {
        Self { diag: Diag::open().ok(), ..Self::of(Path::new(IPV4), Path::new(IPV6)) }
    }
}

impl Search {
    /// A search in these tables alone.
    fn of(ipv4: &Path, ipv6: &Path) -> Self {
        let table = |path: &Path, is_optional| Table { path: path.to_owned(), is_optional };
        Self { diag: None, tables: [table(ipv6, true), table(ipv4, false)] }
    }

    /// Whether a server listens where it is wanted. Fails if the tables cannot be read.
    pub fn finds(&mut self, wanted: Wanted) -> io::Result<bool> {
        if let Some(diag) = &mut self.diag {
            match diag.any(wanted.port(), |bound| wanted.is_reached_by(bound)) {
                Ok(is_found) => return Ok(is_found),
                Err(_) => self.diag = None,
            }
        }
        self.finds_in_tables(wanted)
    }

    fn finds_in_tables(&mut self, wanted: Wanted) -> io::Result<bool> {
        for at in 0..self.tables.len() {
            let Some(table) = self.tables.get(at) else { break };
            match is_in(&table.path, wanted) {
                Ok(true) => {
                    self.tables.swap(0, at);
                    return Ok(true);
                }
                Ok(false) => {}
                Err(error) if table.is_optional && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
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
    fn port(self) -> u16 {
        match self {
            Self::OfPod(port) => port.get(),
            Self::At(addr) => addr.port(),
        }
    }

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
