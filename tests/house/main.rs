//! What people and machines read from us, and what the house rules say of the code.

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

mod direction;
mod docs;
mod goldens;
mod readme;
