//! What one connection was given, so that it may go on from there whatever the floor says.

use std::collections::HashMap;

use super::{Position, Resume};
use crate::policy::Epoch;

/// The complete lists that one connection was given: at just these positions it may resume even
/// where the floor says otherwise.
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
    /// Collections that one connection may have been given. A client with more lists again.
    const MAX: usize = 1024;

    /// The client of this connection was given all of `collection` at a position, by a request of
    /// `epoch`. A collection is a path with its selectors, as a hash.
    pub fn give(&mut self, collection: u64, at: Resume, epoch: Epoch) {
        if self.given.len() >= Self::MAX && !self.given.contains_key(&collection) {
            self.given.clear();
        }
        self.given.insert(collection, Grant { at, epoch });
    }

    /// Whether it was given `collection` at just this position, under the scope that `position`
    /// has now.
    #[must_use]
    pub fn allow(&self, collection: u64, at: Resume, position: &Position) -> bool {
        self.given
            .get(&collection)
            .is_some_and(|grant| grant.at == at && !position.is_stale(grant.epoch))
    }
}
