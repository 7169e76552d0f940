//! The proxy from outside: real sockets, real TLS, an upstream that the tests script.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::too_many_lines,
    reason = "a test that fails says so by a panic, and tells its story in one piece"
)]

#[path = "../support/mod.rs"]
mod support;

mod admin;
mod bodies;
mod drains;
mod ends;
mod enrol;
mod fence;
mod held;
mod inbound;
mod leases;
mod names;
mod namespaces;
mod own_requests;
mod policies;
mod redirected;
mod related;
mod requests;
mod smoke;
mod streams;
mod tls;
mod upgrades;
