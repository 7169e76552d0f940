//! Accepts connections, learns where each wants to go, and deals it to a data thread.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::sleep,
};

use super::{config::Route, outcome::Closed};
use crate::net::{
    ClientAddr, OrigDst,
    addr::{NotRedirected, UpstreamAddr, canonical},
    socket,
};

/// Connections that one data thread may carry. A pod's controllers open a handful; this is the
/// bound on what a runaway client can make us hold.
const MAX_CONNECTIONS: usize = 4096;
/// Accepted connections that wait for a data thread's attention.
const HAND_OVER: usize = 64;
/// How long a full file table is left to recover.
const BACK_OFF: Duration = Duration::from_millis(100);

/// A client's connection and its way.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) client: ClientAddr,
    /// What the client dialled, whatever rule led it here.
    pub(super) dialled: SocketAddr,
    pub(super) to: Destination,
    pub(super) stream: std::net::TcpStream,
}

/// Where the upstream connection goes.
#[derive(Clone, Debug)]
pub(super) enum Destination {
    Original(OrigDst),
    Fixed(UpstreamAddr),
}

/// The listener's end of the data threads.
#[derive(Clone, Debug)]
pub(super) struct Hands {
    threads: Vec<Hand>,
    open: Arc<watch::Sender<usize>>,
}

#[derive(Clone, Debug)]
struct Hand {
    tx: mpsc::Sender<Accepted>,
    load: Arc<AtomicUsize>,
}

/// A data thread's end: its queue and the count of what it carries.
#[derive(Debug)]
pub(super) struct Queue {
    rx: mpsc::Receiver<Accepted>,
    load: Arc<AtomicUsize>,
    open: Arc<watch::Sender<usize>>,
}

/// Both ends for `count` data threads.
pub(super) fn hands(count: usize) -> (Hands, Vec<Queue>) {
    let open = Arc::new(watch::Sender::new(0));
    let pair = || {
        let (tx, rx) = mpsc::channel(HAND_OVER);
        let load = Arc::new(AtomicUsize::new(0));
        let queue = Queue { rx, load: Arc::clone(&load), open: Arc::clone(&open) };
        (Hand { tx, load }, queue)
    };
    let (threads, queues) = (0..count).map(|_| pair()).unzip();
    (Hands { threads, open }, queues)
}

impl Hands {
    /// Resolves when no connection is open on any thread.
    pub(super) fn idle(&self) -> impl Future<Output = ()> + use<> {
        let mut open = self.open.subscribe();
        async move {
            let _ = open.wait_for(|open| *open == 0).await;
        }
    }

    /// Gives the connection to the thread that carries least.
    async fn deal(&self, accepted: Accepted) -> Result<(), Closed> {
        let least = self.threads.iter().min_by_key(|hand| hand.load.load(Ordering::Relaxed));
        let hand = least.ok_or(Closed::Overloaded)?;
        if hand.load.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            return Err(Closed::Overloaded);
        }
        let place = hand.tx.reserve().await.map_err(|_| Closed::Drained)?;
        hand.load.fetch_add(1, Ordering::Relaxed);
        self.open.send_modify(|open| *open += 1);
        place.send(accepted);
        Ok(())
    }
}

impl Queue {
    /// The next connection; nothing when the listener is gone.
    pub(super) async fn next(&mut self) -> Option<Accepted> {
        self.rx.recv().await
    }

    /// A connection has ended.
    pub(super) fn done(&self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
        self.open.send_modify(|open| *open -= 1);
    }
}

/// Our own upstream connections, by their address and the one that they dialled. One that comes
/// in at our own listener would go round for ever.
///
/// The address alone does not tell: a client on this machine may have the port of one of our
/// sockets, as long as the two dial different addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnSockets(Arc<Mutex<HashSet<Ends>>>);

/// From where to where.
type Ends = (SocketAddr, SocketAddr);

/// Keeps a connection in [`OwnSockets`].
#[derive(Debug)]
pub(super) struct OwnSocket {
    all: OwnSockets,
    ends: Ends,
}

impl OwnSockets {
    /// Remembers the socket until the value is dropped.
    pub(super) fn remember(&self, local: SocketAddr, dialled: SocketAddr) -> OwnSocket {
        let ends = (canonical(local), canonical(dialled));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(ends);
        OwnSocket { all: self.clone(), ends }
    }

    /// Whether the `client` that dialled this is one of ours. To be asked once its first bytes are
    /// here: the dialling side is remembered before it sends any.
    pub(super) fn contains(&self, client: ClientAddr, dialled: SocketAddr) -> bool {
        let ends = (client.get(), dialled);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&ends)
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.ends);
    }
}

/// Accepts until it is dropped. Every connection that is not dealt is closed with a reason, which
/// `closed` counts.
pub(super) async fn accept(
    listener: TcpListener,
    route: Route,
    hands: Hands,
    closed: impl Fn(Closed, Option<ClientAddr>),
) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if socket::is_of_one_connection(&error) => continue,
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                sleep(BACK_OFF).await;
                continue;
            }
        };
        let client = ClientAddr::new(peer);
        let dealt = match admit(stream, client, &route) {
            Ok(accepted) => hands.deal(accepted).await,
            Err(reason) => Err(reason),
        };
        if let Err(reason) = dealt {
            closed(reason, Some(client));
        }
    }
}

/// Reads the original destination before the first await: connection tracking may forget it.
fn admit(stream: TcpStream, client: ClientAddr, route: &Route) -> Result<Accepted, Closed> {
    let redirected = OrigDst::of(&stream);
    let dialled = match &redirected {
        Ok(dst) => dst.get(),
        Err(_) => canonical(stream.local_addr().map_err(|_| Closed::ClientGone)?),
    };
    let to = match route {
        Route::Fixed(upstream) => Destination::Fixed(upstream.clone()),
        Route::Original => match redirected {
            Ok(dst) => Destination::Original(dst),
            Err(NotRedirected::Direct(_)) => return Err(Closed::DirectHit),
            Err(NotRedirected::Unknown(_)) => return Err(Closed::NoOriginalDestination),
        },
    };
    socket::keep_alive(&stream).map_err(|_| Closed::ClientGone)?;
    let stream = stream.into_std().map_err(|_| Closed::ClientGone)?;
    Ok(Accepted { client, dialled, to, stream })
}
