//! The duties of the leader: the authorities, the API server's trust in us, and in each namespace of
//! the mesh the bundle, the rights of its pods, and a word about those that wait for a config, or
//! whose reviews pass them by.
//!
//! Level-triggered: each round compares what there is with what there should be and writes what
//! differs, whoever wrote last. A write that fails is tried again after a pause of its own, so that
//! one namespace holds up no other.

mod authorities;
mod conditions;
mod election;
mod found;
mod hooks;
mod kridge;
mod leases;
mod left_out;
mod mesh;
mod places;
mod roots;
mod subject;
mod verdict;
mod waiting;
mod write_backoff;

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use kube::Client;
use tokio::time::{Instant, sleep_until};

use self::{
    conditions::{Comparisons, Unheld},
    election::Candidate,
    mesh::Mesh,
    roots::{Release, Writes},
    subject::{ANSWER, Hooks, NotWritten, Subject},
    waiting::{Lacking, Report, Waiting},
    write_backoff::WriteBackoff,
};
use super::{
    shared::{OwnObjects, Shared},
    stamps::stamp,
};
use ctrlmesh_base::cluster::chain;
use ctrlmesh_net::drain::Draining;

/// The interval of rounds in which nothing has changed: certificates age.
const LOOK: Duration = Duration::from_secs(10);
/// The time in which changes gather before a round.
const GATHER: Duration = Duration::from_millis(50);
/// Writes at once.
const AT_ONCE: usize = 8;

/// A write that is due.
enum Write {
    Authorities(authorities::Change),
    Hooks(hooks::Patch),
    Mesh(mesh::Apply),
    Report(Report),
    Removal(leases::Removal),
    Children(Writes),
    Release(Release),
    Translation(kridge::Translation),
}

/// The leader's own state: nothing of it outlives the term.
struct Term {
    mesh: Mesh,
    backoff: WriteBackoff,
    waiting: Waiting,
    comparisons: Comparisons,
    unheld: Unheld,
}

/// Stands for leader, and does the duties while it leads. Returns once a drain has begun.
pub(super) async fn lead(shared: Arc<Shared>, client: Client, mut draining: Draining) {
    let objects = &shared.config.objects;
    let mut candidate =
        Candidate::new(client.clone(), &objects.namespace, &objects.lease, &objects.replica);
    tokio::select! {
        () = terms(&mut candidate, &shared, &client) => {}
        _ = draining.begun() => {}
    }
    shared.metrics.is_leader.set(0);
    candidate.release().await;
}

async fn terms(candidate: &mut Candidate, shared: &Arc<Shared>, client: &Client) {
    loop {
        let begun = candidate.begin().await;
        tracing::info!("leads");
        shared.metrics.is_leader.set(1);
        tokio::select! {
            () = candidate.renew(begun) => {}
            () = work(shared, client) => {}
            () = stamp(shared, client) => {}
            () = places::place(shared, client) => {}
        }
        shared.metrics.is_leader.set(0);
        tracing::warn!("leads no more: the Lease was not renewed in time, or another holds it");
    }
}

/// Does the duties for as long as it is polled.
async fn work(shared: &Arc<Shared>, client: &Client) {
    let mut own = shared.own.subscribe();
    let mesh = Mesh::follow(client, shared);
    let mut term = Term {
        mesh,
        backoff: WriteBackoff::default(),
        waiting: Waiting::default(),
        comparisons: Comparisons::default(),
        unheld: Unheld::default(),
    };
    let mut next = Instant::now();
    loop {
        let changed = async {
            tokio::select! {
                () = term.mesh.changed() => {}
                changed = own.changed() => if changed.is_err() { pending::<()>().await },
            }
        };
        tokio::select! {
            () = changed => {
                next = next.min(Instant::now() + GATHER);
                continue;
            }
            () = sleep_until(next) => {}
        }
        let objects = own.borrow_and_update().clone();
        if let (Some(objects), true) = (objects, term.mesh.is_known()) {
            term.round(shared, client, &objects).await;
        }
        next = term.backoff.next(term.waiting.next(Instant::now() + LOOK));
    }
}

