//! The Kubernetes wire formats, sans-IO: bytes and strings in, facts and bytes out; no socket, no
//! clock, no task.
//!
//! - [`request`]: a method, a path and a query as the API server classifies them.
//! - [`query`]: the raw query, read and rewritten as Go reads it.
//! - [`options`]: the options of a list, watch or deletecollection.
//! - [`selector`]: label and field selectors.
//! - [`media`]: the encoding of a response.
//! - [`name`]: the name of the object in a write's body, replaced in place.
//! - [`delete`]: the options of a deletion.
//! - [`dns`]: names of objects, groups and namespaces.
//! - [`status`]: a refusal in the client's encoding.
//! - [`rv`]: resource versions.
//! - [`object`]: what an object says of itself.
//! - [`review`]: what an admission review is about, read while it arrives.
//! - [`frames`]: bodies of lists and watches, scanned or filtered while they pass.
//! - [`websocket`]: a watch over WebSocket: its handshake, its frames.

#![warn(missing_docs)]

pub mod delete;
pub mod dns;
mod escape;
pub mod frames;
pub mod media;
pub mod name;
pub mod object;
pub mod options;
mod protobuf;
pub mod query;
pub mod request;
pub mod review;
pub mod rv;
pub mod selector;
pub mod status;
pub mod websocket;

pub use media::Encoding;
pub use options::ListOptions;
pub use query::Query;
pub use request::{RequestInfo, Resource, Target, Verb};
pub use rv::ResourceVersion;
pub use selector::{FieldSelector, Selector};
pub use status::{Reason, Status};

#[cfg(test)]
mod tests;
