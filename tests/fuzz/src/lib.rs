//! What must hold of everything that reads bytes of others, whatever the bytes.
//!
//! A target is a function of one input that panics where something does not hold. `scripts/fuzz`
//! runs the targets under libFuzzer, which looks for inputs that take new ways through the code;
//! `cargo test -p ctrlmesh-fuzz` replays the seeds in `corpus`, recorded from a real API server.
//!
//! - `list-*`, `watch-*`: the filters of bodies, against plain decoders that hold the whole body.
//! - `history`: the filter of watches, against a model of the stream, by events that are valid.
//! - `name`: the lock's name in the body of a write, against plain decoders; every other byte stays.
//! - `delete`: what goes out for one object has its version and all that the client asked for.
//! - `review`: the facts of an admission review, against a plain decoder, as they arrive.
//! - `request`: what the API server makes of a request line, against its own rules told again.
//! - `query`, `selector`: the same for the parts of a query; a written one is read as the same.
//! - `websocket`: what a client sends, and the frames of a watch, by the RFC's rules told again.
//! - `leaving`: the metadata of an object that leaves, against a plain decoder.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a target panics where something does not hold"
)]

mod delete;
mod history;
mod leaving;
mod lists;
mod name;
mod readers;
mod request;
mod review;
mod splits;
mod text;
mod watches;
mod websocket;
mod write;

use ctrlmesh::wire::Encoding;

/// Panics if something does not hold of the input.
pub type Target = fn(&[u8]);

/// All targets, by the names of their folders in `corpus`.
pub const TARGETS: [(&str, Target); 15] = [
    ("list-json", |input| lists::filter(Encoding::Json, input)),
    ("list-protobuf", |input| lists::filter(Encoding::Protobuf, input)),
    ("list-cbor", |input| lists::filter(Encoding::Cbor, input)),
    ("watch-json", |input| watches::filter(Encoding::Json, input)),
    ("watch-protobuf", |input| watches::filter(Encoding::Protobuf, input)),
    ("watch-cbor", |input| watches::filter(Encoding::Cbor, input)),
    ("history", history::follow),
    ("name", name::rename),
    ("delete", delete::options),
    ("review", review::facts),
    ("request", request::classify),
    ("query", text::query),
    ("selector", text::selector),
    ("websocket", websocket::both_ways),
    ("leaving", leaving::change),
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(own, _)| *own == name).map(|(_, target)| *target)
}
