//! The times of a handover.

use std::time::Duration;

/// A reading of the pod's own clock, which also runs while the machine sleeps.
pub type Time = Duration;

/// The times that things take, at most or at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// The time after which the own Lease is written again.
    pub renew_after: Duration,
    /// The time after which a Lease that was not renewed counts for nothing. `None`: never.
    pub silent_after: Option<Duration>,
    /// The longest that a request may take.
    pub longest: Duration,
    /// The time between the answer of a live API server and the end of earlier requests to it.
    pub settling: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            renew_after: seconds(10),
            silent_after: None,
            longest: seconds(60),
            settling: seconds(2),
        }
    }
}

impl Timing {
    /// The end of the validity of a Lease whose renewal was sent at `sent`: others count from later
    /// on, on clocks that may be 5 % faster.
    pub(super) fn valid_until(&self, sent: Time) -> Time {
        self.silent_after.map_or(Time::MAX, |silent_after| sent + silent_after.mul_f64(0.9))
    }
}
