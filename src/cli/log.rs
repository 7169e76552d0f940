//! Log output: JSON in a container, text on a terminal, written by a thread of its own.
//!
//! Lines go into a bounded buffer and are written at most [`DELAY`] later in one system call, so
//! that a request costs none of its own. A full buffer drops lines and logs their number.

use std::{
    env,
    ffi::OsStr,
    io::{self, IsTerminal, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

use super::line::JsonLine;

/// The maximum delay of a line.
const DELAY: Duration = Duration::from_millis(50);
/// The capacity of the buffer in bytes: a second of busy access lines.
const CAPACITY: usize = 4 << 20;
/// The fill in bytes at which the writer is woken early.
const WAKE: usize = 256 << 10;

/// The guard of the log: its drop writes the buffered lines.
#[derive(Debug)]
pub struct LogGuard {
    buffer: Arc<Buffer>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The environment variable that selects the targets and levels to log.
const VARIABLE: &str = "CTRLMESH_LOG";

/// The reason why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(
        "{VARIABLE} is {value:?}: {part:?} is neither a level (off, error, warn, info, debug, \
         trace) nor TARGET=LEVEL: give, for example, \"info,access=off\""
    )]
    Filter {
        value: String,
        /// The invalid part of it, between two commas.
        part: String,
    },
    #[error("cannot start the thread of the log")]
    Thread(#[from] io::Error),
}

/// Starts to log to stderr. The environment variable `CTRLMESH_LOG` selects the targets and levels,
/// for example `info,access=off`; unset or empty, it is `info`. Fails with [`LogError`]; nothing
/// was logged.
pub fn start() -> Result<LogGuard, LogError> {
    let filter = filter(env::var_os(VARIABLE).as_deref().unwrap_or_default())?;
    let buffer = Arc::<Buffer>::default();
    let writer = Arc::clone(&buffer);
    let thread = thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || writer.write_until_closed(&mut io::stderr()))?;
    let layer = tracing_subscriber::fmt::layer().with_writer(Arc::clone(&buffer));
    let filtered = tracing_subscriber::registry().with(filter);
    if io::stderr().is_terminal() {
        filtered.with(layer).init();
    } else {
        filtered.with(layer.event_format(JsonLine)).init();
    }
    Ok(LogGuard { buffer, thread: Some(thread) })
}

/// Reads levels by target; the longest prefix wins. Stricter than the library's own parser, which
/// takes `inof` for a target at the level `trace` and turns everything else off.
fn filter(value: &OsStr) -> Result<Targets, LogError> {
    let text = value.to_string_lossy();
    let mut targets = Targets::new().with_default(LevelFilter::INFO);
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let bad = || LogError::Filter { value: text.clone().into_owned(), part: part.to_owned() };
        targets = match part.split_once('=') {
            None => targets.with_default(level_of(part).ok_or_else(bad)?),
            Some((target, level)) if !target.trim().is_empty() => {
                targets.with_target(target.trim(), level_of(level.trim()).ok_or_else(bad)?)
            }
            Some(_) => return Err(bad()),
        };
    }
    Ok(targets)
}

fn level_of(word: &str) -> Option<LevelFilter> {
    let is_name = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic());
    word.parse().ok().filter(|_| is_name)
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.buffer.state.lock().is_closed = true;
        self.buffer.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Default)]
struct Buffer {
    state: Mutex<Queued>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queued {
    lines: Vec<u8>,
    dropped: u64,
    is_closed: bool,
}

impl Buffer {
    fn add(&self, line: &[u8]) {
        let mut state = self.state.lock();
        if state.lines.len() + line.len() > CAPACITY {
            state.dropped += 1;
            return;
        }
        let was_idle = state.lines.is_empty();
        let before = state.lines.len();
        state.lines.extend_from_slice(line);
        let is_full = before < WAKE && state.lines.len() >= WAKE;
        drop(state);
        if was_idle || is_full {
            self.wake.notify_one();
        }
    }

    /// Writes lines until the end: sleeps while the buffer is empty; gathers for [`DELAY`] after
    /// its first line.
    fn write_until_closed(&self, to: &mut impl Write) {
        let mut spare = Vec::new();
        loop {
            let mut state = self.state.lock();
            while state.lines.is_empty() && !state.is_closed {
                self.wake.wait(&mut state);
            }
            let gathering = |state: &mut Queued| !state.is_closed && state.lines.len() < WAKE;
            self.wake.wait_while_for(&mut state, gathering, DELAY);
            let (is_closed, dropped) = (state.is_closed, std::mem::take(&mut state.dropped));
            std::mem::swap(&mut state.lines, &mut spare);
            drop(state);
            let _ = to.write_all(&spare);
            if dropped > 0 {
                let _ = writeln!(
                    to,
                    "{{\"level\":\"WARN\",\"message\":\"{dropped} log lines dropped\"}}"
                );
            }
            spare.clear();
            spare.shrink_to(WAKE);
            if is_closed {
                return;
            }
        }
    }
}

/// The formatter writes each line in one call.
impl Write for &Buffer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn levels_of_targets_stand_beside_the_level_of_the_rest() {
        for (value, rest, access) in [
            ("", Some(Level::INFO), Some(Level::INFO)),
            (" , ", Some(Level::INFO), Some(Level::INFO)),
            ("warn", Some(Level::WARN), Some(Level::WARN)),
            ("off", None, None),
            ("access=off", Some(Level::INFO), None),
            ("debug,access=info", Some(Level::DEBUG), Some(Level::INFO)),
            (" ERROR , access = Trace", Some(Level::ERROR), Some(Level::TRACE)),
        ] {
            let targets = filter(OsStr::new(value)).unwrap();
            for (target, wanted) in [("ctrlmesh::proxy", rest), ("access", access)] {
                for level in [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
                    let is_wanted = wanted.is_some_and(|wanted| level <= wanted);
                    let is_on = targets.would_enable(target, &level);
                    assert_eq!(is_on, is_wanted, "{value:?}: {target} at {level}");
                }
            }
        }
    }

    #[test]
    fn a_filter_that_selects_nothing_names_the_part() {
        for (value, part) in [
            ("inof", "inof"),
            ("4", "4"),
            ("info,access=of", "access=of"),
            ("info,access=", "access="),
            ("info, =debug ,off", "=debug"),
            ("ctrlmesh[span]", "ctrlmesh[span]"),
        ] {
            let said = filter(OsStr::new(value)).unwrap_err().to_string();
            let wanted = format!("CTRLMESH_LOG is {value:?}: {part:?} is neither a level");
            assert!(said.starts_with(&wanted), "{said}");
        }
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let buffer = Buffer::default();
        let line = vec![b'x'; CAPACITY / 2];
        for _ in 0..3 {
            buffer.add(&line);
        }
        buffer.state.lock().is_closed = true;
        let mut out = Vec::new();
        buffer.write_until_closed(&mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.bytes().filter(|b| *b == b'x').count(), CAPACITY);
        assert!(text.ends_with("{\"level\":\"WARN\",\"message\":\"1 log lines dropped\"}\n"));
    }
}
