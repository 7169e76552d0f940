//! ctrlmesh runs any Kubernetes controller as several shards, without changing a line of it.
//!
//! The map. Dependencies point one way, from the bottom of this list to its top, and a test checks
//! it.
//!
//! - [`api`]: what users write, the custom resources and their spellings.
//! - [`wire`]: what Kubernetes puts on the wire, as functions of bytes.
//! - [`policy`]: what may pass, as functions of values; knows no socket, no clock, no task.
//! - [`net`]: sockets, original destinations, TLS, the mesh CA and its leaf, drain.
//! - [`proxy`]: the data plane; its first page is the life of a connection.
//! - [`manager`]: what makes pods part of the mesh; its heart is the injection.
//! - [`cli`]: the commands for people.
//!
//! The words, one meaning each:
//!
//! | word | meaning |
//! |---|---|
//! | dialect | one user-facing API that compiles to a policy |
//! | policy | the internal model of what may pass; immutable; has an epoch |
//! | epoch | number of a policy; a request takes one policy at its start and keeps it |
//! | shard | the part of the objects that one group of pods owns |
//! | scope | what a shard sees of one resource |
//! | client, upstream | the controller's side, the API server's side of the proxy |
//! | outbound, inbound | controller to API server, API server to the pod's webhook |
//! | pair | one client connection and its one upstream connection |
//! | refusal | an answer that we give instead of the upstream |
//! | position | a resource version that a client was shown |
//! | plan | the redirect rules, as data |
//! | bundle | the CA set that a pod trusts: cluster CA and mesh CA |

pub mod api;
pub mod cli;
pub mod manager;
pub mod net;
pub mod policy;
pub mod proxy;
pub mod wire;
