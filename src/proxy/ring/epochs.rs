//! The policies under which requests are under way: the present one, and former ones.
//!
//! Hides how their ends are noticed. Does not know what waits for them.

use std::{future::ready, sync::Arc, time::Instant};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::watch;

use crate::feed::{Feed, LetThrough};
use ctrlmesh_policy::{Area, Scope};

/// The epochs of one process.
pub(super) struct Epochs {
    feed: Arc<Feed>,
    former: Vec<LetThrough>,
    ends: FuturesUnordered<BoxFuture<'static, u64>>,
    /// Whether the process ends.
    is_ending: watch::Sender<bool>,
}

/// Writes of unknown end: where, and when the last was given up.
pub(super) type Loss = (Area<Arc<Scope>>, Instant);

impl Epochs {
    pub(super) fn new(feed: Arc<Feed>) -> Self {
        let is_ending = watch::Sender::new(false);
        Self { feed, former: Vec::new(), ends: FuturesUnordered::new(), is_ending }
    }

    /// Follows an epoch, behind which another is in force, to its last request, and until its watches
    /// show the other, or the clients of those that have ended are back, or the process ends. Returns
    /// its number and its area.
    pub(super) fn follow(&mut self, former: LetThrough) -> (u64, Area<Arc<Scope>>) {
        let shown = former.shown(&self.feed);
        let mut is_ending = self.is_ending.subscribe();
        self.add(former, async move {
            tokio::select! {
                () = shown => {}
                // Without a proxy its clients write nothing more, and nobody comes back to it.
                Ok(_) = is_ending.wait_for(|is| *is) => {}
            }
        })
    }

    /// Follows all epochs to their last requests alone.
    pub(super) fn end(&self) {
        self.is_ending.send_replace(true);
    }

    /// Follows the last epoch to its last request. Returns its number and its area.
    pub(super) fn follow_last(&mut self, last: LetThrough) -> (u64, Area<Arc<Scope>>) {
        self.add(last, ready(()))
    }

    fn add(
        &mut self,
        over: LetThrough,
        brought_over: impl Future<Output = ()> + Send + 'static,
    ) -> (u64, Area<Arc<Scope>>) {
        let (id, area) = (over.epoch.get(), over.sharding.area());
        let requests = Arc::clone(&over.requests);
        let ended = async move {
            brought_over.await;
            requests.ended().await;
        };
        self.ends.push(ended.map(move |()| id).boxed());
        self.former.push(over);
        (id, area)
    }

    /// Waits for the end of the last request of an epoch, and returns its number. For ever if none is
    /// over.
    pub(super) async fn ended(&mut self) -> u64 {
        match self.ends.next().await {
            Some(id) => id,
            None => std::future::pending().await,
        }
    }

    /// The number of requests under former epochs.
    pub(super) fn under_way(&self) -> usize {
        self.former.iter().map(|former| former.requests.under_way()).sum()
    }

    /// Forgets an epoch.
    pub(super) fn forget(&mut self, id: u64) {
        self.former.retain(|former| former.epoch.get() != id);
    }

    /// The writes that were lost since the last time.
    pub(super) fn losses(&self) -> Vec<Loss> {
        let present = self.feed.let_through();
        let all = self.former.iter().chain(&present);
        let lost = all.filter_map(|one| Some((one.requests.take_lost()?, one.sharding.area())));
        lost.map(|(at, area)| (area, at)).collect()
    }
}
