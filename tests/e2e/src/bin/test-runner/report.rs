//! The end of the output: tables, failures, what was slow, and the line that closes `cargo test`.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use crate::{committed::Judged, events::Verdict, running::Finished, steps::Step};

/// The number of slow tests that are listed.
const SLOWEST: usize = 20;

pub(crate) fn print(steps: &[Step], finished: &Finished, judged: &Judged, took: Duration) {
    print!("{}", text(steps, finished, judged, took));
}

/// The sums of a suite.
#[derive(Default)]
struct Suite {
    tests: usize,
    /// Seconds of all tests, one after the other.
    seconds: f64,
    cpu: f64,
    api_servers: usize,
    nodes: usize,
}

fn text(steps: &[Step], finished: &Finished, judged: &Judged, took: Duration) -> String {
    // Writing to a String does not fail.
    let mut text = String::new();
    let _ = write!(text, "\n{}", failures(finished));
    let _ = write!(text, "{}", table_of_steps(steps, finished));
    let _ = write!(text, "\n{}", table_of_suites(finished));
    let _ = write!(text, "\n{}", slowest(finished));
    let _ = write!(text, "\n{}", guard(judged, took));
    let (passed, failed) = (finished.count(Verdict::Passed), finished.count(Verdict::Failed));
    let failed = failed + finished.faults.len();
    let _ = writeln!(
        text,
        "\ntest result: {}. {passed} passed; {failed} failed; {} ignored; 0 measured; \
         0 filtered out; finished in {:.2}s",
        if failed == 0 { "ok" } else { "FAILED" },
        finished.count(Verdict::Ignored),
        finished.wall.as_secs_f64()
    );
    text
}

fn failures(finished: &Finished) -> String {
    let mut text = String::new();
    let failed = finished.tests.iter().filter(|(_, test)| test.verdict == Verdict::Failed);
    for (name, test) in failed {
        let _ = writeln!(text, "---- {name} failed ----\n{}\n", test.output.trim_end());
    }
    for (name, fault) in &finished.faults {
        let _ = writeln!(text, "---- {name} ----\n{fault}\n");
    }
    text
}

fn table_of_steps(steps: &[Step], finished: &Finished) -> String {
    let mut text = format!("{:<40} {:>8} {:>8}\n", "step", "wall s", "CPU s");
    let tests =
        Step { name: "tests".to_owned(), wall: finished.wall.as_secs_f64(), cpu: finished.cpu };
    for step in steps.iter().chain([&tests]) {
        let _ = writeln!(text, "{:<40} {:>8.0} {:>8.0}", step.name, step.wall, step.cpu);
    }
    let all = steps.iter().chain([&tests]);
    let (wall, cpu) = all.fold((0.0, 0.0), |(wall, cpu), step| (wall + step.wall, cpu + step.cpu));
    let _ = writeln!(text, "{:<40} {wall:>8.0} {cpu:>8.0}", "sum");
    text
}

fn table_of_suites(finished: &Finished) -> String {
    let mut suites: BTreeMap<&str, Suite> = BTreeMap::new();
    for group in &finished.groups {
        let suite = suites.entry(&group.suite).or_default();
        suite.cpu += group.cpu;
        suite.seconds += group.wall.as_secs_f64();
        suite.api_servers += group.api_servers;
        suite.nodes += group.nodes;
        suite.tests += group.tests;
    }
    let mut text = format!(
        "{:<24} {:>6} {:>8} {:>8} {:>11} {:>6}\n",
        "suite", "tests", "wall s", "CPU s", "API servers", "nodes"
    );
    let mut row = |name: &str, suite: &Suite| {
        let _ = writeln!(
            text,
            "{name:<24} {:>6} {:>8.0} {:>8.0} {:>11} {:>6}",
            suite.tests, suite.seconds, suite.cpu, suite.api_servers, suite.nodes
        );
    };
    let mut sum = Suite::default();
    for (name, suite) in &suites {
        row(name, suite);
        sum.tests += suite.tests;
        sum.seconds += suite.seconds;
        sum.cpu += suite.cpu;
        sum.api_servers += suite.api_servers;
        sum.nodes += suite.nodes;
    }
    row("sum", &sum);
    if finished.busy > 0.0 {
        let _ = writeln!(
            text,
            "while end-to-end groups ran, {:.0} % of all cores were busy; other programs took {:.0} %",
            finished.busy * 100.0,
            finished.others * 100.0
        );
    }
    text
}

