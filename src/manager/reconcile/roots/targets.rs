//! The workloads of roots, and for how long their numbers of shards have stood.
//!
//! Hides how workloads are watched: each by its name, and the one of the other kind, so that a root that
//! names the wrong kind is notified so. Does not know which shards follow from their replicas.

use std::{
    collections::BTreeMap,
    future::{Future, pending},
    time::Duration,
};

use futures_util::{FutureExt, future::select_all};
use kube::{
    Api, Client,
    api::DynamicObject,
    runtime::watcher::{Config, watcher},
};
use tokio::time::{Instant, sleep_until};

use crate::{
    configs::namespace,
    workload::{FoundTarget, Workload, other, resource},
};
use ctrlmesh_api::{RootTarget, TargetKind};
use ctrlmesh_base::cluster::{OwnAccess, Reflector, Update, describe};
use ctrlmesh_policy::roots::Root;

/// The time for which the number of replicas has to stand before a new shard gets what others have: an
/// autoscaler that changes its mind moves nothing.
const SETTLED: Duration = Duration::from_secs(10);

/// A workload, by its namespace, kind and name.
type Key = (String, TargetKind, String);

/// The workloads of the roots.
pub(in crate::reconcile) struct Targets {
    access: OwnAccess,
    reflectors: BTreeMap<Key, One>,
    /// The number of shards of each root by replicas, by its key, and the time since when it has it.
    sizes: BTreeMap<String, (u32, Instant)>,
}

struct One {
    reflector: Reflector<DynamicObject, Workload>,
    /// The reason why it is not followed now.
    problem: Option<String>,
}

/// The workload of a root, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// It was not listed yet, or cannot be, with the reason.
    Unknown(Option<String>),
    /// It was found, or not.
    Found(FoundTarget),
}

impl Targets {
    pub(in crate::reconcile) fn new(access: OwnAccess) -> Self {
        Self { access, reflectors: BTreeMap::new(), sizes: BTreeMap::new() }
    }

    /// Follows the workloads of these roots from now on, and notes how many shards each has by its replicas.
    pub(in crate::reconcile) fn want(&mut self, roots: &[(&str, &Root)]) {
        let wanted = roots.iter().flat_map(|(at, root)| keys(namespace(at), &root.target));
        let mut before = std::mem::take(&mut self.reflectors);
        for key in wanted {
            let one = before.remove(&key).unwrap_or_else(|| One::follow(&self.access, &key));
            self.reflectors.entry(key).or_insert(one);
        }
        let mut sizes = std::mem::take(&mut self.sizes);
        for &(at, root) in roots.iter().filter(|(_, root)| root.is_by_replicas()) {
            let Some(size) = root.size(self.replicas(at, root)) else { continue };
            let before = sizes.remove(at).filter(|(before, _)| *before == size);
            self.sizes.insert(at.to_owned(), before.unwrap_or_else(|| (size, Instant::now())));
        }
    }

    /// Waits until a workload has changed, or a number has stood for long enough. Dropping it loses nothing.
    pub(in crate::reconcile) fn changed(&mut self) -> impl Future<Output = ()> {
        let now = Instant::now();
        let ends = self.sizes.values().map(|(_, since)| *since + SETTLED).filter(|end| *end > now);
        let settled = ends.min();
        let all: Vec<_> = self.reflectors.values_mut().map(|one| one.changed().boxed()).collect();
        async move {
            let settles = async {
                match settled {
                    Some(end) => sleep_until(end).await,
                    None => pending().await,
                }
            };
            let changes = async {
                match all.is_empty() {
                    true => pending().await,
                    false => drop(select_all(all).await),
                }
            };
            tokio::select! {
                () = settles => {}
                () = changes => {}
            }
        }
    }

    /// The workload of the root at a key.
    pub(super) fn of(&self, at: &str, root: &Root) -> Target {
        let [named, of_other] =
            keys(namespace(at), &root.target).map(|key| self.reflectors.get(&key));
        let Some(one) = named else { return Target::Unknown(None) };
        let known = one.reflector.known();
        match known.and_then(|known| known.values().next()) {
            Some(workload) => Target::Found(FoundTarget::There(workload.clone())),
            None if known.is_none() => Target::Unknown(one.problem.clone()),
            None => {
                let other = of_other.and_then(|other| other.reflector.known());
                match other {
                    Some(known) if known.is_empty() => Target::Found(FoundTarget::Missing),
                    Some(_) => Target::Found(FoundTarget::OtherKind),
                    None => Target::Unknown(None),
                }
            }
        }
    }

    /// The number of shards of the root at a key, next to its canary. `None` if its replicas are not
    /// known, or are 0.
    pub(super) fn size(&self, at: &str, root: &Root) -> Option<u32> {
        root.size(self.replicas(at, root))
    }

    /// Whether the number of shards of a root has stood for long enough.
    pub(super) fn is_settled(&self, at: &str, root: &Root) -> bool {
        let stands = |(_, since): &(u32, Instant)| since.elapsed() >= SETTLED;
        !root.is_by_replicas() || self.sizes.get(at).is_some_and(stands)
    }

    fn replicas(&self, at: &str, root: &Root) -> Option<u32> {
        match self.of(at, root) {
            Target::Found(FoundTarget::There(workload)) => Some(workload.replicas),
            _ => None,
        }
    }
}

/// The workload of a root, and the one of its name and the other kind.
fn keys(namespace: &str, target: &RootTarget) -> [Key; 2] {
    let key = |kind| (namespace.to_owned(), kind, target.name.clone());
    [key(target.kind), key(other(target.kind))]
}

impl One {
    fn follow(access: &OwnAccess, (namespace, kind, name): &Key) -> Self {
        let (namespace, kind) = (namespace.clone(), *kind);
        let config = Config::default().fields(&format!("metadata.name={name}"));
        let watch = move |client: Client| {
            let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &resource(kind));
            watcher(api, config.clone())
        };
        let named: fn(DynamicObject) -> (String, Workload) = match kind {
            TargetKind::Deployment => |object| named(TargetKind::Deployment, &object),
            TargetKind::StatefulSet => |object| named(TargetKind::StatefulSet, &object),
        };
        Self { reflector: Reflector::new(access.clone(), watch, named), problem: None }
    }

    async fn changed(&mut self) {
        loop {
            match self.reflector.next().await {
                Update::Whole { is_other } => {
                    self.problem = None;
                    if is_other {
                        return;
                    }
                }
                Update::Listing => {}
                Update::Failed(error) => {
                    let problem = Some(describe(&error, "deployments and statefulsets", ""));
                    let is_other = self.problem != problem;
                    self.problem = problem;
                    if is_other {
                        return;
                    }
                }
            }
        }
    }
}

fn named(kind: TargetKind, object: &DynamicObject) -> (String, Workload) {
    (object.metadata.name.clone().unwrap_or_default(), Workload::of(kind, object))
}
