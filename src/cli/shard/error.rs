//! The ends of `ctrlmesh shard` and `ctrlmesh unshard`, and what they say on the way.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use crate::doctor::CannotLook;

/// The reason why a workload is not sharded, or not as it was before.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    #[error("cannot wait")]
    Runtime(#[source] io::Error),
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
    #[error("the cluster cannot be asked: {0}")]
    Cluster(String),
    #[error(transparent)]
    Look(#[from] CannotLook),
    #[error("there is no {kind} {namespace}/{name}")]
    NoWorkload { kind: &'static str, namespace: String, name: String },
    #[error("it cannot be sharded so: see the lines that begin with `# refused`")]
    Refused,
    #[error("without its locks all of its shards may wait for one, and they are not known: {0}")]
    Locks(CannotLook),
    #[error("the API server refuses {what}: {why}")]
    Write { what: String, why: String },
    #[error("{0}")]
    NotOurs(String),
    #[error(
        "after {seconds} s: {waits}. Run the same command again to go on; `ctrlmesh doctor --namespace {namespace}` \
         says more"
    )]
    Late { seconds: u64, waits: String, namespace: String },
}

impl ShardError {
    /// The exit code, as in sysexits.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoWorkload { .. } | Self::Refused | Self::NotOurs(_) => 64,
            Self::Look(CannotLook::Right { .. }) | Self::Locks(CannotLook::Right { .. }) => 77,
            Self::Runtime(_)
            | Self::Output(_)
            | Self::Cluster(_)
            | Self::Look(CannotLook::Failed(_))
            | Self::Locks(CannotLook::Failed(_))
            | Self::Write { .. }
            | Self::Late { .. } => 69,
        }
    }
}

/// The output of the progress, with the time since the start.
pub(super) struct Said {
    start: Instant,
    timeout: Duration,
}

impl Said {
    /// The progress from now on, for no longer than this.
    pub(super) fn within(timeout: Duration) -> Self {
        Self { start: Instant::now(), timeout }
    }

    pub(super) fn line(&self, line: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "# {:>5.1} s  {line}", self.start.elapsed().as_secs_f64())?;
        out.flush()
    }

    /// Fails if the time is over. The error says what the command waits for.
    pub(super) fn in_time(&self, waits: &str, namespace: &str) -> Result<(), ShardError> {
        if self.start.elapsed() < self.timeout { Ok(()) } else { Err(self.late(waits, namespace)) }
    }

    /// The error for something that is not there.
    pub(super) fn late(&self, waits: &str, namespace: &str) -> ShardError {
        ShardError::Late {
            seconds: self.start.elapsed().as_secs(),
            waits: waits.to_owned(),
            namespace: namespace.to_owned(),
        }
    }
}
