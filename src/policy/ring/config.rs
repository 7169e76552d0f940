//! The wishes of the configs of a ring.

use std::sync::Arc;

use crate::policy::Area;

/// The objects that a config wants for its shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wanted<S> {
    /// The ring.
    pub ring: Box<str>,
    /// The shard: the name of the config.
    pub shard: Box<str>,
    /// The time of the config's creation, in seconds, and its uid: the smaller of two is the elder.
    pub birth: (i64, Box<str>),
    /// The number of the config's spec.
    pub generation: i64,
    /// The boundary, for the namespaces as they were last seen.
    pub area: Arc<Area<S>>,
}

impl<S> Wanted<S> {
    /// Whether this is of another shard of the ring.
    pub(super) fn is_rival_of(&self, other: &Self) -> bool {
        self.ring == other.ring && self.shard != other.shard
    }
}
