//! The reasons why a request was not answered by a peer.

use strum::{IntoStaticStr, VariantArray};

/// The reason why a request was not answered by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray, thiserror::Error)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Reason {
    /// No connection to it came about.
    #[error("cannot be reached")]
    Unreachable,
    /// The pod at its address could not prove to be it, or did not accept our own proof.
    #[error("did not prove to be the pod that was chosen, or did not accept our own proof")]
    Untrusted,
    /// The connection, or the request's stream, ended without a response.
    #[error("ended the connection")]
    Lost,
    /// The time was over.
    #[error("had no connection to spare in time")]
    Timeout,
}

/// A request without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failed {
    /// The peer has processed nothing of the request, and will not: it may be sent to another.
    #[error("{0}")]
    Unsent(Reason),
    /// The peer may have processed it.
    #[error("{0}")]
    Lost(Reason),
}

impl Reason {
    /// The metric label and log field.
    pub(crate) fn label(self) -> &'static str {
        self.into()
    }
}

impl Failed {
    /// The reason.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Unsent(reason) | Self::Lost(reason) => reason,
        }
    }
}
