//! The errors of an explanation, and their exit codes.

use std::{io, path::PathBuf};

use super::{review::BadReview, source::BadSource};
use crate::cluster::ClusterError;
use ctrlmesh_wire::request::PathError;

/// The reason why an explanation is missing or incomplete.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    #[error("the policy")]
    Source(#[from] BadSource),
    #[error("the proxy refuses {0:?}")]
    Target(String, #[source] PathError),
    #[error("{}", .0.display())]
    Review(PathBuf, #[source] BadReview),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("{0} of the resources could not be listed, the first of them {1}")]
    Incomplete(usize, String, #[source] ClusterError),
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

impl ExplainError {
    /// The exit code, as in sysexits.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Source(BadSource::Cluster(error))
            | Self::Cluster(error)
            | Self::Incomplete(_, _, error) => error.exit_code,
            Self::Source(_) | Self::Target(..) | Self::Review(..) => 64,
            Self::Output(_) => 69,
        }
    }
}
