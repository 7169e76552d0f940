//! The policy in force: found in a file or in the cluster, compiled, and put in force for every
//! data thread at once.
//!
//! The last good policy stays. A later failure (a bad change, a deleted config, a second config for
//! the same pod) is reported, and changes nothing.

mod absent;
mod cluster;
mod controller;
mod file;
mod in_force;
mod labels;
mod locks;
mod moves;
mod namespaces;
mod requests;
mod shown;

pub(super) use self::{
    cluster::follow_cluster,
    controller::{Elections, KnownRequests},
    file::PolicyFile,
    in_force::{Feed, InForce, LetThrough, SourceState, Turn},
    labels::OwnPod,
    requests::UnderWay,
    shown::follow_moves,
};
