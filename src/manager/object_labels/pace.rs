//! The pace of requests, and of pages, which are large.

use std::{num::NonZeroU16, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep_until},
};

/// So many requests a second at most, and one page at once, of all who share it.
#[derive(Debug)]
pub(super) struct Pace {
    gap: Duration,
    next: Mutex<Instant>,
    pages: Semaphore,
}

impl Pace {
    pub(super) fn new(rate: NonZeroU16) -> Self {
        let gap = Duration::from_secs(1) / u32::from(rate.get());
        Self { gap, next: Mutex::new(Instant::now()), pages: Semaphore::new(1) }
    }

    /// Waits for the turn of one page, which ends when the permit is dropped.
    pub(super) async fn page(&self) -> Option<SemaphorePermit<'_>> {
        let permit = self.pages.acquire().await.ok();
        self.turn().await;
        permit
    }

    /// Waits for the turn of one request.
    pub(super) async fn turn(&self) {
        let turn = {
            let mut next = self.next.lock();
            let turn = (*next).max(Instant::now());
            *next = turn + self.gap;
            turn
        };
        sleep_until(turn).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn i15_one_page_is_read_at_once() {
        let pace = Pace::new(NonZeroU16::new(20).unwrap());
        let first = pace.page().await;
        let second = tokio::time::timeout(Duration::from_secs(60), pace.page()).await;
        assert!(second.is_err(), "two pages at once");
        pace.turn().await;
        drop(first);
        assert!(pace.page().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn i15_requests_keep_their_pace_whoever_makes_them() {
        let pace = Pace::new(NonZeroU16::new(20).unwrap());
        let start = Instant::now();
        let some = || async {
            for _ in 0..50 {
                pace.turn().await;
            }
        };
        tokio::join!(some(), some());
        // The first of a hundred waits for no one.
        assert!(start.elapsed() >= Duration::from_millis(99 * 50), "{:?}", start.elapsed());
        // A time without requests is not made up for.
        tokio::time::advance(Duration::from_secs(10)).await;
        let start = Instant::now();
        some().await;
        assert!(start.elapsed() >= Duration::from_millis(49 * 50), "{:?}", start.elapsed());
    }
}
