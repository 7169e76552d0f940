//! The policy in force, part by part, and the problems of its sources.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use super::{
    controller::Controller,
    disconnected::DisconnectedClients,
    in_flight::{InFlight, InFlightGuard},
    locks::KeptLocks,
    moves::Move,
};
use crate::{
    metrics::Metrics,
    upstream::{Server, Unwritable},
};
use ctrlmesh_api::{FenceMode, lease};
use ctrlmesh_base::cluster::chain;
use ctrlmesh_policy::{
    ControllerShards, Epoch, Fence, PodConfig, Policy, Sharding, ring::DesiredScopes,
};

/// Positions that become known within this time are written together.
const GRAIN: Duration = Duration::from_millis(100);

/// The sharding part of a policy in force, with its number.
#[derive(Debug)]
pub(crate) struct ActivePolicy {
    pub(crate) epoch: Epoch,
    pub(crate) sharding: Arc<Sharding>,
    /// The requests that it has let through, watches aside.
    pub(crate) requests: Arc<InFlight>,
    /// The moves by which it came about, and that clients may not have been shown.
    pub(crate) moves: Box<[Arc<Move>]>,
    since: Instant,
    /// The sender whose drop marks the end of the last request decided by it.
    until: watch::Sender<()>,
}

/// The policy in force, part by part, for all threads.
#[derive(Debug)]
pub(crate) struct PolicyStore {
    active: ArcSwapOption<ActivePolicy>,
    fence: ArcSwap<Fence>,
    /// The mode of the fence of a config that gives none.
    fence_mode: FenceMode,
    /// The API servers whose positions depend on the policy.
    servers: Vec<Arc<Server>>,
    changed: watch::Sender<Epoch>,
    /// The shards of the pod's controller, where it has a webhook.
    siblings: watch::Sender<Option<Arc<ControllerShards>>>,
    /// The policy that the pod's ring puts in force.
    pending_policy: watch::Sender<Option<Arc<PendingPolicy>>>,
    /// The signal that a write of unknown end was given up.
    has_lost: Arc<Notify>,
    /// The clients that still go by a watch that has ended.
    disconnected: DisconnectedClients,
    /// The signal that more is known for the next process than stands on disk.
    has_settled: Notify,
    /// The locks that the pod follows.
    locks: Mutex<KeptLocks>,
    controller: Controller,
    state: Mutex<StoreState>,
    metrics: Arc<Metrics>,
}

/// The requests that a sharding has let through.
#[derive(Debug)]
pub(crate) struct DrainingPolicy {
    pub(crate) epoch: Epoch,
    pub(crate) sharding: Arc<Sharding>,
    /// The requests, watches aside.
    pub(crate) requests: Arc<InFlight>,
    until: Ends,
}

/// The end of the last request of an epoch, once another has begun: of a watch, that it was brought
/// over.
type Ends = watch::Receiver<()>;

/// A policy that waits for its handover, and the desired scopes of the ring.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PendingPolicy {
    pub(crate) policy: Policy,
    pub(crate) wishes: DesiredScopes,
}

#[derive(Debug, Default)]
struct StoreState {
    /// The config of the policy in force, as it was when last valid.
    config: Option<PodConfig>,
    /// Problems of the sources that the policy comes from, by source.
    problems: BTreeMap<&'static str, String>,
    /// The end of the last request under the sharding in force.
    in_use: Option<Ends>,
    /// The ends of those under earlier shardings.
    former: Vec<Ends>,
    /// The moves of the boundary that no one follows yet, each with the epoch before: `None` if that was
    /// of the last process.
    moves: Vec<(Option<DrainingPolicy>, Arc<Move>)>,
    /// The time at which the pod's Lease was last written. `None` if it has none.
    renewed: Option<Instant>,
}

/// The state of a source of the policy.
#[derive(Debug)]
pub(crate) enum SourceState {
    /// The source's data is up to date, and in force.
    Current,
    /// The source's first data has not arrived yet.
    Awaited(String),
    /// The source failed: its data is missing or may be old.
    Lost(String),
    /// The source's newest data cannot be put in force.
    Rejected(String),
}

/// The name of the source of the sharding: the pod's config. Each part of the policy has its own.
const CONFIG: &str = "config";
/// The name of the source of the locks: the config that the pod started with.
const LOCKS: &str = "locks";

