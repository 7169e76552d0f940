//! Wall-clock time as a value, so that a test can be ten years off, and the wait for a time.

use std::{
    fmt,
    future::pending,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls_pki_types::UnixTime;
use tokio::time::{Instant, sleep_until};

/// The clock for issuing and verifying certificates.
#[derive(Clone)]
pub struct Clock(Arc<dyn TimeProvider>);

impl Clock {
    /// The machine's own clock.
    pub fn system() -> Self {
        Self(Arc::new(DefaultTimeProvider))
    }

    /// The machine's clock, `offset` ahead.
    pub fn ahead_by(offset: Duration) -> Self {
        Self(Arc::new(Ahead(offset)))
    }

    /// Any other clock.
    pub fn of(provider: Arc<dyn TimeProvider>) -> Self {
        Self(provider)
    }

    /// The time in whole seconds, as in certificates; 1970 if the clock cannot be read: then no
    /// certificate is valid yet, and all are refused.
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.unix().as_secs())
    }

    /// The time for certificate checks.
    pub fn unix(&self) -> UnixTime {
        self.0.current_time().unwrap_or(UnixTime::since_unix_epoch(Duration::ZERO))
    }

    /// The clock for rustls.
    pub fn provider(&self) -> Arc<dyn TimeProvider> {
        Arc::clone(&self.0)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// Waits until a time, or for ever if there is none.
pub async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

#[derive(Debug)]
struct Ahead(Duration);

impl TimeProvider for Ahead {
    fn current_time(&self) -> Option<UnixTime> {
        let now = DefaultTimeProvider.current_time()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + self.0))
    }
}
