//! The faults of a body.

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
#[expect(missing_docs, reason = "the messages say it")]
pub enum Fault {
    #[error("not an object")]
    NotAnObject,
    #[error("items that are not an array")]
    NotItems,
    #[error("not a list")]
    NotAList,
    #[error("item whose metadata is missing or ambiguous")]
    Item,
    #[error("event of an unknown type")]
    Event,
    /// An item or event larger than anything that the API server stores.
    #[error("item too large")]
    TooLarge,
    /// A byte of JSON, or an item of CBOR, that cannot follow here.
    #[error("unexpected byte")]
    Unexpected,
    #[error("broken escape in a string")]
    Escape,
    /// Too deep a nesting for apimachinery's decoders.
    #[error("nested too deeply")]
    TooDeep,
    /// A length beyond its enclosing item, in protobuf or CBOR; a number of JSON that is too long.
    #[error("length out of bounds")]
    Length,
    #[error("varint of more than 64 bits")]
    Varint,
    #[error("no such field number or wire type")]
    Tag,
    /// The magic is missing: a protobuf object without the `k8s\0` in front.
    #[error("object without its magic number")]
    Magic,
    /// A CBOR head with a reserved value of the initial byte.
    #[error("reserved initial byte")]
    Head,
    #[error("body ends in the middle")]
    Truncated,
}
