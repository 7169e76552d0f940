//! The objects of one kind: each is stamped once it is seen.
//!
//! Hides how they are listed and watched, and how a label is written without a change to fields of other owners.
//! Memory holds only the objects of one page.

use std::{collections::BTreeMap, time::Duration};

use futures_util::TryStreamExt;
use http::header::{ACCEPT, HeaderValue};
use kube::{
    Client, Resource,
    api::{DynamicObject, ListParams, Patch, PatchParams, WatchEvent, WatchParams},
    core::Request,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{kinds::Stamped, pace::Pace};
use crate::{label_keys::LabelKeys, metrics::Stamped as Counted, shared::Shared};
use ctrlmesh_base::cluster::{ExponentialBackoff, NotListed, Pages, chain};

/// The name by which the labels are written.
const MANAGER: &str = "ctrlmesh-stamps";
/// The answer to a patch that is read: no object.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The time for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// The seconds after which the API server ends a watch.
const WATCH: u32 = 290;
/// The attempts to write an object, while the API server has trouble.
const ATTEMPTS: usize = 5;
/// The time from a list of which an object could not be written to the next.
const AGAIN: Duration = Duration::from_secs(10 * 60);
/// The time from one log of objects without our labels to the next.
const LOG: Duration = Duration::from_secs(60);
/// The time after which a right that is missing is looked for again.
const FORBIDDEN: Duration = Duration::from_secs(60);

/// The metadata of an object that counts.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Clone, Deserialize)]
struct Object {
    metadata: Meta,
}

/// The thing to do about an object.
#[derive(Debug, PartialEq, Eq)]
enum LabelStep {
    None,
    /// A label has another value. It is someone else's, and so the object is left alone.
    Foreign(String),
    Stamp(BTreeMap<String, String>),
}

/// The reason why the objects of a kind are not followed.
#[derive(Debug, thiserror::Error)]
enum NotStamped {
    #[error(transparent)]
    NotListed(#[from] NotListed),
    #[error("the API server")]
    Api(#[from] kube::Error),
    #[error(
        "the manager may not list, watch and patch them: name the resource in the chart's value \
         `stamped`, or bind the right to the manager's account"
    )]
    Forbidden,
    #[error("the watch says nothing")]
    Silent,
}

/// The end of a watch.
enum WatchEnded {
    /// It goes on from the last event.
    InTime,
    /// It has to begin with a list: its position has expired, or an object is to be tried again.
    NeedsList,
}

/// One kind whose objects are kept stamped.
pub(super) struct Stamper<'s> {
    client: Client,
    shared: &'s Shared,
    pace: &'s Pace,
    kind: Stamped,
}

impl<'s> Stamper<'s> {
    pub(super) fn new(client: &Client, shared: &'s Shared, pace: &'s Pace, kind: Stamped) -> Self {
        Self { client: client.clone(), shared, pace, kind }
    }

    /// Keeps the objects stamped for as long as it is polled.
    pub(super) async fn keep(&self) {
        let mut backoff = ExponentialBackoff::default();
        let mut told = String::new();
        loop {
            let Err(why) = self.pass(&mut backoff).await else {
                told.clear();
                continue;
            };
            let (group, plural, error) =
                (&self.kind.resource.group, &self.kind.resource.plural, chain(&why));
            if told != error {
                tracing::warn!(group, plural, error, "objects are not stamped");
                told = error;
            }
            let pause = match why {
                NotStamped::Forbidden => FORBIDDEN,
                _ => backoff.next().unwrap_or(FORBIDDEN),
            };
            sleep(pause).await;
        }
    }

