//! The policy in force, part by part, and the problems of its sources.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot, watch},
    time::sleep,
};

use crate::{
    cluster::chain,
    policy::{Epoch, PodConfig, Policy, Sharding, Siblings, ring::Wishes},
    proxy::{
        metrics::Metrics,
        upstream::{Server, Unwritable},
    },
};

/// Positions that become known within this time are written together.
const GRAIN: Duration = Duration::from_millis(100);

/// The sharding part of a policy in force, with its number.
#[derive(Debug)]
pub(in crate::proxy) struct InForce {
    pub(in crate::proxy) epoch: Epoch,
    pub(in crate::proxy) sharding: Arc<Sharding>,
    since: Instant,
    /// The sender whose drop marks the end of the last request decided by it.
    _until: oneshot::Sender<()>,
}

/// The policy in force, part by part, for all threads.
#[derive(Debug)]
pub(in crate::proxy) struct Feed {
    in_force: ArcSwapOption<InForce>,
    /// The API servers whose positions depend on the policy.
    servers: Vec<Arc<Server>>,
    changed: watch::Sender<Epoch>,
    /// The shards of the pod's controller, where it has a webhook.
    siblings: watch::Sender<Option<Arc<Siblings>>>,
    /// The wishes of the pod's ring.
    wishes: watch::Sender<Option<Arc<Wishes>>>,
    /// The signal that more is known for the next process than stands on disk.
    has_settled: Notify,
    state: Mutex<FeedState>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct FeedState {
    /// The config of the policy in force, as it was when last valid.
    config: Option<PodConfig>,
    /// Problems of the sources that the policy comes from, by source.
    problems: BTreeMap<&'static str, String>,
    /// The end of the last request under the sharding in force.
    in_use: Option<oneshot::Receiver<()>>,
    /// The ends of those under earlier shardings.
    former: Vec<oneshot::Receiver<()>>,
}

/// The state of a source of the policy.
#[derive(Debug)]
pub(super) enum SourceState {
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

impl Feed {
    /// The feed of a process that uses these API servers, before its first policy.
    pub(in crate::proxy) fn new(servers: Vec<Arc<Server>>, metrics: Arc<Metrics>) -> Self {
        Self {
            in_force: ArcSwapOption::empty(),
            servers,
            changed: watch::Sender::new(Epoch::default()),
            siblings: watch::Sender::default(),
            wishes: watch::Sender::default(),
            has_settled: Notify::new(),
            state: Mutex::default(),
            metrics,
        }
    }

    /// The policy in force, or `None` before the first.
    pub(in crate::proxy) fn in_force(&self) -> Option<Arc<InForce>> {
        self.in_force.load_full()
    }

    /// The config of the policy in force. `None` before the first.
    pub(super) fn config(&self) -> Option<PodConfig> {
        self.state.lock().config.clone()
    }

    /// A receiver of every change.
    pub(in crate::proxy) fn changes(&self) -> watch::Receiver<Epoch> {
        self.changed.subscribe()
    }

    /// A receiver of the shards of the pod's controller. They are `None` before the first policy, and
    /// where the controller has no webhook.
    pub(in crate::proxy) fn siblings(&self) -> watch::Receiver<Option<Arc<Siblings>>> {
        self.siblings.subscribe()
    }

    /// A receiver of the wishes of the pod's ring. They are `None` before the first config, and where
    /// that is in no ring.
    pub(in crate::proxy) fn wishes(&self) -> watch::Receiver<Option<Arc<Wishes>>> {
        self.wishes.subscribe()
    }

    /// Replaces what [`Self::siblings`] shows.
    pub(super) fn show_siblings(&self, now: Option<Siblings>) {
        show(&self.siblings, now);
    }

    /// Replaces what [`Self::wishes`] shows.
    pub(super) fn show_wishes(&self, now: Option<Wishes>) {
        show(&self.wishes, now);
    }

    /// The problems of the sources; `None` if the newest input is in force.
    pub(in crate::proxy) fn problem(&self) -> Option<String> {
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

    /// Records the state of a source, and logs a new problem.
    pub(super) fn note(&self, source: &'static str, is: SourceState) {
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
        let has_policy = self.in_force.load().is_some();
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

    /// Puts a policy in force, each part that is another than the present one.
    pub(in crate::proxy) fn install(&self, policy: Policy) {
        let Policy { config, sharding } = policy;
        let mut state = self.state.lock();
        match self.install_sharding(&mut state, sharding) {
            Ok(()) => state.config = Some(config),
            Err(error) => {
                drop(state);
                self.reject(format!("--state-dir: {}", chain(&error)));
            }
        }
    }

    /// Begins an epoch, unless the sharding treats every request as the present one does.
    fn install_sharding(
        &self,
        state: &mut FeedState,
        sharding: Arc<Sharding>,
    ) -> Result<(), Unwritable> {
        let old = self.in_force.load_full();
        if old.as_ref().is_some_and(|old| old.sharding.hash() == sharding.hash()) {
            return Ok(());
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
        let (until, ended) = oneshot::channel();
        let since = Instant::now();
        self.in_force.store(Some(Arc::new(InForce { epoch, sharding, since, _until: until })));
        let former = state.in_use.replace(ended);
        state.former.extend(former);
        self.changed.send_replace(epoch);
        Ok(())
    }

    /// Stores the past for the next process. A change is stored as complete when the last request
    /// of the epochs before it has ended: until then it may still show positions.
    pub(in crate::proxy) async fn keep_past(&self) {
        let mut changes = self.changes();
        loop {
            let epoch = *changes.borrow_and_update();
            let former = std::mem::take(&mut self.state.lock().former);
            for ended in former {
                let _ = ended.await;
            }
            if let Some(in_force) = self.in_force().filter(|present| present.epoch == epoch) {
                for server in &self.servers {
                    server.positions.store(&in_force.sharding);
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
    pub(in crate::proxy) fn has_settled(&self) {
        self.has_settled.notify_one();
    }

    /// Updates the metric of the policy's age.
    pub(in crate::proxy) fn set_age(&self) {
        if let Some(in_force) = self.in_force() {
            self.metrics.policy_age.set(in_force.since.elapsed().as_secs_f64());
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
    use crate::policy::from_documents;

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
        let feed = Feed::new(Vec::new(), Arc::new(Metrics::new().0));
        feed.install(policy("one", "a"));
        let first = feed.in_force().unwrap();
        let other = policy("two", "a");
        let config = other.config.clone();
        assert_ne!(feed.config().as_ref(), Some(&config));
        feed.install(other);
        assert_eq!(feed.config(), Some(config));
        assert!(Arc::ptr_eq(&first, &feed.in_force().unwrap()));
        feed.install(policy("two", "b"));
        assert_eq!(feed.in_force().unwrap().epoch, first.epoch.next());
    }
}
