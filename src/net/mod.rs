//! Sockets, original destinations, TLS, the mesh CA and its leaf, drain.
//!
//! Hides the transport and its trust; knows no Kubernetes object and no policy.

pub mod addr;
pub mod ca;
pub mod capped_reads;
pub mod clock;
pub mod close_tracker;
pub mod cork;
pub mod drain;
pub mod identity;
pub mod leaf;
pub mod listening;
pub mod names;
pub mod pair;
pub mod peer;
pub mod socket;
pub mod tls;

pub use self::{
    addr::{ClientAddr, ManagerAddr, OrigDst, UpstreamAddr},
    clock::Clock,
    names::{ClusterDomain, is_api_servers_name},
};

#[cfg(test)]
mod tests;
