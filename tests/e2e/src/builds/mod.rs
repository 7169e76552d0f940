//! The programs and images that tests run: how they are built, once, and where they are cached.
//!
//! It makes files and returns their paths; it knows nothing of clusters.

mod cache;
mod charts;
mod clients;
pub mod deps;
mod go;
mod helm;
pub mod images;
mod kube;

pub(crate) use self::go::go_program;
pub use self::{
    cache::directory as cache_directory,
    charts::{argo_rollouts, cert_manager, eck, go_module},
    clients::{all_clients, go_clients, java_client, node_client, python_client},
    helm::helm_binary,
    images::Image,
    kube::{KUBERNETES_VERSION, kube_binary},
};