fn slowest(finished: &Finished) -> String {
    let mut tests: Vec<_> = finished.tests.iter().collect();
    tests.sort_by(|(_, one), (_, other)| other.seconds.total_cmp(&one.seconds));
    let mut text = format!("the {} slowest tests\n", SLOWEST.min(tests.len()));
    for (name, test) in tests.into_iter().take(SLOWEST) {
        let _ = writeln!(text, "{:>8.1} s  {name}", test.seconds);
    }
    text
}

fn guard(judged: &Judged, took: Duration) -> String {
    let mut text = String::new();
    if !judged.unknown.is_empty() {
        let _ = writeln!(
            text,
            "{} tests have no committed time; record it by: scripts/test --record-times",
            judged.unknown.len()
        );
        for name in judged.unknown.iter().take(SLOWEST) {
            let _ = writeln!(text, "  {name}");
        }
    }
    for name in &judged.missing {
        let _ = writeln!(
            text,
            "missing: {name} has a committed time and does not exist; if it is gone on purpose: \
             scripts/test --record-times"
        );
    }
    for (name, seconds, committed, is_refused) in &judged.slow {
        let what = if *is_refused { "too slow" } else { "slow" };
        let _ =
            writeln!(text, "{what}: {name} took {seconds:.1} s; committed are {committed:.1} s");
    }
    if let Some(budget) = judged.exceeded {
        let _ = writeln!(
            text,
            "over budget: the run took {:.0} min; the budget of this machine is {:.0} min on two idle cores",
            took.as_secs_f64() / 60.0,
            budget.as_secs_f64() / 60.0
        );
    }
    if judged.is_disturbed() {
        let _ = writeln!(text, "other programs took {:.0} % of all cores", judged.others * 100.0);
    }
    let _ = writeln!(text, "the whole run took {:.0} s", took.as_secs_f64());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::{GroupReport, tests::finished};

    #[test]
    fn the_report_is_golden() {
        let mut run = finished(&[("e2e a::b", 61.5), ("proxy c", 0.5)]);
        if let Some(test) = run.tests.get_mut("proxy c") {
            test.verdict = Verdict::Failed;
            test.output = "thread 'c' panicked\n".to_owned();
        }
        run.faults.push((
            "group a::b".to_owned(),
            "it passed, and left what is removed now:\nsleep".to_owned(),
        ));
        run.wall = Duration::from_secs(70);
        (run.cpu, run.busy, run.others) = (90.0, 0.8, 0.12);
        let group = |suite: &str, api_servers, nodes| GroupReport {
            suite: suite.to_owned(),
            tests: 1,
            wall: Duration::from_secs(62),
            cpu: 45.0,
            api_servers,
            nodes,
        };
        run.groups = vec![group("e2e a", 2, 1), group("proxy", 0, 0)];
        let judged = Judged {
            slow: vec![("e2e a::b".to_owned(), 61.5, 5.0, true)],
            unknown: vec!["proxy c".to_owned()],
            missing: vec!["e2e gone".to_owned()],
            exceeded: Some(Duration::from_secs(35 * 60)),
            is_far_over_budget: false,
            others: 0.12,
        };
        let steps = [Step { name: "building".to_owned(), wall: 300.0, cpu: 500.0 }];
        let text = text(&steps, &run, &judged, Duration::from_secs(40 * 60));
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/test-runner/report.txt");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(golden, &text).unwrap();
        }
        let expected = std::fs::read_to_string(golden).unwrap_or_default();
        assert_eq!(text, expected, "run again with BLESS=1 and look at the diff");
    }
}
