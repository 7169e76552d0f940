//! Live watches and the policies that decided them. When the policy changes, the affected ones are
//! brought over: by difference if possible, else their clients have to list again. The others are
//! not touched.

mod body;
mod change;
mod judged_list;
mod list;
mod passing;
mod stall;
mod turns;
mod watch;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use self::turns::{Member, Teller};
pub(super) use self::{
    body::{BodyError, ReplyBody},
    change::Asked,
    judged_list::JudgedList,
    list::ListBody,
    passing::Events,
    stall::{Stalls, Unread},
    turns::Turns,
    watch::WatchBody,
};
use super::{
    feed::{Feed, InForce},
    metrics::Metrics,
    outcome::LiveStreamCount,
};
use crate::policy::{Epoch, GroupResource, LockIn, Scope};

/// The time over which the watches that one change ends are spread, so that they do not all list at
/// the same instant.
const SPREAD: Duration = Duration::from_millis(100);
/// The shortest pause: a timer's grain is a millisecond, so several watches share one.
const GRAIN: Duration = Duration::from_millis(5);

/// The watches of one data thread.
#[derive(Debug)]
pub(super) struct LiveStreams {
    streams: RefCell<BTreeMap<u64, Rc<LiveStream>>>,
    table: Arc<StreamTable>,
    metrics: Arc<Metrics>,
    teller: Teller,
}

/// The collection of a watch, as far as a change of policy may concern it.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) resource: GroupResource,
    pub(super) namespace: Option<Box<str>>,
    /// Whether a policy may narrow it: a watch of one name is not narrowed.
    pub(super) is_narrowed: bool,
    pub(super) lock: Option<LockIn>,
}

/// One live watch.
#[derive(Debug)]
pub(super) struct LiveStream {
    id: u64,
    subject: Subject,
    in_force: RefCell<Arc<InForce>>,
    /// Whether it can be brought over by difference.
    may_change: Cell<bool>,
    is_changing: Cell<bool>,
    /// The policy that it is to be brought over to.
    next: RefCell<Option<Next>>,
    must_expire: Cell<bool>,
    must_drain: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    row: Arc<Row>,
}

/// An order, which a live watch obeys between two events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Send one ERROR event 410 and end.
    Expire,
    /// Change to another policy.
    Change,
    /// End cleanly: the client resumes from its position.
    Drain,
}

/// The policy that a watch is to be brought over to, and its part in that change.
#[derive(Debug)]
struct Next {
    to: Arc<InForce>,
    /// `None` for a watch that came too late to be waited for.
    member: Option<Member>,
}

/// Keeps a watch among the live ones.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) stream: Rc<LiveStream>,
    all: Rc<LiveStreams>,
    _count: LiveStreamCount,
}

/// The watches of all threads, for `/debug/streams`.
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
    pub(super) fn new(
        table: Arc<StreamTable>,
        turns: &Arc<Turns>,
        metrics: Arc<Metrics>,
    ) -> Rc<Self> {
        Rc::new(Self { streams: RefCell::default(), table, metrics, teller: turns.teller() })
    }

    /// Registers a new watch. If the policy changed before its first bytes arrived, it is brought
    /// over at once.
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
            may_change: Cell::new(false),
            is_changing: Cell::new(false),
            next: RefCell::default(),
            must_expire: Cell::new(false),
            must_drain: Cell::new(false),
            waker: RefCell::default(),
            row,
        });
        if stale {
            stream.next.replace(Some(Next { to: Arc::clone(present), member: None }));
        } else {
            stream.carry_over(present);
        }
        self.streams.borrow_mut().insert(id, Rc::clone(&stream));
        let count = LiveStreamCount::new(&self.metrics, "watch");
        Registered { stream, all: Rc::clone(self), _count: count }
    }

    /// Brings the watches over to every policy that comes into force, for as long as it is polled.
    pub(super) async fn follow(self: Rc<Self>, feed: Arc<Feed>) {
        let mut changes = feed.changes();
        let mut late = VecDeque::new();
        let mut pause = Duration::ZERO;
        let mut at = Instant::now();
        loop {
            changes.mark_unchanged();
            if let Some(present) = feed.in_force() {
                late.extend(self.carry_over(&present));
                self.teller.has_told(present.epoch);
                pause = SPREAD / u32::try_from(late.len()).unwrap_or(u32::MAX).max(1);
                fastrand::shuffle(late.make_contiguous());
            }
            loop {
                tokio::select! {
                    changed = changes.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    () = sleep_until(at), if !late.is_empty() => {
                        at = self.expire(&mut late, pause);
                    }
                }
            }
        }
    }

    /// Orders every watch to end cleanly.
    pub(super) fn drain(&self) {
        for stream in self.streams.borrow().values() {
            stream.must_drain.set(true);
            stream.wake();
        }
    }

    /// Carries over the watches that see the same under the present policy, notifies those that can
    /// be brought over by difference, and returns the others.
    fn carry_over(&self, present: &Arc<InForce>) -> Vec<Rc<LiveStream>> {
        let mut others = Vec::new();
        for stream in self.streams.borrow().values() {
            let is_changed = stream.subject.is_changed(&stream.in_force.borrow(), present);
            if !is_changed && !stream.is_changing.get() {
                // Nothing is to be done any more for a policy in between.
                stream.next.take();
                stream.carry_over(present);
            } else if stream.may_change.get() {
                let member = Some(self.teller.member(present.epoch));
                stream.next.replace(Some(Next { to: Arc::clone(present), member }));
                stream.wake();
            } else {
                others.push(Rc::clone(stream));
            }
        }
        others
    }

    /// Expires some of the watches that are left; returns the time for the next.
    fn expire(&self, late: &mut VecDeque<Rc<LiveStream>>, pause: Duration) -> Instant {
        let now = Instant::now();
        let mut waits = Duration::ZERO;
        while waits < GRAIN
            && let Some(stream) = late.pop_front()
        {
            if !stream.must_expire.replace(true) {
                self.metrics.count_stream_change("expired");
            }
            stream.wake();
            waits += pause;
        }
        now + waits
    }
}

