//! The policies under which requests are under way: the present one, and former ones.
//!
//! Hides how their ends are noticed. Does not know what waits for them.

use std::{future::ready, sync::Arc, time::Instant};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::watch;

use crate::policy_store::{DrainingPolicy, PolicyStore};
use ctrlmesh_policy::{ByResource, Scope};

/// The epochs of one process.
pub(super) struct Epochs {
    policy_store: Arc<PolicyStore>,
    former: Vec<DrainingPolicy>,
    ends: FuturesUnordered<BoxFuture<'static, u64>>,
    /// Whether the process ends.
    is_ending: watch::Sender<bool>,
}

/// Writes of unknown end: where, and when the last was given up.
pub(super) type Loss = (ByResource<Arc<Scope>>, Instant);

impl Epochs {
    pub(super) fn new(policy_store: Arc<PolicyStore>) -> Self {
        let is_ending = watch::Sender::new(false);
        Self { policy_store, former: Vec::new(), ends: FuturesUnordered::new(), is_ending }
    }

    /// Follows an epoch that a later one has replaced, to its last request. It also waits until the epoch's
    /// watches show the later one, or the clients of ended watches are back. The end of the process ends this
    /// second wait. Returns the epoch's number and its area.
    pub(super) fn follow(&mut self, former: DrainingPolicy) -> (u64, ByResource<Arc<Scope>>) {
        let shown = former.shown(&self.policy_store);
        let mut is_ending = self.is_ending.subscribe();
        self.add(former, async move {
            tokio::select! {
                () = shown => {}
                // Without a proxy its clients write nothing more, and no one comes back to it.
                Ok(_) = is_ending.wait_for(|is| *is) => {}
            }
        })
    }

    /// Follows all epochs to their last requests alone.
    pub(super) fn end(&self) {
        self.is_ending.send_replace(true);
    }

    /// Follows the last epoch to its last request. Returns its number and its area.
    pub(super) fn follow_last(&mut self, last: DrainingPolicy) -> (u64, ByResource<Arc<Scope>>) {
        self.add(last, ready(()))
    }

    fn add(
        &mut self,
        over: DrainingPolicy,
        brought_over: impl Future<Output = ()> + Send + 'static,
    ) -> (u64, ByResource<Arc<Scope>>) {
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
        let present = self.policy_store.draining_policy();
        let all = self.former.iter().chain(&present);
        let lost = all.filter_map(|one| Some((one.requests.take_lost()?, one.sharding.area())));
        lost.map(|(at, area)| (area, at)).collect()
    }
}
