//! The errors of a run, and the table of its exit codes.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process;

use strum::{IntoStaticStr, VariantArray};

use crate::backend::BackendError;
use crate::family::Family;
use crate::plan::{PlanError, ProxyUid};
use crate::pod::network::RouteError;
use crate::saved::Mismatch;
use crate::targets::TargetError;
use crate::tool::ToolError;

/// The exit codes of `ctrlmesh-init`: those of BSD `sysexits.h`, and 95 as in linkerd's network
/// validator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[repr(u8)]
pub enum ExitCode {
    /// The rules are in place and proven, or the other action that was requested is done.
    Done = 0,
    /// The arguments or the environment give no valid plan.
    Usage = 64,
    /// A program, a kernel module, an address family, a route or a name is missing.
    Unavailable = 69,
    /// The kernel accepted the rules but lists different ones.
    Internal = 70,
    /// The container lacks a capability to change the netfilter rules.
    NotPermitted = 77,
    /// The rules are in place but a connection was not intercepted.
    NotCaptured = 95,
}

impl ExitCode {
    /// A word for conditions and metrics.
    pub fn reason(self) -> &'static str {
        self.into()
    }

    /// The number, as in the container's termination state.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The code with this number. `None` if the number is not one of ours.
    pub fn of(code: i32) -> Option<Self> {
        Self::VARIANTS.iter().copied().find(|known| i32::from(known.code()) == code)
    }

    /// Advice for the owner of the pod. `None` for success.
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

/// The reason why a run failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum InitError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The process runs as the proxy's user, so it is exempt from the rules that it has to prove.
    #[error("ctrlmesh-init runs as uid {0}, the proxy's: run it as another user, such as 0")]
    OwnUid(ProxyUid),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("stdout: {0}")]
    Output(io::Error),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error("the {family} rules read back differ: {}", listed(differences))]
    Differs { family: Family, differences: Vec<Mismatch> },
    #[error("{listener} cannot be bound, so the proxy could not listen there: {source}")]
    Listener { listener: SocketAddr, source: io::Error },
    #[error("a connection to {address} was not intercepted although the rules are in place: {why}")]
    NotCaptured { address: SocketAddr, why: String },
}

impl InitError {
    /// Advice for the owner of the pod. `None` if the error itself says enough: the remedy of
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

    /// Maps the error to its exit code; no other place does.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Plan(_)
            | Self::OwnUid(_)
            | Self::Target(TargetError::Plan(_))
            | Self::Route(RouteError::OwnAddress(_)) => ExitCode::Usage,
            Self::Target(TargetError::Unresolved { .. } | TargetError::NoAddress(_))
            | Self::Route(RouteError::Unroutable { .. })
            | Self::Listener { .. } => ExitCode::Unavailable,
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
        | ToolError::Missing(_)
        | ToolError::Start { .. } => ExitCode::Unavailable,
    }
}

fn is_about_kernel(error: &ToolError) -> bool {
    !matches!(error, ToolError::Lock { .. } | ToolError::Conflict { .. })
}

fn listed(differences: &[Mismatch]) -> String {
    let shown: Vec<String> = differences.iter().take(8).map(ToString::to_string).collect();
    shown.join("; ")
}

/// The release of the running kernel, for the log.
pub(crate) fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "unknown".to_owned(), |release| release.trim().to_owned())
}
