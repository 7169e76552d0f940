//! Injected pods on real nodes: each test has a node of its own.

#![allow(clippy::print_stdout, reason = "a test tells its figures")]

mod admin;
mod families;
mod history;
mod kubelet;
mod pods;
mod records;
mod restart;
mod scene;
mod shards;
mod sidecars;
mod toolbox;
mod versions;
