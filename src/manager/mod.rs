//! Makes pods part of the mesh.
//!
//! Pure parts decide, each a function of values:
//!
//! - [`ctrlmesh_inject`] adds the init container and the proxy to a pod that asks for it. It uses neither
//!   files nor the cluster, so the command `ctrlmesh inject` and [`admission`] share it.
//! - [`configs`] are the ShardingConfigs by which it knows of a pod's webhook server.
//! - [`trust`] decides which certificate authorities the mesh has, and what they sign;
//!   [`enrolment`] for whom.
//!
//! A replica is four tasks ([`start`]): the port of admission and enrolment (`server`), the objects that both
//! replicas follow (`follow`), the duties of the leader (`reconcile`), and the admin port. The only state that
//! outlives it is that of the API server.

pub mod admission;
pub mod config;
pub mod configs;
pub mod enrolment;
mod follow;
mod label_keys;
mod metrics;
mod object_labels;
mod reconcile;
mod server;
mod serving;
mod shared;
pub mod start;
pub mod trust;
mod workload;

pub use self::{
    config::{BadConfig, Config, ManagerArgs},
    label_keys::{LabelKey, LabelKeys},
    server::{INJECT, INJECT_BASELINE, LEAF, VALIDATE},
};
