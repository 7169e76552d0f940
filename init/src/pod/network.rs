//! The pod's network, read from the kernel over rtnetlink: the addresses of its interfaces with
//! their state, and the route to an upstream. `getifaddrs` shows neither state nor route.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use nix::errno::Errno;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use rtnetlink::{Error, Handle, new_connection};
use tokio::runtime;
use tokio::time::{Instant, sleep, timeout};

use crate::family::Family;
use crate::plan::interceptable;

/// The time limit of all answers of the kernel; it takes less than a millisecond.
const ANSWER: Duration = Duration::from_secs(3);
/// The time limit for tentative addresses. Duplicate address detection takes two seconds at most
/// unless the node is configured otherwise (`dad_transmits`, `router_solicitation_delay`).
const SETTLING: Duration = Duration::from_secs(5);
/// The poll interval meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    ip: IpAddr,
    state: AddressState,
}

/// The state of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressState {
    /// An address that can send and receive.
    Usable,
    /// An address whose duplicate detection still runs (RFC 4862, section 5.4): no packet can be
    /// sent from it yet.
    Tentative,
    /// An address that another machine has: the kernel does not use it.
    Duplicate,
}

impl Address {
    /// Reads a message. `None` if it has no address.
    fn read(message: &AddressMessage) -> Option<Self> {
        let (mut local, mut address) = (None, None);
        let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(ip) => local = Some(*ip),
                AddressAttribute::Address(ip) => address = Some(*ip),
                AddressAttribute::Flags(all) => flags = *all,
                _ => {}
            }
        }
        let state = if flags.contains(AddressFlags::Dadfailed) {
            AddressState::Duplicate
        } else if flags.contains(AddressFlags::Tentative)
            && !flags.contains(AddressFlags::Optimistic)
        {
            AddressState::Tentative
        } else {
            AddressState::Usable
        };
        // If both are set, `address` is the far end of a point-to-point link.
        local.or(address).map(|ip| Self { ip, state })
    }

    /// Whether the pod is reachable over the network at this address, now or soon.
    fn is_of_the_pod(&self) -> bool {
        self.state != AddressState::Duplicate && interceptable(self.ip).is_ok()
    }

    fn is_awaited(&self) -> bool {
        self.state == AddressState::Tentative && self.is_of_the_pod()
    }
}

/// The families in which the pod has an address of its own, other than loopback and link-local. A
/// tentative address counts: connections that arrive there later must be intercepted too. Fails if
/// the kernel does not answer.
pub fn families() -> io::Result<BTreeSet<Family>> {
    let found = ask(async |handle| addresses(&handle).await)?;
    Ok(found.iter().filter(|own| own.is_of_the_pod()).map(|own| Family::of(own.ip)).collect())
}

/// The kernel's route for a packet.
#[derive(Debug)]
enum KernelRoute {
    /// The route leads out into the network.
    Out,
    /// The route leads to this pod itself.
    Own,
    /// No route, for this reason.
    Nowhere(io::Error),
    /// A route that is unknown: the kernel did not answer the question.
    Untold(io::Error),
}

/// The targets with a route, determined before a rule is set. A target without a route is logged:
/// no process of the pod can reach it, and the rules intercept it once it has a route. Fails with
/// [`RouteError::OwnAddress`], and [`RouteError::Unroutable`] if no target has a route.
pub fn reachable(targets: &BTreeSet<SocketAddr>) -> Result<Vec<SocketAddr>, RouteError> {
    let targets = targets.iter().copied();
    let asked = ask(async |handle| {
        settle(&handle).await?;
        let mut ways = Vec::new();
        for target in targets.clone() {
            ways.push((target, way(&handle, target.ip()).await));
        }
        Ok(ways)
    });
    judge(asked.unwrap_or_else(|error| {
        let untold = || KernelRoute::Untold(io::Error::new(error.kind(), error.to_string()));
        targets.map(|target| (target, untold())).collect()
    }))
}

