//! The handover within a ring: a shard gives up before another takes.
//!
//! The parts: [`Ring`] is the machine of one pod. It says in a Lease what the pod may write, gives
//! back only when nothing is under way outside, and opens what it gains when a consistent list of
//! the ring's Leases, read after its own claim was stored, shows that no other shard claims it.
//! Nobody coordinates: configs may be late, skip, or go back.
//!
//! Hides how an object never has two writers. Knows no clock, no API server and no encoding. Words:
//! a *ring* is the shards of one controller in one namespace; a *claim* is what a pod's Lease says
//! that it may write; what is *open* is what its proxy forwards writes of.

mod claim;
mod config;
mod form;
mod laws;
mod machine;
mod own;
mod peers;
mod standing;
mod timing;
mod under_way;
mod wish;

pub use self::{
    claim::{Claim, Lease, Listing},
    config::{Wanted, Wishes},
    form::{SPEAKS, Said, ScopeClaim, TooLong, boundary_text, read_boundary},
    machine::{Phase, Ring, Saying, Watched, Write},
    own::Answer,
    standing::{Overlap, Standing},
    timing::{Time, Timing},
};

#[cfg(test)]
mod tests;
