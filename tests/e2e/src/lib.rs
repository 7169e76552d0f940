//! The test bed: real Kubernetes, started and ended by a test.
//!
//! The life of an [`ApiServer`] (two seconds; several at once):
//!
//! 1. [`kube_binary`] finds every component of Kubernetes in one binary, or builds it (`cluster/`).
//! 2. A bed is made: a directory with a lock that its owner holds. [`sweep`] removes the beds
//!    whose owners are dead.
//! 3. etcd starts on a Unix socket in the bed.
//! 4. A port is reserved on the loopback address; a CA issues the certificates; the
//!    administrator gets a certificate and a token.
//! 5. kube-apiserver starts, and is polled until it is ready.
//! 6. The test works: [`ApiServer::kubectl`], [`ApiServer::client`],
//!    [`ApiServer::service_account`], [`ApiServer::audit`]; it pauses, stops, restarts the server.
//! 7. Drop kills the processes and removes the bed. If the test process is killed, the kernel
//!    kills its processes with it, and the next bed removes its directory.
//!
//! The life of a [`Node`] (ten seconds; several at once; needs root):
//!
//! 1. A bed as above.
//! 2. A sandbox: namespaces for processes, mounts and network, whose first process is killed with
//!    the test process and takes all others with it. `/run`, `/var/lib` and `/var/log` are its own
//!    inside; a link carries the node's addresses, the same ones in every node.
//! 3. Side by side: containerd, into which [`images`] imports the pause image and a shell; and an
//!    [`ApiServer`] in the node's network.
//! 4. The CRDs of the test, so that no controller learns of them late.
//! 5. kube-controller-manager, kube-scheduler and kube-proxy, in the node's network; the kubelet,
//!    in all of its namespaces, with a cgroup of the bed's name above its pods.
//! 6. A wait until the node is Ready, the default ServiceAccount exists and Services have their
//!    rules.
//! 7. The test works: [`Node::import_image`], [`Node::apply`], [`Node::wait_for`],
//!    [`Node::exec`], [`Node::logs`], [`Node::network`], and everything of [`Node::api`].
//! 8. Drop ends the sandbox, waits until the kernel has ended everything in it, and removes the
//!    cgroup and the bed. After a kill of the test process the next bed sweeps both.
//!
//! A [`Proxy`] is the real binary in direct mode in front of an [`ApiServer`]: it makes a mesh CA,
//! writes the policy file, starts, and is ready when its log names its address. Clients are real
//! programs: kubectl, [`go_clients`], [`python_client`], the binary `kube-client`, each run as a
//! [`Program`] whose lines the test reads.
//!
//! Everything here blocks its thread. In an asynchronous test whose own tasks must go on
//! meanwhile (a proxy in the same process), call it from a blocking task or another thread.

mod api_server;
mod bed;
mod builds;
mod front;
mod kubectl;
mod manager;
mod node;
mod pki;
mod port;
mod programs;
mod proxy;
mod scenes;

pub use self::{
    api_server::{
        ApiServer, ApiServerBuilder, AuditEntry, AuditLevel, AuditLog, AuditObject, AuditReader,
        AuditStatus, AuditUser, Client, Response, Rule, ServiceAccount,
    },
    bed::{CLUSTERS, GROUP, Swept, sweep},
    builds::{
        Image, KUBERNETES_VERSION, all_clients, argo_rollouts, cache_directory, cert_manager, deps,
        eck, go_clients, go_module, helm_binary, images, java_client, kube_binary, node_client,
        python_client,
    },
    front::Front,
    kubectl::Kubectl,
    manager::Manager,
    node::{Families, Node, NodeBuilder},
    pki::{Authority, Identity},
    port::ReservedPort,
    programs::{Network, Program, tied, until},
    proxy::{Proxy, ProxyBuilder, ctrlmesh_binary},
    scenes::{
        Binaries, Boundary, Installed, Mesh, NAMESPACE, OperatorPod, PodClient, Run, Shards, Tool,
        Tools, Webhooks, Widget, sample,
    },
};
