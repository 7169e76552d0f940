//! Facts of a resource that no path shows: whether it is namespaced, and its verbs.
//!
//! Hides the form of the API server's discovery. Whether a resource is namespaced is requested once
//! for each connection and resource, in the client's name: only one name over all namespaces depends
//! on it.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use percent_encoding::utf8_percent_encode;

use super::{behalf::ClientContext, connection::Upstream};
use crate::outcome::Why;
use ctrlmesh_policy::{GroupResource, Sharding};
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

/// The error where discovery does not answer, or not with the resource.
pub(crate) struct Undiscovered;

/// Whether the resource of a request is namespaced, if the decision about the request depends on it. If
/// discovery fails, it is requested again the next time.
pub(crate) async fn namespaced(
    upstream: &Upstream,
    sharding: &Sharding,
    info: &RequestInfo<'_>,
    own: ClientContext<'_>,
) -> Result<Option<bool>, Undiscovered> {
    let Some(resource) = info.resource().filter(|_| sharding.depends_on_namespaced(info)) else {
        return Ok(None);
    };
    // Boxed, as most requests do not need it.
    let known = Box::pin(is_namespaced(upstream, resource, own)).await;
    known.ok_or(Undiscovered).map(Some)
}

async fn is_namespaced(
    upstream: &Upstream,
    resource: &Resource<'_>,
    own: ClientContext<'_>,
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
