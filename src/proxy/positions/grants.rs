//! Lists given to one connection, so that it may resume from there regardless of the floor.
//!
//! A connection has several clients, such as the informers of one process, and a request does not
//! name its own. A list lets its client resume only while no other client of the connection may
//! hold a position of the same collection from an older scope: it could be the same position.

use std::collections::HashMap;

use super::{past::Resume, position::Position};
use ctrlmesh_policy::Epoch;

/// The collections that one connection was given: at exactly these positions it may resume even at
/// or below the floor. A collection is a path with its selectors, or a continue token, as a hash.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    collections: HashMap<u64, GrantedClients>,
    /// Whether collections were forgotten: those that are not known may have a client.
    has_forgotten: bool,
}

/// The clients of one connection that hold a position of one collection: as many as there may be.
#[derive(Debug)]
struct GrantedClients {
    /// The epoch of the last list.
    epoch: Epoch,
    /// The position of the last list. `None` while a client of an older scope may hold it too.
    given: Option<Resume>,
    /// Clients of the present scope.
    present: u32,
    /// Clients of an older scope, and those that cannot be distinguished from them.
    former: u32,
}

impl Grants {
    /// Collections remembered per connection.
    const MAX: usize = 1024;

    /// Records that a client was given all of `collection` at a position, by a request decided in
    /// `epoch`.
    pub(crate) fn give(&mut self, collection: u64, at: Resume, epoch: Epoch, position: &Position) {
        let clients = self.clients(collection, epoch, position);
        if position.is_stale(epoch) || clients.former > 0 {
            clients.former = clients.former.saturating_add(1);
        } else {
            clients.present = clients.present.saturating_add(1);
            clients.epoch = epoch;
            clients.given = Some(at);
        }
    }

    /// Whether a client may resume `collection` at this position. One that may not has to list
    /// again, and holds nothing more.
    pub(crate) fn resume(
        &mut self,
        collection: u64,
        at: Resume,
        epoch: Epoch,
        position: &Position,
    ) -> bool {
        let clients = self.clients(collection, epoch, position);
        let is_allowed = position.may_resume(at) || clients.given == Some(at);
        if !is_allowed {
            clients.leave();
        } else if clients.present == 0 && clients.former == 0 {
            // It listed on another connection.
            clients.present = 1;
        }
        is_allowed
    }

    /// Records that a client of `collection` was brought over to the scope of `epoch`.
    pub(crate) fn bring_over(&mut self, collection: u64, epoch: Epoch, position: &Position) {
        let clients = self.clients(collection, epoch, position);
        clients.leave();
        self.join(collection, epoch, position);
    }

    /// Records that a client of `collection` comes to the scope of `epoch`, whatever it had before.
    pub(crate) fn join(&mut self, collection: u64, epoch: Epoch, position: &Position) {
        let clients = self.clients(collection, epoch, position);
        clients.present = clients.present.saturating_add(1);
        clients.epoch = epoch;
    }

    /// Records that a client of `collection` has to list again.
    pub(crate) fn leave(&mut self, collection: u64) {
        if let Some(clients) = self.collections.get_mut(&collection) {
            clients.leave();
        }
    }

    /// The clients of a collection, as of now.
    fn clients(
        &mut self,
        collection: u64,
        epoch: Epoch,
        position: &Position,
    ) -> &mut GrantedClients {
        if self.collections.len() >= Self::MAX && !self.collections.contains_key(&collection) {
            self.collections.clear();
            self.has_forgotten = true;
        }
        let former = u32::from(self.has_forgotten);
        let clients = self.collections.entry(collection).or_insert(GrantedClients {
            epoch,
            given: None,
            present: 0,
            former,
        });
        if position.is_stale(clients.epoch) {
            clients.former = clients.former.saturating_add(clients.present);
            clients.present = 0;
            clients.given = None;
            clients.epoch = epoch;
        }
        clients
    }
}

impl GrantedClients {
    fn leave(&mut self) {
        let of = if self.former > 0 { &mut self.former } else { &mut self.present };
        *of = of.saturating_sub(1);
    }
}
