//! API servers: [`Server`] is one of them, [`Upstream`] one connection to it, as requests may use it.
//!
//! Hides the server's address and roots, the HTTP version, the part of a client's request that goes
//! along with one of our own, and the probes by which the server's abilities are found out. Knows no
//! policy in force and nothing of the client's connection but what it offers in TLS.

mod behalf;
mod body;
mod connection;
mod current;
mod dial;
mod discovery;
mod hop_by_hop;
pub(super) mod http2;
mod past;
mod server;
mod understood;

pub(super) use self::{
    behalf::{Kept, METADATA, NoAnswer, OnBehalf, whole, with_target},
    body::{ClientBody, Leftover, Place, RequestBody, Room, UPLOAD_WINDOW, Whole},
    connection::{Broken, Cut, Line, MAX_HEADER_COUNT, Upstream, UpstreamBody, h1_requests},
    current::{CurrentConnection, OtherConnection, Replacement},
    dial::{Destination, Redial, UpstreamConn, UpstreamTlsStream},
    discovery::{Served, group_path, path as discovery_path, settled_action},
    hop_by_hop::strip_hop_by_hop,
    past::{KeptPositions, Unwritable},
    server::{Abilities, BadTls, OwnSockets, RootedTls, Server, Understood},
    understood::{Probe, understood},
};
