//! What tests run and do not write themselves: how it comes to be, once, and where it is kept.
//!
//! It knows no cluster: it makes files and knows their paths.

mod cache;
mod clients;
pub mod deps;
mod go;
pub mod images;
mod kube;

pub(crate) use self::go::go_program;
pub use self::{
    clients::{go_clients, python_client},
    images::Image,
    kube::{KUBERNETES_VERSION, kube_binary},
};
