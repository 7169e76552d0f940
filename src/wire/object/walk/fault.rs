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
pub enum Fault {
    /// An event, a list or an item is not an object.
    #[error("not an object")]
    NotAnObject,
    /// The items of a list are not an array.
    #[error("items that are not an array")]
    NotItems,
    /// A list without items, not even null.
    #[error("not a list")]
    NotAList,
    /// An item whose metadata does not identify its object, or not unambiguously.
    #[error("item whose metadata is missing or ambiguous")]
    Item,
    /// An event of an unknown type, which cannot be judged.
    #[error("event of an unknown type")]
    Event,
    /// An item or event larger than anything that the API server stores.
    #[error("item too large")]
    TooLarge,
    /// A byte of JSON, or an item of CBOR, that cannot follow here.
    #[error("unexpected byte")]
    Unexpected,
    /// An escape of JSON that does not exist.
    #[error("broken escape in a string")]
    Escape,
    /// Too deep a nesting for apimachinery's decoders.
    #[error("nested too deeply")]
    TooDeep,
    /// A length beyond its enclosing item, in protobuf or CBOR; a number of JSON that is too long.
    #[error("length out of bounds")]
    Length,
    /// A protobuf varint of more than 64 bits.
    #[error("varint of more than 64 bits")]
    Varint,
    /// A protobuf field number or wire type that does not exist.
    #[error("no such field number or wire type")]
    Tag,
    /// The magic is missing: a protobuf object without the `k8s\0` in front.
    #[error("object without its magic number")]
    Magic,
    /// A CBOR head with a reserved value of the initial byte.
    #[error("reserved initial byte")]
    Head,
    /// The body ended in the middle.
    #[error("body ends in the middle")]
    Truncated,
}
