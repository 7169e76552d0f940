//! ctrlmesh runs any Kubernetes controller as several shards, without changing a line of it.
//!
//! The map. Dependencies point from the bottom of this list to its top only; a test checks it.
//!
//! - [`api`]: the custom resources, as users write them.
//! - [`wire`]: the wire formats of Kubernetes, as functions of bytes.
//! - [`policy`]: the decisions, as functions of values; without socket, clock or task.
//! - [`net`]: sockets, original destinations, TLS, the mesh CA and its leaf, drain.
//! - [`cluster`]: our own calls to the API server, and the objects that they follow.
//! - [`process`]: vital tasks, the port for people and probes.
//! - [`sidecar`]: the ports, files and arguments of a pod's proxy.
//! - [`proxy`]: the data plane; its first page is the life of a connection.
//! - [`manager`]: makes pods part of the mesh; its core is the injection.
//! - [`cli`]: the commands for users.
//!
//! The words, one meaning each:
//!
//! | word | meaning |
//! |---|---|
//! | dialect | one user-facing API that compiles to a policy |
//! | policy | what all objects of one pod compile to, in parts; immutable |
//! | sharding | the part of a policy that says which objects are the shard's; it alone has an epoch |
//! | epoch | number of a sharding; a request takes one sharding at its start and keeps it |
//! | way | what becomes of a request |
//! | shard | the part of the objects that one group of pods owns |
//! | scope | the objects of one resource that a shard sees |
//! | client, upstream | the controller's side, the API server's side of the proxy |
//! | outbound, inbound | controller to API server, API server to the pod's webhook |
//! | pair | one client connection and its one upstream connection |
//! | refusal | a response of the proxy in place of the upstream's |
//! | position | a resourceVersion that a client has received |
//! | plan | the redirect rules, or the proxy's arguments, as data |
//! | enrolment | the way in which a proxy has its certificate signed by the manager |
//! | bundle | the CA set that a pod trusts: cluster CA and mesh CA |

pub mod api;
pub mod cli;
pub mod cluster;
pub mod manager;
pub mod net;
pub mod policy;
pub mod process;
pub mod proxy;
pub mod sidecar;
pub mod wire;
