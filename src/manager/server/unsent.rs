//! Responses that their client has not taken yet.
//!
//! Hides how long a client may leave one unread. Does not know its content.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep},
};

/// The time in which a response is taken: twice as long as the API server waits for one.
const TAKEN: Duration = Duration::from_secs(10);

/// The responses of one connection that are not taken yet, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Unsent {
    since: Arc<Mutex<BTreeSet<(Instant, u64)>>>,
    next: Arc<AtomicU64>,
}

/// The bytes of a response, with the room that its request took: free again once they are sent.
struct Body {
    bytes: Vec<u8>,
    unsent: Unsent,
    key: (Instant, u64),
    _place: Option<OwnedSemaphorePermit>,
}

impl Unsent {
    /// The bytes of a response, which keep their place until they are sent.
    pub(super) fn body(&self, bytes: Vec<u8>, place: Option<OwnedSemaphorePermit>) -> Bytes {
        let key = (Instant::now(), self.next.fetch_add(1, Ordering::Relaxed));
        self.since.lock().insert(key);
        Bytes::from_owner(Body { bytes, unsent: self.clone(), key, _place: place })
    }

    /// Waits until a response was left unread for too long.
    pub(super) async fn stuck(&self) {
        loop {
            let oldest = self.since.lock().first().map(|(since, _)| since.elapsed());
            let left = TAKEN.saturating_sub(oldest.unwrap_or_default());
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.unsent.since.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_stuck_when_one_response_is_left_unread_whatever_else_is_read() {
        let unsent = Unsent::default();
        let is_stuck = async |unsent: &Unsent| timeout(TAKEN, unsent.stuck()).await.is_ok();
        assert!(!is_stuck(&unsent).await, "nothing is unread");
        for _ in 0..20 {
            drop(unsent.body(vec![1], None));
            advance(Duration::from_secs(1)).await;
        }
        assert!(!is_stuck(&unsent).await, "all was read");
        let left = unsent.body(vec![2], None);
        advance(TAKEN / 2).await;
        drop(unsent.body(vec![3], None));
        assert!(is_stuck(&unsent).await);
        assert_eq!(&*left, [2]);
        drop(left);
        assert!(!is_stuck(&unsent).await);
    }
}
