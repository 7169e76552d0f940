//! The API server's current version, requested if clients may hold positions that we did not parse.
//!
//! Hides the request: a consistent list of one object, which has the version of the newest write of
//! all (`resourceVersion` unset, KEP-2340), whichever API server responds. Does not know what the
//! version is used for.

use std::{rc::Rc, time::Duration};

use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;

use super::{
    Answer, Follow, OnBehalf,
    behalf::{METADATA, in_time},
    strip_hop_by_hop,
};
use crate::{
    policy::positions::Resume,
    proxy::{collection::Collection, outcome::Why, pair::Pair},
    wire::{RequestInfo, rv::ResourceVersion},
};

/// Timeout of the list, during which the client's request waits.
const LIMIT: Duration = Duration::from_secs(5);
/// Bytes of a list of one object's metadata at most.
const MAX_ANSWER: usize = 4 << 20;

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

/// Settles the bound of the positions that clients may hold of a collection. If that fails, the
/// bound stays unknown, and nobody may resume once the scope has changed.
///
/// Some API servers close a connection after an anonymous request
/// (`UnauthenticatedHTTP2DOSMitigation`). So nothing is requested for anonymous clients, and a
/// response to credentials that are not accepted is the client's response too.
pub(super) async fn settle(
    pair: &Rc<Pair>,
    info: &RequestInfo<'_>,
    own: OnBehalf<'_>,
    collection: &mut Collection,
) -> Option<Answer> {
    if own.is_anonymous() || !collection.has_scope() {
        return None;
    }
    let question = collection.position.question()?;
    match in_time(pair, LIMIT, present(pair, info, own)).await?? {
        Present::Unauthorized(answer) => return Some(*answer),
        Present::Version(version) => {
            let feed = &pair.worker.shared.feed;
            collection.keep_position(feed);
            collection.position.settle(question, version);
            feed.has_settled();
        }
    }
    None
}

enum Present {
    Version(Resume),
    Unauthorized(Box<Answer>),
}

async fn present(pair: &Pair, info: &RequestInfo<'_>, own: OnBehalf<'_>) -> Option<Present> {
    let target = format!("{}?limit=1", info.collection()?);
    let request = own.request(pair, Method::GET, &target, Some(METADATA), None).ok()?;
    let (mut head, body) = own.send(pair, Why::Present, request).await.ok()?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await.ok()?.to_bytes();
    match head.status {
        StatusCode::OK => {
            let list: List = serde_json::from_slice(&body).ok()?;
            let version = ResourceVersion::parse(list.metadata.resource_version.as_bytes());
            Resume::at(version).map(Present::Version)
        }
        StatusCode::UNAUTHORIZED => {
            strip_hop_by_hop(&mut head.headers, false);
            let reply = Response::from_parts(head, ());
            Some(Present::Unauthorized(Box::new(Answer { reply, follow: Follow::Whole(body) })))
        }
        _ => None,
    }
}
