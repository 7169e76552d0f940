//! Listening and dialling, with the socket options that long streams need.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Most connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;
/// Idle time before the first keepalive probe. Connection tracking forgets a half-closed flow after
/// 60 s, so the probe must come well before.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(25);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// Time after which unacknowledged data or probes end the connection (RFC 5482): the time of all
/// probes together, so that both timers agree.
const USER_TIMEOUT: Duration = Duration::from_secs(40);

/// File descriptors that no client uses: those of the runtimes, the listeners, the admin port, open
/// files, and our own requests.
const OWN_DESCRIPTORS: u64 = 64;

/// Most client connections at once, each with one upstream connection, so that the rest of the
/// process always has descriptors.
pub fn most_connections() -> usize {
    let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(most, _)| most);
    let pairs = most.saturating_sub(OWN_DESCRIPTORS) / 2;
    usize::try_from(pairs.max(1)).unwrap_or(usize::MAX)
}

/// Listens on `addr`. Fails with the errors of the socket calls; most often the port is taken.
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

/// Listens on `addr`. If that is `0.0.0.0`, it listens on every address of both families, since a
/// probe uses the family of the pod's address. One socket serves both and shows IPv4 peers as
/// IPv4-mapped. A machine without IPv6 has just IPv4.
pub fn listen_on_all(addr: SocketAddr) -> io::Result<TcpListener> {
    if addr.ip() != Ipv4Addr::UNSPECIFIED {
        return listen(addr);
    }
    match listen(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), addr.port())) {
        Err(error) if is_family_missing(&error) => listen(addr),
        bound => bound,
    }
}

/// Listens on `addr` and, if that is `127.0.0.1` or `::1`, on the other of the two at the same
/// port: the kernel redirects an IPv6 connection to `::1`. A machine without IPv6 has one listener.
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

/// Dials `addr`. The redirect rule exempts a socket by the uid at its creation, so the socket is
/// created here, under our current uid.
pub async fn dial(addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    let stream = socket.connect(addr).await?;
    keep_alive(&stream)?;
    Ok(stream)
}

/// Sets the socket options that connections need, both to clients and to the upstream. Fails with
/// the errors of `setsockopt`; most often the peer is gone.
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

/// Whether an accept error concerns one connection alone, so that accepting continues at once.
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
