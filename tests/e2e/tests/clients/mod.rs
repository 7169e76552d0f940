//! The unmodified clients of Go and other languages on a real API server, directly and through the
//! proxy. Meanwhile their shard's boundary moves and the proxy ends.
//!
//! One API server for all tests that run at the same time; each test has a namespace and a proxy of its
//! own. `MOVES` is the number of moves out and back of the operator on kopf.

mod kopf;
mod language;
mod shown;
mod writes;
