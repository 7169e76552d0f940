//! The end-to-end tests: real API servers and nodes, unmodified clients. A module is a suite.
//!
//! `test-runner` runs groups of these tests side by side, each group in a process of its own; its
//! table `groups.rs` says which tests share a cluster. `cargo test --test e2e NAME` runs them too.

#![allow(clippy::print_stdout, reason = "seeds, figures, and how long things took")]

mod admission;
mod bed;
mod chart;
mod clients;
mod direct;
mod doctor;
#[path = "../../support/golden.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "a helper of all suites")]
mod golden;
mod handover;
mod injected;
mod install;
mod manager;
mod node;
mod operators;
mod oracle;
mod runner;
mod webhooks;
