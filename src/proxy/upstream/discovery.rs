//! Facts of a resource that no path shows: whether it is namespaced, and its verbs.
//!
//! Hides the form of the API server's discovery. Whether a resource is namespaced is requested once
//! for each connection and resource, in the client's name: only one name over all namespaces depends
//! on it.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use percent_encoding::utf8_percent_encode;

use super::{behalf::OnBehalf, connection::Upstream};
use crate::outcome::Why;
use ctrlmesh_policy::{GroupResource, RequestAction, Sharding};
use ctrlmesh_wire::{RequestInfo, Resource, query::ESCAPED};

/// Timeout of a discovery request.
const LIMIT: Duration = Duration::from_secs(5);

/// A resource that an API server serves.
pub(crate) struct Served {
    pub(crate) is_namespaced: bool,
    verbs: Vec<String>,
}

impl Served {
    /// Reads a resource from the discovery of its group and version. `None` if it is not served.
    pub(crate) fn read(
        body: &[u8],
        resource: &Resource<'_>,
    ) -> Result<Option<Self>, serde_json::Error> {
        let list: APIResourceList = serde_json::from_slice(body)?;
        let found = list.resources.into_iter().find(|one| one.name == *resource.resource);
        Ok(found.map(|one| Self { is_namespaced: one.namespaced, verbs: one.verbs }))
    }

    /// Whether the API server has this verb for it.
    pub(crate) fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|one| one == verb)
    }
}

/// The path of the discovery of the resource's group and version.
pub(crate) fn path(resource: &Resource<'_>) -> String {
    group_path(&resource.group, &resource.version)
}

/// The path of the discovery of a group and version.
pub(crate) fn group_path(group: &str, version: &str) -> String {
    let segment = |text| utf8_percent_encode(text, ESCAPED);
    let version = segment(version);
    match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{}/{version}", segment(group)),
    }
}

/// The way of a request under `sharding`, with the knowledge of whether one name over all
/// namespaces is one object. If discovery fails, the error is the way of a
/// collection, and discovery is requested again the next time.
pub(crate) async fn settled_action(
    upstream: &Upstream,
    sharding: &Sharding,
    info: &RequestInfo<'_>,
    own: OnBehalf<'_>,
) -> Result<RequestAction, RequestAction> {
    let action = sharding.action(info);
    let Some(resource) = info.resource().filter(|_| action.depends_on_namespaced()) else {
        return Ok(action);
    };
    // Boxed, as most requests do not need it.
    match Box::pin(is_namespaced(upstream, resource, own)).await {
        Some(is_namespaced) => Ok(sharding.settled_action(info, is_namespaced)),
        None => Err(sharding.settled_action(info, true)),
    }
}

async fn is_namespaced(
    upstream: &Upstream,
    resource: &Resource<'_>,
    own: OnBehalf<'_>,
) -> Option<bool> {
    let key = GroupResource::of(resource);
    let known = upstream.understood.of(&key).and_then(|known| known.is_namespaced);
    if known.is_some() || own.is_anonymous() {
        return known;
    }
    let (path, accept) = (path(resource), HeaderValue::from_static("application/json"));
    let reply = own.get(upstream, Why::Discovery, &path, accept, LIMIT).await.ok()?;
    let body = Some(reply).filter(|reply| reply.status() == StatusCode::OK)?.into_body();
    let is_namespaced = Served::read(&body, resource).ok()??.is_namespaced;
    upstream.understood.note(key, |known| known.is_namespaced = Some(is_namespaced));
    Some(is_namespaced)
}