fn judge(ways: Vec<(SocketAddr, KernelRoute)>) -> Result<Vec<SocketAddr>, RouteError> {
    let mut reachable = Vec::new();
    let mut unroutable = Vec::new();
    for (address, way) in ways {
        match way {
            KernelRoute::Out => reachable.push(address),
            KernelRoute::Own => return Err(RouteError::OwnAddress(address)),
            KernelRoute::Nowhere(source) => {
                unroutable.push(RouteError::Unroutable { address, source })
            }
            KernelRoute::Untold(error) => {
                tracing::warn!("the kernel does not say whether {address} has a route: {error}");
                reachable.push(address);
            }
        }
    }
    let fatal = if reachable.is_empty() { unroutable.pop() } else { None };
    for error in unroutable {
        tracing::warn!("{error}");
    }
    fatal.map_or(Ok(reachable), Err)
}

/// The reason why the targets cannot be intercepted in this pod.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum RouteError {
    #[error(
        "upstream {0} is on an address of this pod itself: the API server's own address is \
         needed, or that of its Service"
    )]
    OwnAddress(SocketAddr),
    #[error(
        "upstream {address} cannot be reached from this pod: {source}; the pod needs an {} route \
         to it, and an address of its own to send from",
        Family::of(address.ip())
    )]
    Unroutable { address: SocketAddr, source: io::Error },
}

/// Sends questions to the kernel over one rtnetlink connection, closed after the last answer.
fn ask<T>(questions: impl AsyncFnOnce(Handle) -> io::Result<T>) -> io::Result<T> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let (connection, handle, _) = new_connection()?;
        let closed = || io::Error::new(io::ErrorKind::BrokenPipe, "rtnetlink ended");
        tokio::select! {
            answers = timeout(ANSWER + SETTLING, questions(handle)) => answers?,
            () = connection => Err(closed()),
        }
    })
}

async fn addresses(handle: &Handle) -> io::Result<Vec<Address>> {
    let messages = handle.address().get().execute();
    let found: Vec<_> = messages.try_collect().await.map_err(into_io)?;
    Ok(found.iter().filter_map(Address::read).collect())
}

/// Waits until no address of the pod is tentative, for [`SETTLING`] at most.
async fn settle(handle: &Handle) -> io::Result<()> {
    let end = Instant::now() + SETTLING;
    loop {
        let found = addresses(handle).await?;
        let Some(awaited) = found.iter().find(|own| own.is_awaited()) else { return Ok(()) };
        if Instant::now() >= end {
            let waited = SETTLING.as_secs();
            tracing::warn!("the pod's address {} is still tentative after {waited} s", awaited.ip);
            return Ok(());
        }
        sleep(LOOK).await;
    }
}

