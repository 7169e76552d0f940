//! Objects that change hands when one policy follows another: the lists that find them, and the
//! judgement of each.
//!
//! Hides how little of a collection must be listed. Knows no encoding, and requests only in
//! `again`. The API server judges labels, since it alone has them; [`Part::judge`] judges all else,
//! even if it was pushed to the API server too.

mod again;
mod part;

pub use self::{
    again::{Page, watch_from},
    part::{Handed, Part, difference},
};
