//! The policies under which requests are under way: the present one, and former ones.
//!
//! Hides how their ends are noticed. Does not know what waits for them.

use std::{sync::Arc, time::Instant};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};

use crate::{
    policy::{Area, Scope},
    proxy::feed::{Feed, LetThrough},
};

/// The epochs of one process.
pub(super) struct Epochs {
    feed: Arc<Feed>,
    former: Vec<LetThrough>,
    ends: FuturesUnordered<BoxFuture<'static, u64>>,
}

/// Writes of unknown end: where, and when the last was given up.
pub(super) type Loss = (Area<Arc<Scope>>, Instant);

impl Epochs {
    pub(super) fn new(feed: Arc<Feed>) -> Self {
        Self { feed, former: Vec::new(), ends: FuturesUnordered::new() }
    }

    /// Follows an epoch that is over to its last request. Returns its number and its area.
    pub(super) fn follow(&mut self, over: LetThrough) -> (u64, Area<Arc<Scope>>) {
        let (id, area) = (over.epoch.get(), over.sharding.area());
        let requests = Arc::clone(&over.requests);
        self.ends.push(async move { requests.ended().await }.map(move |()| id).boxed());
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
