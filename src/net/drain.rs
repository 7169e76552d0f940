//! Drain as a pair of values: one end says «finish», the other end waits for the word.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};

/// Says when work must end.
#[derive(Debug)]
pub struct Drain(watch::Sender<Option<Instant>>);

/// Learns that work must end, and by when. Cheap to clone, one for each task.
#[derive(Clone, Debug)]
pub struct Draining(watch::Receiver<Option<Instant>>);

/// The two ends.
#[must_use]
pub fn channel() -> (Drain, Draining) {
    let (tx, rx) = watch::channel(None);
    (Drain(tx), Draining(rx))
}

impl Drain {
    /// Everybody who holds a [`Draining`] has `grace` to finish. A second call changes nothing.
    pub fn start(&self, grace: Duration) {
        self.start_until(Instant::now() + grace);
    }

    /// The same with the end of the time.
    pub fn start_until(&self, end: Instant) {
        self.0.send_if_modified(|deadline| {
            let first = deadline.is_none();
            deadline.get_or_insert(end);
            first
        });
    }
}

impl Draining {
    /// Waits for the word and gives the deadline. A dropped [`Drain`] means «now».
    pub async fn begun(&mut self) -> Instant {
        match self.0.wait_for(Option::is_some).await {
            Ok(deadline) => deadline.unwrap_or_else(Instant::now),
            Err(_) => Instant::now(),
        }
    }

    /// The deadline, once the word was given.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        *self.0.borrow()
    }
}
