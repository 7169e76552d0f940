//! Accepts connections, finds the original destination of each, and deals it to a data thread.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
};

use super::{
    metrics::{Leg, Metrics},
    outcome::{Closed, connection_closed},
    upstream::{Destination, Server},
};
use ctrlmesh_base::process::accept_backoff::AcceptBackoff;
use ctrlmesh_net::{
    ClientAddr, OrigDst,
    addr::{NotRedirected, canonical},
    socket,
};

/// Connections that one data thread may carry. A pod's controllers open a handful; this is the
/// bound on what a runaway client can make us hold.
const MAX_CONNECTIONS: usize = 4096;
/// Accepted connections that wait for a data thread.
const HAND_OVER: usize = 64;

/// A bound socket, and where its connections lead.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    pub(super) leads: Leads,
}

/// The far side of a listener's connections.
#[derive(Clone, Debug)]
pub(super) enum Leads {
    /// An API server.
    Outbound(Arc<Server>),
    /// The webhook server of this pod's controller, at this address; `None` if it is the address
    /// that the client dialled.
    Inbound(Option<SocketAddr>),
}

/// The far side of one connection.
#[derive(Debug)]
pub(super) enum To {
    ApiServer(Destination),
    Webhook(SocketAddr),
}

/// A client's connection and its destination.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) client: ClientAddr,
    /// The address that the client dialled, whatever rule redirected it.
    pub(super) dialled: SocketAddr,
    pub(super) to: To,
    pub(super) stream: std::net::TcpStream,
}

impl Accepted {
    /// The leg of the connection.
    pub(super) fn leg(&self) -> Leg {
        match self.to {
            To::ApiServer(_) => Leg::OUTBOUND,
            To::Webhook(_) => Leg::INBOUND,
        }
    }
}

impl Leads {
    fn leg(&self) -> Leg {
        match self {
            Self::Outbound(_) => Leg::OUTBOUND,
            Self::Inbound(_) => Leg::INBOUND,
        }
    }

    /// The destination of a connection that was redirected here, or was not.
    fn to(&self, redirected: Result<OrigDst, NotRedirected>) -> Result<To, Closed> {
        match self {
            Self::Outbound(server) => Destination::new(server, redirected).map(To::ApiServer),
            Self::Inbound(Some(fixed)) => Ok(To::Webhook(*fixed)),
            Self::Inbound(None) => Ok(To::Webhook(redirected?.get())),
        }
    }
}

/// The listener's end of the data threads.
#[derive(Clone, Debug)]
pub(super) struct Dispatcher {
    threads: Vec<WorkerSlot>,
    open: Arc<watch::Sender<usize>>,
    most: usize,
}

#[derive(Clone, Debug)]
struct WorkerSlot {
    tx: mpsc::Sender<(Accepted, Slot)>,
    load: Arc<AtomicUsize>,
}

/// A data thread's end: it has no more connections once the listeners are gone.
pub(super) type Queue = mpsc::Receiver<(Accepted, Slot)>;

/// A connection's place on its data thread, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    load: Arc<AtomicUsize>,
    open: Arc<watch::Sender<usize>>,
}

/// Both ends for `count` data threads, which carry at most `most` connections together.
pub(super) fn hands(count: usize, most: usize) -> (Dispatcher, Vec<Queue>) {
    let pair = || {
        let (tx, rx) = mpsc::channel(HAND_OVER);
        (WorkerSlot { tx, load: Arc::default() }, rx)
    };
    let (threads, queues) = (0..count).map(|_| pair()).unzip();
    (Dispatcher { threads, open: Arc::new(watch::Sender::new(0)), most }, queues)
}

impl Dispatcher {
    /// Resolves when no connection is open on any thread.
    pub(super) fn idle(&self) -> impl Future<Output = ()> + use<> {
        let mut open = self.open.subscribe();
        async move {
            let _ = open.wait_for(|open| *open == 0).await;
        }
    }

