//! The API server's current version.
//!
//! Hides the request: a consistent list of one object, which has the version of the newest write of
//! all (`resourceVersion` unset, KEP-2340), whichever API server responds. Does not know what the
//! version is used for.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::Deserialize;

use super::{
    behalf::{MAX_ANSWER, METADATA, OnBehalf, in_time},
    connection::Upstream,
    hop_by_hop::strip_hop_by_hop,
};
use crate::{
    policy::positions::Resume,
    proxy::outcome::Why,
    wire::{RequestInfo, rv::ResourceVersion},
};

/// Timeout of the list, during which the client's request waits.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
}

/// The API server's response to the question.
pub(in crate::proxy) enum Present {
    Version(Resume),
    /// A 401: the server does not accept the client's credentials.
    Unauthorized(Box<Response<Bytes>>),
}

/// Requests the current version of a collection. `None` if that fails.
pub(in crate::proxy) async fn present(
    upstream: &Upstream,
    info: &RequestInfo<'_>,
    own: OnBehalf<'_>,
) -> Option<Present> {
    in_time(upstream, LIMIT, ask(upstream, info, own)).await?
}

async fn ask(upstream: &Upstream, info: &RequestInfo<'_>, own: OnBehalf<'_>) -> Option<Present> {
    let target = format!("{}?limit=1", info.collection()?);
    let request = own.request(upstream, Method::GET, &target, Some(METADATA), None).ok()?;
    let (mut head, body) = own.send(upstream, Why::Present, request).await.ok()?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await.ok()?.to_bytes();
    match head.status {
        StatusCode::OK => {
            let list: List = serde_json::from_slice(&body).ok()?;
            let version = ResourceVersion::parse(list.metadata.resource_version?.as_bytes());
            Resume::at(version).map(Present::Version)
        }
        StatusCode::UNAUTHORIZED => {
            strip_hop_by_hop(&mut head.headers, false);
            Some(Present::Unauthorized(Box::new(Response::from_parts(head, body))))
        }
        _ => None,
    }
}
