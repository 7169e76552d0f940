//! The commands for users, and their log output.

mod cluster;
pub mod crds;
pub mod doctor;
pub mod explain;
#[cfg(test)]
#[path = "../../tests/support/golden.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "a helper of all suites")]
mod golden;
pub mod handover;
pub mod inject;
mod line;
pub mod log;
pub mod mesh_ca;
pub mod shard;
pub mod status;
mod table;
pub mod uninstall_check;
pub mod wait;
pub mod yaml;
