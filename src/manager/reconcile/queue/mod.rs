//! The work queue of the leader: writes by key.
//!
//! Hides how many writes are under way at once, and how long a key backs off. Does not know the written objects.
//! A slow key delays no other: it counts against the number at once for a moment only.

mod backoff;

use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until, timeout};

use self::backoff::WriteBackoff;
use super::{
    key::{ANSWER, NotWritten, WorkKey},
    reconciler::Work,
};

/// Writes at once that are not slow.
const AT_ONCE: usize = 8;
/// The time after which a write is slow. The API server answers most in 20 ms.
const SLOW: Duration = Duration::from_millis(250);
/// Most writes under way, slow ones included.
const MOST: usize = 256;

/// A write that has ended.
pub(super) type Ended = (WorkKey, Result<(), NotWritten>);

/// The writes that are due or under way.
#[derive(Default)]
pub(super) struct WorkQueue {
    ready: VecDeque<(WorkKey, Work)>,
    in_flight: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// The keys of those, and when each was sent.
    sent: BTreeMap<WorkKey, Instant>,
    backoff: WriteBackoff,
}

impl WorkQueue {
    /// Replaces the writes that were not sent yet. Those of a key that backs off, or is under way, come again
    /// in a later round.
    pub(super) fn replace(&mut self, due: impl IntoIterator<Item = (WorkKey, Work)>) {
        let now = Instant::now();
        let may = |key: &WorkKey| self.backoff.may(key, now) && !self.sent.contains_key(key);
        self.ready = due.into_iter().filter(|(key, _)| may(key)).collect();
        self.send();
    }

    /// Waits for the end of a write. Dropping it loses nothing.
    pub(super) async fn ended(&mut self) -> Ended {
        loop {
            let slow = self.next_slow();
            let is_slow = async {
                match slow {
                    Some(slow) => sleep_until(slow).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                Some((key, result)) = self.in_flight.next() => {
                    self.sent.remove(&key);
                    self.send();
                    return (key, result);
                }
                () = is_slow => self.send(),
                else => pending().await,
            }
        }
    }

    /// Notes that an object was written: what differs until its watch shows that is no difference.
    pub(super) fn written(&mut self, key: WorkKey) {
        self.backoff.done(key, Instant::now());
    }

    /// Notes that a write failed.
    pub(super) fn failed(&mut self, key: WorkKey) {
        self.backoff.failed(key, Instant::now());
    }

    /// Notes that an object cannot be written, and is soon not wanted any more.
    pub(super) fn rest(&mut self, key: WorkKey) {
        self.backoff.rest(key, Instant::now());
    }

    /// The time at which a key stops backing off, no later than `latest`.
    pub(super) fn next(&mut self, latest: Instant) -> Instant {
        self.backoff.next(latest)
    }

    fn send(&mut self) {
        let now = Instant::now();
        while self.sent.len() < MOST && self.fast(now) < AT_ONCE {
            let Some((key, work)) = self.ready.pop_front() else { return };
            self.sent.insert(key.clone(), now);
            let ending = async move {
                let result = timeout(ANSWER, work).await.unwrap_or(Err(NotWritten::Late));
                (key, result)
            };
            self.in_flight.push(ending.boxed());
        }
    }

    /// How many writes are under way and not slow.
    fn fast(&self, now: Instant) -> usize {
        self.sent.values().filter(|sent| now < **sent + SLOW).count()
    }

    /// When the next write gets slow, if others wait for that.
    fn next_slow(&self) -> Option<Instant> {
        let now = Instant::now();
        let slow = self.sent.values().map(|sent| *sent + SLOW).filter(|slow| *slow > now).min();
        slow.filter(|_| !self.ready.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::time::sleep;

    use super::*;

    fn key(number: usize) -> WorkKey {
        WorkKey::new("ConfigMap", "", format!("ns-{number}/bundle"))
    }

    fn work(takes: Duration) -> Work {
        sleep(takes).map(Ok).boxed()
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn a_slow_key_delays_no_other() {
        let mut queue = WorkQueue::default();
        let start = Instant::now();
        let slow = (0..16).map(|number| (key(number), work(LONG)));
        let fast = (16..20).map(|number| (key(number), work(Duration::from_millis(5))));
        queue.replace(slow.chain(fast));
        for number in 16..20 {
            let (ended, result) = queue.ended().await;
            assert_eq!(ended, key(number));
            assert!(result.is_ok() && start.elapsed() < Duration::from_secs(1));
        }
        // Those are given up, and back off.
        for _ in 0..16 {
            let (ended, result) = queue.ended().await;
            assert!(matches!(result, Err(NotWritten::Late)) && start.elapsed() >= ANSWER);
            queue.failed(ended);
        }
        queue.replace([(key(0), work(LONG)), (key(16), work(LONG))]);
        assert_eq!(queue.sent.keys().collect::<Vec<_>>(), [&key(16)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_keys_are_written_eight_at_a_time() {
        let mut queue = WorkQueue::default();
        let [running, most] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let work = |_: usize| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            let work = async move {
                most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                sleep(Duration::from_millis(10)).await;
                running.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            };
            work.boxed()
        };
        queue.replace((0..1000).map(|number| (key(number), work(number))));
        let start = Instant::now();
        for _ in 0..1000 {
            let (ended, _) = queue.ended().await;
            queue.written(ended);
        }
        assert_eq!(most.load(Ordering::Relaxed), AT_ONCE);
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_under_way_is_not_sent_twice() {
        let mut queue = WorkQueue::default();
        queue.replace([(key(0), work(Duration::from_secs(1)))]);
        queue.replace([(key(0), work(Duration::from_secs(1))), (key(1), work(LONG))]);
        assert_eq!((queue.sent.len(), queue.ready.len(), queue.in_flight.len()), (2, 0, 2));
        assert_eq!(queue.ended().await.0, key(0));
    }
}
