//! A process that serves for months: its supervised tasks, the port for people and probes, listeners that
//! cannot accept for a while.
//!
//! The proxy and the manager share it and know nothing of each other.

pub mod accept_backoff;
pub mod admin;
pub mod connection_limit;
pub mod supervisor;
