//! What a test executable says in libtest's JSON lines. Knows no process.
//!
//! The format is not stable: <https://github.com/rust-lang/rust/issues/49359>. A stable compiler
//! has it where `RUSTC_BOOTSTRAP=1` is set for the executable, which is how editors read it.

use serde::Deserialize;

/// The bytes of a line that are kept at its start and at its end: a failed test's output is one line.
pub(crate) const KEPT: usize = 64 << 10;

/// The arguments by which an executable says these lines.
pub(crate) const ARGS: [&str; 5] =
    ["-Z", "unstable-options", "--format=json", "--report-time", "--exact"];

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Started(String),
    Ended(Ended),
}

/// A test with its result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    pub(crate) seconds: f64,
    /// What a failed test printed.
    pub(crate) output: String,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    Ignored,
}

#[derive(Deserialize)]
struct Line {
    r#type: String,
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    exec_time: f64,
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    message: String,
}

/// Reads one line. `None` for a line that is no result of a test, such as the output of a child
/// process.
pub(crate) fn read(line: &[u8]) -> Option<Event> {
    let line: Line = serde_json::from_slice(line).ok()?;
    if line.r#type != "test" {
        return None;
    }
    let verdict = match &*line.event {
        "started" => return Some(Event::Started(line.name)),
        "ok" => Verdict::Passed,
        "failed" => Verdict::Failed,
        "ignored" => Verdict::Ignored,
        _ => return None,
    };
    let output = line.stdout + &line.message;
    Some(Event::Ended(Ended { name: line.name, verdict, seconds: line.exec_time, output }))
}

/// Collects bytes to a line, of which it keeps the start and the end.
#[derive(Default)]
pub(crate) struct LineOf {
    start: Vec<u8>,
    end: Vec<u8>,
    left_out: usize,
}

impl LineOf {
    /// Takes more of the line.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        let room = KEPT - self.start.len();
        if room > 0 {
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.start.extend_from_slice(now);
            bytes = rest;
        }
        self.end.extend_from_slice(bytes);
        if self.end.len() > 2 * KEPT {
            let excess = self.end.len() - KEPT;
            self.end.drain(..excess);
            self.left_out += excess;
        }
    }

    /// The line. One that was cut is JSON again: both ends are cut at a line of the output in it,
    /// which JSON writes as `\n`.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let Self { mut start, mut end, left_out } = std::mem::take(self);
        if left_out > 0 {
            start.truncate(last_break(&start).unwrap_or(start.len()));
            end.drain(..first_break(&end).unwrap_or(0));
            start.extend(format!("\\n[{left_out} bytes are left out]").into_bytes());
        }
        start.append(&mut end);
        start
    }
}

/// The start of the last `\n` that is no part of `\\n`.
fn last_break(text: &[u8]) -> Option<usize> {
    (1..text.len().saturating_sub(1)).rev().find(|&at| is_break(text, at))
}

fn first_break(text: &[u8]) -> Option<usize> {
    (1..text.len().saturating_sub(1)).find(|&at| is_break(text, at))
}

fn is_break(text: &[u8], at: usize) -> bool {
    &text[at..at + 2] == b"\\n" && text[at - 1] != b'\\'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_tests_are_read_and_all_else_is_not() {
        let started = br#"{ "type": "test", "event": "started", "name": "a::b" }"#;
        assert_eq!(read(started), Some(Event::Started("a::b".to_owned())));
        let failed = br#"{ "type": "test", "name": "a", "event": "failed", "exec_time": 1.5, "stdout": "x\ny" }"#;
        let ended = |name: &str, verdict, seconds, output: &str| {
            let (name, output) = (name.to_owned(), output.to_owned());
            Some(Event::Ended(Ended { name, verdict, seconds, output }))
        };
        assert_eq!(read(failed), ended("a", Verdict::Failed, 1.5, "x\ny"));
        let passed = br#"{ "type": "test", "name": "a", "event": "ok", "exec_time": 0.25 }"#;
        assert_eq!(read(passed), ended("a", Verdict::Passed, 0.25, ""));
        for other in [
            &br#"{ "type": "suite", "event": "started", "test_count": 2 }"#[..],
            br#"{ "type": "test", "event": "timeout", "name": "a" }"#,
            b"what a child printed",
            b"",
        ] {
            assert_eq!(read(other), None);
        }
    }

    #[test]
    fn a_line_of_100_mb_is_read_within_little_memory() {
        let mut line = LineOf::default();
        line.push(br#"{ "type": "test", "name": "a", "event": "failed", "exec_time": 2, "stdout": "first\n"#);
        let mut largest = 0;
        for number in 0..5_000_000 {
            line.push(format!("line \\\\n {number:06}\\n").as_bytes());
            largest = largest.max(line.end.capacity());
        }
        line.push(br#"last" }"#);
        assert!(largest < 4 * KEPT + 64, "{largest}");
        let Some(Event::Ended(ended)) = read(&line.take()) else { panic!("not read") };
        assert!(ended.output.starts_with("first\nline") && ended.output.ends_with("999999\nlast"));
        assert!(ended.output.contains("bytes are left out]"), "{}", ended.output.len());
        assert!(ended.output.len() < 4 * KEPT, "{}", ended.output.len());
    }
}
