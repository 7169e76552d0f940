//! The machine by itself, and every interleaving of a small ring.

mod bits;
mod explorer;
mod form;
mod machine;
mod standing;
