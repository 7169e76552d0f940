//! The time at which a move of the shard's boundary counts as shown.
//!
//! Hides how long a client is waited for. Does not know how watches are brought over, or what waits.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::time::{sleep, timeout};

use super::{
    absent::PAUSE,
    in_force::{Feed, LetThrough},
};

/// The time that clients have to take what is under way to them: one that reads nothing holds nobody
/// up for longer. A watch that cannot be brought over ends before, and its client is absent.
const SHOWN: Duration = Duration::from_secs(15);
/// The time in which a controller works off what its watches have shown: it may have decided before the last
/// of them did.
const WORKED_OFF: Duration = Duration::from_secs(2);

impl LetThrough {
    /// Waits until clients go by a later epoch: watches were brought over, or have ended and their clients
    /// are back.
    pub(crate) fn shown(&self, feed: &Arc<Feed>) -> impl Future<Output = ()> + Send + use<> {
        let brought_over = timeout(SHOWN, self.brought_over());
        let (feed, epoch) = (Arc::clone(feed), self.epoch);
        async move {
            let _ = brought_over.await;
            feed.have_come_back(epoch).await;
        }
    }
}

/// Notes when each move is shown, and when it is over.
pub(crate) async fn follow_moves(feed: Arc<Feed>) {
    let mut changes = feed.changes();
    let mut under_way = FuturesUnordered::new();
    loop {
        for (former, moved) in feed.take_moves() {
            let shown = match former {
                Some(former) => former.shown(&feed).left_future(),
                // The clients of the process before are not known.
                None => sleep(PAUSE).right_future(),
            };
            under_way.push(async move {
                shown.await;
                moved.set_shown();
                sleep(WORKED_OFF).await;
                moved.set_over();
            });
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            Some(()) = under_way.next() => {}
        }
    }
}
