//! The memory that the proxy holds for its clients, and for how long: the bodies of requests, their
//! heads, and the memory that both take.

mod container;
mod memory;
mod refused;
mod uploads;
