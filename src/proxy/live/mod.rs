//! Live watches and the policies that decided them. When the policy changes, the affected ones are
//! ordered to follow: by difference if possible, else their clients have to list again. The others are
//! not touched.
//!
//! Hides which watches a change concerns, and in which order those of a pod show it. Does not know how a
//! watch obeys: its body does that ([`streams`](super::streams)).

mod machine;
mod move_barrier;
mod streams;

pub(super) use self::{
    machine::{Goal, Input, Output},
    move_barrier::{Member, MoveBarrier, MovePhase},
    streams::{LiveStream, LiveStreams, StreamTable, Subject},
};
