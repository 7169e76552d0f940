//! `ctrlmesh-init` against the real kernel: network namespaces, both backends, both families, real
//! connections. Needs root, veth and the iptables programs; without them these tests fail.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod backends;
mod capabilities;
mod families;
mod lab;
mod meshes;
mod mutations;
mod proof;
mod rerun;
mod round_trip;
mod routes;
mod traffic;
