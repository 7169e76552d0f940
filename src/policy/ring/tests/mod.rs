//! The machine by itself, and every interleaving of a small ring.

mod bits;
mod encoding;
mod explorer;
mod machine;
mod pod_status;
