//! Processes that end with the process that started them, however that one ends.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{self, Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{
        OnceLock,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::wait::until;

/// The number of log lines that an error about a process quotes.
const QUOTED_LINES: usize = 15;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(60);

/// One running program. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, which [`tied`] must have made, with its output appended to `log`.
    pub(crate) fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening the log {}", log.display()))?;
        let errors = output.try_clone()?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = spawn_for_good(command).with_context(|| format!("starting {name}"))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Like [`Self::spawn`], with pipes to its standard input and from its standard output.
    pub(crate) fn spawn_piped(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let errors = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let child = spawn_for_good(command).with_context(|| format!("starting {name}"))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipe from its standard output, once.
    pub(crate) fn take_output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Fails if the process has ended, with an error that quotes the log.
    pub(crate) fn must_run(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.failure(&format!("ended with {status}"))),
        }
    }

    pub(crate) fn failure(&self, what: &str) -> anyhow::Error {
        anyhow!("{} {what}; the end of {}:\n{}", self.name, self.log.display(), self.log_tail())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(pid, signal).with_context(|| format!("sending {signal} to {}", self.name))
    }

    /// Returns once SIGSTOP has stopped it, which takes effect after the signal is sent.
    pub(crate) fn await_pause(&self) -> Result<()> {
        let stat = format!("/proc/{}/stat", self.child.id());
        until(&format!("{} is paused", self.name), GRACE, || {
            let stat = fs::read_to_string(&stat)?;
            // The state follows the name, which stands in parentheses and may hold any character.
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            Ok((state == Some('T')).then_some(()))
        })
    }

    /// Ends it by SIGTERM and waits for it. Fails after 60 s; the drop then sends SIGKILL.
    pub(crate) fn stop(mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        // A stopped process acts on SIGTERM only when it continues.
        self.signal(Signal::SIGCONT)?;
        until(&format!("{} ends", self.name), GRACE, || Ok(self.child.try_wait()?))
    }

    /// Ends it by SIGKILL and waits for it.
    pub(crate) fn kill(mut self) -> Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// The pipes to its standard input and from its standard output, once.
    pub(crate) fn take_pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        (self.child.stdin.take(), self.child.stdout.take())
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }

    /// Ends the one process that it started in other namespaces, and waits for both.
    pub(crate) fn end_inner(&mut self, signal: Signal) -> Result<()> {
        let id = self.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        if let Some(inner) = children.split_whitespace().next() {
            kill(Pid::from_raw(inner.parse()?), signal)?;
        }
        let what = format!("{} ends", self.name);
        until(&what, GRACE, || Ok(self.child.try_wait()?)).map(drop)
    }

    fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command whose process is killed by the kernel when this process ends in any way.
///
/// `setpriv` arms the signal; the shell then checks that this process is still its parent, and
/// executes the program. The kernel kills it when the *thread* that starts it ends.
#[must_use]
pub fn tied(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "sh", "-c"])
        .arg(r#"[ "$PPID" = "$0" ] && exec "$@""#)
        .arg(process::id().to_string())
        .arg(program);
    command
}

/// Starts a process from a thread that lives as long as this process.
///
/// The kernel sends the death signal when the *thread* that started the child ends, and a test is
/// a thread.
fn spawn_for_good(command: Command) -> io::Result<Child> {
    type Order = (Command, SyncSender<io::Result<Child>>);
    static SPAWNER: OnceLock<SyncSender<Order>> = OnceLock::new();

    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = sync_channel::<Order>(0);
        thread::spawn(move || {
            for (mut command, reply) in inbox {
                // The caller waits for the reply, so the send does not fail.
                let _ = reply.send(command.spawn());
            }
        });
        orders
    });
    let (reply, answer) = sync_channel(1);
    let gone = |_| io::Error::other("the thread that starts processes has ended");
    spawner.send((command, reply)).map_err(|_| gone(()))?;
    answer.recv().map_err(|_| gone(()))?
}
