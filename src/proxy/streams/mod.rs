//! Live watches by the policy that decided them. When the policy changes, the affected ones are
//! brought over; the others are not touched.

mod body;
mod judged_list;
mod judged_watch;
mod list;
mod stall;
mod watch;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use serde::Serialize;
use tokio::time::{Instant, sleep};

pub(super) use self::{
    body::{BodyError, ReplyBody, RequestBody},
    judged_list::JudgedList,
    judged_watch::JudgedWatch,
    list::ListBody,
    stall::Stalls,
    watch::WatchBody,
};
use super::{
    feed::{Feed, InForce},
    metrics::{HowLabel, Metrics},
    upgrade::LiveStreamCount,
};
use crate::policy::{Epoch, GroupResource, LockIn, Scope};

/// The watches that one change ends are spread over this long, so that they do not all list at
/// the same instant.
const SPREAD: Duration = Duration::from_millis(100);

/// The watches of one data thread.
#[derive(Debug)]
pub(super) struct LiveStreams {
    streams: RefCell<BTreeMap<u64, Rc<LiveStream>>>,
    table: Arc<StreamTable>,
    metrics: Arc<Metrics>,
}

/// What a watch asked for, as far as a change of policy may concern it.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) resource: GroupResource,
    pub(super) namespace: Option<Box<str>>,
    /// A watch of one name is not narrowed, whatever the policy says.
    pub(super) is_narrowed: bool,
    pub(super) lock: Option<LockIn>,
}

/// One live watch.
#[derive(Debug)]
pub(super) struct LiveStream {
    id: u64,
    subject: Subject,
    in_force: RefCell<Arc<InForce>>,
    order: Cell<Option<Order>>,
    waker: RefCell<Option<Waker>>,
    row: Arc<Row>,
}

/// What a live watch must do at its next event boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Send one ERROR event 410 and end.
    Expire,
    /// End cleanly: the client watches on from its position.
    Drain,
}

/// Keeps a watch in the lists.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) stream: Rc<LiveStream>,
    all: Rc<LiveStreams>,
    _count: LiveStreamCount,
}

/// The watches of all threads, for people.
#[derive(Debug, Default)]
pub(super) struct StreamTable {
    rows: Mutex<BTreeMap<u64, Arc<Row>>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Row {
    connection: u64,
    resource: String,
    namespace: Option<Box<str>>,
    epoch: AtomicU64,
    events: AtomicU64,
    position: AtomicU64,
}

/// One line of `/debug/streams`.
#[derive(Debug, Serialize)]
pub(super) struct StreamLine {
    id: u64,
    connection: u64,
    kind: &'static str,
    resource: String,
    namespace: Option<Box<str>>,
    epoch: u64,
    events: u64,
    position: u64,
}

impl LiveStreams {
    pub(super) fn new(table: Arc<StreamTable>, metrics: Arc<Metrics>) -> Rc<Self> {
        Rc::new(Self { streams: RefCell::default(), table, metrics })
    }

    /// A watch begins. If the policy changed while its first bytes were under way, it is ended at
    /// once.
    pub(super) fn register(
        self: &Rc<Self>,
        connection: u64,
        subject: Subject,
        in_force: Arc<InForce>,
        present: &Arc<InForce>,
    ) -> Registered {
        let (id, row) = self.table.add(connection, &subject, in_force.epoch);
        let stale = subject.is_changed(&in_force, present);
        let stream = Rc::new(LiveStream {
            id,
            subject,
            in_force: RefCell::new(in_force),
            order: Cell::new(stale.then_some(Order::Expire)),
            waker: RefCell::default(),
            row,
        });
        if !stale {
            stream.carry_over(present);
        }
        self.streams.borrow_mut().insert(id, Rc::clone(&stream));
        let count = LiveStreamCount::new(&self.metrics, "watch");
        Registered { stream, all: Rc::clone(self), _count: count }
    }

    /// Brings the watches over to every policy that comes into force, for as long as it is polled.
    pub(super) async fn follow(self: Rc<Self>, feed: Arc<Feed>) {
        let mut changes = feed.changes();
        while changes.changed().await.is_ok() {
            changes.mark_unchanged();
            let Some(present) = feed.in_force() else { continue };
            let mut affected = self.carry_over(&present);
            drop(present);
            fastrand::shuffle(&mut affected);
            self.expire(affected).await;
        }
    }

