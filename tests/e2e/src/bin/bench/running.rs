//! A program that is measured from outside, and ends with the bench.

use std::{
    collections::HashSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use ctrlmesh_e2e::until;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// The ticks per second of CPU time in /proc (USER_HZ in proc(5)).
const TICKS_A_SECOND: u64 = 100;
/// The time limit of a single measurement.
pub(crate) const CLIENT_LIMIT: Duration = Duration::from_secs(900);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// A running program, ended on drop.
pub(crate) struct Running {
    name: String,
    child: Child,
    output: PathBuf,
}

/// The resource usage of a program, from /proc.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) rss_mb: f64,
    pub(crate) files: usize,
    pub(crate) tasks: u32,
}

impl Running {
    /// Starts a program; its output goes to a file of that name in `directory`.
    pub(crate) fn start(
        name: &str,
        directory: &Path,
        program: &Path,
        args: &[String],
    ) -> Result<Self> {
        let output = directory.join(format!("{name}.out"));
        let file = File::create(&output).with_context(|| output.display().to_string())?;
        // The kernel kills it when this process ends, however that happens.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(args)
            .stdin(Stdio::null())
            .stderr(file.try_clone()?)
            .stdout(file)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Self { name: name.to_owned(), child, output })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ask` returns true. Fails if the program ends before.
    pub(crate) fn await_that(
        &mut self,
        what: &str,
        limit: Duration,
        mut ask: impl FnMut(&str) -> bool,
    ) -> Result<()> {
        until(&format!("{} {what}", self.name), limit, || {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}: {}", self.name, tail(&self.printed()?));
            }
            Ok(ask(&self.printed()?).then_some(()))
        })
    }

    /// Waits until it ends successfully, and returns its output.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<String> {
        let what = format!("{} ends", self.name);
        let status = until(&what, limit, || Ok(self.child.try_wait()?))?;
        let printed = self.printed()?;
        if !status.success() {
            bail!("{} ended with {status}: {}", self.name, tail(&printed));
        }
        Ok(printed)
    }

    /// Waits until `clients load` has ended, and returns its figures.
    pub(crate) fn figures(self) -> Result<Value> {
        let said = self.finish(CLIENT_LIMIT)?;
        let last = said.lines().last().context("clients load printed nothing")?;
        Ok(serde_json::from_str(last)?)
    }

    /// The CPU time that it has taken, in user and system mode.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        cpu_of(self.id())
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        let status = fs::read_to_string(self.proc("status"))?;
        let files = fs::read_dir(self.proc("fd"))?.count();
        let rss_mb = f64::from(field(&status, "VmRSS:")?) / 1024.0;
        Ok(Usage { rss_mb, files, tasks: field(&status, "Threads:")? })
    }

    /// The most memory that it has had, in MiB.
    pub(crate) fn most_memory(&self) -> Result<f64> {
        let status = fs::read_to_string(self.proc("status"))?;
        Ok(f64::from(field(&status, "VmHWM:")?) / 1024.0)
    }

    /// Waits until it has no connection, upstream or downstream.
    pub(crate) fn await_idle(&mut self, limit: Duration) -> Result<()> {
        until(&format!("{} has no connection", self.name), limit, || {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}: {}", self.name, tail(&self.printed()?));
            }
            Ok((self.connections()? == 0).then_some(()))
        })
    }

    fn connections(&self) -> Result<usize> {
        let mut sockets = HashSet::new();
        for file in fs::read_dir(self.proc("fd"))? {
            // A file that was closed meanwhile is skipped.
            let Ok(target) = fs::read_link(file?.path()) else { continue };
            let inode = target.to_string_lossy();
            let inode = inode.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            sockets.extend(inode.map(str::to_owned));
        }
        let mut connections = 0;
        for table in ["net/tcp", "net/tcp6"] {
            let table = fs::read_to_string(self.proc(table))?;
            connections +=
                table.lines().skip(1).filter(|line| is_connection(line, &sockets)).count();
        }
        Ok(connections)
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.id()))
    }

    fn printed(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.output)?).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended was waited for: its id may be another's.
        let Ok(None) = self.child.try_wait() else { return };
        // In order, since valgrind and a program with counters write at their end what they have found.
        let asked = i32::try_from(self.id()).map(|id| kill(Pid::from_raw(id), Signal::SIGTERM));
        if let Ok(Ok(())) = asked {
            let _ = until("it ends", GRACE, || Ok(self.child.try_wait()?));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The CPU time that a process has taken, in user and system mode.
pub(crate) fn cpu_of(process: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The fields are counted from after the name, which may hold any character.
    let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat has a name")?;
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || -> Result<u64> {
        Ok(fields.next().context("/proc/PID/stat has utime and stime")?.parse()?)
    };
    Ok(Duration::from_millis((ticks()? + ticks()?) * 1000 / TICKS_A_SECOND))
}

/// Reads a number of /proc/PID/status.
fn field(status: &str, name: &str) -> Result<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.with_context(|| format!("/proc/PID/status has no {name}"))?.parse()?)
}

/// Reads a line of /proc/net/tcp: the fourth field is the state, the tenth the inode.
fn is_connection(line: &str, sockets: &HashSet<String>) -> bool {
    const LISTENS: &str = "0A";
    let mut fields = line.split_whitespace().skip(3);
    let state = fields.next();
    let inode = fields.nth(5);
    state != Some(LISTENS) && inode.is_some_and(|inode| sockets.contains(inode))
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}
