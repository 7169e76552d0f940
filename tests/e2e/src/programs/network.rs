//! The network of a program or a connection of the test: this machine's, or a node's own.

use std::{ffi::OsStr, fs::File, os::fd::AsFd, path::PathBuf, process::Command, thread};

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};

use super::process::tied;

/// A network to run programs and make connections in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// The network of the test process.
    Own,
    /// The network namespace that this file names.
    Namespace(PathBuf),
}

impl Network {
    /// A command that runs `program` in this network.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::Own => Command::new(program),
            Self::Namespace(_) => {
                let mut command = Command::new("nsenter");
                command.args(self.entry()).arg(program);
                command
            }
        }
    }

    /// Runs `work` on a thread of its own that is in this network, and waits for it.
    ///
    /// A socket stays in the network in which it was created, so `work` may return connections.
    ///
    /// # Errors
    ///
    /// When the network cannot be entered, when `work` fails, and when it panics.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let Self::Namespace(path) = self else {
            return work();
        };
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let namespace = File::open(path)
                    .with_context(|| format!("opening the network {}", path.display()))?;
                setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)
                    .context("entering the network")?;
                work()
            });
            inside.join().map_err(|_| anyhow!("the work in the network panicked"))?
        })
    }

    /// [`Self::command`], for a process that ends with this one.
    pub(crate) fn tied(&self, program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::Own => tied(program),
            Self::Namespace(_) => {
                let mut command = tied("nsenter");
                command.args(self.entry()).arg(program);
                command
            }
        }
    }

    fn entry(&self) -> Vec<String> {
        match self {
            Self::Own => Vec::new(),
            Self::Namespace(path) => vec![format!("--net={}", path.display()), "--".to_owned()],
        }
    }
}
