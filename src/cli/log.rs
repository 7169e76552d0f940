//! Log output: JSON in a container, text on a terminal, written by a thread of its own.
//!
//! Lines go into a bounded buffer and leave it at most [`DELAY`] later in one system call: a line
//! a request costs no system call a request. A full buffer drops lines and says how many.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use super::line::JsonLine;

/// How long a line may wait.
const DELAY: Duration = Duration::from_millis(50);
/// What the buffer holds: a second of busy access lines.
const CAPACITY: usize = 4 << 20;
/// The writer is woken early at this fill.
const WAKE: usize = 256 << 10;

/// Ends the log: what is buffered is written when it is dropped.
#[derive(Debug)]
pub struct LogGuard {
    buffer: Buffer,
    thread: Option<thread::JoinHandle<()>>,
}

/// Begins to log to stderr. The environment variable `CTRLMESH_LOG` selects what, for example
/// `info,access=off`.
///
/// # Errors
/// When the thread cannot be made.
pub fn start() -> io::Result<LogGuard> {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let thread = thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || writer.write_until_closed(&mut io::stderr()))?;
    let filter = EnvFilter::try_from_env("CTRLMESH_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(buffer.clone());
    if io::stderr().is_terminal() {
        subscriber.init();
    } else {
        subscriber.event_format(JsonLine).init();
    }
    Ok(LogGuard { buffer, thread: Some(thread) })
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.buffer.lock().is_closed = true;
        self.buffer.0.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Buffer(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<u8>,
    dropped: u64,
    is_closed: bool,
}

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: &[u8]) {
        let mut state = self.lock();
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
            self.0.wake.notify_one();
        }
    }

    /// Sleeps while there is nothing, gathers for [`DELAY`] once there is something.
    fn write_until_closed(&self, to: &mut impl Write) {
        let mut spare = Vec::new();
        loop {
            let mut state = self.lock();
            while state.lines.is_empty() && !state.is_closed {
                state = self.0.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let gathering = |state: &mut State| !state.is_closed && state.lines.len() < WAKE;
            let waited = self.0.wake.wait_timeout_while(state, DELAY, gathering);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
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

impl<'a> MakeWriter<'a> for Buffer {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// One line: the formatter writes it in one call.
#[derive(Debug)]
struct Line<'a>(&'a Buffer);

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let buffer = Buffer::default();
        let line = vec![b'x'; CAPACITY / 2];
        for _ in 0..3 {
            buffer.add(&line);
        }
        buffer.lock().is_closed = true;
        let mut out = Vec::new();
        buffer.write_until_closed(&mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.bytes().filter(|b| *b == b'x').count(), CAPACITY);
        assert!(text.ends_with("{\"level\":\"WARN\",\"message\":\"1 log lines dropped\"}\n"));
    }
}
