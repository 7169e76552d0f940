//! Client programs that print one line per event.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{ChildStdin, Command, ExitStatus},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::process::{Process, tied};

/// A running program with its output so far. Dropping it kills it.
pub struct Program {
    process: Process,
    stdin: Option<ChildStdin>,
    printed: Arc<Printed>,
}

#[derive(Default)]
struct Printed {
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Default)]
struct State {
    lines: Vec<Value>,
    has_ended: bool,
}

impl Program {
    /// Starts `command` as a process that ends with this one; its stderr goes to the file `log`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let mut mine = tied(command.get_program());
        mine.args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => mine.env(key, value),
                None => mine.env_remove(key),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            mine.current_dir(directory);
        }
        let mut process = Process::spawn_piped(name, mine, log)?;
        let (stdin, stdout) = process.take_pipes();
        let stdout = stdout.context("the pipe just asked for")?;
        let printed = Arc::new(Printed::default());
        let writer = Arc::clone(&printed);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                writer.add(line);
            }
            writer.lock().has_ended = true;
            writer.grown.notify_all();
        });
        Ok(Self { process, stdin, printed })
    }

    /// All lines printed so far: JSON values, or strings for lines that are not JSON.
    #[must_use]
    pub fn lines(&self) -> Vec<Value> {
        self.printed.lock().lines.clone()
    }

    /// The first line that `wanted` accepts, also of those printed already.
    ///
    /// # Errors
    ///
    /// When there is none in time, or the program ends without it; the error quotes its output.
    pub fn wait_for(&self, limit: Duration, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        self.wait_until(limit, |lines| lines.iter().find(|line| wanted(line)).cloned())
    }

    /// Calls `ask` with all lines after each new line, until it returns a value.
    ///
    /// # Errors
    ///
    /// As [`Self::wait_for`].
    pub fn wait_until<T>(
        &self,
        limit: Duration,
        mut ask: impl FnMut(&[Value]) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + limit;
        let mut state = self.printed.lock();
        loop {
            if let Some(answer) = ask(&state.lines) {
                return Ok(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.has_ended || left.is_zero() {
                let tail = state.lines.len().saturating_sub(20);
                let tail: Vec<String> = state.lines[tail..].iter().map(Value::to_string).collect();
                let why = if state.has_ended { "it has ended" } else { "time is up" };
                drop(state);
                return Err(self.process.failure(&format!(
                    "did not print what was waited for: {why}; its last lines:\n{}\n",
                    tail.join("\n")
                )));
            }
            let waited = self.printed.grown.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    ///
    /// When it does not read any more.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its standard input is closed")?;
        writeln!(stdin, "{line}").context("writing to the program")
    }

    /// Writes a line and waits for the next printed line whose field `event` is `event`.
    ///
    /// # Errors
    ///
    /// As [`Self::say`] and [`Self::wait_for`].
    pub fn ask(&mut self, line: &str, event: &str, limit: Duration) -> Result<Value> {
        let is_answer = |line: &&Value| line["event"] == event;
        let before = self.printed.lock().lines.iter().filter(is_answer).count();
        self.say(line)?;
        self.wait_until(limit, |lines| lines.iter().filter(is_answer).nth(before).cloned())
    }

    /// Closes its standard input and waits for its end; returns all lines that it printed.
    ///
    /// # Errors
    ///
    /// When it does not end in time or fails.
    pub fn finish(mut self, limit: Duration) -> Result<Vec<Value>> {
        self.stdin = None;
        let status = self.end(limit)?;
        if !status.success() {
            let lines = self.lines();
            let errors = lines.iter().filter(|line| !line["error"].is_null()).map(Value::to_string);
            let errors = errors.collect::<Vec<_>>().join("\n");
            return Err(self.process.failure(&format!("ended with {status}, saying {errors}")));
        }
        Ok(self.lines())
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    ///
    /// When it does not end in time.
    pub fn end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        let mut state = self.printed.lock();
        while !state.has_ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("the program has not ended after {} s", limit.as_secs());
            }
            let waited = self.printed.grown.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.process.wait()
    }

    /// Sends SIGTERM.
    ///
    /// # Errors
    ///
    /// When it has ended.
    pub fn terminate(&self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)
    }
}

impl Printed {
    fn add(&self, line: String) {
        let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
        self.lock().lines.push(line);
        self.grown.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
