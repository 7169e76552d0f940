//! The objects that the leader writes, and how a write fails.

use std::time::Duration;

/// A thing to write, by which its pauses are kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Authorities,
    Hooks,
    Bundle(String),
    Rights(String),
    ClusterRights,
}

/// The reason why a write failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotWritten {
    #[error("the API server")]
    Api(#[from] kube::Error),
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
    #[error("the authorities cannot be made")]
    Make(#[from] rcgen::Error),
    #[error("{0}")]
    Foreign(String),
    #[error("no answer in {} s", ANSWER.as_secs())]
    Late,
}

/// The time in which a write is answered.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

impl Subject {
    /// The kind of the object, for metrics and logs.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Authorities => "Secret",
            Self::Hooks => "MutatingWebhookConfiguration",
            Self::Bundle(_) => "ConfigMap",
            Self::Rights(_) => "RoleBinding",
            Self::ClusterRights => "ClusterRoleBinding",
        }
    }

    /// The namespace. `None` for what is the manager's own.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Authorities | Self::Hooks | Self::ClusterRights => None,
            Self::Bundle(namespace) | Self::Rights(namespace) => Some(namespace),
        }
    }
}
