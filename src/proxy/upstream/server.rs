//! One API server: all that its connections share, on every thread.
//!
//! A connection has its server from the listener that accepted it; only the start of the process
//! knows how many there are.

use std::{collections::HashSet, net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::past::KeptPositions;
use crate::{
    net::{ClientAddr, addr::canonical, tls::UpstreamTls},
    proxy::config::{Pushdown, Route},
};

/// One API server, see the module. What it understands is known to each connection alone: servers of
/// several versions may be behind one address.
#[derive(Debug)]
pub(in crate::proxy) struct Server {
    pub(in crate::proxy) route: Route,
    pub(in crate::proxy) tls: ArcSwap<UpstreamTls>,
    pub(in crate::proxy) sockets: OwnSockets,
    pub(in crate::proxy) pushdown: Pushdown,
    pub(in crate::proxy) positions: KeptPositions,
}

/// Our own connections to one server, by their local and their dialled address. One that arrives at
/// our own listener would loop for ever.
///
/// The local address alone is not enough: a client on this machine may have the port of one of our
/// sockets, as long as the two dial different addresses.
#[derive(Clone, Debug, Default)]
pub(in crate::proxy) struct OwnSockets(Arc<Mutex<HashSet<Ends>>>);

/// The local and the dialled address.
type Ends = (SocketAddr, SocketAddr);

/// A connection in [`OwnSockets`], until this is dropped.
#[derive(Debug)]
pub(in crate::proxy) struct OwnSocket {
    all: OwnSockets,
    ends: Ends,
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
    pub(in crate::proxy) fn contains(&self, client: ClientAddr, dialled: SocketAddr) -> bool {
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
