//! The API server at the end of one connection, as requests may use it.
//!
//! Hides the HTTP version, the part of a client's request that goes along with one of our own, and
//! the probes by which the server's abilities are found out. Knows no policy in force and nothing
//! of the client's connection.

mod behalf;
mod body;
mod connection;
mod discovery;
mod hop_by_hop;
mod known;
mod present;
mod understood;

pub(super) use self::{
    behalf::{Kept, METADATA, OnBehalf, with_target},
    body::{ClientBody, Leftover, RequestBody},
    connection::{Broken, Line, Upstream},
    discovery::{SEGMENT, Served, ServedResource, path as discovery_path, settle},
    hop_by_hop::strip_hop_by_hop,
    present::{Present, present},
    understood::{Probe, understood},
};
