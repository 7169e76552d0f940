//! The time at which a move of the shard's boundary counts as shown.
//!
//! Hides how long a client is waited for. Does not know how watches are brought over, or what waits.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::time::{sleep, timeout};

use super::{
    active::{DrainingPolicy, PolicyStore},
    disconnected::PAUSE,
};

/// The time that clients have to take the data under way to them. A client that reads nothing delays no pod for
/// longer. A watch that cannot be brought over ends before, and its client is disconnected.
const SHOWN: Duration = Duration::from_secs(15);
/// The time in which a controller works off what its watches have shown: it may have decided before the last
/// of them did.
const WORKED_OFF: Duration = Duration::from_secs(2);

impl DrainingPolicy {
    /// Waits until clients go by a later epoch: watches were brought over, or have ended and their clients
    /// are back.
    pub(crate) fn shown(
        &self,
        policy_store: &Arc<PolicyStore>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let brought_over = timeout(SHOWN, self.brought_over());
        let (policy_store, epoch) = (Arc::clone(policy_store), self.epoch);
        async move {
            let _ = brought_over.await;
            policy_store.have_come_back(epoch).await;
        }
    }
}

/// Notes when each move is shown, and when it is over.
pub(crate) async fn follow_moves(policy_store: Arc<PolicyStore>) {
    let mut changes = policy_store.changes();
    let mut under_way = FuturesUnordered::new();
    loop {
        for (former, moved) in policy_store.take_moves() {
            let shown = match former {
                Some(former) => former.shown(&policy_store).left_future(),
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
