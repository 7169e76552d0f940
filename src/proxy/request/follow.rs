//! The treatment of a response's body: lists and watches are read on their way, errors are not.

use std::rc::Rc;

use http::{HeaderMap, StatusCode, header};

use super::{
    answer::{Answer, Follow, Stop},
    returning::Returned,
};
use crate::{
    collection::{Collection, expired},
    shared::Pair,
    streams::{BodyError, JudgedList, Treatment},
    upstream::UpstreamBody,
};
use ctrlmesh_policy::{Refusal, RequestAction};
use ctrlmesh_wire::media::Encoding;

/// Decides how the body is followed: lists and watches are read on their way, errors are not.
pub(super) async fn follow(
    pair: &Rc<Pair>,
    answer: Answer,
    action: &RequestAction,
    collection: Option<Collection>,
    returned: Option<Returned>,
) -> Result<Answer, Stop> {
    let Answer { mut reply, follow } = answer;
    let is_followed = |collection: &Collection| match collection.filter.is_each() {
        // Any success may have objects in it.
        true => reply.status().is_success(),
        false => reply.status() == StatusCode::OK,
    };
    let (body, collection) = match (follow, collection) {
        (Follow::Pass(body), Some(mut collection)) if is_followed(&collection) => {
            collection.keep_position(&pair.upstream.server);
            (body, collection)
        }
        (follow, _) => return Ok(Answer { reply, follow }),
    };
    let headers = reply.headers_mut();
    let encoding = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .and_then(Encoding::of_content_type);
    let follow = match (action, encoding) {
        (RequestAction::Watch(_), encoding) => {
            let readable = encoding.filter(|_| !headers.contains_key(header::CONTENT_ENCODING));
            watched(pair, body, collection, readable, returned)?
        }
        (_, encoding) if collection.filter.is_each() => {
            let list = judged(pair, headers, body, collection, encoding).await?;
            Follow::JudgedList(Box::new(list))
        }
        (_, encoding) => Follow::List(body, collection, encoding),
    };
    Ok(Answer { reply, follow })
}

fn watched(
    pair: &Pair,
    body: UpstreamBody,
    collection: Collection,
    encoding: Option<Encoding>,
    returned: Option<Returned>,
) -> Result<Follow, Stop> {
    let prelude = match returned {
        None => None,
        // The events have to be in the encoding of the watch.
        Some(returned)
            if encoding.is_none_or(|is| returned.encoding.is_some_and(|of| of != is)) =>
        {
            pair.grants.borrow_mut().leave(collection.key);
            return Err(expired().into());
        }
        Some(returned) => {
            pair.worker.shared.metrics.count_stream_change("returned");
            Some(returned.prelude)
        }
    };
    let Collection { filter: share, hides_bookmarks, .. } = &collection;
    let events = encoding
        .and_then(|encoding| Some((encoding, Treatment::new(encoding, share, *hides_bookmarks)?)));
    match events {
        Some((encoding, events)) => Ok(Follow::Watch(body, collection, encoding, events, prelude)),
        // The client may see all of it, so no event has to be parsed.
        None if !collection.is_limited() => {
            Ok(Follow::Watch(body, collection, Encoding::Json, Treatment::Unparsed, prelude))
        }
        None => {
            let why = "the API server answers this watch in an encoding that cannot be followed: \
                       ask for JSON, protobuf or CBOR";
            Err(Refusal::UnknownEncoding.because(why).into())
        }
    }
}

/// A list whose items are judged one by one. Nothing of it is sent before the first is judged.
async fn judged(
    pair: &Rc<Pair>,
    headers: &mut HeaderMap,
    body: UpstreamBody,
    collection: Collection,
    encoding: Option<Encoding>,
) -> Result<JudgedList, Stop> {
    let compression = headers.remove(header::CONTENT_ENCODING);
    // The body that is sent differs from the one that arrived.
    headers.remove(header::CONTENT_LENGTH);
    let is_gzip = compression.as_ref().is_some_and(|name| name == "gzip");
    let is_readable = is_gzip || compression.is_none();
    let list = encoding
        .filter(|_| is_readable)
        .and_then(|encoding| JudgedList::new(pair, body, collection, encoding, is_gzip));
    let Some(list) = list else {
        let why = "the API server answers this list in an encoding that cannot be judged item by \
                   item: ask for JSON, protobuf or CBOR, plain or in gzip";
        return Err(Refusal::UnknownEncoding.because(why).into());
    };
    list.begun().await.map_err(|error| match error {
        BodyError::Upstream(error) => Stop::Broken(error.into()),
        error @ BodyError::NoRoom => Refusal::NoRoom.because(error).into(),
        error => Refusal::UnreadableList.because(error).into(),
    })
}
