//! Drain as two ends: [`Drain`] sets the deadline, [`Draining`] receives it.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};

/// Sets the deadline by which work must end.
#[derive(Debug)]
pub struct Drain(watch::Sender<Option<Instant>>);

/// The receiver of that deadline. Cheap to clone, one for each task.
#[derive(Clone, Debug)]
pub struct Draining(watch::Receiver<Option<Instant>>);

/// Makes the two ends.
pub fn channel() -> (Drain, Draining) {
    let (tx, rx) = watch::channel(None);
    (Drain(tx), Draining(rx))
}

impl Drain {
    /// Starts the drain: each holder of a [`Draining`] has `grace` to finish. A second call changes
    /// nothing.
    pub fn start(&self, grace: Duration) {
        self.start_until(Instant::now() + grace);
    }

    /// Starts the drain with this deadline.
    pub fn start_until(&self, end: Instant) {
        self.0.send_if_modified(|deadline| {
            let first = deadline.is_none();
            deadline.get_or_insert(end);
            first
        });
    }
}

impl Draining {
    /// Waits for the start and returns the deadline; the current time if the [`Drain`] was dropped
    /// instead.
    pub async fn begun(&mut self) -> Instant {
        match self.0.wait_for(Option::is_some).await {
            Ok(deadline) => deadline.unwrap_or_else(Instant::now),
            Err(_) => Instant::now(),
        }
    }

    /// The deadline; `None` before the start.
    pub fn deadline(&self) -> Option<Instant> {
        *self.0.borrow()
    }
}
