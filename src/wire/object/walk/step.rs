//! The steps of a walker.

use super::place::Node;

/// The progress of a walker in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::wire) enum Step {
    /// The walker is at the end of the chunk.
    More,
    /// The walker is at the end of an event or a list, this many bytes into the chunk.
    End(usize),
    /// The list's metadata is complete, this many bytes into the chunk.
    Known(usize),
    /// The walker is at a delimiter of a list's items, this many bytes into the chunk.
    Mark(Mark, usize),
}

/// A delimiter of the items of a list, or of the values in a write. `token` is its length in bytes;
/// it may have begun in an earlier chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::wire) enum Mark {
    /// Behind the token that opens the items.
    Open { token: usize },
    /// Protobuf: behind the tag of an item.
    Tag { token: usize },
    /// Protobuf: behind the length of an item, before its first byte.
    Body,
    /// Behind an item.
    Item,
    /// Behind the token that closes the items; a CBOR array of definite length has none.
    Close { token: usize },
    /// Behind `remainingItemCount`; in protobuf behind its tag.
    Remaining { token: usize },
    /// Behind the first token of a value in a write: in JSON one byte, in CBOR its head, in protobuf
    /// a number or a length.
    Value { node: Node, token: usize },
}