impl PolicyStore {
    /// The policy_store of a process that uses these API servers, before its first policy. `state_dir` outlives
    /// the process.
    pub(crate) fn new(
        servers: Vec<Arc<Server>>,
        state_dir: Option<PathBuf>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            active: ArcSwapOption::empty(),
            fence: ArcSwap::default(),
            fence_mode: FenceMode::default(),
            servers,
            changed: watch::Sender::new(Epoch::default()),
            siblings: watch::Sender::default(),
            pending_policy: watch::Sender::default(),
            has_lost: Arc::default(),
            disconnected: DisconnectedClients::new(),
            has_settled: Notify::new(),
            locks: Mutex::new(KeptLocks::open(state_dir)),
            controller: Controller::default(),
            state: Mutex::default(),
            metrics,
        }
    }

    /// The policy_store, where the fence of a config that gives no mode has this one.
    pub(crate) fn with_fence_mode(self, fence_mode: FenceMode) -> Self {
        Self { fence_mode, ..self }
    }

    /// The fence in force.
    pub(crate) fn fence(&self) -> Arc<Fence> {
        self.fence.load_full()
    }

    /// The moves of the boundary since this was asked before, each with the epoch before: `None` if that was
    /// of the last process.
    pub(super) fn take_moves(&self) -> Vec<(Option<DrainingPolicy>, Arc<Move>)> {
        std::mem::take(&mut self.state.lock().moves)
    }

    /// The policy in force, or `None` before the first.
    pub(crate) fn active(&self) -> Option<Arc<ActivePolicy>> {
        self.active.load_full()
    }

    /// The config of the policy in force. `None` before the first.
    pub(super) fn config(&self) -> Option<PodConfig> {
        self.state.lock().config.clone()
    }

    /// A receiver of every change.
    pub(crate) fn changes(&self) -> watch::Receiver<Epoch> {
        self.changed.subscribe()
    }

    /// A receiver of the shards of the pod's controller. They are `None` before the first policy, and
    /// where the controller has no webhook.
    pub(crate) fn siblings(&self) -> watch::Receiver<Option<Arc<ControllerShards>>> {
        self.siblings.subscribe()
    }

    /// A receiver of the policy that the pod's ring puts in force. `None` before the first config, and
    /// where policies are in force at once.
    pub(crate) fn pending_policy(&self) -> watch::Receiver<Option<Arc<PendingPolicy>>> {
        self.pending_policy.subscribe()
    }

    /// Begins a request under the policy in force. `None` before the first.
    pub(crate) fn begin_request(
        &self,
        is_read: bool,
    ) -> Option<(Arc<ActivePolicy>, InFlightGuard)> {
        loop {
            let active = self.active.load_full()?;
            if let Some(begun) = active.requests.begin(is_read) {
                return Some((active, begun));
            }
        }
    }

    /// The requests of the present epoch. `None` before the first.
    pub(crate) fn draining_policy(&self) -> Option<DrainingPolicy> {
        self.active().as_deref().map(DrainingPolicy::by)
    }

    /// Ends the present epoch: the process has had its last request.
    pub(crate) fn end_requests(&self) -> Option<DrainingPolicy> {
        let over = self.draining_policy()?;
        over.requests.are_over();
        Some(over)
    }

    /// Records that a watch has ended, whose client was shown the collection in this epoch.
    pub(crate) fn has_left(&self, collection: u64, epoch: Epoch) {
        self.disconnected.left(collection, epoch);
    }

    /// Records that a client has asked for a collection, or has been turned away (`None`): if it gets
    /// nothing, it pauses again.
    pub(crate) fn has_asked(&self, collection: Option<u64>) {
        self.disconnected.has_asked(collection);
    }

    /// Records that a client was shown the collection again.
    pub(crate) fn came_back(&self, collection: u64) {
        self.disconnected.came_back(collection);
    }

    /// Records that a client was given a list of the collection, which was decided in this epoch.
    pub(crate) fn was_listed(&self, collection: u64, epoch: Epoch) {
        self.disconnected.came_back(collection);
        if self.active().is_some_and(|present| present.epoch > epoch) {
            self.disconnected.left(collection, epoch);
        }
    }

    /// Waits until no client follows a watch of this epoch, or before, that has ended.
    pub(crate) async fn have_come_back(&self, epoch: Epoch) {
        self.disconnected.have_come_back(epoch).await;
    }

    /// Waits until a write of unknown end is given up.
    pub(crate) async fn has_lost(&self) {
        self.has_lost.notified().await;
    }

    /// Replaces what [`Self::siblings`] shows.
    pub(super) fn show_siblings(&self, now: Option<ControllerShards>) {
        show(&self.siblings, now);
    }

    /// Replaces what [`Self::pending_policy`] shows.
    pub(super) fn show_pending_policy(&self, now: Option<PendingPolicy>) {
        show(&self.pending_policy, now);
    }

    /// The problems of the sources; `None` if the newest input is in force.
    pub(crate) fn problem(&self) -> Option<String> {
        let state = self.state.lock();
        let problems: Vec<&str> = state.problems.values().map(String::as_str).collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Records that the newest config is good.
    pub(super) fn accept(&self) {
        self.note(CONFIG, SourceState::Current);
    }

    /// Records that the newest config cannot be put in force.
    pub(super) fn reject(&self, problem: String) {
        self.note(CONFIG, SourceState::Rejected(problem));
    }

    /// The policy with the locks that the pod follows: those of its start.
    pub(crate) fn with_kept_locks(&self, policy: Policy) -> Policy {
        let (policy, changed) = self.locks.lock().keep(policy);
        let state = changed
            .map_or(SourceState::Current, |changed| SourceState::Rejected(changed.to_string()));
        self.note(LOCKS, state);
        policy
    }

    /// What the requests of the pod's controller show of it.
    pub(crate) const fn controller(&self) -> &Controller {
        &self.controller
    }

    /// The related resources that no limit names now. None before there is a policy.
    pub(crate) fn related_said(&self) -> lease::RelatedResources {
        let active = self.active();
        active.map(|it| self.controller.related.said(&it.sharding)).unwrap_or_default()
    }

    /// The elections of the pod's controller, for its Lease.
    pub(crate) fn elections_said(&self) -> lease::Elections {
        let waits_for_restart = self.state.lock().problems.contains_key(LOCKS);
        lease::Elections { waits_for_restart, ..self.controller.elections.said() }
    }

    /// Records the state of a source, and logs a new problem.
    pub(crate) fn note(&self, source: &'static str, is: SourceState) {
        let mut state = self.state.lock();
        let (SourceState::Awaited(problem)
        | SourceState::Lost(problem)
        | SourceState::Rejected(problem)) = &is
        else {
            state.problems.remove(source);
            return;
        };
        if state.problems.get(source) == Some(problem) {
            return;
        }
        let has_policy = self.active.load().is_some();
        match is {
            SourceState::Current | SourceState::Awaited(_) => {
                tracing::info!(problem, has_policy, "policy source awaited");
            }
            SourceState::Lost(_) => tracing::warn!(problem, has_policy, "policy source lost"),
            SourceState::Rejected(_) => {
                tracing::warn!(problem, last_good_stays = has_policy, "policy rejected");
            }
        }
        if !matches!(is, SourceState::Awaited(_)) {
            self.metrics.policy_rejected.inc();
        }
        state.problems.insert(source, problem.clone());
    }

    /// Puts a policy in force, each part that is another than the present one. Returns whether it is,
    /// and the sharding whose epoch has ended by that.
    pub(crate) fn install(&self, policy: Policy) -> (bool, Option<DrainingPolicy>) {
        let Policy { config, sharding, fence } = policy;
        let mut state = self.state.lock();
        let fence = Fence::clone(&fence).or_mode(self.fence_mode);
        match self.install_sharding(&mut state, sharding, fence) {
            Ok(former) => {
                state.config = Some(config);
                (true, former)
            }
            Err(error) => {
                drop(state);
                self.reject(format!("--state-dir: {}", chain(&error)));
                (false, None)
            }
        }
    }

    /// Begins an epoch, unless the sharding treats every request as the present one does.
    fn install_sharding(
        &self,
        state: &mut StoreState,
        sharding: Arc<Sharding>,
        fence: Fence,
    ) -> Result<Option<DrainingPolicy>, Unwritable> {
        let old = self.active.load_full();
        if old.as_ref().is_some_and(|old| old.sharding.hash() == sharding.hash()) {
            self.fence.store(Arc::new(fence));
            return Ok(None);
        }
        for server in &self.servers {
            server.positions.begin_change(&sharding, old.is_none())?;
        }
        let epoch = old.as_ref().map_or_else(Epoch::default, |old| old.epoch).next();
        tracing::info!(epoch = epoch.get(), shard = sharding.shard(), "policy in force");
        self.metrics.name_resources(sharding.rules().filter_map(|(rule, _)| rule.resource()));
        // Floors first, so that no request of the new epoch meets a floor of the old one.
        for server in &self.servers {
            server.positions.raise_floors(epoch, &sharding);
        }
        let (until, ended) = watch::channel(());
        let since = Instant::now();
        let requests = Arc::new(InFlight::signalling(&self.has_lost));
        let new = self.moves_to(old.as_deref(), &sharding);
        let moves = old.iter().flat_map(|old| &old.moves).filter(|one| !one.is_over());
        let moves = moves.chain(new.iter().map(|(_, moved)| moved)).map(Arc::clone).collect();
        let active = ActivePolicy { epoch, sharding, requests, moves, since, until };
        // First, so that what the new sharding leaves out is judged by the new fence.
        self.fence.store(Arc::new(fence));
        self.active.store(Some(Arc::new(active)));
        state.moves.extend(new);
        let former = state.in_use.replace(ended);
        state.former.extend(former);
        self.changed.send_replace(epoch);
        Ok(old.map(|old| {
            old.requests.are_over();
            DrainingPolicy::by(&old)
        }))
    }

    /// The moves by which a sharding comes about: from the present one, or from those under which the last
    /// process has shown something.
    fn moves_to(
        &self,
        old: Option<&ActivePolicy>,
        sharding: &Arc<Sharding>,
    ) -> Vec<(Option<DrainingPolicy>, Arc<Move>)> {
        if let Some(old) = old {
            return vec![(Some(DrainingPolicy::by(old)), Arc::new(Move::of(&old.sharding)))];
        }
        let of_last = self.servers.iter().flat_map(|server| server.positions.unfinished(sharding));
        of_last.map(|before| (None, Arc::new(Move::of(&before)))).collect()
    }

    /// Stores the past for the next process. A change is stored as complete when the last request
    /// of the epochs before it has ended: until then it may still show positions.
    pub(crate) async fn keep_past(&self) {
        let mut changes = self.changes();
        loop {
            let epoch = *changes.borrow_and_update();
            let former = std::mem::take(&mut self.state.lock().former);
            for mut ended in former {
                let _ = ended.changed().await;
            }
            if let Some(active) = self.active().filter(|present| present.epoch == epoch) {
                for server in &self.servers {
                    server.positions.store(epoch, &active.sharding);
                }
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() {
                    return;
                },
                () = self.has_settled.notified() => sleep(GRAIN).await,
            }
        }
    }

    /// Requests a write of the past: a floor that was unknown is known.
    pub(crate) fn has_settled(&self) {
        self.has_settled.notify_one();
    }

    /// Records when the pod's Lease was last written, or that it has none.
    pub(crate) fn note_lease(&self, renewed: Option<Instant>) {
        self.state.lock().renewed = renewed;
    }

    /// Updates the metrics of the ages of the policy and of the pod's Lease.
    pub(crate) fn set_ages(&self) {
        if let Some(active) = self.active() {
            self.metrics.policy_age.set(active.since.elapsed().as_secs_f64());
        }
        let renewed = self.state.lock().renewed;
        let age = renewed.map_or(0.0, |at| at.elapsed().as_secs_f64());
        self.metrics.lease_age.set(age);
    }
}

