//! The shards of the pods of Deployments: each gets a label once it exists, which names the child of its
//! root, and the cost of its deletion.
//!
//! Hides when a pod gets a shard, and which choices are remembered until the watch shows them. Does not know
//! which shard it is (`policy::roots`), nor what a child is given. One leader alone decides: a choice by
//! admission, in several replicas, leaves shards without a pod. It is no part of the leader's rounds, since a
//! slow write of these would hold up new pods.

mod pods;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use self::{
    pods::{PlacedPod, follow},
    write::{Eviction, Placement, answered, shard_of_lease},
};
use super::{
    key::{ANSWER, NotWritten},
    observed::{key, namespace},
    roots,
};
use crate::{
    configs::{Configs, name},
    shared::Shared,
    workload,
};
use ctrlmesh_api::{TargetKind, keys};
use ctrlmesh_base::cluster::{OwnAccess, Reflector, Update, chain, describe};
use ctrlmesh_policy::{
    Draft, RootDraft, object_of,
    roots::{Root, Shard, Shards, TargetPod},
};

/// The interval of looks for shards without pods, and of attempts after a failure.
const LOOK: Duration = Duration::from_secs(1);
/// The time for which a shard has no pod, while another has too many, before one of these is evicted.
const BARE: Duration = Duration::from_secs(10);
/// The time from one eviction of a root to the next.
const EVICTION: Duration = Duration::from_secs(60);
/// The pause after a write for which the manager lacks the right.
const FORBIDDEN: Duration = Duration::from_secs(10);
/// Writes at once.
const AT_ONCE: usize = 8;

/// The subjects of problems.
const PODS: &str = "pods of Deployments";
const RIGHTS: &str = "shards of pods of Deployments";

/// Gives pods their shards, for as long as it is polled.
pub(super) async fn place(shared: &Shared, client: &Client) {
    let access = OwnAccess::Client(client.clone());
    let mut placer = Placer {
        shared,
        client,
        pods: [keys::PREFIX, keys::KRIDGE_PREFIX].map(|prefix| follow(access.clone(), prefix)),
        configs: shared.configs.subscribe(),
        given: BTreeMap::new(),
        bare: BTreeMap::new(),
        evicted: BTreeMap::new(),
        rests: None,
    };
    let mut next = Instant::now() + LOOK;
    loop {
        tokio::select! {
            () = placer.changed() => {}
            () = sleep_until(next) => {}
        }
        placer.round().await;
        next = Instant::now() + LOOK;
    }
}

/// What the leader knows of the pods of Deployments.
struct Placer<'s> {
    shared: &'s Shared,
    client: &'s Client,
    pods: [Reflector<Pod, Option<PlacedPod>>; 2],
    configs: watch::Receiver<Option<Arc<Configs>>>,
    /// The shards that were given, by the uids of pods, until the watch shows them.
    given: BTreeMap<String, Shard>,
    /// The time since when a root has a shard without a pod while another has too many.
    bare: BTreeMap<String, Instant>,
    /// The time of the last eviction of a root's pod.
    evicted: BTreeMap<String, Instant>,
    /// The end of the pause after a write for which the manager lacks the right.
    rests: Option<Instant>,
}

/// A root of a Deployment, with its pods.
struct PlacedTarget<'p> {
    at: String,
    root: Root,
    /// The shards that have a child.
    with_child: Shards,
    pods: Vec<(&'p str, &'p PlacedPod)>,
    /// The same, as they are placed.
    facts: Vec<TargetPod>,
}