    /// Every watch ends cleanly.
    pub(super) fn drain(&self) {
        for stream in self.streams.borrow().values() {
            stream.order(Order::Drain);
        }
    }

    /// Carries over the watches that see the same under the present policy, and returns the others.
    fn carry_over(&self, present: &Arc<InForce>) -> Vec<Rc<LiveStream>> {
        let mut affected = Vec::new();
        for stream in self.streams.borrow().values() {
            let is_changed = stream.subject.is_changed(&stream.in_force.borrow(), present);
            if is_changed {
                affected.push(Rc::clone(stream));
            } else {
                stream.carry_over(present);
            }
        }
        affected
    }

    async fn expire(&self, affected: Vec<Rc<LiveStream>>) {
        let how = HowLabel { how: "expired" };
        let each = SPREAD / u32::try_from(affected.len()).unwrap_or(u32::MAX).max(1);
        let mut late = Duration::ZERO;
        for stream in affected {
            let before = Instant::now();
            if stream.order.get().is_none() {
                self.metrics.stream_changes.get_or_create_owned(&how).inc();
            }
            stream.order(Order::Expire);
            drop(stream);
            // A timer's grain is a millisecond: many watches share one pause.
            late += each;
            if late >= Duration::from_millis(5) {
                sleep(late).await;
                late = late.saturating_sub(before.elapsed());
            }
        }
    }
}

impl Subject {
    fn is_changed(&self, old: &InForce, new: &InForce) -> bool {
        if old.epoch == new.epoch {
            return false;
        }
        let scope = |in_force: &InForce| -> Option<Arc<Scope>> {
            in_force.policy.scope(&self.resource).cloned()
        };
        (self.is_narrowed && scope(old) != scope(new))
            || (self.lock.is_some() && old.policy.lock() != new.policy.lock())
    }
}

impl LiveStream {
    /// The order to obey, if one was given.
    pub(super) fn ordered(&self) -> Option<Order> {
        self.order.get()
    }

    /// The epoch whose scope this watch shows.
    pub(super) fn epoch(&self) -> Epoch {
        self.in_force.borrow().epoch
    }

    /// Whom to wake when an order is given.
    pub(super) fn wake_by(&self, waker: &Waker) {
        let mut mine = self.waker.borrow_mut();
        if !mine.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *mine = Some(waker.clone());
        }
    }

    /// An event was shown.
    pub(super) fn showed(&self, position: Option<u64>) {
        self.row.events.fetch_add(1, Ordering::Relaxed);
        if let Some(position) = position {
            self.row.position.store(position, Ordering::Relaxed);
        }
    }

    fn order(&self, order: Order) {
        if self.order.get() != Some(Order::Expire) {
            self.order.set(Some(order));
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn carry_over(&self, present: &Arc<InForce>) {
        *self.in_force.borrow_mut() = Arc::clone(present);
        self.row.epoch.store(present.epoch.get(), Ordering::Relaxed);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.all.streams.borrow_mut().remove(&self.stream.id);
        self.all.table.remove(self.stream.id);
    }
}

impl StreamTable {
    /// What is live now, oldest first.
    pub(super) fn list(&self) -> Vec<StreamLine> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter()
            .map(|(id, row)| StreamLine {
                id: *id,
                connection: row.connection,
                kind: "watch",
                resource: row.resource.clone(),
                namespace: row.namespace.clone(),
                epoch: row.epoch.load(Ordering::Relaxed),
                events: row.events.load(Ordering::Relaxed),
                position: row.position.load(Ordering::Relaxed),
            })
            .collect()
    }

    fn add(&self, connection: u64, subject: &Subject, epoch: Epoch) -> (u64, Arc<Row>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let row = Arc::new(Row {
            connection,
            resource: subject.resource.to_string(),
            namespace: subject.namespace.clone(),
            epoch: AtomicU64::new(epoch.get()),
            events: AtomicU64::new(0),
            position: AtomicU64::new(0),
        });
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.insert(id, Arc::clone(&row));
        (id, row)
    }

    fn remove(&self, id: u64) {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}
