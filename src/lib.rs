//! ctrlmesh runs any Kubernetes controller as several shards, without changing a line of it.
//!
//! The map. Each is a package, whose manifest names those that it may use: they point from the bottom of this
//! list to its top only.
//!
//! - [`api`]: the custom resources, as users write them.
//! - [`wire`]: the wire formats of Kubernetes, as functions of bytes.
//! - [`policy`]: the decisions, as functions of values; without socket, clock or task.
//! - [`net`]: sockets, original destinations, TLS, the mesh CA and its leaf, drain.
//! - [`cluster`]: our own calls to the API server, and the objects that they follow.
//! - [`process`]: supervised tasks, the admin port.
//! - [`sidecar`]: the ports, files and arguments of a pod's proxy.
//! - [`inject`]: adds the init container and the proxy to a pod.
//! - [`proxy`]: the data plane; its first page is the life of a connection.
//! - [`manager`]: makes pods part of the mesh.
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
//! | request action | the decision about a request: it passes, is restricted to the scope, or is a write that is judged |
//! | shard | the part of the objects that one group of pods owns |
//! | scope | the objects of one resource that a shard sees |
//! | client, upstream | the controller's side, the API server's side of the proxy |
//! | outbound, inbound | controller to API server, API server to the pod's webhook |
//! | pair | one client connection and its one upstream connection |
//! | partition | the part of a root's objects that one of its children gets |
//! | in flight | a request that may still take effect |
//! | desired scope | the objects that a config selects for its shard; a claim is what a pod may write |
//! | refusal | a response of the proxy in place of the upstream's |
//! | position | a resourceVersion that a client has received |
//! | plan | a command as data: redirect rules, or the proxy's arguments |
//! | reconciler | a part of the manager that compares one kind of object with what it should be, and has it written |
//! | enrolment | the way in which a proxy has its certificate signed by the manager |
//! | bundle | the CA set that a pod trusts: cluster CA and mesh CA |

pub use ctrlmesh_api as api;
pub use ctrlmesh_base::{cluster, process, sidecar};
pub use ctrlmesh_cli as cli;
pub use ctrlmesh_inject as inject;
pub use ctrlmesh_manager as manager;
pub use ctrlmesh_net as net;
pub use ctrlmesh_policy as policy;
pub use ctrlmesh_proxy as proxy;
pub use ctrlmesh_wire as wire;
