//! The commands for people, and what every command needs: log output and exit codes.

pub mod crds;
pub mod explain;
pub mod inject;
mod line;
pub mod log;
pub mod mesh_ca;
pub mod wait;
pub mod yaml;