    /// Deals the connection to the thread with the fewest, of those that have not ended.
    async fn deal(&self, accepted: Accepted) -> Result<(), Closed> {
        loop {
            let serving = self.threads.iter().filter(|hand| !hand.tx.is_closed());
            let least = serving.min_by_key(|hand| hand.load.load(Ordering::Relaxed));
            let hand = least.ok_or(Closed::Drained)?;
            let is_full = hand.load.load(Ordering::Relaxed) >= MAX_CONNECTIONS;
            if is_full || *self.open.borrow() >= self.most {
                return Err(Closed::Overloaded);
            }
            // A thread that ends meanwhile is left out next time.
            if let Ok(room) = hand.tx.reserve().await {
                room.send((accepted, Slot::take(&hand.load, &self.open)));
                return Ok(());
            }
        }
    }
}

impl Slot {
    fn take(load: &Arc<AtomicUsize>, open: &Arc<watch::Sender<usize>>) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        open.send_modify(|open| *open += 1);
        Self { load: Arc::clone(load), open: Arc::clone(open) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
        self.open.send_modify(|open| *open -= 1);
    }
}

/// Accepts until it is dropped. Every connection that is not dealt is closed with a reason, which is
/// counted.
pub(super) async fn accept(
    listener: Listener,
    hands: Dispatcher,
    accept_backoff: &AcceptBackoff,
    metrics: &Metrics,
) {
    loop {
        let (stream, peer) = match listener.socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) if socket::is_of_one_connection(&error) => continue,
            Err(error) => {
                accept_backoff.wait(&error).await;
                continue;
            }
        };
        let client = ClientAddr::new(peer);
        let dealt = match admit(stream, client, &listener) {
            Ok(accepted) => hands.deal(accepted).await,
            Err(reason) => Err(reason),
        };
        if let Err(reason) = dealt {
            connection_closed(metrics, reason, Some((listener.leads.leg(), client)));
        }
    }
}

/// Reads the original destination before the first await: connection tracking may forget it.
fn admit(stream: TcpStream, client: ClientAddr, listener: &Listener) -> Result<Accepted, Closed> {
    let redirected = OrigDst::of(&stream);
    let dialled = match &redirected {
        Ok(dst) => dst.get(),
        Err(_) => canonical(stream.local_addr().map_err(|_| Closed::ClientGone)?),
    };
    let to = listener.leads.to(redirected)?;
    socket::keep_alive(&stream).map_err(|_| Closed::ClientGone)?;
    let stream = stream.into_std().map_err(|_| Closed::ClientGone)?;
    Ok(Accepted { client, dialled, to, stream })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    async fn accepted() -> Accepted {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let dialled = listener.local_addr().unwrap();
        let stream = TcpStream::connect(dialled).await.unwrap();
        let server = Server::never_dialled(None);
        Accepted {
            client: ClientAddr::new(stream.local_addr().unwrap()),
            dialled,
            to: Leads::Outbound(server).to(Err(NotRedirected::Direct(dialled))).unwrap(),
            stream: stream.into_std().unwrap(),
        }
    }

    #[tokio::test]
    async fn no_more_connections_are_dealt_than_there_are_descriptors_for() {
        let (hands, mut queues) = hands(2, 3);
        for _ in 0..3 {
            hands.deal(accepted().await).await.unwrap();
        }
        assert_eq!(hands.deal(accepted().await).await.unwrap_err(), Closed::Overloaded);
        drop(queues[0].recv().await.unwrap());
        hands.deal(accepted().await).await.unwrap();
    }

    #[tokio::test]
    async fn a_data_thread_that_has_ended_is_dealt_nothing() {
        let (hands, mut queues) = hands(2, 100);
        hands.deal(accepted().await).await.unwrap();
        hands.deal(accepted().await).await.unwrap();
        // The ended thread carries nothing, which is least.
        drop(queues.remove(0));
        for _ in 0..3 {
            hands.deal(accepted().await).await.unwrap();
        }
        for _ in 0..4 {
            queues[0].recv().await.unwrap();
        }
        assert_eq!(hands.threads[1].load.load(Ordering::Relaxed), 0, "each place is free again");
        hands.idle().await;
        queues.clear();
        assert_eq!(hands.deal(accepted().await).await.unwrap_err(), Closed::Drained);
    }
}
