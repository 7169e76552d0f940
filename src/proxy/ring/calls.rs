//! The calls to the API server: writes of the own Lease, lists and watches of the ring's.
//!
//! Hides kube's client and the form of a Lease. Does not know when something is called, or why.

use std::{sync::Arc, time::Duration};

use futures_util::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, Either, ready},
    stream::{self, BoxStream},
};
use k8s_openapi::{api::coordination::v1::Lease as LeaseObject, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{
        DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent,
        WatchParams,
    },
};
use tokio::{sync::OnceCell, time::timeout};

use ctrlmesh_api::lease::{Elections, ForeignWrites, PodLease, RelatedResources};
use ctrlmesh_base::cluster::{NoAccess, OwnAccess, chain};
use ctrlmesh_net::identity::PodIdentity;
use ctrlmesh_policy::{
    Scope,
    ring::{Answer, Lease, SPEAKS, Said, Saying, TooLong, Write},
};

/// The time in which a call is answered. After that its end is unknown.
const ANSWER: Duration = Duration::from_secs(5);
/// The source of the right to Leases.
const REMEDY: &str = "ClusterRole or Role ctrlmesh-proxy";

/// The calls for the Lease of one pod.
pub(super) struct Calls(Arc<Caller>);

struct Caller {
    access: OwnAccess,
    client: OnceCell<Client>,
    own: PodIdentity,
}

/// Informational annotations of a Lease. Other pods ignore them.
#[derive(Clone, Debug)]
pub(super) struct LeaseAnnotations {
    /// The time since when this process claims what it claims.
    pub(super) claimed: Timestamp,
    /// The number of requests under way.
    pub(super) under_way: usize,
    /// The elections of the pod's controller.
    pub(super) elections: Elections,
    /// The foreign writes of the pod's controller.
    pub(super) foreign_writes: ForeignWrites,
    /// The related resources of the pod's controller.
    pub(super) related: RelatedResources,
}

/// The end of a write.
pub(super) struct Written {
    pub(super) answer: Answer,
    /// The failure, if there was one.
    pub(super) trouble: Option<NotDone>,
}

/// A consistent list of the Leases of a ring, with the own one.
pub(super) struct Listed {
    pub(super) ring: String,
    pub(super) leases: Vec<Lease<Arc<Scope>>>,
    /// The position from which a watch follows.
    pub(super) version: String,
}

/// A change that a watch shows.
pub(super) enum Change {
    Written(Box<Lease<Arc<Scope>>>),
    /// The Lease of the pod with this uid is gone.
    Deleted(String),
}

/// Reasons why a call was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotDone {
    #[error("no answer in {} s", ANSWER.as_secs())]
    Late,
    #[error("cannot reach the API server: {}", chain(.0))]
    NoAccess(#[from] NoAccess),
    #[error("the pod's ServiceAccount may not {verb} leases ({REMEDY}): {message}")]
    Forbidden { verb: &'static str, message: String },
    #[error("cannot {verb} leases: {}", chain(.error))]
    Api { verb: &'static str, error: kube::Error },
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

impl Calls {
    pub(super) fn new(access: OwnAccess, own: PodIdentity) -> Self {
        Self(Arc::new(Caller { access, client: OnceCell::new(), own }))
    }

    /// Writes or deletes the own Lease.
    pub(super) fn write(
        &self,
        write: Write<Arc<Scope>>,
        aside: LeaseAnnotations,
    ) -> BoxFuture<'static, Written> {
        let caller = Arc::clone(&self.0);
        async move {
            match in_time(caller.write(write, aside)).await {
                Ok(version) => Written { answer: Answer::Done(version), trouble: None },
                Err(NotDone::Api { error: kube::Error::Api(status), .. }) if status.code == 409 => {
                    Written { answer: Answer::Conflict, trouble: None }
                }
                Err(trouble) => Written { answer: trouble.answer(), trouble: Some(trouble) },
            }
        }
        .boxed()
    }

    /// Lists the Leases of a ring, and reads the own one if it is in another.
    pub(super) fn list(&self, ring: &str) -> BoxFuture<'static, Result<Listed, NotDone>> {
        let (caller, ring) = (Arc::clone(&self.0), ring.to_owned());
        async move { in_time(caller.list(ring)).await }.boxed()
    }

    /// Watches the Leases of a ring from a position on. Ends at the first failure.
    pub(super) fn watch(&self, ring: &str, version: &str) -> BoxStream<'static, Change> {
        self.watch_by(WatchParams::default(), ring, version)
    }

    /// Watches the own Lease from a version on. It is deleted where it leaves the ring.
    pub(super) fn watch_own(&self, ring: &str, version: &str) -> BoxStream<'static, Change> {
        let name = PodLease::name_of(self.0.own.uid());
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        self.watch_by(params, ring, version)
    }

    fn watch_by(
        &self,
        params: WatchParams,
        ring: &str,
        version: &str,
    ) -> BoxStream<'static, Change> {
        let (caller, version) = (Arc::clone(&self.0), version.to_owned());
        let params = params.labels(&PodLease::selector_of(ring)).timeout(290);
        async move { caller.watch(&params, &version).await }.flatten_stream().boxed()
    }
}

