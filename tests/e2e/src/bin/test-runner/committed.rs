//! The guard: what a run took, compared with the committed times.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{groups, running::Finished, times::Times};

/// The longest time of a whole run on two idle cores, as fast as those that recorded the times.
const BUDGET: Duration = Duration::from_secs(35 * 60);

/// Above this share of the machine's processors, other programs excuse a run over its budget.
const OTHERS: f64 = 0.10;

/// How long a test may take, in seconds.
pub(crate) struct Limits {
    /// Above it the run names the test.
    pub(crate) named: f64,
    /// Above it the run is refused.
    pub(crate) refused: f64,
    /// Above it the test hangs, and its group is ended.
    pub(crate) hangs: f64,
}

impl Limits {
    /// Of a test with this committed time, on a machine so many times as slow.
    pub(crate) fn of(committed: Option<f64>, scale: f64) -> Self {
        let tripled = committed.map(|seconds| 3.0 * seconds * scale);
        let limit = |more: f64| tripled.map_or(f64::INFINITY, |tripled| tripled + more);
        let hangs = 600.0 * scale + tripled.unwrap_or(300.0);
        Self { named: limit(5.0), refused: limit(45.0), hangs }
    }
}

/// What the comparison found.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// Tests that took longer than committed: name, seconds, committed, whether it is refused.
    pub(crate) slow: Vec<(String, f64, f64, bool)>,
    /// Tests without a committed time.
    pub(crate) unknown: Vec<String>,
    /// Tests with a committed time that do not exist.
    pub(crate) missing: Vec<String>,
    /// The longest time of a whole run on this machine, if the run took longer. The next field says
    /// whether it took more than 1.5 times as long.
    pub(crate) exceeded: Option<Duration>,
    pub(crate) is_far_over_budget: bool,
    /// The share of the processors that other programs took.
    pub(crate) others: f64,
}

impl Judged {
    /// Whether `--enforce-times` refuses the run.
    pub(crate) fn is_refused(&self) -> bool {
        let is_slow = self.slow.iter().any(|(.., is_refused)| *is_refused);
        is_slow || !self.missing.is_empty() || (self.is_far_over_budget && !self.is_disturbed())
    }

    /// Whether other programs took much of the processors.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.others > OTHERS
    }
}

/// `listed`: all tests by executable. A run of only some tests misses none.
pub(crate) fn judge(
    times: &Times,
    listed: &BTreeMap<String, Vec<String>>,
    finished: &Finished,
    scale: f64,
    is_whole: bool,
    took: Duration,
) -> Judged {
    let mut judged = Judged { others: finished.others, ..Judged::default() };
    for (name, test) in &finished.tests {
        let Some(committed) = times.of_test(name) else {
            judged.unknown.push(name.clone());
            continue;
        };
        let limits = Limits::of(Some(committed), scale);
        if test.seconds > limits.named {
            let is_refused = test.seconds > limits.refused;
            judged.slow.push((name.clone(), test.seconds, committed, is_refused));
        }
    }
    judged.slow.sort_by(|one, other| other.1.total_cmp(&one.1));
    if is_whole {
        let there: BTreeSet<String> = listed
            .iter()
            .flat_map(|(executable, tests)| tests.iter().map(move |test| (executable, test)))
            .filter(|(_, test)| !groups::is_soak(test))
            .map(|(executable, test)| format!("{executable} {test}"))
            .collect();
        judged.missing =
            times.names().filter(|name| !there.contains(*name)).map(Into::into).collect();
        let budget = BUDGET.mul_f64(scale);
        judged.exceeded = (took > budget).then_some(budget);
        judged.is_far_over_budget = took > budget * 3 / 2;
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::tests::finished;

    fn judged(times: &[(&str, f64)], took: &[(&str, f64)], scale: f64) -> Judged {
        let listed: Vec<String> =
            took.iter().map(|(name, _)| name.split_once(' ').unwrap().1.to_owned()).collect();
        let listed = BTreeMap::from([("e2e".to_owned(), listed)]);
        let finished = finished(took);
        judge(&Times::from_seconds(times), &listed, &finished, scale, true, Duration::ZERO)
    }

    #[test]
    fn a_test_that_takes_three_times_as_long_is_named_and_one_of_45_s_more_is_refused() {
        let times = [("e2e a", 10.0)];
        let at = |seconds| judged(&times, &[("e2e a", seconds)], 1.0);
        assert!(at(34.0).slow.is_empty());
        assert!(at(36.0).slow.len() == 1 && !at(36.0).is_refused());
        assert!(at(76.0).is_refused());
        // A machine of half the speed.
        assert!(judged(&times, &[("e2e a", 64.0)], 2.0).slow.is_empty());
    }

    #[test]
    fn a_test_that_is_gone_is_refused_and_one_without_a_time_is_named() {
        let judged = judged(&[("e2e gone", 1.0)], &[("e2e new", 100.0)], 1.0);
        assert_eq!(judged.missing, ["e2e gone"]);
        assert_eq!(judged.unknown, ["e2e new"]);
        assert!(judged.is_refused() && judged.slow.is_empty());
    }

    #[test]
    fn a_run_far_over_its_budget_is_refused_unless_others_disturb_it() {
        let mut finished = finished(&[]);
        let mut at = |minutes: u64, scale, others| {
            finished.others = others;
            let took = Duration::from_secs(60 * minutes);
            judge(&Times::default(), &BTreeMap::new(), &finished, scale, true, took)
        };
        assert_eq!(at(34, 1.0, 0.0).exceeded, None);
        let over = at(40, 1.0, 0.0);
        assert!(over.exceeded == Some(BUDGET) && !over.is_refused());
        assert!(at(53, 1.0, 0.05).is_refused());
        let disturbed = at(53, 1.0, 0.2);
        assert!(!disturbed.is_refused() && disturbed.is_disturbed());
        // On a machine of half the speed.
        assert!(at(69, 2.0, 0.0).exceeded.is_none() && !at(104, 2.0, 0.0).is_refused());
        assert!(at(106, 2.0, 0.0).is_refused());
    }
}
