//! Injected pods on real nodes: each test has a node of its own.

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
