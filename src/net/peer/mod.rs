//! Mutual TLS between the proxies of one namespace.
//!
//! Hides how a proxy proves which pod it is: by its leaf, which both sides show. Does not know which
//! pods there are, nor what they say to each other. A *peer* is another pod of the own namespace; its
//! *identity* is the URI of its leaf.
//!
//! No host name is checked: an address may have been another pod's a moment ago. Who dials demands one
//! pod, uid included; who accepts demands a pod of its namespace.

mod roots;
mod tls;

pub use self::{
    roots::{BadMeshRoots, MeshRoots, RootsPlace},
    tls::{NotAPeer, PEER_NAME, PeerTls, Proof, identity_of, peer_of},
};

#[cfg(test)]
mod tests;