impl Term {
    /// Writes what differs and is not paused.
    async fn round(&mut self, shared: &Arc<Shared>, client: &Client, own: &OwnObjects) {
        let now = Instant::now();
        let mut due = self.due(shared, own, now);
        due.retain(|(subject, _)| self.backoff.may(subject, now));
        let written = stream::iter(due)
            .map(|(subject, write)| async move {
                let report = write.report();
                (subject, report, carry_out(shared, client, write).await)
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>()
            .await;
        for (subject, report, result) in written {
            let (kind, namespace) = (subject.kind(), subject.namespace());
            if result.as_ref().is_err_and(NotWritten::is_of_a_namespace_that_ends) {
                tracing::info!(kind, namespace, "not written: the namespace is being deleted");
                self.backoff.rest(subject, Instant::now());
                continue;
            }
            shared.metrics.written(kind, result.is_ok());
            match result {
                Ok(()) => {
                    tracing::info!(kind, namespace, "written");
                    if let (Subject::Event(about, key), Some(message)) = (&subject, report) {
                        self.waiting.reported((*about, key), message, Instant::now());
                    }
                    if let Subject::Children(root) = &subject {
                        self.mesh.moved(root.clone());
                    }
                    self.backoff.done(subject, Instant::now());
                }
                Err(error) => {
                    tracing::warn!(kind, namespace, error = chain(&error), "not written");
                    self.backoff.failed(subject, Instant::now());
                }
            }
        }
    }

    /// The writes that are due, paused or not.
    fn due(
        &mut self,
        shared: &Arc<Shared>,
        own: &OwnObjects,
        now: Instant,
    ) -> Vec<(Subject, Write)> {
        let trusted = shared.trusted.borrow().clone();
        self.mesh.look(shared);
        let known = trusted.as_deref().map(|trusted| self.mesh.knows(trusted, own, shared));
        let mut due = Vec::new();
        match authorities::due(shared, own, trusted.as_deref(), known.unwrap_or_default()) {
            Ok(change) => due.extend(change.map(|c| (Subject::Authorities, Write::Authorities(c)))),
            Err(error) => tracing::error!(error = chain(&error), "the authorities cannot be made"),
        }
        if let Some(trusted) = &trusted {
            for of in [Hooks::Mutating, Hooks::Validating] {
                let patch = hooks::due(of, own, &trusted.trust);
                due.extend(patch.map(|patch| (Subject::Hooks(of), Write::Hooks(patch))));
            }
            let mesh = self.mesh.due(trusted).into_iter();
            due.extend(mesh.map(|(at, apply)| (at, Write::Mesh(apply))));
        }
        let translations = self.mesh.translations_due().into_iter();
        due.extend(translations.map(|(at, one)| (at, Write::Translation(one))));
        let conditions = self.mesh.kridge_conditions_due().into_iter();
        due.extend(conditions.map(|(at, apply)| (at, Write::Mesh(apply))));
        let removals = self.mesh.leases_due(now).into_iter();
        due.extend(removals.map(|(at, removal)| (at, Write::Removal(removal))));
        let chosen = self.mesh.chosen();
        let mut rings = self.mesh.rings(&chosen, now);
        let [overlapping, uncovered] = rings.compare(&mut self.comparisons, self.mesh.namespaces());
        rings.see_locks(self.mesh.drafts(), &mut self.unheld, now);
        shared.metrics.overlapping_configs.set(overlapping);
        shared.metrics.uncovered_rings.set(uncovered);
        let roots = self.mesh.roots(&chosen);
        due.extend(roots.due().into_iter().map(|(at, writes)| (at, Write::Children(writes))));
        let releases = self.mesh.releases_due().into_iter();
        due.extend(releases.map(|(at, release)| (at, Write::Release(release))));
        let conditions = self.mesh.conditions_due(&chosen, &rings, &roots).into_iter();
        due.extend(conditions.map(|(at, apply)| (at, Write::Mesh(apply))));
        let replica = &shared.config.objects.replica;
        let of_pods = chosen.iter().filter_map(Lacking::of);
        let lacking = of_pods.chain(self.mesh.torn(&rings)).chain(roots.lacking());
        let reports = self.waiting.due(lacking, now, self.mesh.now(), replica);
        due.extend(reports.into_iter().map(|(at, report)| (at, Write::Report(report))));
        due
    }
}

impl Write {
    /// The message of a report.
    fn report(&self) -> Option<String> {
        match self {
            Self::Report(report) => Some(report.message()),
            _ => None,
        }
    }
}

async fn carry_out(shared: &Shared, client: &Client, write: Write) -> Result<(), NotWritten> {
    let write = async {
        match write {
            Write::Authorities(change) => change.store(client, &shared.config.objects).await,
            Write::Hooks(patch) => patch.send(client, &shared.config.objects.webhooks).await,
            Write::Mesh(apply) => apply.send(client).await,
            Write::Report(report) => report.send(client).await,
            Write::Removal(removal) => removal.send(client).await,
            Write::Children(writes) => writes.send(client).await,
            Write::Release(release) => release.send(client).await,
            Write::Translation(translation) => translation.send(client).await,
        }
    };
    tokio::time::timeout(ANSWER, write).await.map_err(|_| NotWritten::Late)?
}
