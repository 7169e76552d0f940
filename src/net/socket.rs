//! Listening and dialling, with the socket options that long streams need.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that wait in the kernel while we are busy.
const BACKLOG: i32 = 1024;
/// A silent peer is asked after this long. Connection tracking forgets a half-closed flow after
/// 60 s, so the first probe must come well before.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(25);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// Unacknowledged data or probes end the connection after this long (RFC 5482): the time of all
/// probes together, so that both clocks say the same.
const USER_TIMEOUT: Duration = Duration::from_secs(40);

/// File descriptors that are for no client: those of the runtimes, the listeners, the admin port,
/// files that are read, and our own calls.
const OWN_DESCRIPTORS: u64 = 64;

/// How many connections may be carried at once, each with its upstream's, so that a descriptor is
/// always left for what else the process has to do.
#[must_use]
pub fn most_connections() -> usize {
    let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(most, _)| most);
    let pairs = most.saturating_sub(OWN_DESCRIPTORS) / 2;
    usize::try_from(pairs.max(1)).unwrap_or(usize::MAX)
}

/// Listens on `addr`.
///
/// # Errors
/// Those of the socket calls; the port being taken is the common one.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(addr.ip() != Ipv6Addr::UNSPECIFIED)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Listens on `addr`; where that is `0.0.0.0`, on every address of both families, by one socket
/// that shows IPv4 peers as IPv4-mapped ones: a probe comes by the family of the pod's address. A
/// machine without IPv6 has just IPv4.
///
/// # Errors
/// As [`listen`].
pub fn listen_on_all(addr: SocketAddr) -> io::Result<TcpListener> {
    if addr.ip() != Ipv4Addr::UNSPECIFIED {
        return listen(addr);
    }
    match listen(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), addr.port())) {
        Err(error) if is_family_missing(&error) => listen(addr),
        bound => bound,
    }
}

/// Listens on `addr` and, where that is a loopback address, on the other family's loopback at
/// the same port: the kernel redirects an IPv6 connection to `::1`. A machine without IPv6 has
/// just the one listener.
///
/// # Errors
/// As [`listen`].
pub fn listen_on_loopbacks(addr: SocketAddr) -> io::Result<Vec<TcpListener>> {
    let first = listen(addr)?;
    let other = match addr.ip() {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => return Ok(vec![first]),
    };
    let port = first.local_addr()?.port();
    match listen(SocketAddr::new(other, port)) {
        Ok(second) => Ok(vec![first, second]),
        Err(error) if is_family_missing(&error) => Ok(vec![first]),
        Err(error) => Err(error),
    }
}

/// Dials `addr`. The socket is made now, under the uid we run as now: the redirect rule excludes
/// by the uid at the socket's creation.
///
/// # Errors
/// Those of the socket calls.
pub async fn dial(addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    let stream = socket.connect(addr).await?;
    keep_alive(&stream)?;
    Ok(stream)
}

/// Sets what every connection of ours needs on both legs.
///
/// # Errors
/// Those of `setsockopt`; a peer that is already gone is the common one.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}

/// Whether an accept error concerns one connection alone, so that accepting goes on at once.
#[must_use]
pub fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

fn is_family_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(nix::libc::EAFNOSUPPORT)
}
