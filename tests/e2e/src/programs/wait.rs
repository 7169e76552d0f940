//! Polling, for programs without an event to wait for.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Polls `ask` until it returns a value or an error, or `limit` is over.
///
/// Only for the start and the end of processes: a server that is not up yet cannot announce its
/// start, so its endpoint is polled. Everything with an event (a watch, a file that grows) is
/// waited for by that event.
///
/// # Errors
///
/// The first error of `ask`, and one that names `what` when `limit` is over.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            bail!("{what}: not so after {} s", limit.as_secs());
        }
        rest(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a process that starts or ends has no event that another process could wait for"
)]
fn rest(pause: Duration) {
    thread::sleep(pause);
}
