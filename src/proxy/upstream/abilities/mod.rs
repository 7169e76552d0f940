//! What an API server is able to do for us: what it has proven, and for how long that counts.

pub(super) mod known;
mod proof;

pub(in crate::proxy) use self::{
    known::{Abilities, Understood},
    proof::{Probe, understood},
};
