//! A process that serves for months: its vital tasks, the port for people and probes, listeners that
//! cannot accept for a while.
//!
//! The proxy and the manager share it and know nothing of each other.

pub mod admin;
pub mod guests;
pub mod outages;
pub mod vital;
