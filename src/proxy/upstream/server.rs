//! One API server: all that its connections share, on every thread.
//!
//! A connection has its server from the listener that accepted it; only the start of the process
//! knows how many there are.

mod abilities;

use std::{
    collections::HashSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

pub(super) use self::abilities::Knowledge;
pub(crate) use self::abilities::{Abilities, Capabilities};
use super::position_store::PositionStore;
use crate::config::{Pushdown, Route};
use ctrlmesh_net::{
    ClientAddr, Clock,
    addr::canonical,
    tls::{BadRoots, UpstreamTls, roots_from_pem},
};

/// One API server, see the module.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) route: Route,
    pub(crate) tls: RootedTls,
    pub(crate) sockets: OwnSockets,
    pub(crate) pushdown: Pushdown,
    pub(crate) abilities: Abilities,
    pub(crate) positions: PositionStore,
}

/// TLS towards a server by the CAs of a file, which may get others.
#[derive(Debug)]
pub(crate) struct RootedTls {
    path: PathBuf,
    clock: Clock,
    tls: ArcSwap<UpstreamTls>,
    /// The content of the file by which `tls` was made.
    content: Mutex<Vec<u8>>,
}

/// The reason why there is no TLS by the CAs of a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadTls {
    #[error(transparent)]
    Roots(#[from] BadRoots),
    #[error(transparent)]
    Library(#[from] rustls::Error),
}

impl RootedTls {
    /// Reads the CAs. Fails with [`BadTls`].
    pub(crate) fn read(path: PathBuf, clock: Clock) -> Result<Self, BadTls> {
        let content = content(&path)?;
        let tls = ArcSwap::from_pointee(tls_by(&path, &content, &clock)?);
        Ok(Self { path, clock, tls, content: Mutex::new(content) })
    }

    /// TLS by the present CAs.
    pub(super) fn get(&self) -> Guard<Arc<UpstreamTls>> {
        self.tls.load()
    }

    /// Reads the CAs again if the file has changed; returns whether it had. Fails with [`BadTls`], and
    /// keeps the present ones.
    pub(crate) fn refresh(&self) -> Result<bool, BadTls> {
        let now = content(&self.path)?;
        if *self.content.lock() == now {
            return Ok(false);
        }
        self.tls.store(Arc::new(tls_by(&self.path, &now, &self.clock)?));
        *self.content.lock() = now;
        Ok(true)
    }
}

fn content(path: &Path) -> Result<Vec<u8>, BadRoots> {
    fs::read(path)
        .map_err(|source| BadRoots::Unreadable { path: path.display().to_string(), source })
}

fn tls_by(path: &Path, content: &[u8], clock: &Clock) -> Result<UpstreamTls, BadTls> {
    let roots = roots_from_pem(content);
    let roots = roots.ok_or_else(|| BadRoots::NoCertificate(path.display().to_string()))?;
    Ok(UpstreamTls::new(roots, clock)?)
}

/// Our own connections to one server, by their local and their dialled address. One that arrives at
/// our own listener would loop for ever.
///
/// The local address alone is not enough: a client on this machine may have the port of one of our
/// sockets, as long as the two dial different addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnSockets(Arc<Mutex<HashSet<ConnectionEnds>>>);

/// The local and the dialled address.
type ConnectionEnds = (SocketAddr, SocketAddr);

/// A connection in [`OwnSockets`], until this is dropped.
#[derive(Debug)]
pub(crate) struct OwnSocket {
    all: OwnSockets,
    ends: ConnectionEnds,
}

impl OwnSockets {
    /// Remembers the socket until the value is dropped.
    pub(super) fn remember(&self, local: SocketAddr, dialled: SocketAddr) -> OwnSocket {
        let ends = (canonical(local), canonical(dialled));
        self.0.lock().insert(ends);
        OwnSocket { all: self.clone(), ends }
    }

    /// Whether the `client` that dialled this is one of ours. Call it once its first bytes have
    /// arrived: the dialling side is remembered before it sends any.
    pub(crate) fn contains(&self, client: ClientAddr, dialled: SocketAddr) -> bool {
        self.0.lock().contains(&(client.get(), dialled))
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.ends);
    }
}

#[cfg(test)]
mod tests;
