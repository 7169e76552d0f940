//! The labels of namespaces, watched while a policy selects by them.
//!
//! Hides when they are watched, how bursts of changes become one, and which draft they resolve.
//! Does not know the source of drafts.

use std::{future::pending, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::watcher::{Config, watcher},
};
use tokio::time::Instant;

use super::active::{PendingPolicy, PolicyStore, SourceState};
use ctrlmesh_base::cluster::{OwnAccess, Reflector, Update, describe};
use ctrlmesh_net::clock::reached;
use ctrlmesh_policy::{
    Checked, ControllerShards, LabelSet, NamespacesUnknown, Policy, ShardingDraft,
    ring::DesiredScopes,
};

/// The shortest interval between two policies of one draft.
const REST: Duration = Duration::from_millis(100);
/// The name by which failures of this source are reported.
const SOURCE: &str = "namespaces";
/// The source of the right to list and watch namespaces.
const REMEDY: &str = " (ClusterRole ctrlmesh-proxy-namespaces, which `ctrlmesh inject \
                      --namespace-labels` prints)";

type NamespaceMeta = PartialObjectMeta<Namespace>;

/// Keeps the newest good draft in force, and the shards next to it, resolved by the present labels of
/// namespaces.
pub(super) struct Resolver {
    policy_store: Arc<PolicyStore>,
    access: OwnAccess,
    /// Whether the pod keeps a Lease.
    has_lease: bool,
    draft: Option<ShardingDraft>,
    /// The configs among which the draft's siblings and rivals are; empty if it can have none.
    configs: Vec<Checked>,
    /// The watch, open while the draft or a sibling needs it.
    watch: Option<LabelWatch>,
}

struct LabelWatch {
    reflector: Reflector<NamespaceMeta, LabelSet>,
    /// The field that needs the labels.
    needed_by: NamespacesUnknown,
    /// The failure that keeps labels from arriving.
    trouble: Option<String>,
    /// The time to resolve the draft again, if labels have changed.
    due: Option<Instant>,
    /// The earliest such time.
    rested: Instant,
}

impl Resolver {
    pub(super) fn new(policy_store: Arc<PolicyStore>, access: OwnAccess, has_lease: bool) -> Self {
        Self { policy_store, access, has_lease, draft: None, configs: Vec::new(), watch: None }
    }

    /// Puts a draft in force, as soon as the labels that it needs are known. Its siblings are among
    /// `configs`.
    pub(super) fn take<'c>(
        &mut self,
        draft: ShardingDraft,
        configs: impl IntoIterator<Item = &'c Checked>,
    ) {
        self.policy_store.accept();
        self.draft = Some(draft);
        self.beside(configs);
    }

    /// Takes the configs as they are now; the draft stays.
    pub(super) fn beside<'c>(&mut self, configs: impl IntoIterator<Item = &'c Checked>) {
        let Some(draft) = &self.draft else { return };
        let is_alone = draft.webhook.is_none() && draft.ring.is_none();
        self.configs = if is_alone { Vec::new() } else { configs.into_iter().cloned().collect() };
        match (draft.namespaces_unknown(&self.configs), &mut self.watch) {
            (None, watch) => *watch = None,
            (Some(needed_by), Some(watch)) => watch.needed_by = needed_by,
            (Some(needed_by), watch) => {
                *watch = Some(LabelWatch::new(needed_by, self.access.clone()));
            }
        }
        self.resolve();
    }

    /// Follows the labels. Never returns; dropping it loses nothing.
    pub(super) async fn keep_up(&mut self) {
        loop {
            let Some(watch) = &mut self.watch else { return pending().await };
            let step = tokio::select! {
                step = watch.reflector.next() => step,
                () = reached(watch.due) => {
                    self.resolve();
                    continue;
                }
            };
            match step {
                Update::Listing => continue,
                Update::Failed(error) => watch.trouble = Some(describe(&error, SOURCE, REMEDY)),
                Update::Whole { is_other } => {
                    watch.trouble = None;
                    if is_other && watch.due.is_none() {
                        watch.due = Some(watch.rested.max(Instant::now()));
                    }
                }
            }
            self.report();
        }
    }

    fn resolve(&mut self) {
        let known = match &mut self.watch {
            None => None,
            Some(watch) => {
                watch.due = None;
                if watch.reflector.known().is_some() {
                    watch.rested = Instant::now() + REST;
                }
                watch.reflector.known()
            }
        };
        if let Some(draft) = &self.draft {
            // Siblings first: a pod with a policy is ready for reviews, and answers all of them
            // where it knows of none.
            if let Ok(siblings) = ControllerShards::of(draft, &self.configs, known) {
                self.policy_store.show_siblings(siblings);
            }
            if let Ok(policy) = draft.resolve(known) {
                let policy = self.policy_store.with_kept_locks(policy);
                let waits = self.has_lease && draft.waits;
                let wishes =
                    waits.then(|| DesiredScopes::of(draft, &self.configs, known).ok()).flatten();
                put(&self.policy_store, policy, wishes.flatten());
            }
        }
        self.report();
    }

    fn report(&self) {
        let state = self.watch.as_ref().map_or(SourceState::Current, LabelWatch::state);
        self.policy_store.note(SOURCE, state);
    }
}

/// Lets the pod's ring put a policy in force. A pod without a turn to wait for does so at once.
fn put(policy_store: &PolicyStore, policy: Policy, wishes: Option<DesiredScopes>) {
    match wishes {
        Some(wishes) => policy_store.show_pending_policy(Some(PendingPolicy { policy, wishes })),
        None => {
            policy_store.show_pending_policy(None);
            policy_store.install(policy);
        }
    }
}

impl LabelWatch {
    fn new(needed_by: NamespacesUnknown, access: OwnAccess) -> Self {
        let watch = |client: Client| watcher(Api::<NamespaceMeta>::all(client), Config::default());
        let labels = |namespace: NamespaceMeta| {
            let meta = namespace.metadata;
            (meta.name.unwrap_or_default(), meta.labels.unwrap_or_default().into())
        };
        let reflector = Reflector::new(access, watch, labels);
        Self { reflector, needed_by, trouble: None, due: None, rested: Instant::now() }
    }

    fn state(&self) -> SourceState {
        let NamespacesUnknown { object, field } = &self.needed_by;
        match (self.reflector.known(), &self.trouble) {
            (Some(_), None) => SourceState::Current,
            (Some(_), Some(trouble)) => {
                SourceState::Lost(format!("{trouble}; the labels that were known last count"))
            }
            (None, None) => SourceState::Awaited(format!("{} yet", self.needed_by)),
            (None, Some(trouble)) => SourceState::Lost(format!(
                "{object}: {field} needs the labels of namespaces: {trouble}"
            )),
        }
    }
}
