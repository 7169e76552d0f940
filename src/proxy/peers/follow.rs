//! The watch of the namespace's pods, on the control thread, under the pod's own ServiceAccount.

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::{TryStreamExt, future::ready};
use kube::{
    Api, Client,
    runtime::watcher::{Config, Event, watcher},
};
use tokio::{sync::watch, time::Instant};

use super::{
    facts::{PodFacts, WatchedPod},
    known::Peers,
    table::Table,
};
use ctrlmesh_base::cluster::{OwnAccess, Reflector, Update, describe};
use ctrlmesh_net::{clock::reached, identity::PodIdentity};
use ctrlmesh_policy::ControllerShards;

/// Most pods that are known: each takes a kibibyte or two.
const MOST_PODS: usize = 10_000;
/// Pods of one page of a list, of which each may have 100 KiB and more.
const PAGE: u32 = 100;
/// The shortest interval between two tables.
const REST: Duration = Duration::from_millis(100);
/// The source of the right to list and watch pods.
const REMEDY: &str = " (Role ctrlmesh-proxy, which `ctrlmesh inject` prints)";

type FollowedPods = Reflector<PodFacts, PodFacts>;

/// Keeps the table of `peers` up to date, for as long as it is polled and there may be siblings.
/// Pods are watched while the controller has a webhook: then there are siblings. `own` is this pod,
/// which is no peer.
pub(crate) async fn follow(
    peers: Arc<Peers>,
    access: OwnAccess,
    own: PodIdentity,
    siblings: watch::Receiver<Option<Arc<ControllerShards>>>,
) {
    let rested = Instant::now();
    let mut follower = PeerFollower { peers, access, own, siblings, pods: None, due: None, rested };
    follower.take_siblings();
    loop {
        tokio::select! {
            changed = follower.siblings.changed() => match changed {
                Ok(()) => follower.take_siblings(),
                Err(_) => return,
            },
            step = next(&mut follower.pods) => follower.take(step),
            () = reached(follower.due) => follower.renew(),
        }
    }
}

struct PeerFollower {
    peers: Arc<Peers>,
    access: OwnAccess,
    own: PodIdentity,
    siblings: watch::Receiver<Option<Arc<ControllerShards>>>,
    /// The watch, open while there are siblings.
    pods: Option<FollowedPods>,
    /// The time to make a table, if anything has changed.
    due: Option<Instant>,
    /// The earliest such time.
    rested: Instant,
}

impl PeerFollower {
    fn take_siblings(&mut self) {
        let has_some = self.siblings.borrow_and_update().is_some();
        match (has_some, &self.pods) {
            (true, Some(_)) => {}
            (true, None) => {
                self.pods = Some(watch_pods(self.access.clone(), self.own.namespace().to_owned()));
                self.peers.await_first();
            }
            (false, _) => {
                self.pods = None;
                self.peers.put(Table::default());
                self.peers.report(None);
            }
        }
        self.is_due();
    }

    fn take(&mut self, step: Update) {
        let Some(pods) = &self.pods else { return };
        match step {
            Update::Listing => {}
            Update::Failed(error) => {
                let trouble = describe(&error, "pods", REMEDY);
                let last = "; the pods that were known last count";
                let last = if pods.known().is_some() { last } else { "" };
                self.peers.report(Some(format!("{trouble}{last}")));
            }
            Update::Whole { is_other } => {
                self.peers.report(pods.is_cut().then(too_many));
                if is_other {
                    self.is_due();
                }
            }
        }
    }

    fn is_due(&mut self) {
        self.due.get_or_insert_with(|| self.rested.max(Instant::now()));
    }

    fn renew(&mut self) {
        self.due = None;
        let siblings = self.siblings.borrow().clone();
        let (Some(siblings), Some(pods)) = (siblings, &self.pods) else { return };
        let Some(known) = pods.known() else { return };
        let now = Instant::now();
        self.rested = now + REST;
        let table = self.peers.table().next(&siblings, known.values(), &self.own, now);
        self.peers.put(table);
    }
}

fn watch_pods(access: OwnAccess, namespace: String) -> FollowedPods {
    let watch = move |client: Client| {
        let config = Config::default().page_size(PAGE);
        let events = watcher(Api::<WatchedPod>::namespaced(client, &namespace), config);
        events.try_filter_map(|event| ready(Ok(of_peers(event))))
    };
    let named = |facts: PodFacts| (facts.identity.name().to_owned(), facts);
    Reflector::new(access, watch, named).at_most(MOST_PODS)
}

/// The event, if it is about a pod whose proxy takes reviews: most pods of a namespace may be of
/// other programs.
fn of_peers(event: Event<WatchedPod>) -> Option<Event<PodFacts>> {
    Some(match event {
        Event::Init => Event::Init,
        Event::InitApply(pod) => Event::InitApply(PodFacts::of(pod)?),
        Event::InitDone => Event::InitDone,
        Event::Apply(pod) => Event::Apply(PodFacts::of(pod)?),
        Event::Delete(pod) => Event::Delete(PodFacts::of(pod)?),
    })
}

async fn next(pods: &mut Option<FollowedPods>) -> Update {
    match pods {
        Some(pods) => pods.next().await,
        None => pending().await,
    }
}

fn too_many() -> String {
    format!(
        "the namespace has more than {MOST_PODS} pods whose proxies take reviews: those beyond get \
         none, so divide the controller's pods among namespaces"
    )
}
