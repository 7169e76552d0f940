//! The reasons why a body breaks off.

use crate::upstream::Cut;
use ctrlmesh_wire::frames::FrameError;

/// Reasons to break off: the client's stream is reset, so that no part is taken for a whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the upstream broke off")]
    Upstream(#[from] Cut),
    #[error("the response cannot be followed")]
    Unreadable(#[from] FrameError),
    #[error("the response cannot be decompressed")]
    Compression,
    #[error("a watch whose events cannot be parsed had to end")]
    Unparsed,
    #[error("too many large objects are not whole yet")]
    NoRoom,
    #[error("the upstream stopped in the middle of an event")]
    Stalled,
}
