//! The live watches of a data thread, and those of all threads for `/debug/streams`.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    machine::{Difference, Input, Machine, Output, Sight},
    move_barrier::{Member, MoveBarrier, Notifier},
};
use crate::{
    metrics::Metrics,
    outcome::Live,
    policy_store::{ActivePolicy, PolicyStore},
};
use ctrlmesh_policy::{Epoch, GroupResource, LockIn};

/// The time over which the watches that one change ends are spread. It keeps them from listing all at the same
/// instant.
const SPREAD: Duration = Duration::from_millis(100);
/// The shortest pause: a timer's grain is a millisecond, so several watches share one.
const GRAIN: Duration = Duration::from_millis(5);

/// The watches of one data thread.
#[derive(Debug)]
pub(crate) struct LiveStreams {
    streams: RefCell<BTreeMap<u64, Weak<LiveStream>>>,
    table: Arc<StreamTable>,
    metrics: Arc<Metrics>,
    notifier: Notifier,
}

/// The collection of a watch, as far as a change of policy may concern it.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) resource: GroupResource,
    pub(crate) namespace: Option<Box<str>>,
    /// Whether a policy may narrow it: a watch of one name is not narrowed.
    pub(crate) is_narrowed: bool,
    pub(crate) lock: Option<LockIn>,
}

/// One live watch, which is among the others until it is dropped.
#[derive(Debug)]
pub(crate) struct LiveStream {
    machine: RefCell<Machine<Subject>>,
    waker: RefCell<Option<Waker>>,
    row: Arc<StreamRow>,
    all: Rc<LiveStreams>,
    _count: Live,
}

/// The watches of all threads, for `/debug/streams`.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    rows: Mutex<BTreeMap<u64, Arc<StreamRow>>>,
    next: AtomicU64,
}

/// One line of `/debug/streams`.
#[derive(Debug, Serialize)]
struct StreamRow {
    id: u64,
    connection: u64,
    kind: &'static str,
    resource: String,
    namespace: Option<Box<str>>,
    epoch: AtomicU64,
    events: AtomicU64,
    position: AtomicU64,
}

impl LiveStreams {
    pub(crate) fn new(
        table: Arc<StreamTable>,
        turns: &Arc<MoveBarrier>,
        metrics: Arc<Metrics>,
    ) -> Rc<Self> {
        Rc::new(Self { streams: RefCell::default(), table, metrics, notifier: turns.notifier() })
    }

    /// Registers a new watch, which was decided by this policy.
    pub(crate) fn register(
        self: &Rc<Self>,
        connection: u64,
        subject: Subject,
        active: Arc<ActivePolicy>,
    ) -> Rc<LiveStream> {
        let id = self.table.next.fetch_add(1, Ordering::Relaxed);
        let row = Arc::new(StreamRow {
            id,
            connection,
            kind: "watch",
            resource: subject.resource.to_string(),
            namespace: subject.namespace.clone(),
            epoch: AtomicU64::new(active.epoch.get()),
            events: AtomicU64::new(0),
            position: AtomicU64::new(0),
        });
        self.table.rows.lock().insert(id, Arc::clone(&row));
        let stream = Rc::new(LiveStream {
            machine: RefCell::new(Machine::new(subject, active)),
            waker: RefCell::default(),
            row,
            all: Rc::clone(self),
            _count: Live::stream(&self.metrics, "watch"),
        });
        self.streams.borrow_mut().insert(id, Rc::downgrade(&stream));
        stream
    }

    /// Brings the watches over to every policy that comes into force, for as long as it is polled.
    pub(crate) async fn follow(self: Rc<Self>, policy_store: Arc<PolicyStore>) {
        let mut changes = policy_store.changes();
        let mut late = VecDeque::new();
        let mut pause = Duration::ZERO;
        let mut at = Instant::now();
        loop {
            changes.mark_unchanged();
            if let Some(present) = policy_store.active() {
                late.extend(self.change(&present));
                self.notifier.has_notified(present.epoch);
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
                        at = expire(&mut late, pause);
                    }
                }
            }
        }
    }

    /// Orders every watch to end cleanly.
    pub(crate) fn drain(&self) {
        for stream in self.streams.borrow().values().filter_map(Weak::upgrade) {
            stream.step(Input::Drain);
        }
    }

    /// Notifies all watches of the present policy; returns those that cannot be brought over.
    fn change(&self, present: &Arc<ActivePolicy>) -> Vec<Weak<LiveStream>> {
        let join = || Some(self.notifier.member(present.epoch));
        let is_late = |stream: &Rc<LiveStream>| {
            matches!(stream.step(Input::Policy(present, &join)), Output::Late)
        };
        let streams = self.streams.borrow();
        let late = streams.values().filter_map(Weak::upgrade).filter(is_late);
        late.map(|stream| Rc::downgrade(&stream)).collect()
    }
}

