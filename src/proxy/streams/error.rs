//! The reasons why a body breaks off.

use crate::{proxy::upstream::Cut, wire::frames::FrameError};

/// Reasons to break off: the client's stream is reset, so that no part is taken for a whole.
#[derive(Debug, thiserror::Error)]
pub(in crate::proxy) enum BodyError {
    /// The upstream broke off.
    #[error("the upstream broke off")]
    Upstream(#[from] Cut),
    /// The body is not what its content type says.
    #[error("the response cannot be followed")]
    Unreadable(#[from] FrameError),
    /// A compressed body does not decompress.
    #[error("the response cannot be decompressed")]
    Compression,
    /// A watch whose events cannot be parsed has to end, and the end of an event is not known.
    #[error("a watch whose events cannot be parsed had to end")]
    Unparsed,
    /// The objects that are not whole yet take all the room for them.
    #[error("too many large objects are not whole yet")]
    NoRoom,
    /// An event stayed incomplete when the watch had to end.
    #[error("the upstream stopped in the middle of an event")]
    Stalled,
}
