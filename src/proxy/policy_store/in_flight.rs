//! The requests that a sharding has let through.
//!
//! Hides how the end of the last one is noticed, and that the end of some is unknown. Words: an end is
//! *known* if the API server answered below 500, or nothing was sent; a request that only reads has no
//! unknown end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst, fence},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{self, interval, sleep, timeout_at},
};

/// The time that the API server takes for a write at most (`--request-timeout`).
const LONGEST: Duration = Duration::from_secs(60);
/// Interval of looks whether a request that has taken longer is of a former sharding.
const LOOK: Duration = Duration::from_secs(1);

/// The requests of one epoch, watches aside.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    under_way: AtomicUsize,
    is_over: AtomicBool,
    ended: Notify,
    /// The time at which the last one was lost.
    lost: Mutex<Option<Instant>>,
    /// The signal that one was.
    has_lost: Arc<Notify>,
}

/// A request that a sharding has let through. Dropping it before its end is known is an unknown end.
#[derive(Debug)]
pub(crate) struct InFlightGuard {
    of: Arc<InFlight>,
    is_read: bool,
    /// The beginning of a write. `None` if it only reads.
    begun: Option<time::Instant>,
    /// Whether its end is known.
    is_ended: AtomicBool,
}

impl InFlight {
    /// The requests of a new epoch, which signal that one is lost.
    pub(super) fn signalling(has_lost: &Arc<Notify>) -> Self {
        Self { has_lost: Arc::clone(has_lost), ..Self::default() }
    }

    /// Begins one. `None` if the epoch is over.
    pub(super) fn begin(self: &Arc<Self>, is_read: bool) -> Option<InFlightGuard> {
        self.under_way.fetch_add(1, SeqCst);
        fence(SeqCst);
        let is_over = self.is_over.load(SeqCst);
        let is_ended = AtomicBool::new(is_read || is_over);
        let begun = (!is_read).then(time::Instant::now);
        let begun = InFlightGuard { of: Arc::clone(self), is_read, begun, is_ended };
        Some(begun).filter(|_| !is_over)
    }

    /// Notes that another epoch has begun: none begins any more.
    pub(super) fn are_over(&self) {
        self.is_over.store(true, SeqCst);
        // With that of `begin`: a request sees that they are over, or is seen by who counts.
        fence(SeqCst);
        self.ended.notify_one();
    }

    /// The number of those whose end has not come.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(SeqCst)
    }

    /// Waits for the end of the last request of an epoch that is over.
    pub(crate) async fn ended(&self) {
        while self.under_way() > 0 {
            self.ended.notified().await;
        }
    }

    /// The time at which the last one of unknown end was given up, since this was asked before.
    pub(crate) fn take_lost(&self) -> Option<Instant> {
        self.lost.lock().take()
    }
}

impl InFlightGuard {
    /// Whether it only reads.
    pub(crate) fn is_read(&self) -> bool {
        self.is_read
    }

    /// Notes that its end is known.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, SeqCst);
    }

    /// Waits for an answer for as long as a write may take, from its beginning.
    pub(crate) async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let begun = self.begun.unwrap_or_else(time::Instant::now);
        timeout_at(begun + LONGEST, answer).await.ok()
    }

    /// Waits until it has taken longer than a write may, and another epoch has begun.
    pub(crate) async fn overdue(&self) {
        sleep(LONGEST).await;
        let mut looks = interval(LOOK);
        while !self.of.is_over.load(SeqCst) {
            looks.tick().await;
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if !self.is_ended.load(SeqCst) {
            *self.of.lost.lock() = Some(Instant::now());
            self.of.has_lost.notify_one();
        }
        if self.of.under_way.fetch_sub(1, SeqCst) == 1 {
            self.of.ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, thread};

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_end_of_an_epoch_is_that_of_its_last_request() {
        let requests = Arc::new(InFlight::default());
        let (read, write) = (requests.begin(true).unwrap(), requests.begin(false).unwrap());
        requests.are_over();
        assert!(requests.begin(false).is_none());
        let mut ended = pin!(requests.ended());
        drop(read);
        assert_eq!(ended.as_mut().now_or_never(), None);
        write.end();
        drop(write);
        assert_eq!(ended.now_or_never(), Some(()));
        assert_eq!(requests.take_lost(), None);
    }

    #[test]
    fn a_write_that_is_dropped_has_an_unknown_end_and_a_read_has_none() {
        for (is_read, has_lost) in [(true, false), (false, true)] {
            let requests = Arc::new(InFlight::default());
            drop(requests.begin(is_read));
            assert_eq!(requests.take_lost().is_some(), has_lost);
            assert_eq!(requests.take_lost(), None);
            assert_eq!(requests.has_lost.notified().now_or_never().is_some(), has_lost);
        }
    }

    #[test]
    fn none_begins_unseen_while_an_epoch_ends() {
        for _ in 0..2000 {
            let requests = Arc::new(InFlight::default());
            let other = Arc::clone(&requests);
            let began = thread::spawn(move || other.begin(false));
            requests.are_over();
            let is_over = requests.under_way.load(SeqCst) == 0;
            let began = began.join().unwrap();
            assert!(began.is_none() || !is_over, "it was not counted");
        }
    }
}
