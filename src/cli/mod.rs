//! The commands for users, and their log output.

pub mod crds;
pub mod doctor;
pub mod explain;
pub mod inject;
mod line;
pub mod log;
pub mod mesh_ca;
pub mod uninstall_check;
pub mod wait;
pub mod yaml;
