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
pub struct Outages(Mutex<Option<Instant>>);

impl Outages {
    /// Logs the failure, unless one was logged recently, and leaves the system time to recover.
    pub async fn sit_out(&self, error: &io::Error) {
        let is_due = {
            let mut last = self.0.lock();
            let is_due = last.is_none_or(|last| last.elapsed() >= SAY_AGAIN);
            if is_due {
                *last = Some(Instant::now());
            }
            is_due
        };
        if is_due {
            tracing::warn!(%error, "cannot accept");
        }
        sleep(BACK_OFF).await;
    }
}
