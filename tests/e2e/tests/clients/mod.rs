//! Operators in other languages than Go, unmodified, on a real API server, while their shard's boundary
//! moves.
//!
//! One API server for all tests that run at the same time; each test has a namespace and a proxy of its
//! own. `MOVES` is the number of moves out and back.

mod kopf;
