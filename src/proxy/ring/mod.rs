//! The pod's part in its ring: a Lease, in which the pod says what it may write.
//!
//! Hides the calls to the API server and their pace. [`Handover`] decides what to write and read, and when; the
//! wishes of the configs come from [`super::policy_store`]. Runs on the control thread, under the pod's own
//! ServiceAccount.

mod calls;
mod epochs;
mod report;

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use k8s_openapi::jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use self::{
    calls::{Calls, Change, LeaseAnnotations, Listed, NotDone, Written},
    epochs::Epochs,
    report::{Report, Situation},
};
use super::{
    metrics::Metrics,
    policy_store::{PendingPolicy, PolicyStore},
};
use ctrlmesh_base::{
    cluster::{ExponentialBackoff, OwnAccess},
    process::supervisor::{SupervisedTasks, Supervisor},
};
use ctrlmesh_net::{
    clock::reached,
    drain::{self, Drain, Draining},
    identity::PodIdentity,
};
use ctrlmesh_policy::{
    ByResource, Policy, Scope,
    ring::{Answer, Handover, Listing, ScopeClaim, Time, Timing, Watched, Write},
};

/// The shortest interval between two writes.
const REST: Duration = Duration::from_millis(50);

/// The interval of attempts to put a policy in force, and of lists after watches that end.
const AGAIN: Duration = Duration::from_secs(1);
/// The name by which this is reported.
const SOURCE: &str = "ring";
/// The time that the API server has to delete the Lease at the end.
const GRACE: Duration = Duration::from_secs(2);

/// The Lease of a pod, before it is kept.
pub(super) struct PodLease {
    keep: BoxFuture<'static, ()>,
    end: End,
}

/// The Lease of a pod, kept.
pub(super) struct KeptLease {
    task: SupervisedTasks,
    end: End,
}

/// The end of a Lease: the order, and whether it was carried out.
struct End {
    leave: Drain,
    has_left: watch::Receiver<bool>,
}

impl PodLease {
    /// The Lease of the pod `own`, which puts the policies of `policy_store` in force in turn.
    pub(super) fn new(
        access: OwnAccess,
        own: PodIdentity,
        policy_store: Arc<PolicyStore>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (leave, leaving) = drain::channel();
        let (left, has_left) = watch::channel(false);
        let keep =
            HandoverDriver::new(access, own, policy_store, metrics).keep(leaving, left).boxed();
        Self { keep, end: End { leave, has_left } }
    }

