//! The policy in force: found in a file or in the cluster, compiled, and put in force for every
//! data thread at once.
//!
//! The last good policy stays. A later failure (a bad change, a deleted config, a second config for
//! the same pod) is reported, and changes nothing.

mod cluster;
mod file;
mod labels;
mod namespaces;
mod past;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwapOption;
use tokio::{
    sync::{Notify, oneshot, watch},
    time::sleep,
};

use self::past::{PastFile, Unwritable};
pub(super) use self::{cluster::follow_cluster, file::PolicyFile};
use super::metrics::Metrics;
use crate::{
    cluster::chain,
    policy::{Epoch, Policy, positions::Positions},
};

/// Positions that become known within this time are written together.
const GRAIN: Duration = Duration::from_millis(100);

/// A policy with its number.
#[derive(Debug)]
pub(super) struct InForce {
    pub(super) epoch: Epoch,
    pub(super) policy: Arc<Policy>,
    since: Instant,
    /// Dropped with the last request that was decided by this policy.
    _until: oneshot::Sender<()>,
}

/// The policy in force, for all threads.
#[derive(Debug)]
pub(super) struct Feed {
    in_force: ArcSwapOption<InForce>,
    positions: OnceLock<Positions>,
    changed: watch::Sender<Epoch>,
    past: PastFile,
    /// Notified when more is known for the next process than stands on disk.
    has_settled: Notify,
    state: Mutex<State>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct State {
    news: News,
    /// Problems of the sources that the policy comes from, by source.
    sources: BTreeMap<&'static str, String>,
    /// Resolves when nobody uses the policy in force any more.
    present: Option<oneshot::Receiver<()>>,
    /// The same for the policies before it.
    former: Vec<oneshot::Receiver<()>>,
}

/// News of the policy, for people.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    /// The reason why the newest input is not in force, or `None` if it is.
    pub(super) problem: Option<String>,
    /// The time when the policy came into force.
    pub(super) since: Option<SystemTime>,
}

/// The state of a source.
#[derive(Debug)]
enum Source {
    /// Its data is up to date.
    Current,
    /// Its first data has not arrived yet.
    Awaited(String),
    /// It failed: its data is missing or may be old.
    Lost(String),
}

impl Feed {
    /// # Errors
    /// [`Unwritable`].
    pub(super) fn new(
        state_dir: Option<PathBuf>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Unwritable> {
        Ok(Self {
            in_force: ArcSwapOption::empty(),
            positions: OnceLock::new(),
            changed: watch::Sender::new(Epoch::default()),
            past: PastFile::open(state_dir)?,
            has_settled: Notify::new(),
            state: Mutex::default(),
            metrics,
        })
    }

    /// The policy in force, or `None` before the first.
    pub(super) fn in_force(&self) -> Option<Arc<InForce>> {
        self.in_force.load_full()
    }

    /// The positions of this process; `None` before the first policy.
    pub(super) fn positions(&self) -> Option<&Positions> {
        self.positions.get()
    }

    /// Notifies of every change.
    pub(super) fn changes(&self) -> watch::Receiver<Epoch> {
        self.changed.subscribe()
    }

    /// The news, with the problems of the sources.
    pub(super) fn news(&self) -> News {
        let state = self.state();
        let problems: Vec<&str> =
            state.news.problem.iter().chain(state.sources.values()).map(String::as_str).collect();
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        News { problem, since: state.news.since }
    }

    /// Records that the newest input is good.
    fn accept(&self) {
        self.state().news.problem = None;
    }

    /// Records the state of a source, and logs a new problem.
    fn tell_source(&self, source: &'static str, is: Source) {
        let mut state = self.state();
        let (Source::Awaited(problem) | Source::Lost(problem)) = &is else {
            state.sources.remove(source);
            return;
        };
        if state.sources.get(source) == Some(problem) {
            return;
        }
        let has_policy = self.in_force.load().is_some();
        match is {
            Source::Lost(_) => {
                self.metrics.policy_rejected.inc();
                tracing::warn!(problem, has_policy, "policy source lost");
            }
            _ => tracing::info!(problem, has_policy, "policy source awaited"),
        }
        state.sources.insert(source, problem.clone());
    }

    /// Reports that the newest input cannot be put in force.
    pub(super) fn reject(&self, problem: String) {
        let mut state = self.state();
        if state.news.problem.as_ref() != Some(&problem) {
            self.metrics.policy_rejected.inc();
            let last_good_stays = self.in_force.load().is_some();
            tracing::warn!(problem, last_good_stays, "policy rejected");
            state.news.problem = Some(problem);
        }
    }

    /// Puts a policy in force. One that treats every request as the present one does changes
    /// nothing.
    pub(super) fn install(&self, policy: Policy) {
        let mut state = self.state();
        let old = self.in_force.load_full();
        if old.as_ref().is_some_and(|old| old.policy.hash() == policy.hash()) {
            return;
        }
        if let Err(error) = self.past.begin_change(&policy, old.is_none()) {
            drop(state);
            return self.reject(format!("--state-dir: {}", chain(&error)));
        }
        let policy = Arc::new(policy);
        let epoch = old.as_ref().map_or_else(Epoch::default, |old| old.epoch).next();
        tracing::info!(epoch = epoch.get(), shard = policy.shard(), "policy in force");
        self.metrics.name_resources(policy.rules().filter_map(|(rule, _)| rule.resource()));
        // Floors first, so that no request of the new policy meets a floor of the old one.
        self.positions
            .get_or_init(|| Positions::new(self.past.read(&policy), Arc::clone(&policy)))
            .change(epoch, &policy);
        let (until, ended) = oneshot::channel();
        let since = Instant::now();
        self.in_force.store(Some(Arc::new(InForce { epoch, policy, since, _until: until })));
        let former = state.present.replace(ended);
        state.former.extend(former);
        state.news.since = Some(SystemTime::now());
        self.changed.send_replace(epoch);
    }

    /// Stores the past for the next process. A change is stored as complete when the last request
    /// of the policies before it has ended: until then it may still show positions.
    pub(super) async fn keep_past(&self) {
        let mut changes = self.changes();
        loop {
            let epoch = *changes.borrow_and_update();
            for ended in self.take_former() {
                let _ = ended.await;
            }
            if let (Some(in_force), Some(positions)) = (self.in_force(), self.positions())
                && in_force.epoch == epoch
            {
                self.past.write(&in_force.policy, &positions.past());
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
    pub(super) fn has_settled(&self) {
        self.has_settled.notify_one();
    }

    /// Updates the metric of the policy's age.
    pub(super) fn tell_age(&self) {
        if let Some(in_force) = self.in_force() {
            self.metrics.policy_age.set(in_force.since.elapsed().as_secs_f64());
        }
    }

    fn take_former(&self) -> Vec<oneshot::Receiver<()>> {
        std::mem::take(&mut self.state().former)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
