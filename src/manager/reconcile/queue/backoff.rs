//! Backoff between writes of the same object.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::reconcile::key::WorkKey;

/// Pauses after failures, which double from the first to the last.
const FIRST: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_secs(60);
/// The time in which a watch shows what was written.
const SEEN: Duration = Duration::from_secs(2);

/// Pauses between writes of the same object, which has its own.
#[derive(Debug, Default)]
pub(super) struct WriteBackoff(BTreeMap<WorkKey, Pause>);

#[derive(Debug)]
struct Pause {
    until: Instant,
    /// The pause after the next failure.
    then: Duration,
}

impl WriteBackoff {
    /// Whether an object may be written.
    pub(super) fn may(&self, key: &WorkKey, now: Instant) -> bool {
        self.0.get(key).is_none_or(|pause| pause.until <= now)
    }

    /// Notes that an object was written: what differs until its watch shows that is no difference.
    pub(super) fn done(&mut self, key: WorkKey, now: Instant) {
        self.0.insert(key, Pause { until: now + SEEN, then: FIRST });
    }

    /// Notes that an object could not be written.
    pub(super) fn failed(&mut self, key: WorkKey, now: Instant) {
        let pause = self.0.entry(key).or_insert(Pause { until: now, then: FIRST });
        pause.until = now + pause.then + pause.then.mul_f32(fastrand::f32() / 2.0);
        pause.then = (pause.then * 2).min(LAST);
    }

    /// Notes that an object cannot be written, and is soon not wanted any more.
    pub(super) fn rest(&mut self, key: WorkKey, now: Instant) {
        self.0.insert(key, Pause { until: now + LAST, then: FIRST });
    }

    /// The time of the next round: when a pause ends, and no later than `latest`. Forgets entries
    /// that ended long ago.
    pub(super) fn next(&mut self, latest: Instant) -> Instant {
        let now = Instant::now();
        self.0.retain(|_, pause| pause.until + LAST > now);
        let ends = self.0.values().map(|pause| pause.until).filter(|until| *until > now);
        ends.chain([latest]).min().unwrap_or(latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(namespace: &str) -> WorkKey {
        WorkKey::new("ConfigMap", "", format!("{namespace}/bundle"))
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn failures_pause_longer_each_time_and_hold_up_nothing_else() {
        let start = Instant::now();
        let mut backoff = WriteBackoff::default();
        let one = bundle("one");
        let mut now = start;
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            backoff.failed(one.clone(), now);
            let until = backoff.0[&one].until;
            assert!(
                !backoff.may(&one, until - Duration::from_millis(1)) && backoff.may(&one, until)
            );
            assert!(until - now >= last && until - now <= LAST + LAST / 2, "{:?}", until - now);
            last = (last * 2).clamp(FIRST, LAST);
            now = until;
        }
        assert!(backoff.may(&bundle("two"), start));
        assert!(backoff.may(&WorkKey::new("RoleBinding", "", "one/rights"), start));
        backoff.done(one.clone(), now);
        backoff.failed(one.clone(), now + SEEN);
        assert!(backoff.may(&one, now + SEEN + seconds(2)), "after a success it begins again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_round_comes_when_a_pause_ends() {
        let start = Instant::now();
        let mut backoff = WriteBackoff::default();
        assert_eq!(backoff.next(start + LOOK), start + LOOK);
        backoff.done(bundle("one"), start);
        assert_eq!(backoff.next(start + LOOK), start + SEEN);
        tokio::time::advance(LAST + SEEN).await;
        backoff.next(start);
        assert!(backoff.0.is_empty());
    }

    const LOOK: Duration = Duration::from_secs(10);
}
