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
    Client, Resource,
    api::{DynamicObject, ListParams},
    discovery::{self, ApiResource},
};
use serde::Deserialize;
use tokio::time::{Instant, sleep_until, timeout};

use crate::{reconcile::key::ANSWER, shared::Shared};
use ctrlmesh_base::cluster::{NotListed, chain, pages};
use ctrlmesh_policy::{
    NamespaceLabels,
    roots::{Load, Root},
};

/// The number of a resource's objects in each namespace.
type CountedObjects = BTreeMap<String, u64>;

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

impl From<NotListed> for NotCounted {
    fn from(error: NotListed) -> Self {
        match error {
            NotListed::Api(kube::Error::Api(status)) if status.is_forbidden() => Self::Forbidden,
            NotListed::Api(error) => Self::Api(error),
            NotListed::Late => Self::Late,
        }
    }
}

/// The part of an object's metadata that counts.
#[derive(Deserialize)]
struct Counted {
    namespace: Option<String>,
}

/// A count of all resources that are wanted.
type Count = Vec<(Named, Result<CountedObjects, NotCounted>)>;

/// The numbers of objects that the leader knows.
pub(in crate::reconcile) struct Counts {
    client: Client,
    shared: Arc<Shared>,
    wanted: BTreeSet<Named>,
    counting: Option<BoxFuture<'static, Count>>,
    next: Instant,
    /// The last numbers that were counted.
    known: BTreeMap<Named, CountedObjects>,
    /// The resources that were not counted the last time, each with the reason.
    problems: BTreeMap<Named, String>,
    /// The beginning of the term: the leader before may have moved something a moment ago.
    begun: Instant,
    /// The time at which something of a root moved last, by its key.
    moved: BTreeMap<String, Instant>,
}

impl Counts {
    pub(in crate::reconcile) fn new(client: Client, shared: Arc<Shared>) -> Self {
        Self {
            client,
            shared,
            wanted: BTreeSet::new(),
            counting: None,
            next: Instant::now(),
            known: BTreeMap::new(),
            problems: BTreeMap::new(),
            begun: Instant::now(),
            moved: BTreeMap::new(),
        }
    }

