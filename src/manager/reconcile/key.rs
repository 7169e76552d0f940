//! The key of a write, by which it backs off, and how a write fails.

use std::time::Duration;

use super::observed;

/// A part of an object that one reconciler writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkKey {
    /// The kind of the object, for metrics and logs.
    pub(super) kind: &'static str,
    /// The part of it that is written; empty for all of it.
    pub(super) part: &'static str,
    /// The object by namespace and name. The namespace is empty for an object that has none.
    pub(super) object: String,
}

impl WorkKey {
    pub(super) fn new(kind: &'static str, part: &'static str, object: impl Into<String>) -> Self {
        Self { kind, part, object: object.into() }
    }

    /// The key of an object that is in no namespace, or one of the manager's own.
    pub(super) fn own(kind: &'static str, part: &'static str) -> Self {
        Self::new(kind, part, "")
    }

    /// The namespace. `None` for an object without one, and for the manager's own objects.
    pub(super) fn namespace(&self) -> Option<&str> {
        Some(observed::namespace(&self.object)).filter(|namespace| !namespace.is_empty())
    }
}

/// The reason why a write failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotWritten {
    #[error("API request failed")]
    Api(#[from] kube::Error),
    #[error("cannot build the API request")]
    Request(#[from] http::Error),
    #[error("{0}")]
    Foreign(String),
    #[error("{0} changed meanwhile")]
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
