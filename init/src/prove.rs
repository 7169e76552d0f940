//! Proof by traffic: a connection to each intercepted address must arrive at our listener.
//!
//! Rules may be listed and still match nothing: with socket-level load balancing the destination is
//! rewritten before netfilter sees it. The proof binds the listener port while it is still free,
//! connects as this process' own user, and expects a random token and the right original
//! destination. Connections from the network cannot be tried from inside the pod; for the webhook
//! port there is only the ordered read-back.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{Ip6tOriginalDst, OriginalDst};
use nix::unistd::geteuid;

use crate::exit::InitError;
use crate::family::Family;
use crate::plan::{Plan, ProxyUid};
use crate::pod::network::RouteError;

/// The time limit of a step. Redirected connections stay on loopback; a node may lack a free CPU.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The result of the proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// A connection to each of these addresses was intercepted.
    Captured(Vec<SocketAddr>),
    /// The listener port is taken, so the rules were only read back.
    ListenerTaken(SocketAddr),
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Captured(addresses) => {
                write!(f, "intercepted by proof:")?;
                addresses.iter().try_for_each(|address| write!(f, " {address}"))
            }
            Self::ListenerTaken(listener) => write!(
                f,
                "{listener} is taken, so this is a rerun under a live proxy: the rules were read \
                 back in order, no traffic was sent"
            ),
        }
    }
}

/// Fails for the proxy's user: our connections stand for the app's and must not be exempt.
pub fn refuse_own_uid(proxy: ProxyUid) -> Result<(), InitError> {
    match geteuid().as_raw() == proxy.as_u32() {
        true => Err(InitError::OwnUid(proxy)),
        false => Ok(()),
    }
}

/// Proves every address of `reachable` by a connection.
///
/// An unreachable address is only logged: it proves nothing and hides nothing, since no process of
/// the pod can reach it. At least one address must be intercepted.
pub fn capture(plan: &Plan, reachable: &[SocketAddr]) -> Result<Proof, InitError> {
    let mut captured = Vec::new();
    let mut unroutable = None;
    for family in Family::ALL {
        let is_of_it = |address: &SocketAddr| Family::of(address.ip()) == family;
        let addresses: Vec<_> = reachable.iter().copied().filter(is_of_it).collect();
        if addresses.is_empty() {
            continue;
        }
        let listener = SocketAddr::new(loopback(family), plan.outbound_port().get());
        let bound = match TcpListener::bind(listener) {
            Ok(bound) => bound,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Ok(Proof::ListenerTaken(listener));
            }
            Err(source) => return Err(InitError::Listener { listener, source }),
        };
        for address in addresses {
            match capture_one(&bound, address)? {
                Attempt::Captured => captured.push(address),
                Attempt::Unroutable(source) => {
                    tracing::warn!("{address} cannot be reached from this pod: {source}");
                    unroutable = Some((address, source));
                }
            }
        }
    }
    match unroutable {
        Some((address, source)) if captured.is_empty() => {
            Err(RouteError::Unroutable { address, source }.into())
        }
        _ => Ok(Proof::Captured(captured)),
    }
}

enum Attempt {
    Captured,
    Unroutable(io::Error),
}

fn capture_one(listener: &TcpListener, address: SocketAddr) -> Result<Attempt, InitError> {
    let token = format!("ctrlmesh-proof {:032x} ", fastrand::u128(..));
    let expected = format!("{token}{address}\n");
    let is_over = AtomicBool::new(false);
    let answer = thread::scope(|scope| {
        scope.spawn(|| answer_until(&is_over, listener, &token));
        let answer = ask(address, expected.len());
        is_over.store(true, Ordering::Release);
        // Wakes `accept`. The listener is bound, on loopback, so this connection does not fail.
        let _ = listener.local_addr().and_then(|own| TcpStream::connect_timeout(&own, TIMEOUT));
        answer
    });
    let why = match answer {
        Ok(answer) if answer == expected.as_bytes() => return Ok(Attempt::Captured),
        Ok(answer) if answer.starts_with(token.as_bytes()) => {
            let end = String::from_utf8_lossy(&answer[token.len()..]).trim().to_owned();
            format!("it arrived with the original destination {end}")
        }
        Ok(_) => "someone else answered".to_owned(),
        Err(error) if is_unroutable(&error) => return Ok(Attempt::Unroutable(error)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            format!("no answer within {} s", TIMEOUT.as_secs())
        }
        Err(error) => error.to_string(),
    };
    Err(InitError::NotCaptured { address, why })
}

/// Sends the token and the original destination on every connection.
fn answer_until(is_over: &AtomicBool, listener: &TcpListener, token: &str) {
    while let Ok((mut connection, peer)) = listener.accept() {
        if is_over.load(Ordering::Acquire) {
            return;
        }
        let destination = match original_destination(&connection, peer) {
            Ok(destination) => destination.to_string(),
            Err(error) => error.to_string(),
        };
        // The client checks the answer and closes first, so that no TIME_WAIT stays on this port.
        let _ = connection.write_all(format!("{token}{destination}\n").as_bytes());
        let _ = connection.set_read_timeout(Some(TIMEOUT));
        let _ = connection.read(&mut [0; 1]);
    }
}

fn ask(address: SocketAddr, length: usize) -> io::Result<Vec<u8>> {
    let connection = TcpStream::connect_timeout(&address, TIMEOUT)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = Vec::with_capacity(length);
    // Twice the length leaves room for a wrong destination and bounds a foreign server's answer.
    let limit = u64::try_from(length * 2).unwrap_or(u64::MAX);
    BufReader::new(connection.take(limit)).read_until(b'\n', &mut answer)?;
    Ok(answer)
}

/// The original destination of a redirected connection with this local or remote end. The end's
/// canonical family chooses the option: on an IPv6 socket with an IPv4-mapped peer only the IPv4
/// option works.
pub fn original_destination(connection: &impl AsFd, end: SocketAddr) -> io::Result<SocketAddr> {
    Ok(match end.ip().to_canonical() {
        IpAddr::V4(_) => {
            let address = getsockopt(connection, OriginalDst)?;
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into()
        }
        IpAddr::V6(_) => {
            let address = getsockopt(connection, Ip6tOriginalDst)?;
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            let port = u16::from_be(address.sin6_port);
            SocketAddrV6::new(ip, port, 0, address.sin6_scope_id).into()
        }
    })
}

/// Whether `connect` failed for lack of a route or of a source address.
fn is_unroutable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::AddrNotAvailable
    )
}

fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}
