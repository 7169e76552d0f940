//! Golden files of the output, and the house rules for code and documentation.

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

mod circles;
mod deploy;
mod direction;
mod docs;
mod goldens;
mod modules;
mod readme;
mod words;
