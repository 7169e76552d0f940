//! All log output of a test process, kept.

use std::{
    io,
    sync::{Mutex, Once},
};

use tracing_subscriber::{EnvFilter, fmt};

use super::TOKEN;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static ONCE: Once = Once::new();

struct Writer;

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps every line from now on, at verbose levels.
pub fn capture() {
    ONCE.call_once(|| {
        let filter =
            EnvFilter::new("info,ctrlmesh=trace,access=trace,rustls=debug,hyper=trace,h2=debug");
        fmt().with_env_filter(filter).with_ansi(false).with_writer(|| Writer).init();
    });
}

pub fn text() -> String {
    String::from_utf8_lossy(&LINES.lock().unwrap()).into_owned()
}

/// Whether a needle was ever logged.
pub fn contains(needle: &str) -> bool {
    memchr::memmem::find(&LINES.lock().unwrap(), needle.as_bytes()).is_some()
}

pub fn assert_no_token() {
    assert!(!contains(TOKEN), "the client's token was logged");
}