/// Expires some of the watches that are left; returns the time for the next.
fn expire(late: &mut VecDeque<Weak<LiveStream>>, pause: Duration) -> Instant {
    let now = Instant::now();
    let mut waits = Duration::ZERO;
    while waits < GRAIN
        && let Some(stream) = late.pop_front()
    {
        if let Some(stream) = stream.upgrade() {
            stream.step(Input::Expire);
        }
        waits += pause;
    }
    now + waits
}

impl Subject {
    /// Whether a policy shows only a part of it.
    pub(crate) fn is_limited(&self, by: &ActivePolicy) -> bool {
        self.is_narrowed && by.sharding.scope(&self.resource).is_some()
    }
}

impl Sight for Subject {
    type Policy = Arc<ActivePolicy>;
    /// The watch's member of a change. `None` if it came too late to be waited for.
    type Member = Option<Member>;

    fn difference(&self, old: &Arc<ActivePolicy>, new: &Arc<ActivePolicy>) -> Difference {
        let (before, after) = (&old.sharding, &new.sharding);
        match () {
            () if old.epoch == new.epoch => Difference::None,
            () if self.lock.is_some() && before.locks_otherwise(after) => Difference::Lock,
            () if self.is_narrowed && before.limits_otherwise(after, &self.resource) => {
                Difference::Objects
            }
            () => Difference::None,
        }
    }
}

impl LiveStream {
    /// Steps the machine: gives it an input, records its effect, and returns it.
    pub(crate) fn step(&self, input: Input<'_, Subject>) -> Output<Subject> {
        let output = self.machine.borrow_mut().step(input);
        match output {
            Output::CarriedOver => self.row.epoch.store(self.epoch().get(), Ordering::Relaxed),
            Output::Ordered => self.wake(),
            Output::OrderedToExpire => {
                self.all.metrics.count_stream_change("expired");
                self.wake();
            }
            Output::Expire { is_counted: false } => {
                self.all.metrics.count_stream_change("expired");
            }
            Output::Nothing
            | Output::Late
            | Output::Change(_)
            | Output::Expire { is_counted: true }
            | Output::Drain => {}
        }
        output
    }

    /// Brings the watch over if the policy has changed before its first bytes arrived.
    pub(crate) fn catch_up(&self, present: &Arc<ActivePolicy>) {
        if let Output::Late = self.step(Input::Policy(present, &|| None)) {
            self.step(Input::Expire);
        }
    }

    /// Whether an order waits for the end of an event.
    pub(crate) fn has_order(&self) -> bool {
        self.machine.borrow().has_order()
    }

    /// The policy whose scope this watch shows.
    pub(crate) fn active(&self) -> Arc<ActivePolicy> {
        Arc::clone(&self.machine.borrow().shown)
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.machine.borrow().shown.epoch
    }

    /// Whether that policy shows only a part of it.
    pub(crate) fn is_limited(&self) -> bool {
        let machine = self.machine.borrow();
        machine.sight.is_limited(&machine.shown)
    }

    /// Sets the waker for the next order.
    pub(crate) fn wake_by(&self, waker: &Waker) {
        let mut mine = self.waker.borrow_mut();
        if !mine.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *mine = Some(waker.clone());
        }
    }

    /// Records that an event was shown.
    pub(crate) fn showed(&self, position: Option<u64>) {
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
}

impl Drop for LiveStream {
    fn drop(&mut self) {
        self.all.streams.borrow_mut().remove(&self.row.id);
        self.all.table.rows.lock().remove(&self.row.id);
    }
}

impl StreamTable {
    /// The live watches, oldest first.
    pub(crate) fn list(&self) -> Vec<Value> {
        self.rows.lock().values().map(|row| json!(**row)).collect()
    }
}
