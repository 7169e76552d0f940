//! The policy in force: found in a file or in the cluster, compiled, and put in force for every
//! data thread at once.
//!
//! The last good policy stays. A later failure (a bad change, a deleted config, a second config for
//! the same pod) is reported, and changes nothing.

mod active;
mod cluster;
mod controller;
mod disconnected;
mod file;
mod in_flight;
mod labels;
mod locks;
mod moves;
mod namespaces;
mod shown;

pub(super) use self::{
    active::{ActivePolicy, DrainingPolicy, PendingPolicy, PolicyStore, SourceState},
    cluster::follow_cluster,
    controller::{Elections, KnownRequests},
    file::PolicyFile,
    in_flight::InFlightGuard,
    labels::OwnPod,
    moves::Move,
    shown::follow_moves,
};
