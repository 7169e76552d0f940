//! State that is shared: by all threads, by the connections of one thread, by the requests of one
//! pair. A pair is a client connection and its one upstream connection; all of it lives on one
//! thread.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::poll_fn,
    pin::Pin,
    rc::Rc,
    sync::{Arc, atomic::AtomicU64},
    task::Context,
    time::Duration,
};

use hyper::rt::Executor;
use tokio::{
    sync::Semaphore,
    task::{self, JoinSet},
};

use super::{
    config::{Config, Mode, OnChange},
    live::{LiveStreams, MoveBarrier, StreamTable},
    metrics::{Metrics, RequestCounts},
    policy_store::{InFlightGuard, KnownRequests, PolicyStore},
    stall::{Stalls, Unread},
    tls::Tls,
    upstream::{CurrentConnection, Leftover, Room, Upstream},
};
use crate::positions::Grants;
use ctrlmesh_base::process::accept_backoff::AcceptBackoff;
use ctrlmesh_net::Clock;

/// The time before a drain's deadline when connections and watches that came during the drain are
/// asked to finish.
pub(super) const LAST_CALL: Duration = Duration::from_secs(1);

/// Most bytes of all bodies that are buffered whole.
const BODIES: usize = 16 << 20;
/// Most bytes of all uploads that are not sent yet: those of 250 streams, and more.
const UPLOADS: usize = 32 << 20;
/// Bytes of all objects that are not whole yet, and of those that change hands.
pub(super) const UNFINISHED: usize = 32 << 20;
const MOVED: usize = 32 << 20;

/// Connections of HTTP/1.1 that are replaced at a time. Each dials, and lists what changes hands.
const REPLACING: usize = 32;

/// State shared by all threads.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) metrics: Arc<Metrics>,
    pub(super) tls: Tls,
    pub(super) policy_store: Arc<PolicyStore>,
    pub(super) streams: Arc<StreamTable>,
    pub(super) turns: Arc<MoveBarrier>,
    pub(super) bodies: Arc<Room>,
    pub(super) uploads: Arc<Room>,
    pub(super) unread: Arc<Unread>,
    pub(super) unfinished: Arc<Room>,
    pub(super) moved: Arc<Room>,
    pub(super) replacing: Semaphore,
    pub(super) accept_backoff: Arc<AcceptBackoff>,
    pub(super) mode: Mode,
    pub(super) on_change: OnChange,
    pub(super) clock: Clock,
    pub(super) connections: AtomicU64,
}

impl Shared {
    pub(super) fn new(
        config: &Config,
        metrics: Arc<Metrics>,
        tls: Tls,
        policy_store: Arc<PolicyStore>,
    ) -> Self {
        Self {
            tls,
            policy_store,
            streams: Arc::default(),
            turns: Arc::new(MoveBarrier::new(metrics.policy_epoch.clone())),
            bodies: Room::new(BODIES, &metrics.filter_memory),
            uploads: Room::new(UPLOADS, &metrics.upload_memory),
            unread: Arc::default(),
            unfinished: Room::new(UNFINISHED, &metrics.filter_memory),
            moved: Room::new(MOVED, &metrics.filter_memory),
            replacing: Semaphore::new(REPLACING),
            metrics,
            accept_backoff: Arc::default(),
            mode: config.mode,
            on_change: config.plain.on_change,
            clock: config.clock.clone(),
            connections: AtomicU64::default(),
        }
    }
}

/// State shared by the connections of one data thread.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) live: Rc<LiveStreams>,
    pub(super) requests: Rc<RequestCounts>,
    /// The requests that need not be observed again.
    pub(super) known_requests: KnownRequests,
}

/// State shared by the requests of one pair.
pub(super) struct Pair {
    pub(super) id: u64,
    pub(super) worker: Rc<Worker>,
    pub(super) upstream: Upstream,
    pub(super) grants: RefCell<Grants>,
    pub(super) tasks: Tasks,
    /// The writes whose ends are waited for, also without their clients.
    pub(super) writes: Tasks,
    /// The number of those whose clients are gone.
    pub(super) left_behind: Cell<usize>,
    pub(super) stalls: Rc<Stalls>,
    /// Whether the awaited response may end HTTP on the upstream connection.
    pub(super) is_upgrading: Rc<Cell<bool>>,
    /// The rest of an HTTP/1.1 request's body, which precedes the next request.
    pub(super) leftover: Option<Rc<Leftover>>,
    /// The upstream connection of HTTP/1.1, which a watch may have to replace.
    pub(super) current: Option<Rc<CurrentConnection>>,
}

/// The writes of a pair that go on without their clients, at most. Further ones are broken off.
const LEFT_BEHIND: usize = 64;

impl Pair {
    /// Waits for the answer to a write whose client is gone. `None` if it is broken off.
    pub(super) async fn without_client<T>(
        &self,
        write: &InFlightGuard,
        answer: impl Future<Output = T>,
    ) -> Option<T> {
        if self.left_behind.get() >= LEFT_BEHIND {
            return None;
        }
        self.left_behind.set(self.left_behind.get() + 1);
        let answered = write.in_time(answer).await;
        self.left_behind.set(self.left_behind.get() - 1);
        answered
    }
}

/// The tasks of one pair.
#[derive(Clone, Default)]
pub(super) struct Tasks(Rc<RefCell<TaskSet>>);

#[derive(Default)]
struct TaskSet {
    running: JoinSet<()>,
    handles: HashMap<task::Id, task::AbortHandle>,
    panics: u64,
}

impl Tasks {
    /// Starts a task and forgets those that have ended. The runtime copies a task whole when it
    /// starts and when it ends, so it gets a box.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut set = self.0.borrow_mut();
        while let Some(ended) = set.running.try_join_next_with_id() {
            set.forget(&ended);
        }
        let task: Pin<Box<dyn Future<Output = ()>>> = Box::pin(task);
        let handle = set.running.spawn_local(task);
        set.handles.insert(handle.id(), handle);
    }

    pub(super) async fn finished(&self) {
        let next = |cx: &mut Context<'_>| self.0.borrow_mut().running.poll_join_next_with_id(cx);
        while let Some(ended) = poll_fn(next).await {
            self.0.borrow_mut().forget(&ended);
        }
    }

    /// Resets the responses that these tasks send.
    pub(super) fn reset(&self, tasks: &[task::Id]) {
        let set = self.0.borrow();
        for handle in tasks.iter().filter_map(|id| set.handles.get(id)) {
            handle.abort();
        }
    }

    /// Counts panics of other tasks among these.
    pub(super) fn add_panics(&self, panics: u64) {
        self.0.borrow_mut().panics += panics;
    }

    /// Ends all; returns how many panicked. Tasks and pair hold each other: nothing else would.
    pub(super) fn end(&self) -> u64 {
        let mut set = self.0.borrow_mut();
        set.running.abort_all();
        set.panics
    }
}

impl TaskSet {
    fn forget(&mut self, ended: &Result<(task::Id, ()), task::JoinError>) {
        let id = match ended {
            Ok((id, ())) => *id,
            Err(error) => {
                self.panics += u64::from(error.is_panic());
                error.id()
            }
        };
        self.handles.remove(&id);
    }
}

impl<F: Future<Output = ()> + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}
