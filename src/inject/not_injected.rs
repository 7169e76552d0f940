//! The reasons to refuse a pod that asks for injection.

use ctrlmesh_init::{PlanError, ProxyUid};

use ctrlmesh_base::sidecar::AUDIENCE;

/// A reason to refuse a pod. Each message names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotInjected {
    #[error("{field} is not {wanted}")]
    Malformed {
        /// The field, as a path from the pod's root.
        field: String,
        /// The required type, with its article.
        wanted: &'static str,
    },
    #[error(
        "the namespace enforces a Pod Security level at which no container may have NET_ADMIN, and \
         the pod asks for redirect rules by {0}: \"true\": remove that, and the pod is injected in \
         env mode, or have the level of the namespace changed to privileged"
    )]
    PodSecurity(String),
    #[error(
        "the pod template has the label {}, which the manager gives each pod by itself: take it out of \
         the template",
        ctrlmesh_api::keys::SHARD
    )]
    ShardLabel,
    #[error("annotation {key}: {problem}")]
    Annotation { key: String, problem: String },
    #[error(
        "the pod has hostNetwork: true, so the redirect rules would be the whole node's: give it \
         a network of its own"
    )]
    HostNetwork,
    #[error(
        "the pod has {0}: true, so that a container's root can become the proxy's user and \
         read its keys below /proc: remove the field"
    )]
    SharedProcesses(&'static str),
    #[error("{0} asks for Windows: the proxy and its redirect rules need Linux")]
    Windows(&'static str),
    #[error(
        "{who} runs as user {uid}, which is the proxy's: its requests would go past the proxy; \
         choose another runAsUser, or another user for the proxy"
    )]
    ProxyUser { who: String, uid: ProxyUid },
    #[error(
        "container `{container}` has containerPort {port}, on which the proxy {purpose}: move it \
         to another port"
    )]
    Port { container: String, port: u16, purpose: &'static str },
    #[error(
        "{config}: no volume with the certificate of the controller's webhook server is mounted at \
         spec.webhook.certDir, which is {dir}, and the proxy shows that certificate: mount its Secret \
         there, or name the Secret in spec.webhook.certSecret; if the controller has it in its image \
         or in memory alone, remove spec.webhook"
    )]
    NoCertificate { config: Box<str>, dir: Box<str> },
    #[error(
        "{config}: containers `{one}` and `{other}` mount different things at \
         spec.webhook.certDir, which is {dir}, so that it cannot be told whose certificate the proxy \
         is to show: mount one volume in both, or name the Secret in spec.webhook.certSecret"
    )]
    TwoCertificates { config: Box<str>, dir: Box<str>, one: Box<str>, other: Box<str> },
    #[error(
        "{config}: container `{container}` mounts volume `{volume}` at spec.webhook.certDir by a \
         subPathExpr, which tells the path in that container alone: write a subPath, or name the \
         Secret in spec.webhook.certSecret"
    )]
    CertificatePath { config: Box<str>, container: Box<str>, volume: Box<str> },
    #[error("{config}: the webhook port: {problem}")]
    WebhookPort { config: Box<str>, problem: PlanError },
    #[error(
        "{0} has automountServiceAccountToken: false: either the pod is not a client of the API \
         server and needs no proxy, or it brings credentials of its own, which the proxy does not \
         see; where its containers shall have the token all the same, project it into a volume of the \
         pod, or set the annotation ctrlmesh.kusionstack.io/mount-token: \"true\""
    )]
    NoToken(&'static str),
    #[error(
        "volume `{0}` has a token of the audience {AUDIENCE}, by which the proxy alone has its \
         certificate signed: remove that token"
    )]
    Audience(String),
    #[error(
        "{kind} `{name}` has a name that is reserved for ctrlmesh, and ctrlmesh did not make it: \
         give it another name"
    )]
    ForeignName { kind: &'static str, name: String },
    #[error(
        "container `{container}` mounts volume `{volume}` at {path}, where clients look for the \
         CA that they trust: remove the mount, the token and the CA come with the injection, or \
         project a token of the ServiceAccount there (legacy token Secrets are not supported)"
    )]
    TokenMount { container: String, volume: String, path: String },
    #[error(
        "container `{container}` sets {variable} itself: the proxy stands before the API server \
         that the kubelet names there, so remove the variable"
    )]
    ApiServerVariable { container: String, variable: &'static str },
    #[error(
        "init container `{0}` has restartPolicy: Always and would start before a classic \
         sidecar, so its requests would go past the proxy: use --sidecar native"
    )]
    NeedsNative(String),
    #[error(
        "the pod has restartPolicy: {0}, as those of Jobs have: a classic sidecar would keep \
         it from ever completing; use --sidecar native"
    )]
    RunsToCompletion(String),
}

impl NotInjected {
    /// A word for metrics and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "Malformed",
            Self::PodSecurity(_) => "PodSecurity",
            Self::ShardLabel => "ShardLabel",
            Self::Annotation { .. } => "Annotation",
            Self::HostNetwork => "HostNetwork",
            Self::SharedProcesses(_) => "SharedProcesses",
            Self::Windows(_) => "Windows",
            Self::ProxyUser { .. } => "ProxyUser",
            Self::Port { .. } => "Port",
            Self::NoCertificate { .. } => "NoCertificate",
            Self::TwoCertificates { .. } => "TwoCertificates",
            Self::CertificatePath { .. } => "CertificatePath",
            Self::WebhookPort { .. } => "WebhookPort",
            Self::NoToken(_) => "NoToken",
            Self::Audience(_) => "Audience",
            Self::ForeignName { .. } => "ForeignName",
            Self::TokenMount { .. } => "TokenMount",
            Self::ApiServerVariable { .. } => "ApiServerVariable",
            Self::NeedsNative(_) => "NeedsNative",
            Self::RunsToCompletion(_) => "RunsToCompletion",
        }
    }
}