/// Asks for the route to an address, as `ip route get` does.
async fn way(handle: &Handle, to: IpAddr) -> KernelRoute {
    let mut question = RouteMessage::default();
    question.header.address_family = match to {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    question.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
    question.attributes.push(RouteAttribute::Destination(to.into()));
    let mut answers = std::pin::pin!(handle.route().get(question).execute());
    match answers.next().await {
        Some(Ok(route)) => of_kind(route.header.kind),
        Some(Err(error)) => of_error(into_io(error)),
        None => KernelRoute::Untold(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn of_kind(kind: RouteType) -> KernelRoute {
    match kind {
        RouteType::Unicast => KernelRoute::Out,
        RouteType::Local => KernelRoute::Own,
        kind => KernelRoute::Nowhere(io::Error::other(format!("its route is {kind:?}"))),
    }
}

/// Maps the kernel's errors: no route in the table, or one of the types unreachable, prohibit and
/// blackhole (`ip-route(8)`).
fn of_error(error: io::Error) -> KernelRoute {
    let none = [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EACCES, Errno::EINVAL];
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) if none.contains(&errno) => KernelRoute::Nowhere(error),
        _ => KernelRoute::Untold(error),
    }
}

fn into_io(error: Error) -> io::Error {
    match error {
        Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::address::AddressHeaderFlags;

    use super::*;
    use crate::exit::InitError;

    fn address(flags: AddressFlags, attributes: &[AddressAttribute]) -> Option<Address> {
        let mut message = AddressMessage::default();
        let low = u8::try_from(flags.bits() & 0xff).unwrap();
        message.header.flags = AddressHeaderFlags::from_bits_retain(low);
        message.attributes = attributes.to_vec();
        Address::read(&message)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_read_with_its_state() {
        use AddressAttribute::{Address as Far, Flags, Local};
        let permanent = AddressFlags::Permanent;
        let tentative = permanent | AddressFlags::Tentative;
        let own = ip("fd01::2");
        for (flags, state) in [
            (permanent, AddressState::Usable),
            (tentative, AddressState::Tentative),
            (tentative | AddressFlags::Optimistic, AddressState::Usable),
            (tentative | AddressFlags::Dadfailed, AddressState::Duplicate),
        ] {
            let wanted = Some(Address { ip: own, state });
            assert_eq!(address(flags, &[Far(own)]), wanted);
            assert_eq!(address(flags, &[Far(ip("fd01::1")), Local(own)]), wanted);
            // Kernels since 3.14 send all flags in an attribute too.
            assert_eq!(address(AddressFlags::empty(), &[Far(own), Flags(flags)]), wanted);
        }
        assert_eq!(address(permanent, &[]), None);
    }

    #[test]
    fn a_tentative_address_is_the_pods_and_a_duplicate_or_local_one_is_not() {
        for (text, state, is_of_the_pod, is_awaited) in [
            ("fd01::2", AddressState::Usable, true, false),
            ("fd01::2", AddressState::Tentative, true, true),
            ("fd01::2", AddressState::Duplicate, false, false),
            ("10.1.0.2", AddressState::Usable, true, false),
            ("fe80::1", AddressState::Tentative, false, false),
            ("::1", AddressState::Usable, false, false),
            ("127.0.0.1", AddressState::Usable, false, false),
        ] {
            let own = Address { ip: ip(text), state };
            let found = (own.is_of_the_pod(), own.is_awaited());
            assert_eq!(found, (is_of_the_pod, is_awaited), "{own:?}");
        }
    }

    #[test]
    fn a_way_is_out_own_or_nowhere() {
        let kinds = [RouteType::Broadcast, RouteType::Anycast, RouteType::Multicast];
        assert!(matches!(of_kind(RouteType::Unicast), KernelRoute::Out));
        assert!(matches!(of_kind(RouteType::Local), KernelRoute::Own));
        assert!(kinds.into_iter().all(|kind| matches!(of_kind(kind), KernelRoute::Nowhere(_))));
        for errno in [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EACCES, Errno::EINVAL] {
            assert!(matches!(of_error(errno.into()), KernelRoute::Nowhere(_)), "{errno}");
        }
        for errno in [Errno::EOPNOTSUPP, Errno::EPERM] {
            assert!(matches!(of_error(errno.into()), KernelRoute::Untold(_)), "{errno}");
        }
        assert!(matches!(of_error(io::ErrorKind::UnexpectedEof.into()), KernelRoute::Untold(_)));
    }

    #[test]
    fn one_way_out_is_enough_and_an_address_of_the_pods_own_never_is() {
        let [one, two] = ["10.96.0.1:443", "[fd00:96::1]:443"].map(|text| text.parse().unwrap());
        let nowhere = || KernelRoute::Nowhere(Errno::ENETUNREACH.into());
        let untold = || KernelRoute::Untold(Errno::EOPNOTSUPP.into());
        assert_eq!(
            judge(vec![(one, KernelRoute::Out), (two, KernelRoute::Out)]).unwrap(),
            [one, two]
        );
        assert_eq!(judge(vec![(one, KernelRoute::Out), (two, nowhere())]).unwrap(), [one]);
        assert_eq!(judge(vec![(one, untold()), (two, nowhere())]).unwrap(), [one]);
        let told = |ways| {
            let error = InitError::from(judge(ways).unwrap_err());
            (error.exit_code().code(), error.to_string())
        };
        let (code, text) = told(vec![(one, nowhere()), (two, nowhere())]);
        assert_eq!(code, 69);
        assert!(text.starts_with("upstream [fd00:96::1]:443 cannot be reached"), "{text}");
        assert!(text.contains("an IPv6 route to it, and an address of its own to send from"));
        let (code, text) = told(vec![(one, KernelRoute::Out), (two, KernelRoute::Own)]);
        assert_eq!(code, 64);
        assert!(
            text.starts_with("upstream [fd00:96::1]:443 is on an address of this pod"),
            "{text}"
        );
    }
}
