//! A log file, line by line, as it grows.

use std::{
    fs::File,
    io::{BufRead, BufReader, ErrorKind},
    os::fd::AsFd,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::inotify::{AddWatchFlags, InitFlags, Inotify},
};

/// Reads a file from its start and follows it.
pub(crate) struct Lines {
    file: BufReader<File>,
    /// A line whose end may not be written yet.
    line: String,
    events: Inotify,
}

impl Lines {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        // Watched before the first read, so that no line is missed in between.
        let events = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        events.add_watch(path, AddWatchFlags::IN_MODIFY)?;
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { file: BufReader::new(file), line: String::new(), events })
    }

    /// The next line already written, without its end. `None` if there is none yet.
    pub(crate) fn next_written(&mut self) -> Result<Option<String>> {
        self.file.read_line(&mut self.line)?;
        if !self.line.ends_with('\n') {
            return Ok(None);
        }
        let mut line = std::mem::take(&mut self.line);
        line.pop();
        Ok(Some(line))
    }

    /// Waits until the file grows or a tick has passed. Fails after `deadline`.
    pub(crate) fn wait(&self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("no such line in time");
        }
        // A tick at most: the caller may have more to check than this file.
        let tick = left.min(Duration::from_millis(500));
        let mut polled = [PollFd::new(self.events.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::try_from(tick).unwrap_or(PollTimeout::MAX))?;
        match self.events.read_events() {
            Ok(_) => Ok(()),
            Err(error) if std::io::Error::from(error).kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
