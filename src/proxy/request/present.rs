//! Positions that clients may hold and that we did not parse, settled by the API server's current
//! version.
//!
//! Hides the request: a consistent list of one object, which has the version of the newest write of
//! all (`resourceVersion` unset, KEP-2340), whichever API server responds.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::answer::{Answer, Follow, Stop};
use crate::{
    collection::Collection,
    outcome::Why,
    positions::Resume,
    shared::Pair,
    upstream::{ClientContext, METADATA, strip_hop_by_hop},
};
use ctrlmesh_wire::{RequestInfo, frames::ListItems, media::Encoding};

/// Timeout of the list, during which the client's request waits.
const LIMIT: Duration = Duration::from_secs(5);

/// Settles the bound of the positions that clients may hold of a collection. If that fails, the
/// bound stays unknown, and no client may resume once the scope has changed.
///
/// Some API servers close a connection after an anonymous request
/// (`UnauthenticatedHTTP2DOSMitigation`). So nothing is requested for anonymous clients, and a
/// response to credentials that are not accepted is the client's response too.
pub(super) async fn settle(
    pair: &Pair,
    info: &RequestInfo<'_>,
    own: ClientContext<'_>,
    collection: &mut Collection,
) -> Result<(), Stop> {
    if own.is_anonymous() || !collection.has_scope() {
        return Ok(());
    }
    let Some(question) = collection.position.question() else { return Ok(()) };
    let Some(path) = info.collection() else { return Ok(()) };
    let target = format!("{path}?limit=1");
    let answer = own.get(&pair.upstream, Why::Present, &target, METADATA, LIMIT).await;
    let Ok((mut head, body)) = answer.map(Response::into_parts) else { return Ok(()) };
    if head.status == StatusCode::UNAUTHORIZED {
        strip_hop_by_hop(&mut head.headers, false);
        let reply = Response::from_parts(head, ());
        return Err(Answer { reply, follow: Follow::Whole(body) }.into());
    }
    if let Some(version) = Some(body).filter(|_| head.status == StatusCode::OK).and_then(version) {
        collection.keep_position(&pair.upstream.server);
        collection.position.settle(question, version);
        pair.worker.shared.policy_store.has_settled();
    }
    Ok(())
}

fn version(list: Bytes) -> Option<Resume> {
    let mut items = ListItems::new(Encoding::Json)?;
    items.feed(&list, &mut |_| {}).ok()?;
    Resume::at(items.finish().ok()?.meta.resource_version)
}