    /// Counts these resources from now on: new ones at once.
    pub(in crate::reconcile) fn want<'r>(
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
    pub(in crate::reconcile) async fn changed(&mut self) {
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
        let every = self.shared.config.balance_interval;
        self.moved.retain(|_, at| at.elapsed() < every);
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
    pub(in crate::reconcile) fn moved(&mut self, key: String) {
        self.moved.insert(key, Instant::now());
    }

    /// The root, whose fence has the mode of the mesh where it gives none.
    pub(super) fn fenced(&self, root: &Root) -> Root {
        root.clone().or_fence_mode(self.shared.config.fence.fence_roots)
    }

    /// Calls `then` with the load of the root at a key. The labels of all namespaces are `None` until they
    /// were listed once.
    pub(super) fn with_load<T>(
        &self,
        key: &str,
        root: &Root,
        namespaces: Option<&NamespaceLabels>,
        then: impl Fn(Load<'_>) -> T,
    ) -> T {
        if root.counts_namespaces() {
            let Some(namespaces) = namespaces else { return then(Load::Unknown) };
            let objects = namespaces.keys().map(|name| (name.clone(), 1)).collect();
            return then(Load::Known { objects: &objects, may_move: self.may_move(key) });
        }
        let mut objects: Cow<'_, CountedObjects> = Cow::Owned(CountedObjects::new());
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
        then(Load::Known { objects: &objects, may_move: self.may_move(key) })
    }

    /// Whether an interval has passed since something of a root moved, or may have.
    fn may_move(&self, key: &str) -> bool {
        let last = self.moved.get(key).copied().unwrap_or(self.begun);
        last.elapsed() >= self.shared.config.balance_interval
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
async fn objects(client: &Client, group: &str, plural: &str) -> Result<CountedObjects, NotCounted> {
    let resource = timeout(ANSWER, resource(client, group, plural)).await;
    let resource = resource.map_err(|_| NotCounted::Late)??;
    let mut objects = CountedObjects::new();
    let count = |object: Counted| {
        if let Some(namespace) = object.namespace {
            *objects.entry(namespace).or_default() += 1;
        }
    };
    pages(client, DynamicObject::url_path(&resource, None), ListParams::default(), count).await?;
    Ok(objects)
}

/// The resource in the version that the API server prefers.
async fn resource(client: &Client, group: &str, plural: &str) -> Result<ApiResource, NotCounted> {
    let found = discovery::group(client, group).await;
    let found = found.map_err(|error| match error {
        kube::Error::Discovery(_) => NotCounted::Unknown,
        error => NotListed::Api(error).into(),
    })?;
    let mut all = found.recommended_resources().into_iter().map(|(resource, _)| resource);
    all.find(|resource| resource.plural == plural).ok_or(NotCounted::Unknown)
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;
    use ctrlmesh_policy::{Draft, Kind, draft};

    /// A client of an API server that answers each path and query so, and what it was asked.
    fn client(
        answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static,
    ) -> (Client, Arc<Mutex<Vec<String>>>) {
        let (asked, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
        let asking = Arc::clone(&asked);
        let service = service_fn(move |request: Request<Body>| {
            let (asking, answer) = (Arc::clone(&asking), Arc::clone(&answer));
            async move {
                let at = request.uri().to_string();
                let (code, said) = answer(&at);
                asking.lock().push(at);
                let mut response = Response::new(Body::from(said.to_string().into_bytes()));
                *response.status_mut() = StatusCode::from_u16(code).unwrap();
                Ok::<_, Infallible>(response)
            }
        });
        (Client::new(service, "ops"), asked)
    }

    fn discovered(at: &str) -> Option<(u16, Value)> {
        let said = match at {
            "/apis" => json!({ "kind": "APIGroupList", "groups": [{
                "name": "example.com",
                "versions": [{ "groupVersion": "example.com/v2", "version": "v2" }],
                "preferredVersion": { "groupVersion": "example.com/v2", "version": "v2" },
            }] }),
            "/apis/example.com/v2" => json!({
                "kind": "APIResourceList",
                "groupVersion": "example.com/v2",
                "resources": [{
                    "name": "widgets", "singularName": "widget", "namespaced": true,
                    "kind": "Widget", "verbs": ["list"],
                }],
            }),
            _ => return None,
        };
        Some((200, said))
    }

    fn status(code: u16, reason: &str) -> (u16, Value) {
        let said = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason, "message": reason, "metadata": {},
        });
        (code, said)
    }

    /// A page of the objects from a number on, of so many.
    fn page(at: &str, of: usize) -> (u16, Value) {
        let first = at.split_once("continue=").map_or(0, |(_, from)| from.parse().unwrap());
        let objects = (first..of.min(first + 100)).map(|number| {
            json!({ "metadata": {
                "name": format!("widget-{number}"), "namespace": format!("ns-{}", number % 7),
            } })
        });
        let objects: Vec<_> = objects.collect();
        let next = if first + 100 < of { (first + 100).to_string() } else { String::new() };
        let said = json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": { "resourceVersion": "1", "continue": next },
            "items": if objects.is_empty() { Value::Null } else { json!(objects) },
        });
        (200, said)
    }

    #[tokio::test]
    async fn i15_objects_are_counted_by_pages_of_their_metadata() {
        let (client, asked) = client(|at| discovered(at).unwrap_or_else(|| page(at, 20_011)));
        let counted = objects(&client, "example.com", "widgets").await.unwrap();
        assert_eq!(counted.values().sum::<u64>(), 20_011);
        assert_eq!((counted.len(), counted["ns-0"], counted["ns-6"]), (7, 2859, 2858));
        let asked = asked.lock();
        let lists: Vec<_> = asked.iter().filter(|at| at.contains("widgets?")).collect();
        assert_eq!(lists.len(), 201);
        assert!(lists.iter().all(|at| at.contains("limit=100")), "{lists:?}");
    }

    fn root(name: &str, resource: &str) -> Root {
        let config = json!({
            "metadata": { "namespace": "ops", "name": name },
            "spec": { "root": {
                "prefix": "op", "targetStatefulSet": "op",
                "auto": {
                    "shardingSize": 2, "everyShardReplicas": 1, "by": "Namespace",
                    "weight": "Objects",
                },
                "resourceSelector": [{ "relateResources": [
                    { "apiGroups": ["example.com"], "resources": [resource] },
                ] }],
            } },
        });
        match draft(Kind::ShardingConfig, &serde_json::from_value(config).unwrap()) {
            Ok(Draft::Root(draft)) => draft.root,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn i15_a_root_moves_something_once_an_interval_however_often_is_counted() {
        let (client, _) = client(|at| discovered(at).unwrap_or_else(|| page(at, 7)));
        let mut counts = Counts::new(client, Arc::new(Shared::for_tests()));
        let (one, other) = (root("one", "widgets"), root("other", "gadgets"));
        counts.want([("ops/one", &one)].into_iter());
        counts.changed().await;
        assert!(!counts.may_move("ops/one"), "the leader before may have moved something");
        counts.want([("ops/one", &one), ("ops/other", &other)].into_iter());
        counts.changed().await;
        assert!(!counts.may_move("ops/one"), "another root is counted, too");
        assert!(
            counts.problem(&other).unwrap().starts_with("gadgets.example.com cannot be counted")
        );
        tokio::time::advance(std::time::Duration::from_secs(600)).await;
        assert!(counts.may_move("ops/one"));
        counts.moved("ops/one".to_owned());
        counts.changed().await;
        assert!(!counts.may_move("ops/one") && counts.may_move("ops/other"));
        tokio::time::advance(std::time::Duration::from_secs(600)).await;
        assert!(counts.may_move("ops/one"));
    }

    #[tokio::test]
    async fn i15_an_api_server_writes_null_where_there_are_no_objects() {
        let (client, _) = client(|at| discovered(at).unwrap_or_else(|| page(at, 0)));
        assert_eq!(
            objects(&client, "example.com", "widgets").await.unwrap(),
            CountedObjects::new()
        );
    }

    #[tokio::test]
    async fn bad_i15_objects_that_cannot_be_counted_say_why() {
        for (code, reason, expected) in [
            (403, "Forbidden", "the manager may not list them: name the resource in the chart's"),
            (410, "Expired", "the API server: "),
            (429, "TooManyRequests", "the API server: "),
            (500, "InternalError", "the API server: "),
        ] {
            let later = move |at: &str| match at.contains("continue=") {
                true => status(code, reason),
                false => page(at, 170),
            };
            let (client, _) = client(move |at| discovered(at).unwrap_or_else(|| later(at)));
            let why = objects(&client, "example.com", "widgets").await.unwrap_err();
            assert!(chain(&why).starts_with(expected), "{code}: {}", chain(&why));
        }
        for (group, plural) in [("example.com", "gadgets"), ("other.example.com", "widgets")] {
            let (client, _) = client(|at| discovered(at).unwrap_or_else(|| page(at, 1)));
            let why = objects(&client, group, plural).await.unwrap_err();
            assert_eq!(why.to_string(), "the API server serves no such resource", "{group}");
        }
    }
}
