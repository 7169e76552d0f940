//! The numbers of objects in namespaces, by which the shards of roots are balanced.
//!
//! Hides how objects are counted: by their metadata alone, in pages, one resource after the other, once an
//! interval. Does not know how much a shard may weigh.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
};

use futures_util::{FutureExt, future::BoxFuture};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    discovery::{self, ApiResource},
};
use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    cluster::chain,
    manager::{duty::subject::ANSWER, shared::Shared},
    policy::roots::{Load, Root},
};

/// The objects of a page of a list.
const PAGE: u32 = 500;

/// The number of a resource's objects in each namespace.
type Objects = BTreeMap<String, u64>;

/// A resource, by its group and its plural name.
type Named = (String, String);

/// The reason why objects are not counted.
#[derive(Debug, thiserror::Error)]
enum NotCounted {
    #[error("the API server serves no such resource")]
    Unknown,
    #[error(
        "the manager may not list them: name the resource in the chart's value `counted`, or bind the \
         right to the manager's account"
    )]
    Forbidden,
    #[error("the API server")]
    Api(#[source] kube::Error),
    #[error("no answer in {} s", ANSWER.as_secs())]
    Late,
}

impl From<kube::Error> for NotCounted {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.is_forbidden() => Self::Forbidden,
            error => Self::Api(error),
        }
    }
}

/// A count of all resources that are wanted.
type Count = Vec<(Named, Result<Objects, NotCounted>)>;

/// The numbers of objects that the leader knows.
pub(in crate::manager::duty) struct Counts {
    client: Client,
    shared: Arc<Shared>,
    wanted: BTreeSet<Named>,
    counting: Option<BoxFuture<'static, Count>>,
    next: Instant,
    /// The last numbers that were counted.
    known: BTreeMap<Named, Objects>,
    /// The resources that were not counted the last time, each with the reason.
    problems: BTreeMap<Named, String>,
    /// The counts that began. Nothing moves by the first of a term: the leader before may have moved something
    /// a moment ago.
    counts: u64,
    /// The roots of which something has moved since the last count.
    moved: BTreeSet<String>,
}

impl Counts {
    pub(in crate::manager::duty) fn new(client: Client, shared: Arc<Shared>) -> Self {
        Self {
            client,
            shared,
            wanted: BTreeSet::new(),
            counting: None,
            next: Instant::now(),
            known: BTreeMap::new(),
            problems: BTreeMap::new(),
            counts: 0,
            moved: BTreeSet::new(),
        }
    }

    /// Counts these resources from now on: new ones at once.
    pub(in crate::manager::duty) fn want<'r>(
        &mut self,
        roots: impl Iterator<Item = (&'r str, &'r Root)>,
    ) {
        let named = |(group, resource): (&str, &str)| (group.to_owned(), resource.to_owned());
        let counted = roots.flat_map(|(_, root)| root.counted());
        let wanted: BTreeSet<_> = counted.map(named).collect();
        if !wanted.is_subset(&self.wanted) {
            self.next = Instant::now();
        }
        self.known.retain(|resource, _| wanted.contains(resource));
        self.problems.retain(|resource, _| wanted.contains(resource));
        self.wanted = wanted;
    }

    /// Waits until something was counted. Dropping it loses nothing.
    pub(in crate::manager::duty) async fn changed(&mut self) {
        loop {
            if let Some(counting) = &mut self.counting {
                let count = counting.await;
                self.counting = None;
                self.take(count);
                return;
            }
            if self.wanted.is_empty() {
                pending::<()>().await;
            }
            sleep_until(self.next).await;
            self.next = Instant::now() + self.shared.config.balance_interval;
            self.counting = Some(count(self.client.clone(), self.wanted.clone()).boxed());
        }
    }

    fn take(&mut self, count: Count) {
        self.counts += 1;
        self.moved.clear();
        self.problems.clear();
        for (resource, counted) in count {
            self.shared.metrics.counted(counted.is_ok());
            match counted {
                Ok(objects) => drop(self.known.insert(resource, objects)),
                Err(error) => {
                    let (group, plural) = (&resource.0, &resource.1);
                    let why = chain(&error);
                    tracing::warn!(group, plural, error = why, "objects are not counted");
                    drop(self.problems.insert(resource, why));
                }
            }
        }
    }

    /// Notes that children of a root were written.
    pub(in crate::manager::duty) fn moved(&mut self, key: String) {
        self.moved.insert(key);
    }

    /// Calls `then` with the load of the root at a key.
    pub(super) fn with_load<T>(&self, key: &str, root: &Root, then: impl Fn(Load<'_>) -> T) -> T {
        let mut objects: Cow<'_, Objects> = Cow::Owned(Objects::new());
        for (at, (group, resource)) in root.counted().enumerate() {
            let Some(some) = self.known.get(&(group.to_owned(), resource.to_owned())) else {
                return then(Load::Unknown);
            };
            if at == 0 {
                objects = Cow::Borrowed(some);
                continue;
            }
            let all = objects.to_mut();
            for (namespace, count) in some {
                *all.entry(namespace.clone()).or_default() += count;
            }
        }
        let may_move = self.counts > 1 && !self.moved.contains(key);
        then(Load::Known { objects: &objects, may_move })
    }

    /// The reason why the objects of a root are not counted. `None` if they are, or are about to be.
    pub(super) fn problem(&self, root: &Root) -> Option<String> {
        root.counted().find_map(|(group, resource)| {
            let why = self.problems.get(&(group.to_owned(), resource.to_owned()))?;
            let group = if group.is_empty() { String::new() } else { format!(".{group}") };
            Some(format!("{resource}{group} cannot be counted: {why}"))
        })
    }
}

async fn count(client: Client, wanted: BTreeSet<Named>) -> Count {
    let mut all = Vec::with_capacity(wanted.len());
    for (group, resource) in wanted {
        let counted = objects(&client, &group, &resource).await;
        all.push(((group, resource), counted));
    }
    all
}

/// The number of a resource's objects in each namespace.
async fn objects(client: &Client, group: &str, plural: &str) -> Result<Objects, NotCounted> {
    let resource = within(resource(client, group, plural)).await?;
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut objects = Objects::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = within(async { Ok(api.list_metadata(&page).await?) }).await?;
        for namespace in listed.items.into_iter().filter_map(|object| object.metadata.namespace) {
            *objects.entry(namespace).or_default() += 1;
        }
        match listed.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page.continue_token = Some(next),
            None => return Ok(objects),
        }
    }
}

/// The resource in the version that the API server prefers.
async fn resource(client: &Client, group: &str, plural: &str) -> Result<ApiResource, NotCounted> {
    let found = discovery::group(client, group).await;
    let found = found.map_err(|error| match error {
        kube::Error::Discovery(_) => NotCounted::Unknown,
        error => error.into(),
    })?;
    let mut all = found.recommended_resources().into_iter().map(|(resource, _)| resource);
    all.find(|resource| resource.plural == plural).ok_or(NotCounted::Unknown)
}

async fn within<T>(answer: impl Future<Output = Result<T, NotCounted>>) -> Result<T, NotCounted> {
    timeout(ANSWER, answer).await.map_err(|_| NotCounted::Late)?
}
