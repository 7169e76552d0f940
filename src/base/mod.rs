//! What the processes of ctrlmesh have in common: calls to the API server, tasks, and the contract between a pod and
//! its proxy.

pub mod cluster;
pub mod process;
pub mod sidecar;
