//! What makes pods part of the mesh.
//!
//! [`inject`] turns a pod that asks for it into one with the init container and the proxy. It knows
//! neither files nor the cluster, so the command `ctrlmesh inject` and admission share it.

pub mod inject;