impl Placer<'_> {
    /// Waits until something has changed, and takes all that has.
    async fn changed(&mut self) {
        loop {
            let [ours, kridges] = &mut self.pods;
            let update = tokio::select! {
                update = ours.next() => Some(update),
                update = kridges.next() => Some(update),
                changed = self.configs.changed() => match changed {
                    Ok(()) => None,
                    Err(_) => pending().await,
                },
            };
            if update.is_some_and(|update| !self.note(update)) {
                continue;
            }
            for at in 0..self.pods.len() {
                while let Some(update) = self.pods.get_mut(at).and_then(|p| p.next().now_or_never())
                {
                    self.note(update);
                }
            }
            return;
        }
    }

    /// Whether the pods are others by an update.
    fn note(&self, update: Update) -> bool {
        match update {
            Update::Whole { is_other } => {
                self.shared.note(PODS, None);
                is_other
            }
            Update::Listing => false,
            Update::Failed(error) => {
                self.shared.note(PODS, Some(describe(&error, "pods", "")));
                false
            }
        }
    }

    async fn round(&mut self) {
        let configs = self.configs.borrow_and_update().clone();
        let known = self.pods.iter().map(Reflector::known).collect::<Option<Vec<_>>>();
        let (Some(configs), Some(known)) = (configs, known) else { return };
        if self.rests.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let pods: Vec<_> = known
            .into_iter()
            .flatten()
            .filter_map(|(at, pod)| Some((at.as_str(), pod.as_ref()?)))
            .collect();
        let waits: BTreeSet<&str> =
            pods.iter().filter(|(_, pod)| pod.label.is_none()).map(|(_, pod)| &*pod.uid).collect();
        self.given.retain(|uid, _| waits.contains(uid.as_str()));
        let targets: Vec<_> = deployments(&configs)
            .map(|draft| PlacedTarget::of(draft, &configs, &pods, &self.given))
            .collect();
        let is_there = |at: &String| targets.iter().any(|target| target.at == *at);
        self.bare.retain(|at, _| is_there(at));
        self.evicted.retain(|at, since| is_there(at) && since.elapsed() < EVICTION);
        let mut given = Vec::new();
        let mut evictions = Vec::new();
        for target in &targets {
            let is_bare = target.surplus_by(&target.shards_there()).is_some();
            if !is_bare {
                self.bare.remove(&target.at);
            }
            let since =
                is_bare.then(|| *self.bare.entry(target.at.clone()).or_insert_with(Instant::now));
            let is_due = since.is_some_and(|since| since.elapsed() >= BARE)
                && !self.evicted.contains_key(&target.at);
            if !target.has_work() && !is_due {
                continue;
            }
            // By the watch of a moment ago a pod that comes of a new replica would be one too many.
            let Some(shards) = target.shards(self.client).await else { continue };
            given.extend(target.place(self.client, &shards).await);
            if is_due && let Some(eviction) = target.eviction(&shards) {
                evictions.push((target.at.clone(), eviction));
            }
        }
        self.write(given).await;
        for (at, eviction) in evictions {
            let sent = answered(eviction.send(self.client)).await;
            self.note_written(eviction.pod(), "evicted: its shard has too many pods", &sent);
            // A budget that forbids it is asked again after as long.
            self.evicted.insert(at, Instant::now());
        }
    }

    async fn write(&mut self, placements: Vec<Placement>) {
        let mut sending = Vec::new();
        for placement in placements {
            sending.push(placement.sent(self.client, self.shared).boxed());
        }
        let sent: Vec<_> = stream::iter(sending).buffer_unordered(AT_ONCE).collect().await;
        let is_refused = sent.iter().any(|(_, sent)| sent.as_ref().is_err_and(is_forbidden));
        self.rests = is_refused.then(|| Instant::now() + FORBIDDEN);
        for (placement, sent) in sent {
            self.note_written(placement.pod(), "given a shard", &sent);
            if sent.is_ok() {
                self.given.insert(placement.uid().to_owned(), placement.shard());
            }
        }
    }

    fn note_written(&self, pod: &str, what: &str, sent: &Result<(), NotWritten>) {
        self.shared.metrics.written("Pod", sent.is_ok());
        match sent {
            Ok(()) => {
                self.shared.note(RIGHTS, None);
                tracing::info!(pod, what, "written");
            }
            Err(error) if is_forbidden(error) => {
                let why = format!(
                    "{pod} is not {what}: the manager lacks the right, which it gets by the chart's value \
                     `deployments`"
                );
                self.shared.note(RIGHTS, Some(why));
            }
            Err(error) => tracing::warn!(pod, what, error = chain(error), "not written"),
        }
    }
}

fn is_forbidden(error: &NotWritten) -> bool {
    matches!(error, NotWritten::Api(kube::Error::Api(status)) if status.is_forbidden())
}

/// The roots of Deployments.
fn deployments(configs: &Configs) -> impl Iterator<Item = &RootDraft> {
    let keys = roots::all(configs).map(|(at, _)| at);
    let drafts = keys.filter_map(|at| match &configs.at(at)?.checked {
        Ok(Draft::Root(draft)) => Some(draft),
        _ => None,
    });
    let mut taken = BTreeSet::new();
    drafts.filter(move |draft| {
        let Root { object, target, is_disabled, .. } = &draft.root;
        // Of two that name one, which no review lets in, the first by name has the pods.
        let mut is_first = || taken.insert((object.namespace.clone(), target.name.clone()));
        target.kind == TargetKind::Deployment && !is_disabled && is_first()
    })
}

