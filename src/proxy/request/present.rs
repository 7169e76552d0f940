//! The present of the API server, asked for where clients may hold positions that were not read.
//!
//! Hides what is asked: a consistent list of one object, which has the version of the newest write
//! of all (`resourceVersion` unset, KEP-2340), whichever API server answers. Does not know what
//! becomes of the answer.

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

/// How long a client's request waits for it.
const LIMIT: Duration = Duration::from_secs(5);
/// A list of the metadata of one object.
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

/// Settles what clients may hold of a collection, where that is not known. Where it cannot be
/// found out it stays unknown, and nobody may resume.
///
/// Some API servers close a connection on which they do not know who asks
/// (`UnauthenticatedHTTP2DOSMitigation`). So nothing is asked for nobody, and what they say to
/// credentials that they do not take is the client's answer too.
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
