//! The namespaces of a node: its own processes, mounts and network.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    process::Command,
};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::settings::Families;
use crate::{
    bed::Bed,
    programs::{Network, Process, tied},
};

/// Namespaces with a first process that holds them. Dropping it kills everything inside.
pub(crate) struct Sandbox {
    holder: Process,
}

impl Sandbox {
    /// Makes the namespaces, with the node's addresses on a link in them.
    pub(crate) fn open(bed: &Bed, families: Families) -> Result<Self> {
        let mut command = tied("unshare");
        command
            .args(["--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"])
            .args(["--", "sh", "-c", include_str!("sandbox.sh"), "sandbox"])
            .arg(bed.path())
            .args([families.node_ipv4(), families.node_ipv6()]);
        let log = bed.path().join("sandbox.log");
        let mut holder = Process::spawn_piped("the node's sandbox", command, &log)?;
        let output = holder.take_output().context("the pipe just asked for")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        if line.trim_end() != "ready" {
            return Err(holder.failure("did not become ready (it needs root)"));
        }
        Ok(Self { holder })
    }

    pub(crate) fn network(&self) -> Network {
        Network::Namespace(self.namespace("net").into())
    }

    /// A command inside all namespaces of the node.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(self.entry()).arg(program);
        command
    }

    /// [`Self::command`], for a process that ends with the sandbox and with this process.
    ///
    /// nsenter forks to enter a PID namespace: the program is its child.
    pub(crate) fn tied(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = tied("nsenter");
        command.args(self.entry()).arg(program);
        command
    }

    fn entry(&self) -> Vec<String> {
        // The holder itself stays in its parent's PID namespace; its children do not.
        vec![
            format!("--net={}", self.namespace("net")),
            format!("--mount={}", self.namespace("mnt")),
            format!("--pid={}", self.namespace("pid_for_children")),
            "--".to_owned(),
        ]
    }

    fn namespace(&self, kind: &str) -> String {
        format!("/proc/{}/ns/{kind}", self.holder.id())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Kills the first process inside, not the holder: the holder then ends once the kernel has
        // ended all others, and no process writes to the bed any more.
        let _ = self.holder.end_inner(Signal::SIGKILL);
    }
}