    /// Stamps all objects, and then each that changes, until a list is needed.
    async fn pass(&self, backoff: &mut ExponentialBackoff) -> Result<(), NotStamped> {
        let path = DynamicObject::url_path(&self.kind.resource, None);
        let mut pages = Pages::<Meta>::new(self.client.clone(), path, ListParams::default());
        let mut seen = SeenObjects::default();
        loop {
            let turn = self.pace.page().await;
            let page = pages.next().await;
            drop(turn);
            let page = match page {
                Ok(Some(page)) => page,
                Ok(None) => break,
                // Objects are written meanwhile, which may take longer than a list lasts.
                Err(why) if pages.go_on(&why) => continue,
                Err(NotListed::Api(kube::Error::Api(status))) if status.is_forbidden() => {
                    return Err(NotStamped::Forbidden);
                }
                Err(why) => return Err(why.into()),
            };
            for object in page {
                self.stamp(&object, &mut seen).await?;
            }
        }
        *backoff = ExponentialBackoff::default();
        let (group, plural) = (&self.kind.resource.group, &self.kind.resource.plural);
        tracing::info!(group, plural, stamped = seen.stamped, "all objects were looked at");
        seen.log(&self.kind);
        let mut version = pages.first().unwrap_or_default().to_owned();
        loop {
            match self.watch(&mut version, &mut seen).await {
                Ok(WatchEnded::InTime) if seen.again.is_some_and(|at| at <= Instant::now()) => {
                    return Ok(());
                }
                Ok(WatchEnded::InTime) => {}
                Ok(WatchEnded::NeedsList) => return Ok(()),
                Err(NotStamped::Forbidden) => return Err(NotStamped::Forbidden),
                Err(why) => {
                    tracing::info!(group, plural, error = chain(&why), "the watch begins again");
                    sleep(backoff.next().unwrap_or(FORBIDDEN)).await;
                }
            }
        }
    }

    /// Stamps each object that changes from a version on, until the watch ends.
    async fn watch(
        &self,
        version: &mut String,
        seen: &mut SeenObjects,
    ) -> Result<WatchEnded, NotStamped> {
        let path = DynamicObject::url_path(&self.kind.resource, None);
        let params = WatchParams::default().timeout(WATCH);
        let request = Request::new(path).watch_metadata(&params, version);
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.pace.turn().await;
        let begun = timeout(ANSWER, self.client.request_events::<Object>(request)).await;
        let events = match begun.map_err(|_| NotStamped::Silent)? {
            Err(kube::Error::Api(status)) if status.code == 410 => {
                return Ok(WatchEnded::NeedsList);
            }
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                return Err(NotStamped::Forbidden);
            }
            events => events?,
        };
        let mut events = std::pin::pin!(events);
        loop {
            let silent = Instant::now() + Duration::from_secs(2 * u64::from(WATCH));
            let until =
                [seen.again, seen.logs_at()].into_iter().flatten().fold(silent, Instant::min);
            let event = match timeout_at(until, events.try_next()).await {
                Ok(event) => event?,
                Err(_) if until == silent => return Err(NotStamped::Silent),
                Err(_) if seen.again == Some(until) => return Ok(WatchEnded::NeedsList),
                Err(_) => {
                    seen.log(&self.kind);
                    continue;
                }
            };
            match event {
                None => return Ok(WatchEnded::InTime),
                Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                    self.stamp(&object.metadata, seen).await?;
                    *version = object.metadata.resource_version;
                }
                Some(WatchEvent::Deleted(object)) => *version = object.metadata.resource_version,
                Some(WatchEvent::Bookmark(mark)) => *version = mark.metadata.resource_version,
                Some(WatchEvent::Error(status)) if status.code == 410 => {
                    return Ok(WatchEnded::NeedsList);
                }
                Some(WatchEvent::Error(status)) => return Err(kube::Error::Api(status).into()),
            }
        }
    }

    /// Stamps an object, if it has to be. Fails only with what holds for all objects of the kind.
    async fn stamp(&self, object: &Meta, seen: &mut SeenObjects) -> Result<(), NotStamped> {
        let keys = &self.shared.config.label_keys;
        let labels = match step(object, self.kind.are_namespaces, keys) {
            LabelStep::None => return Ok(()),
            LabelStep::Foreign(key) => {
                self.shared.metrics.stamped(Counted::Foreign);
                seen.foreign.add(object, &key);
                return Ok(());
            }
            LabelStep::Stamp(labels) => labels,
        };
        let mut backoff = ExponentialBackoff::default();
        let mut why = "the API server has trouble".to_owned();
        for _ in 0..ATTEMPTS {
            self.pace.turn().await;
            let error = match timeout(ANSWER, self.write(object, &labels)).await {
                Ok(Ok(())) => {
                    self.shared.metrics.stamped(Counted::Ok);
                    seen.stamped += 1;
                    return Ok(());
                }
                Ok(Err(error)) => Some(error),
                Err(_) => None,
            };
            match &error {
                // It is gone, or someone was faster: an event says which.
                Some(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(()),
                Some(kube::Error::Api(status)) if lacks_right(&status.message) => {
                    self.shared.metrics.stamped(Counted::Failed);
                    return Err(NotStamped::Forbidden);
                }
                Some(kube::Error::Api(status)) if status.code < 500 && status.code != 429 => {
                    // Its message may quote values of the object.
                    why = format!("{} {}", status.code, status.reason);
                    break;
                }
                _ => sleep(backoff.next().unwrap_or(FORBIDDEN)).await,
            }
        }
        self.shared.metrics.stamped(Counted::Failed);
        seen.again.get_or_insert_with(|| Instant::now() + AGAIN);
        seen.failed.add(object, &why);
        Ok(())
    }

    /// Writes labels, but none that someone else has written, and no object that is gone.
    async fn write(
        &self,
        object: &Meta,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), kube::Error> {
        let namespace = Some(&*object.namespace).filter(|namespace| !namespace.is_empty());
        let path = DynamicObject::url_path(&self.kind.resource, namespace);
        let applied = json!({
            "apiVersion": self.kind.resource.api_version,
            "kind": self.kind.resource.kind,
            // The uid: an object that is gone would be created.
            "metadata": { "name": object.name, "uid": object.uid, "labels": labels },
        });
        let params = PatchParams::apply(MANAGER);
        let request = Request::new(path).patch(&object.name, &params, &Patch::Apply(&applied));
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(METADATA));
        self.client.request::<IgnoredAny>(request).await.map(drop)
    }
}

