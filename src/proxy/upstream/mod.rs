//! API servers: [`Server`] is one of them, [`Upstream`] one connection to it, as requests may use it.
//!
//! Hides the server's address and roots, the HTTP version, the part of a client's request that goes
//! along with one of our own, and the probes by which the server's abilities are found out. Knows no
//! policy in force and nothing of the client's connection but what it offers in TLS.

mod behalf;
mod body;
mod capabilities;
mod connection;
mod current;
mod dial;
mod discovery;
mod hop_by_hop;
pub(super) mod http2;
mod position_store;
mod server;

pub(super) use self::{
    behalf::{ClientContext, METADATA, NoAnswer, SavedRequest, whole, with_target},
    body::{ClientBody, Leftover, Place, RequestBody, Room, UPLOAD_WINDOW, Whole},
    capabilities::{Probe, understood},
    connection::{Broken, Cut, Line, MAX_HEADER_COUNT, Upstream, UpstreamBody, h1_requests},
    current::{CurrentConnection, OtherConnection, Replacement},
    dial::{Destination, Redial, UpstreamConn, UpstreamTlsStream},
    discovery::{Served, group_path, namespaced, path as discovery_path},
    hop_by_hop::strip_hop_by_hop,
    position_store::{PositionStore, Unwritable},
    server::{Abilities, BadTls, Capabilities, OwnSockets, RootedTls, Server},
};
