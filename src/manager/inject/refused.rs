//! Why a pod that asks for the mesh is not let in.

use ctrlmesh_init::ProxyUid;

/// Every reason. The text says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The pod is not shaped as Kubernetes' API has it.
    #[error("{field} is not {wanted}")]
    Malformed {
        /// Where, as a path from the pod's root.
        field: String,
        /// What belongs there, with its article.
        wanted: &'static str,
    },
    /// The redirect rules would be the node's.
    #[error(
        "the pod has hostNetwork: true, so the redirect rules would be the whole node's: give it \
         a network of its own"
    )]
    HostNetwork,
    /// Other containers would see the proxy's processes.
    #[error(
        "the pod has {field}: true, so that a container's root can become the proxy's user and \
         read the mesh CA's key below /proc: remove the field"
    )]
    SharedProcesses {
        /// The field that says so.
        field: &'static str,
    },
    /// Nothing of ours runs there.
    #[error("{field} asks for Windows: the proxy and its redirect rules need Linux")]
    Windows {
        /// The field that says so.
        field: &'static str,
    },
    /// The redirect rules exempt the proxy by its user.
    #[error(
        "{who} runs as user {uid}, which is the proxy's: its requests would go past the proxy; \
         choose another runAsUser, or another user for the proxy"
    )]
    ProxyUser {
        /// A container, or the pod's securityContext.
        who: String,
        /// The user.
        uid: ProxyUid,
    },
    /// A listener of the proxy would find its port taken.
    #[error(
        "container `{container}` has containerPort {port}, on which the proxy {purpose}: move it \
         to another port"
    )]
    Port {
        /// The container that has it.
        container: String,
        /// The port.
        port: u16,
        /// What the proxy does there.
        purpose: &'static str,
    },
    /// The pod says that it is no client of the API server.
    #[error(
        "the pod has automountServiceAccountToken: false: either it is no client of the API \
         server and needs no proxy, or it brings credentials of its own, which the proxy does not \
         see; where its containers shall have the token all the same, set the annotation \
         ctrlmesh.kusionstack.io/mount-token: \"true\""
    )]
    NoToken,
    /// A name that is reserved for what we add.
    #[error(
        "{kind} `{name}` has a name that is reserved for ctrlmesh, and ctrlmesh did not make it: \
         give it another name"
    )]
    ForeignName {
        /// Container or volume.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The bundle cannot be where clients look for the CA.
    #[error(
        "container `{container}` mounts volume `{volume}` at {path}, where clients look for the \
         CA that they trust: remove the mount, the token and the CA come with the injection \
         (legacy token Secrets and hand-made token volumes are not supported)"
    )]
    TokenMount {
        /// The container.
        container: String,
        /// The volume.
        volume: String,
        /// Where it is mounted.
        path: String,
    },
    /// The container would call past the proxy, or not where it means to.
    #[error(
        "container `{container}` sets {variable} itself: the proxy stands before the API server \
         that the kubelet names there, so remove the variable"
    )]
    ApiServerVariable {
        /// The container.
        container: String,
        /// The variable.
        variable: &'static str,
    },
    /// It would run before the proxy and go on past it.
    #[error(
        "init container `{container}` has restartPolicy: Always and would start before a classic \
         sidecar, so its requests would go past the proxy: use --sidecar native"
    )]
    NeedsNative {
        /// The container.
        container: String,
    },
    /// A classic sidecar does not end by itself.
    #[error(
        "the pod has restartPolicy: {policy}, as those of Jobs have: a classic sidecar would keep \
         it from ever completing; use --sidecar native"
    )]
    RunsToCompletion {
        /// The policy.
        policy: String,
    },
}

impl Refused {
    /// A word for metrics and events.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "Malformed",
            Self::HostNetwork => "HostNetwork",
            Self::SharedProcesses { .. } => "SharedProcesses",
            Self::Windows { .. } => "Windows",
            Self::ProxyUser { .. } => "ProxyUser",
            Self::Port { .. } => "Port",
            Self::NoToken => "NoToken",
            Self::ForeignName { .. } => "ForeignName",
            Self::TokenMount { .. } => "TokenMount",
            Self::ApiServerVariable { .. } => "ApiServerVariable",
            Self::NeedsNative { .. } => "NeedsNative",
            Self::RunsToCompletion { .. } => "RunsToCompletion",
        }
    }
}
