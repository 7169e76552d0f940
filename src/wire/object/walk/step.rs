//! The steps of a walker.

use super::place::Node;

/// The progress of a walker in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The walker is at the end of the chunk.
    More,
    /// The walker is at the end of an event or a list, this many bytes into the chunk.
    End(usize),
    /// The metadata of the list, or of an object in a review, is complete, this many bytes into the chunk.
    Known(usize),
    /// The walker is at a delimiter of a list's items, this many bytes into the chunk.
    Mark(Mark, usize),
}

/// A delimiter of the items of a list, or of the values in a write or a review. `token` is its length in bytes;
/// it may have begun in an earlier chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The items begin: their opening token was read.
    Open { token: usize },
    /// The tag of an item was read, in protobuf.
    Tag { token: usize },
    /// The length of an item was read, in protobuf; its first byte comes.
    Body,
    /// An item, or a part of a review, has ended.
    Item,
    /// The items end: their closing token was read. A CBOR array of definite length has none.
    Close { token: usize },
    /// The number `remainingItemCount` was read; in protobuf its tag.
    Remaining { token: usize },
    /// A value in a write, or a part of a review, begins: its first token was read, in JSON one byte, in CBOR its head, in
    /// protobuf a number or a length.
    Value { node: Node, token: usize },
}