impl Subject {
    /// Whether a policy shows only a part of it.
    pub(super) fn is_limited(&self, by: &InForce) -> bool {
        self.is_narrowed && by.sharding.scope(&self.resource).is_some()
    }

    fn is_changed(&self, old: &InForce, new: &InForce) -> bool {
        if old.epoch == new.epoch {
            return false;
        }
        let scope = |in_force: &InForce| -> Option<Arc<Scope>> {
            in_force.sharding.scope(&self.resource).cloned()
        };
        (self.is_narrowed && scope(old) != scope(new)) || self.has_another_lock(old, new)
    }

    fn has_another_lock(&self, old: &InForce, new: &InForce) -> bool {
        self.lock.is_some() && old.sharding.lock() != new.sharding.lock()
    }
}

impl LiveStream {
    /// The order to obey, if one was given. A client that must list again needs no other order, and
    /// a change comes before an end.
    pub(super) fn ordered(&self) -> Option<Order> {
        match () {
            () if self.must_expire.get() => Some(Order::Expire),
            () if self.next.borrow().is_some() => Some(Order::Change),
            () if self.must_drain.get() => Some(Order::Drain),
            () => None,
        }
    }

    /// The policy whose scope this watch shows.
    fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&self.in_force.borrow())
    }

    /// Whether it may watch the lock, which is another under this policy.
    fn is_of_another_lock(&self, to: &InForce) -> bool {
        self.subject.has_another_lock(&self.in_force.borrow(), to)
    }

    /// Sets whether it can be brought over by difference from now on.
    fn may_change(&self, may_change: bool) {
        self.may_change.set(may_change);
    }

    /// Whether the policy shows only a part of it.
    fn is_limited(&self) -> bool {
        self.subject.is_limited(&self.in_force.borrow())
    }

    /// The policy that it has to be brought over to, or `None` if it shows the same already.
    fn take_next(&self) -> Option<Next> {
        let next = self.next.take()?;
        if self.subject.is_changed(&self.in_force.borrow(), &next.to) {
            self.is_changing.set(true);
            return Some(next);
        }
        self.carry_over(&next.to);
        None
    }

    /// The epoch whose scope this watch shows.
    pub(super) fn epoch(&self) -> Epoch {
        self.in_force.borrow().epoch
    }

    /// Sets the waker for the next order.
    pub(super) fn wake_by(&self, waker: &Waker) {
        let mut mine = self.waker.borrow_mut();
        if !mine.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *mine = Some(waker.clone());
        }
    }

    /// Records that an event was shown.
    pub(super) fn showed(&self, position: Option<u64>) {
        self.row.events.fetch_add(1, Ordering::Relaxed);
        if let Some(position) = position {
            self.row.position.store(position, Ordering::Relaxed);
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn carry_over(&self, present: &Arc<InForce>) {
        self.is_changing.set(false);
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
    /// The live watches, oldest first.
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
