//! How a run ends: every failure, and the table of exit codes that the manager reads.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process;

use crate::backend::BackendError;
use crate::plan::{PlanError, ProxyUid};
use crate::rules::Family;
use crate::saved::Difference;
use crate::tool::ToolError;

/// The exit codes of `ctrlmesh-init`: those of BSD `sysexits.h`, and 95 as linkerd's network
/// validator has it. The manager turns them into conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// The rules are in place and proven, or what else was asked for is done.
    Done = 0,
    /// The arguments or the environment do not make a plan.
    Usage = 64,
    /// A program, a module of the kernel, a family or a name is not there.
    Unavailable = 69,
    /// The kernel took the rules and lists others.
    Internal = 70,
    /// The container may not program the network.
    NotPermitted = 77,
    /// The rules are in place and a connection was not intercepted.
    NotCaptured = 95,
}

impl ExitCode {
    /// Every code, in ascending order.
    pub const ALL: [Self; 6] = [
        Self::Done,
        Self::Usage,
        Self::Unavailable,
        Self::Internal,
        Self::NotPermitted,
        Self::NotCaptured,
    ];

    /// The number, as the container's termination state shows it.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The meaning of a container's exit code, if it is one of ours.
    pub fn of(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| i32::from(known.code()) == code)
    }

    /// A word for conditions and metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Done => "Done",
            Self::Usage => "Usage",
            Self::Unavailable => "Unavailable",
            Self::Internal => "Internal",
            Self::NotPermitted => "NotPermitted",
            Self::NotCaptured => "NotCaptured",
        }
    }

    /// What the owner of the pod can do.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Done => None,
            Self::Usage => Some("ctrlmesh-init --help lists the flags and their defaults"),
            Self::Unavailable => Some(
                "the node's kernel needs nf_tables (or ip_tables) with nat, owner, comment and \
                 REDIRECT; without them, set the annotation \
                 ctrlmesh.kusionstack.io/enable-iptables: \"false\" on the pod",
            ),
            Self::Internal => Some("another program changes the pod's rules at the same time"),
            Self::NotPermitted => Some(
                "the init container needs the capability NET_ADMIN (and NET_RAW for the legacy \
                 backend), which the Pod Security levels baseline and restricted, OpenShift's \
                 restricted SCC and GKE Autopilot forbid: allow it in this namespace, or set the \
                 annotation ctrlmesh.kusionstack.io/enable-iptables: \"false\" on the pod",
            ),
            Self::NotCaptured => Some(
                "likely cause: load balancing at the socket level, such as Cilium's kube-proxy \
                 replacement, which rewrites the address before the pod's rules see it; restrict \
                 it to the host namespace (socketLB.hostNamespaceOnly), or set the annotation \
                 ctrlmesh.kusionstack.io/enable-iptables: \"false\" on the pod",
            ),
        }
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.code())
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// This process is exempt from the rules that it has to prove.
    #[error("ctrlmesh-init runs as uid {proxy}, the proxy's: run it as another user, such as 0")]
    OwnUid {
        /// The uid of both.
        proxy: ProxyUid,
    },
    /// The pod would be its own API server.
    #[error(
        "upstream {address} is on an address of this pod itself: the API server's own address is \
         needed, or that of its Service"
    )]
    OwnAddress {
        /// The address that was given, or found by name.
        address: SocketAddr,
    },
    /// A name without an answer.
    #[error("upstream {name} cannot be resolved: {source}")]
    Unresolved {
        /// The name.
        name: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// A name without an address of use.
    #[error("upstream {name} has no address of a family that the pod has")]
    NoAddress {
        /// The name.
        name: String,
    },
    /// The dry run's text could not be written.
    #[error("stdout: {0}")]
    Output(io::Error),
    /// No backend will do.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A program failed after its backend was proven.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The kernel lists other rules than were committed.
    #[error("the {family} rules read back differ: {}", listed(differences))]
    Differs {
        /// In which family.
        family: Family,
        /// Where.
        differences: Vec<Difference>,
    },
    /// The listener of the proof cannot be bound.
    #[error("{listener} cannot be bound, so the proxy could not listen there: {source}")]
    Listener {
        /// The proxy's address.
        listener: SocketAddr,
        /// Why it cannot.
        source: io::Error,
    },
    /// No upstream can be reached at all.
    #[error(
        "upstream {address} cannot be reached from this pod: {source}; the pod needs an {} route \
         to it, and an address of its own to send from",
        Family::of(address.ip())
    )]
    Unroutable {
        /// One of them.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A connection went elsewhere.
    #[error("a connection to {address} was not intercepted although the rules are in place: {why}")]
    NotCaptured {
        /// Where it was opened to.
        address: SocketAddr,
        /// What happened instead.
        why: String,
    },
}

impl InitError {
    /// What the owner of the pod can do, where the error itself does not say it: the remedy of
    /// [`ExitCode::Unavailable`] is about the kernel, and not every such failure is.
    pub fn remedy(&self) -> Option<&'static str> {
        let is_kernel = match self {
            Self::Backend(error) => is_about_kernel(error.cause()),
            Self::Tool(error) => is_about_kernel(error),
            _ => false,
        };
        let code = self.exit_code();
        (code != ExitCode::Unavailable || is_kernel).then(|| code.remedy()).flatten()
    }

    /// The one place where a failure becomes a number.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Plan(_) | Self::OwnUid { .. } | Self::OwnAddress { .. } => ExitCode::Usage,
            Self::Unresolved { .. }
            | Self::NoAddress { .. }
            | Self::Listener { .. }
            | Self::Unroutable { .. } => ExitCode::Unavailable,
            Self::Output(_) | Self::Differs { .. } => ExitCode::Internal,
            Self::Backend(error) => of_tool(error.cause()),
            Self::Tool(error) => of_tool(error),
            Self::NotCaptured { .. } => ExitCode::NotCaptured,
        }
    }
}

fn of_tool(error: &ToolError) -> ExitCode {
    match error {
        ToolError::NotPermitted { .. } => ExitCode::NotPermitted,
        ToolError::Unreadable { .. } => ExitCode::Internal,
        ToolError::Conflict { .. }
        | ToolError::Failed { .. }
        | ToolError::Lock { .. }
        | ToolError::Missing { .. }
        | ToolError::Start { .. } => ExitCode::Unavailable,
    }
}

fn is_about_kernel(error: &ToolError) -> bool {
    !matches!(error, ToolError::Lock { .. } | ToolError::Conflict { .. })
}

fn listed(differences: &[Difference]) -> String {
    let shown: Vec<String> = differences.iter().take(8).map(ToString::to_string).collect();
    shown.join("; ")
}

/// For the log: which kernel this was tried on.
pub(crate) fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "unknown".to_owned(), |release| release.trim().to_owned())
}
