//! The connections of one data thread to the peers.

use std::{cell::RefCell, collections::HashMap, rc::Rc, sync::Arc};

use futures_util::future::join;
#[cfg(test)]
use futures_util::future::select_all;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    dial::{Dialled, dial},
    failed::Reason,
    known::Peers,
    link::{PooledConnection, Session},
    table::{Chosen, Peer},
};
use ctrlmesh_net::peer::PeerTls;

/// Connections without a request that are kept: each takes some 50 KiB.
const MOST_IDLE: usize = 64;

/// The connections of one data thread, one to each peer that is in use.
///
/// A connection ends when it was not used for a while, when the peer ends it, when the pod is no longer
/// usable, and when the mesh's roots no longer vouch for it; requests that are under way then are
/// finished.
pub(crate) struct PeerPool {
    peers: Arc<Peers>,
    tls: Arc<PeerTls>,
    all: RefCell<HashMap<*const Peer, Rc<Link>>>,
    running: RefCell<Running>,
}

/// A connection that is dialled, or takes requests, or is over.
struct Link {
    state: watch::Receiver<PoolState>,
    /// The request to end when no one uses it.
    end: Rc<Notify>,
    /// Keeps the address of the peer, which is the key, from being used again.
    _peer: Arc<Peer>,
}

#[derive(Clone)]
enum PoolState {
    Dialled,
    Open(Rc<Session>),
    Over(Reason),
}

#[derive(Default)]
struct Running {
    tasks: JoinSet<()>,
    panics: u64,
}

impl PeerPool {
    /// No connections yet.
    pub(crate) fn new(peers: Arc<Peers>, tls: Arc<PeerTls>) -> Self {
        Self { peers, tls, all: RefCell::default(), running: RefCell::default() }
    }

    /// A place for one request on the connection to the chosen pod, which is dialled if there is
    /// none. Fails, with nothing sent, if there is none before `until`.
    pub(crate) async fn line(
        &self,
        chosen: Chosen,
        until: Instant,
    ) -> Result<PooledConnection, Reason> {
        let ready = async {
            let mut chosen = chosen;
            // The first may be one that the peer has just ended.
            for _ in 0..2 {
                let session = self.link(chosen.peer())?.open().await?;
                chosen = match session.line(chosen).await {
                    Ok(line) => return Ok(line),
                    Err(chosen) => chosen,
                };
            }
            Err(Reason::Lost)
        };
        timeout_at(until, ready).await.unwrap_or(Err(Reason::Timeout))
    }

    /// Number of connections that take requests, or are dialled.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.all.borrow().values().filter(|link| !link.is_over()).count()
    }

    /// Waits until so many do, or are.
    #[cfg(test)]
    pub(super) async fn until_open(&self, count: usize) {
        loop {
            let mut states: Vec<_> =
                self.all.borrow().values().map(|link| link.state.clone()).collect();
            states.iter_mut().for_each(watch::Receiver::mark_unchanged);
            states.retain(|state| state.has_changed().is_ok());
            if self.open() == count {
                return;
            }
            let _ = select_all(states.iter_mut().map(|state| Box::pin(state.changed()))).await;
        }
    }

    /// Ends all connections; returns how many panicked.
    pub(crate) fn end(&self) -> u64 {
        let mut running = self.running.borrow_mut();
        running.tasks.abort_all();
        running.panics
    }

    /// The connection to a peer: the present one, or one that is dialled now.
    fn link(&self, peer: &Arc<Peer>) -> Result<Rc<Link>, Reason> {
        let key = Arc::as_ptr(peer);
        let present = self.all.borrow().get(&key).filter(|link| !link.is_over()).cloned();
        match present {
            Some(link) => Ok(link),
            None if !self.peers.table().has(peer) => Err(Reason::Unreachable),
            None => {
                let link = Rc::new(self.start(peer));
                self.make_room();
                self.all.borrow_mut().insert(key, Rc::clone(&link));
                Ok(link)
            }
        }
    }

    fn start(&self, peer: &Arc<Peer>) -> Link {
        let (tell, state) = watch::channel(PoolState::Dialled);
        let end = Rc::<Notify>::default();
        let (peers, tls) = (Arc::clone(&self.peers), Arc::clone(&self.tls));
        let task = run(peers, tls, Arc::clone(peer), tell, Rc::clone(&end));
        self.running.borrow_mut().spawn(task);
        Link { state, end, _peer: Arc::clone(peer) }
    }

    /// Forgets the connections that are over. If too many are idle, it ends the one that has been idle for the
    /// longest time.
    fn make_room(&self) {
        let mut all = self.all.borrow_mut();
        all.retain(|_, link| !link.is_over());
        let idle = all.values().filter_map(|link| Some((link.idle_since()?, link)));
        if idle.clone().count() >= MOST_IDLE
            && let Some((_, longest)) = idle.min_by_key(|(since, _)| *since)
        {
            longest.end.notify_one();
        }
    }
}

impl Link {
    /// Waits until it takes requests.
    async fn open(&self) -> Result<Rc<Session>, Reason> {
        let mut state = self.state.clone();
        let dialled = state.wait_for(|state| !matches!(state, PoolState::Dialled)).await;
        match dialled.map(|state| state.clone()) {
            Ok(PoolState::Open(session)) => Ok(session),
            Ok(PoolState::Over(reason)) => Err(reason),
            Ok(PoolState::Dialled) | Err(_) => Err(Reason::Lost),
        }
    }

    fn is_over(&self) -> bool {
        self.state.has_changed().is_err() || matches!(*self.state.borrow(), PoolState::Over(_))
    }

    fn idle_since(&self) -> Option<Instant> {
        match &*self.state.borrow() {
            PoolState::Open(session) => session.idle_since(),
            PoolState::Dialled | PoolState::Over(_) => None,
        }
    }
}

impl Running {
    /// Starts a task and forgets those that have ended.
    fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        while let Some(ended) = self.tasks.try_join_next() {
            self.panics += u64::from(ended.is_err_and(|error| error.is_panic()));
        }
        self.tasks.spawn_local(Box::pin(task));
    }
}

/// The life of a connection, from the dial to its last response.
async fn run(
    peers: Arc<Peers>,
    tls: Arc<PeerTls>,
    peer: Arc<Peer>,
    state: watch::Sender<PoolState>,
    end: Rc<Notify>,
) {
    let dialled = dial(&peer, &tls).await;
    peer.was_reached(dialled.is_ok(), Instant::now());
    let Dialled { sender, connection, proof } = match dialled {
        Ok(dialled) => dialled,
        Err(reason) => {
            tracing::debug!(peer = %peer.identity, %reason, "no connection to a peer");
            state.send_replace(PoolState::Over(reason));
            return;
        }
    };
    let session = Rc::new(Session::new(sender, connection.stream_limit()));
    let over = session.over();
    state.send_replace(PoolState::Open(Rc::clone(&session)));
    let wanted = async {
        tokio::select! {
            () = over => {}
            () = session.idle() => {}
            () = left(&peers, &peer) => {}
            () = tls.disowned(proof) => {}
            () = end.notified() => {}
        }
        // Who waits for a place looks for another connection; without senders this one ends when
        // its last response has.
        session.close();
        state.send_replace(PoolState::Over(Reason::Lost));
        drop(session);
    };
    join(connection.run(), wanted).await;
}

/// Resolves when the peer is no longer usable.
async fn left(peers: &Peers, peer: &Arc<Peer>) {
    let mut changes = peers.changes();
    while peers.table().has(peer) && changes.changed().await.is_ok() {}
}
