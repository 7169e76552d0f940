//! Lists given to one connection, so that it may resume from there regardless of the floor.

use std::collections::HashMap;

use super::{past::Resume, position::Position};
use crate::policy::Epoch;

/// The complete lists that one connection was given: at exactly these positions it may resume even
/// at or below the floor.
#[derive(Debug, Default)]
pub struct Grants {
    given: HashMap<u64, Grant>,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    at: Resume,
    epoch: Epoch,
}

impl Grants {
    /// Collections remembered per connection. A client with more lists again.
    const MAX: usize = 1024;

    /// Records that this connection was given all of `collection` at a position, by a request
    /// decided in `epoch`. A collection is a path with its selectors, as a hash.
    pub fn give(&mut self, collection: u64, at: Resume, epoch: Epoch) {
        if self.given.len() >= Self::MAX && !self.given.contains_key(&collection) {
            self.given.clear();
        }
        self.given.insert(collection, Grant { at, epoch });
    }

    /// Whether this connection was given `collection` at exactly this position, under the present
    /// scope of `position`.
    #[must_use]
    pub fn allow(&self, collection: u64, at: Resume, position: &Position) -> bool {
        self.given
            .get(&collection)
            .is_some_and(|grant| grant.at == at && !position.is_stale(grant.epoch))
    }
}
