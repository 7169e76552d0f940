//! Positions that clients may hold and that we did not parse, settled by the API server's current
//! version.

use super::answer::{Answer, Follow, Stop};
use crate::{
    proxy::{
        collection::Collection,
        shared::Pair,
        upstream::{OnBehalf, Present, present},
    },
    wire::RequestInfo,
};

/// Settles the bound of the positions that clients may hold of a collection. If that fails, the
/// bound stays unknown, and no client may resume once the scope has changed.
///
/// Some API servers close a connection after an anonymous request
/// (`UnauthenticatedHTTP2DOSMitigation`). So nothing is requested for anonymous clients, and a
/// response to credentials that are not accepted is the client's response too.
pub(super) async fn settle(
    pair: &Pair,
    info: &RequestInfo<'_>,
    own: OnBehalf<'_>,
    collection: &mut Collection,
) -> Result<(), Stop> {
    if own.is_anonymous() || !collection.has_scope() {
        return Ok(());
    }
    let Some(question) = collection.position.question() else { return Ok(()) };
    match present(&pair.upstream, info, own).await {
        Some(Present::Unauthorized(reply)) => {
            let (head, body) = reply.into_parts();
            let reply = http::Response::from_parts(head, ());
            return Err(Answer { reply, follow: Follow::Whole(body) }.into());
        }
        Some(Present::Version(version)) => {
            collection.keep_position(&pair.upstream.server);
            collection.position.settle(question, version);
            pair.worker.shared.feed.has_settled();
        }
        None => {}
    }
    Ok(())
}