    /// Begins to keep it.
    pub(super) fn start(self, supervisor: &Supervisor) -> KeptLease {
        let mut task = SupervisedTasks::default();
        supervisor.spawn(&mut task, "lease", self.keep);
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

struct HandoverDriver {
    pod: Box<str>,
    calls: Calls,
    policy_store: Arc<PolicyStore>,
    /// The policy that is to be put in force.
    pending_policy: watch::Receiver<Option<Arc<PendingPolicy>>>,
    /// The machine. `None` while the pod is in no ring.
    ring: Option<Handover<Arc<Scope>>>,
    /// Whether the process ends.
    is_ending: bool,
    /// Whether the machine gives up everything.
    is_leaving: bool,
    under: Under,
    epochs: Epochs,
    backoff: ExponentialBackoff,
    /// The earliest time of the next call.
    rested: Instant,
    /// The earliest time of the next write.
    rested_for_write: Instant,
    /// The failure of the last call.
    trouble: Option<String>,
    /// The policy and the area that were put in force last.
    installed: Option<(Arc<PendingPolicy>, ShownEpoch)>,
    report: Report,
    /// The claim that was written last, and since when it is claimed.
    claimed: Option<(ScopeClaim, Timestamp)>,
}

/// The objects that the streams show.
type ShownEpoch = Arc<ByResource<Arc<Scope>>>;

/// The calls that are under way.
#[derive(Default)]
struct Under {
    write: Option<BoxFuture<'static, Written>>,
    list: Option<BoxFuture<'static, Result<Listed, NotDone>>>,
    watch: Option<Watching>,
}

/// A watch of Leases.
struct Watching {
    ring: String,
    /// Whether it is of the own one alone.
    is_own: bool,
    changes: BoxStream<'static, Change>,
}

/// An input of the machine.
enum DriverInput {
    /// The policy that is to be put in force, or the time.
    PendingPolicy,
    /// The last request under a former policy has ended.
    Ended(u64),
    /// A write of unknown end was given up.
    Lost,
    /// Something was seen of the controller that the Lease does not tell yet.
    Seen,
    Written(Written),
    Listed(Result<Listed, NotDone>),
    Changed(Option<Change>),
}

impl Under {
    async fn next(&mut self) -> DriverInput {
        tokio::select! {
            written = ended(&mut self.write) => DriverInput::Written(written),
            listed = ended(&mut self.list) => DriverInput::Listed(listed),
            change = next(self.watch.as_mut().map(|one| &mut one.changes)) => DriverInput::Changed(change),
        }
    }
}

impl HandoverDriver {
    fn new(
        access: OwnAccess,
        own: PodIdentity,
        policy_store: Arc<PolicyStore>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let pending_policy = policy_store.pending_policy();
        Self {
            pod: own.uid().into(),
            calls: Calls::new(access, own),
            epochs: Epochs::new(Arc::clone(&policy_store)),
            policy_store,
            pending_policy,
            installed: None,
            ring: None,
            is_ending: false,
            is_leaving: false,
            under: Under::default(),
            backoff: ExponentialBackoff::default(),
            rested: Instant::now(),
            rested_for_write: Instant::now(),
            trouble: None,
            report: Report::new(metrics),
            claimed: None,
        }
    }

    async fn keep(mut self, mut leaving: Draining, left: watch::Sender<bool>) {
        loop {
            self.take_pending_policy();
            let is_in_force = self.put_in_force();
            let rests = if is_in_force { self.begin_calls() } else { Some(self.rested) };
            self.report(is_in_force);
            if self.is_ending && self.ring.is_none() {
                left.send_replace(true);
            }
            let wakes = self.wakes(rests);
            loop {
                let input = tokio::select! {
                    Ok(()) = self.pending_policy.changed() => DriverInput::PendingPolicy,
                    _ = leaving.begun(), if !self.is_ending => {
                        self.is_ending = true;
                        self.end_requests();
                        DriverInput::PendingPolicy
                    }
                    input = self.under.next() => input,
                    id = self.epochs.ended() => DriverInput::Ended(id),
                    () = self.policy_store.has_lost() => DriverInput::Lost,
                    () = self.policy_store.controller().foreign_writes.is_new() => DriverInput::Seen,
                    () = self.policy_store.controller().related.is_new() => DriverInput::Seen,
                    () = reached(wakes) => DriverInput::PendingPolicy,
                };
                if self.take(input) {
                    break;
                }
            }
        }
    }

    /// Takes the policy and the wishes as they are now. A pod that leaves its ring for none gives up
    /// all first.
    fn take_pending_policy(&mut self) {
        if self.ring.as_ref().is_some_and(Handover::is_done) {
            (self.ring, self.is_leaving, self.under) = (None, false, Under::default());
            self.installed = None;
            self.report.leave();
            self.policy_store.note_lease(None);
        }
        let pending_policy =
            self.pending_policy.borrow_and_update().clone().filter(|_| !self.is_ending);
        let now = now();
        match (pending_policy, &mut self.ring) {
            (None, None) => {}
            (None, Some(ring)) => {
                self.is_leaving = true;
                ring.leave(now);
            }
            // Once it is done, another begins.
            (Some(_), Some(ring)) if self.is_leaving => ring.tick(now),
            (Some(pending_policy), ring) => {
                let ring = ring.get_or_insert_with(|| Handover::new(&self.pod, Timing::default()));
                let wishes = &pending_policy.wishes;
                self.report.want(&wishes.own.area);
                if !ring.has_wishes(&wishes.own, &wishes.rivals) {
                    ring.configure(wishes.own.clone(), now);
                    ring.see_configs(wishes.rivals.clone(), now);
                }
                ring.tick(now);
            }
        }
    }

    /// Puts in force what the machine shows. Returns whether it is: until then nothing is given back.
    fn put_in_force(&mut self) -> bool {
        let pending_policy = self.pending_policy.borrow().clone().filter(|_| !self.is_leaving);
        let (Some(ring), Some(pending_policy)) = (&mut self.ring, pending_policy) else {
            return true;
        };
        let Some(shown) = ring.shown().cloned() else { return true };
        let now = Some((pending_policy, shown));
        if self.installed == now {
            return true;
        }
        let Some((pending_policy, shown)) = now else { return true };
        let Policy { config, sharding, fence } = pending_policy.policy.clone();
        let present = self.policy_store.draining_policy().map(|present| present.sharding);
        let same = present.filter(|present| present.is_within(&sharding, &shown));
        let sharding = same.unwrap_or_else(|| sharding.within(&shown));
        let policy = Policy { config, sharding, fence };
        let (is_in_force, former) = self.policy_store.install(policy);
        if let Some(former) = former {
            let (id, area) = self.epochs.follow(former);
            ring.begin_former(id, area);
        }
        if is_in_force {
            self.installed = Some((pending_policy, shown));
        } else {
            self.rested = Instant::now() + AGAIN;
        }
        is_in_force
    }

    /// Follows the present epoch to its end: the process has had its last request, and requests under way keep
    /// the claim.
    fn end_requests(&mut self) {
        self.epochs.end();
        if let Some(ring) = &mut self.ring
            && let Some(present) = self.policy_store.end_requests()
        {
            let (id, area) = self.epochs.follow_last(present);
            ring.begin_former(id, area);
        }
    }

    /// Begins the calls that the machine asks for, one of each kind at a time. Returns the time until
    /// which one has to rest.
    fn begin_calls(&mut self) -> Option<Instant> {
        let ring = self.ring.as_mut()?;
        let here = Instant::now();
        let rests = |until: Instant| Some(until).filter(|until| *until > here);
        if let Some(until) = rests(self.rested) {
            return Some(until);
        }
        let rest = rests(self.rested_for_write);
        if self.under.write.is_none()
            && rest.is_none()
            && let Some(write) = ring.next_write(now())
        {
            let (_, lost) = ring.under_way();
            let under_way = self.epochs.under_way() + lost;
            let elections = self.policy_store.elections_said();
            let foreign_writes = self.policy_store.controller().foreign_writes.said();
            let claimed = claimed(&mut self.claimed, &write);
            let related = self.policy_store.related_said();
            let aside = LeaseAnnotations { claimed, under_way, elections, foreign_writes, related };
            self.under.write = Some(self.calls.write(write, aside));
            self.rested_for_write = here + REST;
        }
        if self.under.list.is_none()
            && let Some(of) = ring.next_read(now())
        {
            self.under.watch = None;
            self.under.list = Some(self.calls.list(of));
        }
        self.begin_own_watch();
        rest
    }

    /// Begins a watch of the own Lease where that of the ring is not needed.
    fn begin_own_watch(&mut self) {
        let Some(ring) = &self.ring else { return };
        let of = ring.ring().unwrap_or_default();
        // One of the ring that is left would show that the Lease leaves it.
        self.under.watch.take_if(|watching| watching.ring != of);
        let Some(Watched::Own(version)) = ring.to_watch() else { return };
        if self.under.list.is_none() && !self.under.watch.as_ref().is_some_and(|one| one.is_own) {
            let changes = self.calls.watch_own(of, version);
            self.under.watch = Some(Watching { ring: of.to_owned(), is_own: true, changes });
        }
    }

    /// Takes an input. Returns false if it says nothing new.
    fn take(&mut self, input: DriverInput) -> bool {
        // Before the end of an epoch, so that none of its writes is forgotten.
        let losses = self.epochs.losses();
        if let DriverInput::Ended(id) = input {
            self.epochs.forget(id);
        }
        let Some(ring) = &mut self.ring else { return true };
        let has_lost = !losses.is_empty();
        for (area, at) in losses {
            ring.lose_within(area, now().saturating_sub(at.elapsed()));
        }
        match input {
            DriverInput::PendingPolicy | DriverInput::Lost => {}
            DriverInput::Seen => ring.renew(now()),
            DriverInput::Ended(id) => ring.end(id, now()),
            DriverInput::Written(Written { answer, trouble }) => {
                let is_done = matches!(answer, Answer::Done(_));
                // The Lease of the last process is no failure.
                let is_found = answer == Answer::Conflict && trouble.is_none() && ring.is_new();
                ring.answered(answer, now());
                if is_done {
                    self.policy_store.note_lease(Some(std::time::Instant::now()));
                }
                self.note(is_done || is_found, trouble);
            }
            DriverInput::Listed(Ok(Listed { leases, ring: of, version })) => {
                ring.listed(Listing { leases, is_consistent: true }, now());
                if ring.to_watch() == Some(Watched::Handover) {
                    let changes = self.calls.watch(&of, &version);
                    self.under.watch = Some(Watching { ring: of, is_own: false, changes });
                }
                self.note(true, None);
            }
            DriverInput::Listed(Err(error)) => {
                ring.unlisted();
                self.note(false, Some(error));
            }
            DriverInput::Changed(Some(Change::Written(lease))) => {
                return ring.changed(*lease, now()) || has_lost;
            }
            DriverInput::Changed(Some(Change::Deleted(pod))) => ring.deleted(&pod, now()),
            DriverInput::Changed(None) => {
                // A watch that is refused, or ends at once, must not begin again all the time.
                self.rested = Instant::now() + AGAIN;
                if self.under.watch.take().is_some_and(|watching| !watching.is_own) {
                    ring.unfollowed();
                }
            }
        }
        true
    }

    /// Logs a new failure, and backoff after each.
    fn note(&mut self, is_done: bool, trouble: Option<NotDone>) {
        let trouble = trouble.map(|trouble| trouble.to_string());
        if is_done {
            self.backoff = ExponentialBackoff::default();
        } else {
            self.rested = Instant::now() + self.backoff.pause();
        }
        if let Some(trouble) = &trouble
            && self.trouble.as_ref() != Some(trouble)
        {
            tracing::warn!(trouble, "the pod's Lease is not kept");
        }
        self.trouble = trouble;
    }

    /// Shows what the ring waits for. `is_in_force` says whether all that the machine shows is in force.
    fn report(&mut self, is_in_force: bool) {
        let ring = self.ring.as_ref().filter(|_| !self.is_leaving);
        let has_policy = self.policy_store.active().is_some();
        let state = self.report.see(&Situation {
            ring,
            requests: self.epochs.under_way(),
            trouble: self.trouble.as_deref(),
            has_policy,
            is_in_force,
        });
        self.policy_store.note(SOURCE, state);
    }

    /// The time of the next look, if nothing happens before: `rests` says until when a call rests, which
    /// may be over already.
    fn wakes(&self, rests: Option<Instant>) -> Option<Instant> {
        let ring = self.ring.as_ref()?;
        let (here, now) = (Instant::now(), now());
        let wakes = ring.wake(now).map(|at| here + at.saturating_sub(now));
        let report = Some(self.report.next()).filter(|at| *at > here);
        // Until it has rested, only an answer changes anything.
        rests.or(wakes).into_iter().chain(report).min()
    }
}

/// The time since when the claim of a write is made.
fn claimed(last: &mut Option<(ScopeClaim, Timestamp)>, write: &Write<Arc<Scope>>) -> Timestamp {
    match (write, &*last) {
        (Write::Claim(saying), Some((claim, since))) if *claim == saying.claim => *since,
        (Write::Claim(saying), _) => {
            let now = Timestamp::now();
            *last = Some((saying.claim.clone(), now));
            now
        }
        (Write::Delete(_), _) => Timestamp::now(),
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

async fn next<S: Stream + Unpin>(stream: Option<&mut S>) -> Option<S::Item> {
    match stream {
        Some(stream) => stream.next().await,
        None => pending().await,
    }
}
