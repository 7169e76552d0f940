//! Live watches and the policies that decided them. When the policy changes, the affected ones are
//! ordered to follow: by difference if possible, else their clients have to list again. The others are
//! not touched.
//!
//! Hides which watches a change concerns, and in which order those of a pod show it. Does not know how a
//! watch obeys: its body does that ([`streams`](super::streams)).

mod machine;
mod streams;
mod turns;

pub(super) use self::{
    machine::{Goal, Input, Output},
    streams::{LiveStream, LiveStreams, StreamTable, Subject},
    turns::{Member, Turn, Turns},
};
