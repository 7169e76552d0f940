//! Makes pods part of the mesh.
//!
//! [`inject`] adds the init container and the proxy to a pod that asks for it. It uses neither
//! files nor the cluster, so the command `ctrlmesh inject` and [`admission`] share it.
//! [`trust`] decides which certificate authorities the mesh has, and what they sign; [`enrolment`]
//! for whom.

pub mod admission;
pub mod enrolment;
pub mod inject;
pub mod trust;
