//! Running programs: their networks, their ends, their output, and waits for them.
//!
//! It knows nothing of individual programs.

mod follow;
mod network;
mod process;
mod program;
mod wait;

pub(crate) use self::{follow::Lines, process::Process};
pub use self::{network::Network, process::tied, program::Program, wait::until};
