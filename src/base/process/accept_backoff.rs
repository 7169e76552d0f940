//! Listeners that cannot accept for a while.

use std::{io, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// Interval between log lines about listeners that cannot accept.
const SAY_AGAIN: Duration = Duration::from_secs(1);
/// Pause in which a full file table may recover.
const BACK_OFF: Duration = Duration::from_millis(100);

/// The time when it was last logged that a listener cannot accept.
#[derive(Debug, Default)]
pub struct AcceptBackoff(Mutex<Option<Instant>>);

impl AcceptBackoff {
    /// Logs the failure, unless one was logged recently, and leaves the system time to recover.
    pub async fn wait(&self, error: &io::Error) {
        if self.is_due(Instant::now()) {
            tracing::warn!(%error, "cannot accept");
        }
        sleep(BACK_OFF).await;
    }

    /// Whether a failure at this time is to be logged.
    fn is_due(&self, now: Instant) -> bool {
        let mut last = self.0.lock();
        let is_due = last.is_none_or(|last| now.duration_since(last) >= SAY_AGAIN);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use tracing_subscriber::{Layer, layer::Context, prelude::*};

    use super::*;

    /// Counts log lines.
    struct Lines(Arc<AtomicUsize>);

    impl<S: tracing::Subscriber> Layer<S> for Lines {
        fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_that_cannot_accept_waits_and_logs_once_a_second() {
        let lines = Arc::new(AtomicUsize::new(0));
        let subscriber = tracing_subscriber::registry().with(Lines(Arc::clone(&lines)));
        let _kept = tracing::subscriber::set_default(subscriber);
        let (accept_backoff, start) = (AcceptBackoff::default(), Instant::now());
        for _ in 0..25 {
            accept_backoff.wait(&io::Error::from(io::ErrorKind::QuotaExceeded)).await;
        }
        assert_eq!(start.elapsed().as_millis() / 100, 25, "the file table has time to recover");
        assert_eq!(lines.load(Relaxed), 3);
    }

    #[test]
    fn one_line_a_second_tells_of_listeners_that_cannot_accept() {
        let (accept_backoff, start) = (AcceptBackoff::default(), Instant::now());
        let at = [0, 100, 999, 1000, 1001, 1999, 2500];
        let is_due = at.map(|millis| accept_backoff.is_due(start + Duration::from_millis(millis)));
        assert_eq!(is_due, [true, false, false, true, false, false, true]);
    }
}
