//! The reasons to refuse a pod that asks for injection.

use ctrlmesh_init::ProxyUid;

/// A reason to refuse a pod. Each message names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotInjected {
    /// The pod does not have the shape of the Kubernetes API.
    #[error("{field} is not {wanted}")]
    Malformed {
        /// The field, as a path from the pod's root.
        field: String,
        /// The required type, with its article.
        wanted: &'static str,
    },
    /// The redirect rules would be the node's.
    #[error(
        "the pod has hostNetwork: true, so the redirect rules would be the whole node's: give it \
         a network of its own"
    )]
    HostNetwork,
    /// Other containers would see the proxy's processes, because of this field.
    #[error(
        "the pod has {0}: true, so that a container's root can become the proxy's user and \
         read the mesh CA's key below /proc: remove the field"
    )]
    SharedProcesses(&'static str),
    /// The proxy and its init container do not run on Windows, which this field asks for.
    #[error("{0} asks for Windows: the proxy and its redirect rules need Linux")]
    Windows(&'static str),
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
    /// A port of the proxy's listeners is taken.
    #[error(
        "container `{container}` has containerPort {port}, on which the proxy {purpose}: move it \
         to another port"
    )]
    Port {
        /// The container that declares it.
        container: String,
        /// The port.
        port: u16,
        /// The proxy's use of the port.
        purpose: &'static str,
    },
    /// The pod declares that it is not a client of the API server.
    #[error(
        "the pod has automountServiceAccountToken: false: either it is not a client of the API \
         server and needs no proxy, or it brings credentials of its own, which the proxy does not \
         see; where its containers shall have the token all the same, set the annotation \
         ctrlmesh.kusionstack.io/mount-token: \"true\""
    )]
    NoToken,
    /// A name that is reserved for our containers and volumes.
    #[error(
        "{kind} `{name}` has a name that is reserved for ctrlmesh, and ctrlmesh did not make it: \
         give it another name"
    )]
    ForeignName {
        /// The part's kind: container or volume.
        kind: &'static str,
        /// The object's name.
        name: String,
    },
    /// A mount of the user's where clients look for the CA.
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
        /// The path of the mount.
        path: String,
    },
    /// The container would bypass the proxy, or call another server than it means to.
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
    /// This container would start before the proxy and bypass it.
    #[error(
        "init container `{0}` has restartPolicy: Always and would start before a classic \
         sidecar, so its requests would go past the proxy: use --sidecar native"
    )]
    NeedsNative(String),
    /// A classic sidecar does not end by itself, as this restart policy needs.
    #[error(
        "the pod has restartPolicy: {0}, as those of Jobs have: a classic sidecar would keep \
         it from ever completing; use --sidecar native"
    )]
    RunsToCompletion(String),
}

impl NotInjected {
    /// A word for metrics and events.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "Malformed",
            Self::HostNetwork => "HostNetwork",
            Self::SharedProcesses(_) => "SharedProcesses",
            Self::Windows(_) => "Windows",
            Self::ProxyUser { .. } => "ProxyUser",
            Self::Port { .. } => "Port",
            Self::NoToken => "NoToken",
            Self::ForeignName { .. } => "ForeignName",
            Self::TokenMount { .. } => "TokenMount",
            Self::ApiServerVariable { .. } => "ApiServerVariable",
            Self::NeedsNative(_) => "NeedsNative",
            Self::RunsToCompletion(_) => "RunsToCompletion",
        }
    }
}
