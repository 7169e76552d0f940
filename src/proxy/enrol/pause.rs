//! The pauses between requests to the manager, as a function of what came of the last.

use std::time::Duration;

/// The first pause, which each further failure doubles.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);
/// The longest pause while clients find no certificate that is valid and the manager is away: it
/// is missed, and costs no one anything.
const LONGEST_WITHOUT: Duration = Duration::from_secs(4);

/// The last failure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed {
    /// The number of failures since the last success.
    pub(super) times: u32,
    /// Whether the manager gave a response.
    pub(super) is_answered: bool,
    /// The pause that the response asked for.
    pub(super) retry_after: Option<Duration>,
    /// The time that the present certificate is still valid.
    pub(super) left: Duration,
}

impl Failed {
    /// The pause; `chance` is from 0 to 1, so that proxies which failed together do not come back
    /// together. The nearer the end of the certificate, the shorter it is.
    pub(super) fn pause(self, chance: f64) -> Duration {
        let longest = match self.is_answered {
            true => LONGEST,
            false => (self.left / 10).clamp(LONGEST_WITHOUT, LONGEST),
        };
        let doubled = FIRST * 2_u32.saturating_pow(self.times.saturating_sub(1).min(16));
        let own = doubled.min(longest).mul_f64(0.5 + chance / 2.0);
        let asked = self.retry_after.unwrap_or_default().min(LONGEST);
        own.max(asked.mul_f64(1.0 + chance / 10.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn seconds(failed: Failed) -> [f64; 2] {
        [0.0, 1.0].map(|chance| failed.pause(chance).as_secs_f64())
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_scatter_over_half_of_it() {
        let after = |times| {
            seconds(Failed { times, is_answered: true, retry_after: None, left: Duration::ZERO })
        };
        assert_eq!([1, 2, 3].map(after), [[0.5, 1.0], [1.0, 2.0], [2.0, 4.0]]);
        assert_eq!([7, 99, u32::MAX].map(after), [[30.0, 60.0]; 3]);
    }

    #[test]
    fn the_manager_is_looked_for_more_often_the_nearer_the_end() {
        let with =
            |left| seconds(Failed { times: 99, is_answered: false, retry_after: None, left })[1];
        let left = [Duration::ZERO, Duration::from_secs(40), Duration::from_secs(200), DAY];
        assert_eq!(left.map(with), [4.0, 4.0, 20.0, 60.0]);
    }

    #[test]
    fn what_the_manager_asks_for_is_waited_for_at_least_up_to_a_minute() {
        let asked = |retry_after| {
            let retry_after = Some(Duration::from_secs(retry_after));
            seconds(Failed { times: 1, is_answered: true, retry_after, left: DAY })
        };
        assert_eq!(asked(0), [0.5, 1.0]);
        assert_eq!(asked(30), [30.0, 33.0]);
        assert_eq!(asked(100_000), [60.0, 66.0]);
    }
}
