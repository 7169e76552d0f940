//! Runs the iptables programs, found in PATH, and classifies their failures.

use std::io::{self, Write as _};
use std::process::{Command, Output, Stdio};

use crate::family::Family;
use crate::saved::{Saved, SavedError};

/// The legacy tools' time limit for their lock, in seconds. Locks are per mount namespace, so
/// inside a pod only a second init could hold one; without a limit the wait could hang.
const LOCK_WAIT_SECONDS: &str = "5";

/// A build of iptables and the kernel interface behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Backend {
    /// The backend over nf_tables.
    Nft,
    /// The backend over ip_tables.
    Legacy,
}

/// The programs of one backend and family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    pub(crate) backend: Backend,
    pub(crate) family: Family,
}

impl Tool {
    /// Reads the kernel's table `nat`.
    pub(crate) fn save(self) -> Result<Saved, ToolError> {
        let program = self.program("save");
        let output = run(&program, &["-t", "nat"], "")?;
        Saved::parse(&output.stdout).map_err(|source| ToolError::Unreadable { program, source })
    }

    /// Commits all of `text`, or nothing.
    pub(crate) fn restore(self, text: &str) -> Result<(), ToolError> {
        let program = self.program("restore");
        run(&program, &["--noflush", "-w", LOCK_WAIT_SECONDS], text).map(drop)
    }

    fn program(self, verb: &str) -> String {
        format!("{}-{}-{verb}", self.family.tool(), self.backend)
    }
}

fn run(program: &str, arguments: &[&str], input: &str) -> Result<Output, ToolError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ToolError::Missing(program.to_owned()),
        _ => ToolError::Start { program: program.to_owned(), source },
    };
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early gives the reason on stderr: the better error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(output);
    }
    Err(ToolError::of_output(program, &output))
}

/// The failure of a program. Each variant leads to another decision.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// A conflict: another program changed the table between our read and our commit.
    #[error("{program}: {text}")]
    Conflict { program: String, text: String },
    /// A failure of any other kind: this kernel or this build lacks a feature.
    #[error("{program} ended with {status}: {text}")]
    Failed { program: String, status: String, text: String },
    /// The lock of the legacy tools is held by another process, or cannot be opened.
    #[error("{program}: {text} (XTABLES_LOCKFILE names the lock; /run must be writable)")]
    Lock { program: String, text: String },
    #[error("{0} is not in PATH")]
    Missing(String),
    /// A capability is missing.
    #[error("{program}: {text}")]
    NotPermitted { program: String, text: String },
    #[error("{program} cannot be run: {source}")]
    Start { program: String, source: io::Error },
    #[error("{program}: {source}")]
    Unreadable { program: String, source: SavedError },
}

impl ToolError {
    /// Classifies by the text on stderr: the programs have few exit codes and use them loosely.
    fn of_output(program: &str, output: &Output) -> Self {
        let program = program.to_owned();
        let text = one_line(&String::from_utf8_lossy(&output.stderr));
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if says(&["xtables lock", "lock file"]) {
            Self::Lock { program, text }
        } else if says(&["Permission denied", "Operation not permitted", "must be root"]) {
            Self::NotPermitted { program, text }
        } else if says(&["resource busy", "temporarily unavailable", "generation"]) {
            Self::Conflict { program, text }
        } else {
            Self::Failed { program, status: output.status.to_string(), text }
        }
    }
}

/// Joins lines and cuts them to 600 characters, for one log line.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").chars().take(600).collect()
}
