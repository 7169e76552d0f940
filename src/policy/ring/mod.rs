//! The handover within a ring: a shard gives up before another takes.
//!
//! The parts: [`Handover`] is the machine of one pod. It says in a Lease what the pod may write, gives
//! back only when nothing is under way outside, and opens what it gains when a consistent list of
//! the ring's Leases, read after its own claim was stored, shows that no other shard claims it.
//! No one coordinates: configs may be late, skip, or go back.
//!
//! Hides how an object never has two writers. Knows no clock, no API server and no encoding. Words:
//! a *ring* is the shards of one controller in one namespace; a *claim* is the objects that a pod
//! may write, as its Lease says; *open* objects are those whose writes the pod's proxy forwards.

mod claim;
mod config;
mod encoding;
mod invariants;
mod machine;
mod own_lease;
mod peer_leases;
mod pod_status;
mod timing;
mod under_way;
mod wish;

pub use self::{
    claim::{Claim, Lease, Listing},
    config::{DesiredScope, DesiredScopes},
    encoding::{SPEAKS, Said, ScopeClaim, TooLong, boundary_text, read_boundary},
    machine::{Handover, Phase, Saying, Watched, Write},
    own_lease::Answer,
    pod_status::{Overlap, PodStatus},
    timing::{Time, Timing},
};

#[cfg(test)]
mod tests;
