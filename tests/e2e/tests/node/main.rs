//! Injected pods on real nodes: each test has a node of its own.

#![allow(clippy::print_stdout, reason = "a test tells its figures")]

mod families;
mod kubelet;
mod pods;
mod shards;
mod sidecars;
mod toolbox;