impl<'p> PlacedTarget<'p> {
    fn of(
        draft: &RootDraft,
        configs: &Configs,
        pods: &[(&'p str, &'p PlacedPod)],
        given: &BTreeMap<String, Shard>,
    ) -> Self {
        let root = &draft.root;
        let at = key(&root.object.namespace, &root.object.name);
        let of_namespace = configs.facts_of(&root.object.namespace);
        let own = of_namespace
            .filter(|config| config.child.as_ref().is_some_and(|child| child.is_of(&root.object)));
        let with_child =
            own.filter_map(|config| root.shard_named(&object_of(&config.checked).name)).collect();
        // One that another config has stays with that.
        let is_others = |pod: &PlacedPod| {
            let label = pod.label.as_deref().filter(|label| root.shard_named(label).is_none());
            label.is_some_and(|label| configs.at(&key(&root.object.namespace, label)).is_some())
        };
        let of_target = |(at, pod): &&(&str, &PlacedPod)| {
            namespace(at) == &*root.object.namespace
                && !is_others(pod)
                && root.is_of_deployment(&pod.deployment)
                && draft.selects(|key| pod.labels.get(key).map(String::as_str))
        };
        let pods: Vec<_> = pods.iter().filter(of_target).copied().collect();
        let fact = |(at, pod): &(&str, &PlacedPod)| TargetPod {
            name: name(at).to_owned(),
            template: pod.template.clone(),
            shard: given.get(&pod.uid).copied().or_else(|| pod.shard(root)),
            is_going: pod.is_going,
            created: pod.created,
        };
        let facts = pods.iter().map(fact).collect();
        Self { at, root: root.clone(), with_child, pods, facts }
    }

    /// The shards that have pods or a child.
    fn shards_there(&self) -> Shards {
        self.with_pods().union(&self.with_child).copied().collect()
    }

    fn with_pods(&self) -> Shards {
        self.facts.iter().filter(|pod| !pod.is_going).filter_map(|pod| pod.shard).collect()
    }

    fn surplus_by(&self, shards: &Shards) -> Option<usize> {
        self.root.surplus(shards, &self.facts)
    }

    /// Whether a pod lacks its shard, or its cost.
    fn has_work(&self) -> bool {
        let mut pods = self.pods.iter().zip(&self.facts);
        pods.any(|((_, pod), fact)| {
            !fact.is_going && fact.shard.is_none_or(|shard| pod.lacks_cost(shard))
        })
    }

    /// The shards that the root needs, by the Deployment as it is now. `None` if it cannot be read, or is gone.
    async fn shards(&self, client: &Client) -> Option<Shards> {
        let namespace = namespace(&self.at);
        let read = timeout(ANSWER, workload::read(client, namespace, &self.root.target)).await;
        let found = match read {
            Ok(Ok(found)) => found?,
            Ok(Err(error)) => {
                tracing::warn!(
                    root = self.at,
                    error = chain(&error),
                    "its Deployment cannot be read"
                );
                return None;
            }
            Err(late) => {
                tracing::warn!(
                    root = self.at,
                    error = chain(&late),
                    "its Deployment cannot be read"
                );
                return None;
            }
        };
        let size = self.root.size(Some(found.replicas))?;
        Some(self.root.shards(size, &self.with_pods(), &self.with_child))
    }

    /// The pods that get a shard, or the cost of the one that they have.
    async fn place(&self, client: &Client, shards: &Shards) -> Vec<Placement> {
        let mut facts = self.facts.clone();
        let mut kept = BTreeSet::new();
        for (at, shard) in self.of_leases(client).await {
            if let (Some(fact), Some(shard)) = (facts.get_mut(at), shard) {
                fact.shard = Some(shard);
                kept.insert(at);
            }
        }
        let chosen: BTreeMap<usize, Shard> = self.root.place(shards, &facts).into_iter().collect();
        let mut placements = Vec::new();
        for (at, ((key, pod), fact)) in self.pods.iter().zip(&facts).enumerate() {
            let Some(shard) = fact.shard.or_else(|| chosen.get(&at).copied()) else { continue };
            let is_new = chosen.contains_key(&at) || kept.contains(&at);
            if !fact.is_going && (is_new || pod.lacks_cost(shard)) {
                let child = self.root.name(shard);
                placements.push(Placement::new(key, pod, shard, child, kept.contains(&at)));
            }
        }
        placements
    }

    /// The shards that the proxies of pods without a label have.
    async fn of_leases(&self, client: &Client) -> Vec<(usize, Option<Shard>)> {
        let mut asked = Vec::new();
        for (at, ((key, pod), fact)) in self.pods.iter().zip(&self.facts).enumerate() {
            if fact.shard.is_none() && pod.has_started && !pod.is_going {
                let of_lease = shard_of_lease(client, namespace(key), &pod.uid, &self.root);
                asked.push(of_lease.map(move |shard| (at, shard)).boxed());
            }
        }
        stream::iter(asked).buffer_unordered(AT_ONCE).collect().await
    }

    /// The eviction of a pod of the shard that has most too many.
    fn eviction(&self, shards: &Shards) -> Option<Eviction> {
        let (key, pod) = self.pods.get(self.surplus_by(shards)?)?;
        Some(Eviction::new(key, &pod.uid))
    }
}
