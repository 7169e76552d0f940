//! The committed times of the tests: a file of lines, one a test.

use std::{collections::BTreeMap, fmt::Write, fs, path::Path};

use anyhow::{Context, Result, bail, ensure};

use crate::{groups::Group, running::Finished};

/// The first line of the file.
const HEADER: &str =
    "# Seconds that each test takes in a whole run. Written by: scripts/test --record-times";

/// The time of each test in seconds, by the name of its executable and its own name. The
/// calibration is the one of the machine on which the times were measured.
#[derive(Debug, Default)]
pub(crate) struct Times {
    calibration: f64,
    seconds: BTreeMap<String, f64>,
}

impl Times {
    /// Reads the file. A file that does not exist has no times.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = match fs::read_to_string(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            text => text.with_context(|| format!("reading {}", file.display()))?,
        };
        Self::parse(&text).with_context(|| {
            format!(
                "{} is torn or was edited: restore it, or write it again by \
                 scripts/test --record-times after deleting it",
                file.display()
            )
        })
    }

    fn parse(text: &str) -> Result<Self> {
        let mut times = Self::default();
        let mut count = None;
        for (number, line) in text.lines().enumerate() {
            let bad = || format!("line {}: {line:?}", number + 1);
            ensure!(count.is_none(), "text after the count of tests: {}", bad());
            if line.starts_with('#') {
                continue;
            }
            let (first, rest) = line.split_once(' ').with_context(bad)?;
            match first {
                "calibration" => times.calibration = rest.parse().with_context(bad)?,
                "tests" => count = Some(rest.parse::<usize>().with_context(bad)?),
                seconds => {
                    let seconds: f64 = seconds.parse().with_context(bad)?;
                    ensure!(seconds.is_finite() && seconds >= 0.0, bad());
                    let before = times.seconds.insert(rest.to_owned(), seconds);
                    ensure!(before.is_none(), "{rest} has two times");
                }
            }
        }
        let Some(count) = count else {
            bail!("the last line, with the count of tests, is missing")
        };
        let there = times.seconds.len();
        ensure!(count == there, "it says {count} tests and has {there}");
        ensure!(times.calibration > 0.0, "it has no calibration");
        Ok(times)
    }

    /// Those of a run.
    pub(crate) fn of(finished: &Finished, calibration: f64) -> Self {
        let seconds = finished.tests.iter().map(|(name, test)| (name.clone(), test.seconds));
        Self { calibration, seconds: seconds.collect() }
    }

    /// Writes the file whole or not at all.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let unfinished = file.with_extension("unfinished");
        fs::write(&unfinished, self.text())
            .with_context(|| format!("writing {}", unfinished.display()))?;
        fs::rename(&unfinished, file).with_context(|| format!("writing {}", file.display()))
    }

    fn text(&self) -> String {
        let mut text = format!("{HEADER}\ncalibration {:.3}\n", self.calibration);
        for (name, seconds) in &self.seconds {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{seconds:.1} {name}");
        }
        let _ = writeln!(text, "tests {}", self.seconds.len());
        text
    }

    /// The names with a time.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.seconds.keys().map(String::as_str)
    }

    pub(crate) fn of_test(&self, name: &str) -> Option<f64> {
        self.seconds.get(name).copied()
    }

    /// The time that a group is expected to take. `None` if one of its tests has no time.
    pub(crate) fn of_group(&self, group: &Group) -> Option<f64> {
        let times = group.tests.iter().map(|test| self.of_test(&group.key(test)));
        let times: Vec<f64> = times.collect::<Option<_>>()?;
        let longest = times.iter().copied().fold(0.0, f64::max);
        Some(longest.max(times.iter().sum::<f64>() / group.threads as f64))
    }

    /// How many times as slow as the committed times' machine this one is, at least 1.
    pub(crate) fn scale(&self, calibration: f64) -> f64 {
        if self.calibration > 0.0 { (calibration / self.calibration).max(1.0) } else { 1.0 }
    }

    #[cfg(test)]
    pub(crate) fn from_seconds(seconds: &[(&str, f64)]) -> Self {
        let seconds = seconds.iter().map(|(name, seconds)| ((*name).to_owned(), *seconds));
        Self { calibration: 1.0, seconds: seconds.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::{Weight, tests::group};

    #[test]
    fn what_is_written_is_read_again() {
        let times = Times::from_seconds(&[("e2e a::b", 1.25), ("proxy c", 0.0)]);
        let read = Times::parse(&times.text()).unwrap();
        assert_eq!(read.names().collect::<Vec<_>>(), ["e2e a::b", "proxy c"]);
        assert_eq!(read.of_test("e2e a::b"), Some(1.2));
    }

    #[test]
    fn a_torn_file_is_refused_wherever_it_is_torn() {
        let text = Times::from_seconds(&[("e2e a", 1.0), ("e2e b", 2.0)]).text();
        assert!(Times::parse(&text).is_ok());
        for end in 0..text.len() - 1 {
            // Without the last digit of the count it is another count.
            let torn = Times::parse(&text[..end]);
            assert!(torn.is_err(), "{:?}", &text[..end]);
        }
        for wrong in ["x e2e c\n", "-1 e2e c\n", "1.0 e2e a\n", "NaN e2e c\n", "1.0\n"] {
            let text = text.replace("tests", &format!("{wrong}tests"));
            assert!(Times::parse(&text).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_group_takes_as_long_as_its_threads_or_its_longest_test() {
        let times = Times::from_seconds(&[("e2e a", 4.0), ("e2e b", 4.0), ("e2e c", 1.0)]);
        let mut group = group("a", Weight::ApiServer);
        group.tests = ["a", "b", "c"].map(str::to_owned).into();
        group.threads = 2;
        assert_eq!(times.of_group(&group), Some(4.5));
        group.threads = 9;
        assert_eq!(times.of_group(&group), Some(4.0));
        group.tests.push("new".to_owned());
        assert_eq!(times.of_group(&group), None);
    }

    #[test]
    fn a_slower_machine_gets_more_time_and_a_faster_one_not_less() {
        let times = Times::from_seconds(&[]);
        assert!((times.scale(1.5) - 1.5).abs() < 1e-9 && (times.scale(0.5) - 1.0).abs() < 1e-9);
    }
}
