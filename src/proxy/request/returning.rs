//! A watch that comes back at a position that its client may have been shown under another scope.
//!
//! Instead of a 410, which clients that compare no lists take for nothing, it gets the difference
//! between each such scope and the present one, exactly as of its position. That is right whichever of them the
//! client has: an object that it has already comes again, and one that it has not ends again. Hides how the
//! scopes are compared. Does not know how they are remembered.

use std::time::Duration;

use tokio::time::timeout;

use super::{answer::Stop, present};
use crate::{
    collection::{Collection, expired},
    config::OnChange,
    shared::Pair,
    streams::{Lists, Moved, Prelude},
    upstream::ClientContext,
};
use ctrlmesh_wire::{RequestInfo, media::Encoding};

/// Timeout of all lists together, in HTTP/2. In HTTP/1.1 a request that is given up takes the
/// connection along, on which the client's own comes next.
const LIMIT: Duration = Duration::from_secs(10);

/// The events for a client that has come back.
pub(super) struct Returned {
    pub(super) prelude: Prelude,
    /// Their encoding. `None` if nothing was listed.
    pub(super) encoding: Option<Encoding>,
}

/// Finds the events that bring the client to the present scope. Fails with `Expired` if it cannot: the
/// client has to list again.
pub(super) async fn come_back(
    pair: &Pair,
    info: &RequestInfo<'_>,
    own: ClientContext<'_>,
    collection: &mut Collection,
) -> Result<Returned, Stop> {
    let positions = pair.upstream.server.positions.get().ok_or_else(expired)?;
    let by_difference = pair.worker.shared.on_change == OnChange::Difference;
    if !by_difference || !collection.may_return(positions) {
        return Err(expired().into());
    }
    // After a restart it is not known how high the positions of former scopes are.
    present::settle(pair, info, own, collection).await?;
    collection.comes_back(&mut pair.grants.borrow_mut(), positions)?;
    let found = find(pair, info, own, collection);
    let found = match pair.upstream.is_h2() {
        true => timeout(LIMIT, found).await.ok().flatten(),
        false => found.await,
    };
    found.ok_or_else(|| {
        pair.grants.borrow_mut().leave(collection.key);
        expired().into()
    })
}

async fn find(
    pair: &Pair,
    info: &RequestInfo<'_>,
    own: ClientContext<'_>,
    collection: &Collection,
) -> Option<Returned> {
    let shared = &pair.worker.shared;
    let at = collection.from?;
    let (upstream, clock) = (&pair.upstream, &shared.clock);
    let mut lists = Lists { upstream, own, info, at, clock, encoding: None };
    let mut moved = Moved::of_several(&shared.moved);
    for former in &collection.former {
        lists.add(former, &collection.active.sharding, &mut moved).await?;
    }
    let encoding = lists.encoding;
    let bookmark = match moved.is_empty() || collection.hides_bookmarks {
        true => None,
        false => Some(moved.bookmark(at, encoding?)?),
    };
    Some(Returned { prelude: moved.into_prelude(bookmark), encoding })
}
