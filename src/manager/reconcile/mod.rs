//! The reconcilers of the leader: the authorities, the API server's trust in us, and in each namespace of the
//! mesh the bundle and the rights of its pods, the conditions of configs, and Events about problems.
//!
//! Level-triggered: each round compares what there is with what there should be, and has what differs written by
//! a queue. A write that fails backs off by its key, and a slow one is not waited for.

mod conditions;
mod election;
mod key;
mod kridges;
mod leases;
mod not_injected;
mod observed;
mod places;
mod problem;
mod queue;
mod reconciler;
mod reconcilers;
mod roots;
mod verdict;
mod view;

use std::{future::pending, sync::Arc, time::Duration};

use kube::Client;
use tokio::time::{Instant, sleep_until};

use self::{
    conditions::{Comparisons, Unheld},
    election::Candidate,
    key::NotWritten,
    queue::{Ended, WorkQueue},
    reconciler::{Reconciler, Round},
    view::ClusterView,
};
use super::{
    object_labels::stamp,
    shared::{OwnObjects, Shared},
};
use ctrlmesh_base::cluster::chain;
use ctrlmesh_net::drain::Draining;

/// The interval of rounds in which nothing has changed: certificates age.
const LOOK: Duration = Duration::from_secs(10);
/// The time in which changes gather before a round.
const GATHER: Duration = Duration::from_millis(50);

/// The leader's own state: nothing of it outlives its leadership.
struct Leadership {
    view: ClusterView,
    reconcilers: Vec<Box<dyn Reconciler>>,
    queue: WorkQueue,
    comparisons: Comparisons,
    unheld: Unheld,
}

/// Runs for leader, and reconciles while it leads. Returns once a drain has begun.
pub(super) async fn lead(shared: Arc<Shared>, client: Client, mut draining: Draining) {
    let objects = &shared.config.objects;
    let mut candidate =
        Candidate::new(client.clone(), &objects.namespace, &objects.lease, &objects.replica);
    tokio::select! {
        () = leaderships(&mut candidate, &shared, &client) => {}
        _ = draining.begun() => {}
    }
    shared.metrics.is_leader.set(0);
    candidate.release().await;
}

async fn leaderships(candidate: &mut Candidate, shared: &Arc<Shared>, client: &Client) {
    loop {
        let begun = candidate.begin().await;
        tracing::info!("became leader");
        shared.metrics.is_leader.set(1);
        tokio::select! {
            () = candidate.renew(begun) => {}
            () = reconcile(shared, client) => {}
            () = stamp(shared, client) => {}
            () = places::place(shared, client) => {}
        }
        shared.metrics.is_leader.set(0);
        tracing::warn!(
            "lost leadership: the Lease was not renewed in time, or another replica holds it"
        );
    }
}

/// Reconciles for as long as it is polled.
async fn reconcile(shared: &Arc<Shared>, client: &Client) {
    let mut own = shared.own.subscribe();
    let mut leadership = Leadership {
        view: ClusterView::follow(client, shared),
        reconcilers: reconcilers::all(),
        queue: WorkQueue::default(),
        comparisons: Comparisons::default(),
        unheld: Unheld::default(),
    };
    let mut next = Instant::now();
    loop {
        let Leadership { view, queue, .. } = &mut leadership;
        let changed = async {
            tokio::select! {
                () = view.changed() => {}
                changed = own.changed() => if changed.is_err() { pending::<()>().await },
            }
        };
        tokio::select! {
            () = changed => {
                next = next.min(Instant::now() + GATHER);
                continue;
            }
            ended = queue.ended() => {
                leadership.ended(shared, ended);
                next = leadership.next(next);
                continue;
            }
            () = sleep_until(next) => {}
        }
        let objects = own.borrow_and_update().clone();
        if let (Some(objects), true) = (objects, leadership.view.is_known()) {
            leadership.round(shared, client, &objects);
        }
        next = leadership.next(Instant::now() + LOOK);
    }
}

impl Leadership {
    /// Has what differs written.
    fn round(&mut self, shared: &Arc<Shared>, client: &Client, own: &OwnObjects) {
        let now = Instant::now();
        self.view.look(shared, now);
        let trusted = shared.trusted.borrow().clone();
        let chosen = self.view.chosen();
        let mut rings = self.view.rings(&chosen, now);
        let [overlapping, uncovered] = rings.compare(&mut self.comparisons, self.view.namespaces());
        rings.see_locks(self.view.drafts(), &mut self.unheld, now);
        shared.metrics.overlapping_configs.set(overlapping);
        shared.metrics.uncovered_rings.set(uncovered);
        let round = Round {
            client,
            shared,
            view: &self.view,
            own,
            trusted: trusted.as_deref(),
            chosen: &chosen,
            rings: &rings,
            roots: &self.view.roots(&chosen),
            now,
        };
        let due = self.reconcilers.iter_mut().flat_map(|one| one.due(&round));
        self.queue.replace(due.collect::<Vec<_>>());
    }

    /// Notes how a write has ended.
    fn ended(&mut self, shared: &Shared, (key, result): Ended) {
        let (kind, namespace) = (key.kind, key.namespace());
        if result.as_ref().is_err_and(NotWritten::is_of_a_namespace_that_ends) {
            tracing::info!(kind, namespace, "not applied: the namespace is being deleted");
            self.queue.rest(key);
            return;
        }
        shared.metrics.written(kind, result.is_ok());
        match result {
            Ok(()) => {
                tracing::info!(kind, namespace, "applied");
                for one in &mut self.reconcilers {
                    one.written(&key, &mut self.view, Instant::now());
                }
                self.queue.written(key);
            }
            Err(error) => {
                tracing::warn!(kind, namespace, error = chain(&error), "apply failed");
                self.queue.failed(key);
            }
        }
    }

    /// The time of the next round, no later than `latest`.
    fn next(&mut self, latest: Instant) -> Instant {
        let latest = self.queue.next(latest);
        self.reconcilers.iter().map(|one| one.next(latest)).min().unwrap_or(latest)
    }
}
