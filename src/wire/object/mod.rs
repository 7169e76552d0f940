//! The facts that an object states of itself: one reader for streams and for bodies of writes.
//!
//! Hides the encodings. `walk` descends along the few paths that matter, and skips everything else;
//! [`crate::frames`] walks bodies of lists and watches with it.

mod metadata;
mod read;
pub(crate) mod walk;

pub use metadata::{Labels, Object, Owner, Owners, Wanted};
pub use read::Reader;
pub(crate) use read::walk_one;
pub use walk::Fault;