impl DrainingPolicy {
    fn by(active: &ActivePolicy) -> Self {
        let ActivePolicy { epoch, sharding, requests, until, .. } = active;
        let (sharding, requests) = (Arc::clone(sharding), Arc::clone(requests));
        Self { epoch: *epoch, sharding, requests, until: until.subscribe() }
    }

    /// Waits until all watches were brought over to a later epoch, or have ended, and all answers
    /// were given.
    pub(crate) fn brought_over(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut until = self.until.clone();
        async move {
            let _ = until.changed().await;
        }
    }
}

/// Replaces what receivers see, if it is another value.
fn show<T: PartialEq>(shown: &watch::Sender<Option<Arc<T>>>, now: Option<T>) {
    shown.send_if_modified(|shown| {
        let is_other = shown.as_deref() != now.as_ref();
        if is_other {
            *shown = now.map(Arc::new);
        }
        is_other
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use ctrlmesh_policy::from_documents;

    fn policy(pods: &str, limit: &str) -> Policy {
        let yaml = format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
             metadata: {{name: blue}}\n\
             spec: {{selector: {{matchLabels: {{app: {pods}}}}}, limits: [{{selector: \
             {{matchLabels: {{shard: {limit}}}}}}}]}}\n"
        );
        from_documents(yaml.as_bytes(), "blue", None).unwrap().resolve(None).unwrap()
    }

    #[test]
    fn a_part_that_stays_keeps_its_epoch() {
        let policy_store = PolicyStore::new(Vec::new(), None, Arc::new(Metrics::new().0));
        policy_store.install(policy("one", "a"));
        let first = policy_store.active().unwrap();
        let other = policy("two", "a");
        let config = other.config.clone();
        assert_ne!(policy_store.config().as_ref(), Some(&config));
        policy_store.install(other);
        assert_eq!(policy_store.config(), Some(config));
        assert!(Arc::ptr_eq(&first, &policy_store.active().unwrap()));
        policy_store.install(policy("two", "b"));
        assert_eq!(policy_store.active().unwrap().epoch, first.epoch.next());
    }
}
