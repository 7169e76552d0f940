//! The abilities that API servers have shown, by resource.
//!
//! Hides for how long they count, and of which server: one of another version may be behind the same
//! address. Connections share them: a client may open one for each request.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use ctrlmesh_policy::GroupResource;

/// Resources of which anything is remembered.
const MAX_RESOURCES: usize = 256;
/// Servers of which anything is remembered.
const MAX_SERVERS: usize = 16;
/// For how long an ability counts as known.
const KNOWN_FOR: Duration = Duration::from_secs(600);

/// The abilities of the servers behind the addresses of one cluster. An address and a certificate
/// identify a server.
#[derive(Debug, Default)]
pub(crate) struct Abilities(Mutex<VecDeque<(Identity, Arc<Capabilities>)>>);

/// The dialled address, and the hash of the server's certificate.
type Identity = (SocketAddr, [u8; 32]);

/// Knowledge of one API server.
#[derive(Debug, Default)]
pub(crate) struct Capabilities(Mutex<HashMap<GroupResource, Noted>>);

#[derive(Clone, Copy, Debug)]
struct Noted {
    since: Instant,
    knowledge: Knowledge,
}

/// Knowledge of one resource; `None` for each ability that is not known yet.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::upstream) struct Knowledge {
    /// Whether it is selected by hashes.
    pub(in crate::upstream) hashes: Option<bool>,
    /// Whether it is selected by namespace as a field.
    pub(in crate::upstream) namespaces: Option<bool>,
    /// Whether it is in namespaces at all.
    pub(in crate::upstream) is_namespaced: Option<bool>,
}

impl Abilities {
    /// The abilities of the server with this certificate, in DER, at a dialled address.
    pub(in crate::upstream) fn of(
        &self,
        dialled: SocketAddr,
        certificate: &[u8],
    ) -> Arc<Capabilities> {
        let identity = (dialled, Sha256::digest(certificate).into());
        let mut servers = self.0.lock();
        if let Some((_, known)) = servers.iter().find(|(known, _)| *known == identity) {
            return Arc::clone(known);
        }
        if servers.len() == MAX_SERVERS {
            servers.pop_front();
        }
        let understood = Arc::<Capabilities>::default();
        servers.push_back((identity, Arc::clone(&understood)));
        understood
    }
}

impl Capabilities {
    /// The knowledge of a resource. `None` if no more resources are remembered.
    pub(in crate::upstream) fn of(&self, resource: &GroupResource) -> Option<Knowledge> {
        let mut all = self.0.lock();
        match all.get(resource) {
            Some(noted) if noted.since.elapsed() < KNOWN_FOR => return Some(noted.knowledge),
            Some(_) => drop(all.remove(resource)),
            None => {}
        }
        (all.len() < MAX_RESOURCES).then(Knowledge::default)
    }

    /// Adds to the knowledge of a resource, if it is remembered.
    pub(in crate::upstream) fn note(
        &self,
        resource: GroupResource,
        what: impl FnOnce(&mut Knowledge),
    ) {
        if self.of(&resource).is_some() {
            let noted = Noted { since: Instant::now(), knowledge: Knowledge::default() };
            what(&mut self.0.lock().entry(resource).or_insert(noted).knowledge);
        }
    }

    /// Forgets a resource: a request failed that relied on its abilities.
    pub(crate) fn forget(&self, resource: &GroupResource) {
        self.0.lock().remove(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> GroupResource {
        GroupResource::new("", "pods")
    }

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn known(abilities: &Abilities, port: u16, certificate: &[u8]) -> Option<bool> {
        abilities.of(address(port), certificate).of(&pods()).unwrap().hashes
    }

    #[tokio::test(start_paused = true)]
    async fn t49_an_ability_is_that_of_a_server_at_an_address_for_a_while() {
        let abilities = Abilities::default();
        let server = abilities.of(address(1), b"one");
        server.note(pods(), |known| known.hashes = Some(true));
        assert_eq!(known(&abilities, 1, b"one"), Some(true));
        assert_eq!(known(&abilities, 1, b"other"), None);
        assert_eq!(known(&abilities, 2, b"one"), None);
        tokio::time::advance(KNOWN_FOR / 2).await;
        // A later ability does not extend the time of an earlier one.
        server.note(pods(), |known| known.namespaces = Some(true));
        tokio::time::advance(KNOWN_FOR / 2).await;
        assert_eq!(known(&abilities, 1, b"one"), None);
        server.note(pods(), |known| known.hashes = Some(false));
        assert_eq!(known(&abilities, 1, b"one"), Some(false));
        server.forget(&pods());
        assert_eq!(known(&abilities, 1, b"one"), None);
    }

    #[tokio::test]
    async fn bad_number_of_servers_and_resources_takes_bounded_room() {
        let abilities = Abilities::default();
        for port in 1..100 {
            abilities.of(address(port), b"one").note(pods(), |known| known.hashes = Some(true));
        }
        assert_eq!(abilities.0.lock().len(), MAX_SERVERS);
        assert_eq!(known(&abilities, 99, b"one"), Some(true));
        assert_eq!(known(&abilities, 1, b"one"), None);
        let server = abilities.of(address(99), b"one");
        for number in 0..2 * MAX_RESOURCES {
            server.note(GroupResource::new("", &format!("r{number}")), |known| {
                known.hashes = Some(true);
            });
        }
        assert_eq!(server.0.lock().len(), MAX_RESOURCES);
        assert!(server.of(&GroupResource::new("", "one-more")).is_none());
    }
}