impl NotDone {
    /// The answer that stands for a write which was not done.
    fn answer(&self) -> Answer {
        match self {
            Self::NoAccess(_) | Self::Forbidden { .. } | Self::TooLong(_) => Answer::Conflict,
            Self::Api { error: kube::Error::Api(status), .. } if status.code < 500 => {
                Answer::Conflict
            }
            Self::Late | Self::Api { .. } => Answer::Unknown,
        }
    }
}

impl Caller {
    async fn leases(&self) -> Result<Api<LeaseObject>, NotDone> {
        let client = self.client.get_or_try_init(|| self.access.clone().client()).await?;
        Ok(Api::namespaced(client.clone(), self.own.namespace()))
    }

    /// Returns the version that is stored. A Lease that is deleted has none.
    async fn write(
        &self,
        write: Write<Arc<Scope>>,
        aside: LeaseAnnotations,
    ) -> Result<Option<Box<str>>, NotDone> {
        let leases = self.leases().await?;
        let name = PodLease::name_of(self.own.uid());
        let saying = match write {
            Write::Claim(saying) => saying,
            Write::Delete(version) => {
                let only = Preconditions { resource_version: Some(version.into()), uid: None };
                let only = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
                let gone = leases.delete(&name, &only).await;
                return gone.map(|_| None).map_err(failed("delete"));
            }
        };
        let lease = self.said(&saying, aside)?;
        let object = lease.object(self.own.namespace(), saying.replaces.as_deref());
        let stored = if saying.is_new {
            leases.create(&PostParams::default(), &object).await.map_err(failed("create"))?
        } else {
            let patch = Patch::Merge(&object);
            leases.patch(&name, &PatchParams::default(), &patch).await.map_err(failed("patch"))?
        };
        Ok(stored.metadata.resource_version.map(Into::into))
    }

    fn said(
        &self,
        saying: &Saying<Arc<Scope>>,
        aside: LeaseAnnotations,
    ) -> Result<PodLease, TooLong> {
        let config = &saying.config;
        let (_, uid) = &config.birth;
        Ok(PodLease {
            pod_uid: self.own.uid().to_owned(),
            holder: self.own.name().to_owned(),
            ring: saying.ring.to_string(),
            shard: Some(config.shard.to_string()),
            config_uid: uid.to_string(),
            generation: config.generation,
            claim: Some(saying.claim.text()?),
            claimed: Some(aside.claimed),
            under_way: aside.under_way,
            elections: Some(aside.elections),
            foreign_writes: Some(aside.foreign_writes),
            related: Some(aside.related),
            speaks: SPEAKS,
            renewed: Timestamp::now(),
        })
    }

    async fn list(&self, ring: String) -> Result<Listed, NotDone> {
        let api = self.leases().await?;
        let params = ListParams::default().labels(&PodLease::selector_of(&ring));
        let list = api.list(&params).await.map_err(failed("list"))?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let mut leases: Vec<_> = list.items.iter().filter_map(read).collect();
        if leases.iter().all(|lease| *lease.pod != *self.own.uid()) {
            let own = api.get_opt(&PodLease::name_of(self.own.uid())).await;
            let own = own.map_err(failed("get"))?;
            leases
                .extend(own.map(|own| read(&own).unwrap_or_else(|| self.unreadable(&own, &ring))));
        }
        Ok(Listed { ring, leases, version })
    }

    /// The own Lease, which someone has made unreadable: it may have said anything, in this ring.
    fn unreadable(&self, own: &LeaseObject, ring: &str) -> Lease<Arc<Scope>> {
        Lease::read(self.own.uid(), ring, &version_of(own), Said::default())
    }

    async fn watch(
        self: Arc<Self>,
        params: &WatchParams,
        version: &str,
    ) -> impl Stream<Item = Change> + Send + use<> {
        let Ok(api) = self.leases().await else { return Either::Left(stream::empty()) };
        let Ok(events) = api.watch(params, version).await else {
            return Either::Left(stream::empty());
        };
        let changes = events.map(|event| match event {
            Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease)) => {
                Some(read(&lease).map(|lease| Change::Written(Box::new(lease))))
            }
            Ok(WatchEvent::Deleted(lease)) => {
                let name = lease.metadata.name.as_deref();
                Some(name.and_then(PodLease::pod_of).map(|pod| Change::Deleted(pod.to_owned())))
            }
            Ok(WatchEvent::Bookmark(_)) => Some(None),
            Ok(WatchEvent::Error(_)) | Err(_) => None,
        });
        let changes = changes.take_while(|change| ready(change.is_some()));
        Either::Right(changes.filter_map(|change| ready(change.flatten())).boxed())
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, NotDone>>) -> Result<T, NotDone> {
    timeout(ANSWER, call).await.unwrap_or(Err(NotDone::Late))
}

fn failed(verb: &'static str) -> impl FnOnce(kube::Error) -> NotDone {
    move |error| match error {
        kube::Error::Api(status) if status.code == 403 => {
            NotDone::Forbidden { verb, message: status.message.clone() }
        }
        error => NotDone::Api { verb, error },
    }
}

/// The Lease of a pod. `None` if it is another.
fn read(lease: &LeaseObject) -> Option<Lease<Arc<Scope>>> {
    let version = version_of(lease);
    let lease = PodLease::read(lease)?;
    let said = Said { shard: lease.shard.as_deref(), claim: lease.claim.as_deref() };
    Some(Lease::read(&lease.pod_uid, &lease.ring, &version, said))
}

fn version_of(lease: &LeaseObject) -> String {
    lease.metadata.resource_version.clone().unwrap_or_default()
}
