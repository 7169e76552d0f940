//! Bodies of lists and watches, scanned or filtered while they pass.
//!
//! A scanner is fed the chunks of a body, cut anywhere, and never changes them. [`WatchScanner`]
//! reports the end and the facts of each event; [`ListScanner`] reports the list's own metadata.
//! Each needs memory of fixed size whatever the body, and stops with a named [`FrameError`] at a
//! malformed one. Both parse only what they report: the rest is measured, not validated.
//!
//! One walker per encoding (`json`, `proto`, `cbor`) descends along the few paths of `place` and
//! skips everything else. A body with a `Content-Encoding` has to be decoded first.

mod bookmark;
mod cbor;
mod event;
mod facts;
mod filter;
mod items;
mod json;
mod list;
mod place;
mod proto;
mod skip;
mod watch;

pub use bookmark::Bookmark;
pub use event::{Listed, TypeMeta, object_event};
pub use facts::{Continue, EventKind, ListMeta, Object};
pub use filter::{Counts, Judge, ListFilter, Passed, Verdict, WatchFilter};
pub use items::{Item, ListHead, ListItems};
pub use list::ListScanner;
pub use watch::{Event, EventEnd, Events, WatchScanner};

use self::facts::Facts;
use self::place::Node;
use super::media::Encoding;

/// The magic in front of every protobuf object (`k8s` and a zero byte).
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// A body that does not match its Content-Type. It cannot be read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{fault} (byte {at} of the body)")]
pub struct FrameError {
    /// The fault.
    pub fault: Fault,
    /// Offset in the whole body, in bytes, near the first byte that does not fit.
    pub at: u64,
}

/// The faults of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// An event, a list or an item that is no object.
    #[error("not an object")]
    NotAnObject,
    /// The items of a list are no array.
    #[error("items that are no array")]
    NotItems,
    /// A list without items, not even null.
    #[error("not a list")]
    NotAList,
    /// An item whose metadata does not identify its object, or not unambiguously.
    #[error("item without metadata that can be read in one way")]
    Item,
    /// An event of an unknown type, which cannot be judged.
    #[error("event of a type that nobody knows")]
    Event,
    /// An item or event larger than anything that the API server stores.
    #[error("item too large")]
    TooLarge,
    /// JSON or CBOR: a byte or item that cannot follow here.
    #[error("unexpected byte")]
    Unexpected,
    /// JSON: a backslash and a character that cannot follow it.
    #[error("broken escape in a string")]
    Escape,
    /// Nested more deeply than apimachinery would decode.
    #[error("nested too deeply")]
    TooDeep,
    /// Protobuf or CBOR: a length beyond its enclosing item. JSON: a number that is too long.
    #[error("length out of bounds")]
    Length,
    /// Protobuf: a varint of more than 64 bits.
    #[error("varint of more than 64 bits")]
    Varint,
    /// Protobuf: a field number or wire type that does not exist.
    #[error("no such field number or wire type")]
    Tag,
    /// Protobuf: an object without the `k8s\0` in front.
    #[error("object without its magic number")]
    Magic,
    /// CBOR: a reserved value of the initial byte.
    #[error("reserved initial byte")]
    Head,
    /// The body ended in the middle.
    #[error("body ends in the middle")]
    Truncated,
}

/// The progress of a walker in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// At the end of the chunk.
    More,
    /// At the end of an event or a list, this many bytes into the chunk.
    End(usize),
    /// The list's metadata is complete, this many bytes into the chunk.
    Known(usize),
    /// At a delimiter of the items of a list, this many bytes into the chunk.
    Mark(Mark, usize),
}

/// A delimiter of the items of a list. `token` is its length in bytes; it may have begun in an
/// earlier chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
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
}

/// The walker of an encoding.
#[derive(Debug)]
enum Walker {
    Json(json::Json),
    Proto(proto::Proto),
    Cbor(cbor::Cbor),
}

impl Walker {
    /// `None` for YAML, which is never streamed.
    fn new(encoding: Encoding, root: Node) -> Option<Self> {
        Some(match encoding {
            Encoding::Json => Self::Json(json::Json::new(root)),
            Encoding::Protobuf => Self::Proto(proto::Proto::new(root)),
            Encoding::Cbor => Self::Cbor(cbor::Cbor::new(root)),
            Encoding::Yaml => return None,
        })
    }

    /// Walks to the next step, takes the bytes in front of it off `rest` and returns them.
    fn step<'c>(
        &mut self,
        rest: &mut &'c [u8],
        facts: &mut Facts,
    ) -> Result<(Step, &'c [u8]), Fault> {
        let step = self.walk(rest, facts)?;
        let at = match step {
            Step::More => rest.len(),
            Step::End(at) | Step::Known(at) | Step::Mark(_, at) => at,
        };
        let (piece, behind) = rest.split_at_checked(at).unwrap_or((rest, &[]));
        *rest = behind;
        Ok((step, piece))
    }

    fn walk(&mut self, chunk: &[u8], facts: &mut Facts) -> Result<Step, Fault> {
        match self {
            Self::Json(json) => json.walk(chunk, facts),
            Self::Proto(proto) => proto.walk(chunk, facts),
            Self::Cbor(cbor) => cbor.walk(chunk, facts),
        }
    }

    /// Number of bytes, at the end of the walked ones, of a token that is incomplete.
    fn pending(&self) -> usize {
        match self {
            Self::Json(json) => json.pending(),
            Self::Proto(proto) => proto.pending(),
            Self::Cbor(cbor) => cbor.pending(),
        }
    }

    /// Whether a body may end here.
    fn at_boundary(&self) -> bool {
        match self {
            Self::Json(json) => json.at_boundary(),
            Self::Proto(proto) => proto.at_boundary(),
            Self::Cbor(cbor) => cbor.at_boundary(),
        }
    }
}
