//! The objects that the leader writes, and how a write fails.

use std::time::Duration;

use super::found::namespace;

/// A thing to write, by which its pauses are kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Authorities,
    Hooks(Hooks),
    Bundle(String),
    Rights(String),
    ClusterRights,
    /// An Event about an object, by the object's key.
    Event(About, String),
    /// The status of a ShardingConfig, by its key.
    Condition(String),
    /// The children of a root, by its key.
    Children(String),
    /// The translation of a config of Kridge, and that config's status, by its key.
    Translation(String),
    ConditionOfKridge(String),
    /// The finalizer of a ShardingConfig that nobody takes off, by its key.
    Finalizer(String),
    /// The Lease of a pod that is gone, by its key.
    Lease(String),
}

/// The configurations of webhooks that call us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hooks {
    /// Those for pods.
    Mutating,
    /// Those for ShardingConfigs.
    Validating,
}

/// The object that an Event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    /// A pod, which has one Event.
    Pod,
    /// A ShardingConfig, which has one for each reason.
    Config(&'static str),
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
    #[error("{0} has changed meanwhile")]
    Changed(String),
    #[error("no answer in {} s", ANSWER.as_secs())]
    Late,
}

/// The time in which a write is answered.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

impl NotWritten {
    /// Whether the namespace is being deleted: it takes no new objects, and needs none. The API
    /// server says so by a cause (`NamespaceTerminatingCause`).
    pub(super) fn is_of_a_namespace_that_ends(&self) -> bool {
        let Self::Api(kube::Error::Api(status)) = self else { return false };
        let causes = status.details.iter().flat_map(|details| &details.causes);
        causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
    }
}

impl Subject {
    /// The kind of the object, for metrics and logs.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Authorities => "Secret",
            Self::Hooks(Hooks::Mutating) => "MutatingWebhookConfiguration",
            Self::Hooks(Hooks::Validating) => "ValidatingWebhookConfiguration",
            Self::Bundle(_) => "ConfigMap",
            Self::Rights(_) => "RoleBinding",
            Self::ClusterRights => "ClusterRoleBinding",
            Self::Event(..) => "Event",
            Self::Condition(_)
            | Self::Children(_)
            | Self::Translation(_)
            | Self::ConditionOfKridge(_)
            | Self::Finalizer(_) => "ShardingConfig",
            Self::Lease(_) => "Lease",
        }
    }

    /// The namespace. `None` for what is the manager's own.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Authorities | Self::Hooks(_) | Self::ClusterRights => None,
            Self::Bundle(namespace) | Self::Rights(namespace) => Some(namespace),
            Self::Event(_, key)
            | Self::Condition(key)
            | Self::Children(key)
            | Self::Translation(key)
            | Self::ConditionOfKridge(key)
            | Self::Finalizer(key)
            | Self::Lease(key) => Some(namespace(key)),
        }
    }
}
