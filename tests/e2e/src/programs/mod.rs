//! Programs while they run: where, until when, what they print, and how one waits for them.
//!
//! It knows nothing of what the programs are.

mod follow;
mod network;
mod process;
mod program;
mod wait;

pub(crate) use self::{
    follow::Lines,
    process::{Process, tied},
};
pub use self::{network::Network, program::Program, wait::until};