/// The objects that were looked at.
#[derive(Debug, Default)]
struct SeenObjects {
    stamped: u64,
    /// The objects that were left alone, and those that could not be written, since both were logged.
    foreign: Unlabelled,
    failed: Unlabelled,
    logged: Option<Instant>,
    /// The time of the next list. `None` if each object that was to be written was.
    again: Option<Instant>,
}

/// Some objects, by the first of them.
#[derive(Debug, Default)]
struct Unlabelled {
    count: u64,
    first: Option<String>,
}

impl Unlabelled {
    fn add(&mut self, object: &Meta, why: &str) {
        self.count += 1;
        self.first.get_or_insert_with(|| format!("{}: {why}", object.key()));
    }
}

impl SeenObjects {
    /// The time at which there is something to log. `None` if there is nothing.
    fn logs_at(&self) -> Option<Instant> {
        let is_any = self.foreign.first.is_some() || self.failed.first.is_some();
        let at = self.logged.map_or_else(Instant::now, |logged| logged + LOG);
        is_any.then_some(at)
    }

    /// Logs the objects that have no labels of ours: there may be many, and each may change often.
    fn log(&mut self, kind: &Stamped) {
        let (group, plural) = (&kind.resource.group, &kind.resource.plural);
        if let Unlabelled { count, first: Some(first) } = std::mem::take(&mut self.foreign) {
            tracing::warn!(group, plural, count, first, "objects keep labels of someone else's");
        }
        if let Unlabelled { count, first: Some(first) } = std::mem::take(&mut self.failed) {
            tracing::warn!(group, plural, count, first, "objects are not stamped");
        }
        self.logged = Some(Instant::now());
    }
}

impl Meta {
    fn key(&self) -> String {
        match self.namespace.is_empty() {
            true => self.name.clone(),
            false => format!("{}/{}", self.namespace, self.name),
        }
    }
}

/// The thing to do about an object of some kind.
fn step(object: &Meta, is_namespace: bool, keys: &LabelKeys) -> LabelStep {
    let namespace = if is_namespace { &object.name } else { &object.namespace };
    if object.deletion_timestamp.is_some() || namespace.is_empty() {
        return LabelStep::None;
    }
    let wanted = keys.of(namespace);
    let other =
        wanted.iter().find(|(key, value)| object.labels.get(*key).is_some_and(|is| is != *value));
    if let Some((key, _)) = other {
        return LabelStep::Foreign(key.clone());
    }
    match wanted.keys().all(|key| object.labels.contains_key(key)) {
        true => LabelStep::None,
        false => LabelStep::Stamp(wanted),
    }
}

/// Whether it was the manager's rights that refused a patch, and not a webhook, which answers 403 as well.
fn lacks_right(message: &str) -> bool {
    message.contains(" cannot patch resource ")
}

#[cfg(test)]
mod tests;
