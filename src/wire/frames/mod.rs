//! Bodies of lists and watches, scanned while they pass: bytes are looked at, never kept, copied or
//! changed.
//!
//! A scanner is fed the chunks of a body as they come, cut anywhere. [`WatchScanner`] tells where
//! each event ends and what it was; [`ListScanner`] tells the list's own metadata. Each needs
//! memory of fixed size whatever the body, and stops with a named [`FrameError`] at what is no such
//! body. Both look only at what they report: the rest is measured, not validated.
//!
//! One walker per encoding (`json`, `proto`, `cbor`) descends along the few paths of
//! `facts` and skips everything else. A body with a `Content-Encoding` has to be decoded first.

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

/// In front of every object in protobuf (`k8s` and a zero byte).
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// A body that is not what its Content-Type says. It cannot be followed any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{fault} (byte {at} of the body)")]
pub struct FrameError {
    /// What is wrong.
    pub fault: Fault,
    /// Offset in the whole body, in bytes, of the first byte that does not fit, or a little before.
    pub at: u64,
}

/// What can be wrong with a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// An event or a list is an object.
    #[error("not an object")]
    NotAnObject,
    /// The items of a list are no array.
    #[error("items that are no array")]
    NotItems,
    /// A list without the items that it should have.
    #[error("not a list")]
    NotAList,
    /// An item does not say, or not in one way only, which object it is.
    #[error("item without metadata that can be read in one way")]
    Item,
    /// The facts of an event's object are not known.
    #[error("event of a type that nobody knows")]
    Event,
    /// An item is larger than anything that the API server stores.
    #[error("item too large")]
    TooLarge,
    /// JSON or CBOR: something else must stand here.
    #[error("unexpected byte")]
    Unexpected,
    /// JSON: a backslash and something that cannot follow it.
    #[error("broken escape in a string")]
    Escape,
    /// Deeper nested than the API machinery would decode.
    #[error("nested too deeply")]
    TooDeep,
    /// Protobuf or CBOR: a length that does not fit into what surrounds it.
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

/// How far a walker came in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// To the end of the chunk.
    More,
    /// To the end of an event or a list, this many bytes into the chunk.
    End(usize),
    /// The list's metadata is complete, this many bytes into the chunk.
    Known(usize),
    /// To a place at which the items of a list are told apart, this many bytes into the chunk.
    Mark(Mark, usize),
}

/// A place in a list at which its items are told apart. `token` is the length of what stands there,
/// in bytes; it may have begun in an earlier chunk.
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
    /// Behind the number of items that remain; in protobuf behind its tag.
    Remaining { token: usize },
}

/// One walker, by encoding.
#[derive(Debug)]
enum Walker {
    Json(json::Json),
    Proto(proto::Proto),
    Cbor(cbor::Cbor),
}

impl Walker {
    /// `None` for YAML, which nobody streams.
    fn new(encoding: Encoding, root: Node) -> Option<Self> {
        Some(match encoding {
            Encoding::Json => Self::Json(json::Json::new(root)),
            Encoding::Protobuf => Self::Proto(proto::Proto::new(root)),
            Encoding::Cbor => Self::Cbor(cbor::Cbor::new(root)),
            Encoding::Yaml => return None,
        })
    }

    /// Walks to the next place, and takes off `rest` what stands in front of it.
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

    /// Bytes at the end of what was walked that belong to a token which is not whole yet.
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
