//! The pod's part in its ring: a Lease, in which the pod says what it may write.
//!
//! Hides the calls to the API server and their pace. [`Ring`] decides what is written and read, and
//! when; the wishes of the configs come from [`super::feed`]. Runs on the control thread, under the
//! pod's own ServiceAccount.

mod calls;

use std::{future::pending, pin::Pin, sync::Arc, time::Duration};

use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use nix::time::{ClockId, clock_gettime};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use self::calls::{Calls, Change, Listed, NotDone, Written};
use super::shared::reached;
use crate::{
    cluster::{OwnAccess, Pauses},
    net::{
        drain::{self, Drain, Draining},
        peer::PodIdentity,
    },
    policy::{
        Scope,
        ring::{Answer, Listing, Phase, Ring, Time, Timing, Wishes},
    },
    process::vital::{VitalTasks, Vitals},
};

/// The shortest interval between two writes.
const REST: Duration = Duration::from_millis(50);

/// The time that the API server has to delete the Lease at the end.
const GRACE: Duration = Duration::from_secs(2);

/// The Lease of a pod, before it is kept.
pub(super) struct OwnLease {
    keep: BoxFuture<'static, ()>,
    end: End,
}

/// The Lease of a pod, kept.
pub(super) struct KeptLease {
    task: VitalTasks,
    end: End,
}

/// The end of a Lease: the order, and whether it was carried out.
struct End {
    leave: Drain,
    has_left: watch::Receiver<bool>,
}

impl OwnLease {
    /// The Lease of the pod `own`, which is in the ring of these wishes.
    pub(super) fn new(
        access: OwnAccess,
        own: PodIdentity,
        wishes: watch::Receiver<Option<Arc<Wishes>>>,
    ) -> Self {
        let (leave, leaving) = drain::channel();
        let (left, has_left) = watch::channel(false);
        let keep = Keeper::new(access, own, wishes).keep(leaving, left).boxed();
        Self { keep, end: End { leave, has_left } }
    }

    /// Begins to keep it.
    pub(super) fn start(self, vitals: &Vitals) -> KeptLease {
        let mut task = VitalTasks::default();
        vitals.spawn(&mut task, "lease", self.keep);
        KeptLease { task, end: self.end }
    }
}

impl KeptLease {
    /// Has the pod give up what it claims, and waits until its Lease is gone, for a while.
    pub(super) async fn end(mut self) {
        let End { leave, mut has_left } = self.end;
        leave.start(GRACE);
        if timeout(GRACE, has_left.wait_for(|left| *left)).await.is_err() {
            tracing::warn!("the pod's Lease is not deleted, the manager does it");
        }
        self.task.stop().await;
    }
}

struct Keeper {
    pod: Box<str>,
    calls: Calls,
    wishes: watch::Receiver<Option<Arc<Wishes>>>,
    /// The machine. `None` while the pod is in no ring.
    ring: Option<Ring<Arc<Scope>>>,
    /// Whether the process ends.
    is_ending: bool,
    /// Whether the machine gives up everything.
    is_leaving: bool,
    under: Under,
    pauses: Pauses,
    /// The earliest time of the next call.
    rested: Instant,
    /// The failure of the last call.
    trouble: Option<String>,
    /// The last phase that was logged.
    phase: Option<Phase>,
}

/// The calls that are under way.
#[derive(Default)]
struct Under {
    write: Option<BoxFuture<'static, Written>>,
    list: Option<BoxFuture<'static, Result<Listed, NotDone>>>,
    watch: Option<BoxStream<'static, Change>>,
}

/// An input of the machine.
enum Input {
    Wishes,
    Written(Written),
    Listed(Result<Listed, NotDone>),
    Changed(Option<Change>),
}

impl Under {
    async fn next(&mut self) -> Input {
        tokio::select! {
            written = ended(&mut self.write) => Input::Written(written),
            listed = ended(&mut self.list) => Input::Listed(listed),
            change = next(&mut self.watch) => Input::Changed(change),
        }
    }
}

impl Keeper {
    fn new(
        access: OwnAccess,
        own: PodIdentity,
        wishes: watch::Receiver<Option<Arc<Wishes>>>,
    ) -> Self {
        Self {
            pod: own.uid().into(),
            calls: Calls::new(access, own),
            wishes,
            ring: None,
            is_ending: false,
            is_leaving: false,
            under: Under::default(),
            pauses: Pauses::default(),
            rested: Instant::now(),
            trouble: None,
            phase: None,
        }
    }

