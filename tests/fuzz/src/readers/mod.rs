//! Plain readers of whole bodies, one an encoding, to judge by.

pub(crate) mod cbor;
pub(crate) mod protobuf;
pub(crate) mod tree;