    async fn keep(mut self, mut leaving: Draining, left: watch::Sender<bool>) {
        loop {
            self.take_wishes();
            self.begin_calls();
            self.report();
            if self.is_ending && self.ring.is_none() {
                left.send_replace(true);
            }
            let wakes = self.wakes();
            let input = tokio::select! {
                Ok(()) = self.wishes.changed() => Input::Wishes,
                _ = leaving.begun(), if !self.is_ending => {
                    self.is_ending = true;
                    Input::Wishes
                }
                input = self.under.next() => input,
                () = reached(wakes) => Input::Wishes,
            };
            self.take(input);
        }
    }

    /// Takes the wishes as they are now. A pod that leaves its ring for none gives up all first.
    fn take_wishes(&mut self) {
        if self.ring.as_ref().is_some_and(Ring::is_done) {
            (self.ring, self.is_leaving, self.under) = (None, false, Under::default());
        }
        let wishes = self.wishes.borrow_and_update().clone().filter(|_| !self.is_ending);
        let now = now();
        match (wishes, &mut self.ring) {
            (None, None) => {}
            (None, Some(ring)) => {
                self.is_leaving = true;
                ring.leave(now);
            }
            // Once it is done, another begins.
            (Some(_), Some(ring)) if self.is_leaving => ring.tick(now),
            (Some(wishes), ring) => {
                let ring = ring.get_or_insert_with(|| Ring::new(&self.pod, Timing::default()));
                if !ring.has_wishes(&wishes.own, &wishes.rivals) {
                    ring.configure(wishes.own.clone(), now);
                    ring.see_configs(wishes.rivals.clone(), now);
                }
                ring.tick(now);
            }
        }
    }

    /// Begins the calls that the machine asks for, one of each kind at a time.
    fn begin_calls(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        if self.rested > Instant::now() {
            return;
        }
        if self.under.write.is_none()
            && let Some(write) = ring.next_write(now())
        {
            let (under_way, _) = ring.under_way();
            self.under.write = Some(self.calls.write(write, under_way));
            self.rested = Instant::now() + REST;
        }
        if self.under.list.is_none()
            && let Some(of) = ring.next_read(now())
        {
            self.under.watch = None;
            self.under.list = Some(self.calls.list(of));
        }
    }

    fn take(&mut self, input: Input) {
        let Some(ring) = &mut self.ring else { return };
        match input {
            Input::Wishes => {}
            Input::Written(Written { answer, trouble }) => {
                let is_done = matches!(answer, Answer::Done(_));
                ring.answered(answer, now());
                self.note(is_done, trouble);
            }
            Input::Listed(Ok(Listed { leases, ring: of, version })) => {
                ring.listed(Listing { leases, is_consistent: true }, now());
                self.under.watch = Some(self.calls.watch(&of, &version));
                self.note(true, None);
            }
            Input::Listed(Err(error)) => {
                ring.unlisted();
                self.note(false, Some(error));
            }
            Input::Changed(Some(Change::Written(lease))) => ring.changed(*lease, now()),
            Input::Changed(Some(Change::Deleted(pod))) => ring.deleted(&pod, now()),
            Input::Changed(None) => {
                self.under.watch = None;
                ring.unfollowed();
            }
        }
    }

    /// Logs a new failure, and pauses after each.
    fn note(&mut self, is_done: bool, trouble: Option<NotDone>) {
        let trouble = trouble.map(|trouble| trouble.to_string());
        if is_done {
            self.pauses = Pauses::default();
        } else {
            self.rested = Instant::now() + self.pauses.pause();
        }
        if let Some(trouble) = &trouble
            && self.trouble.as_ref() != Some(trouble)
        {
            tracing::warn!(trouble, "the pod's Lease is not kept");
        }
        self.trouble = trouble;
    }

    fn report(&mut self) {
        let phase = self.ring.as_ref().map(Ring::phase);
        if phase != self.phase {
            tracing::debug!(?phase, "ring");
            self.phase = phase;
        }
    }

    /// The time of the next look, if nothing happens before.
    fn wakes(&self) -> Option<Instant> {
        let ring = self.ring.as_ref()?;
        let (here, now) = (Instant::now(), now());
        let rests = Some(self.rested).filter(|at| *at > here);
        let wakes = ring.wake(now).map(|at| here + at.saturating_sub(now));
        // Until it has rested, only an answer changes anything.
        rests.or(wakes)
    }
}

/// A reading of the clock that also runs while the machine sleeps.
fn now() -> Time {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Time::ZERO, Time::from)
}

/// The output of a call. Takes it off the list of those under way.
async fn ended<F: Future + Unpin>(call: &mut Option<F>) -> F::Output {
    let Some(running) = call else { return pending().await };
    let output = running.await;
    *call = None;
    output
}

async fn next<S: Stream + Unpin>(stream: &mut Option<S>) -> Option<S::Item> {
    match stream {
        Some(stream) => Pin::new(stream).next().await,
        None => pending().await,
    }
}
