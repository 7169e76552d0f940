//! A limit of the connections of a port. A new one evicts the oldest of the busiest peer.
//!
//! Does not know what the connections carry.

use std::{cmp::Reverse, collections::VecDeque, net::IpAddr};

use tokio::task::{AbortHandle, JoinSet};

/// The connections of a port, the oldest first, and the most that it serves at once.
#[derive(Debug)]
pub struct ConnectionLimit {
    tasks: JoinSet<()>,
    places: VecDeque<(IpAddr, AbortHandle)>,
    most: usize,
}

impl ConnectionLimit {
    /// `most` connections at once.
    pub fn new(most: usize) -> Self {
        Self { tasks: JoinSet::new(), places: VecDeque::new(), most }
    }

    /// Serves one more connection. If all places are taken, a connection of the address that has
    /// most of them is closed, so that no peer keeps the others out.
    pub fn serve(&mut self, peer: IpAddr, connection: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.places.retain(|(_, task)| !task.is_finished());
        if self.places.len() >= self.most
            && let Some((_, task)) = self.one_of_the_most().and_then(|at| self.places.remove(at))
        {
            task.abort();
        }
        self.places.push_back((peer, self.tasks.spawn(connection)));
    }

    /// Waits until all have ended.
    pub async fn all_ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Ends all of them.
    pub async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
    }

    /// The oldest connection of the address that has most.
    fn one_of_the_most(&self) -> Option<usize> {
        let has = |at: &usize| {
            let peer = self.places.get(*at).map(|(peer, _)| peer);
            self.places.iter().filter(|(other, _)| Some(other) == peer).count()
        };
        (0..self.places.len()).max_by_key(|at| (has(at), Reverse(*at)))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const MOST: usize = 32;

    fn peer(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[tokio::test]
    async fn a_newcomer_takes_a_place_from_the_address_that_has_most() {
        let mut connections = ConnectionLimit::new(MOST);
        connections.serve(peer(1), pending());
        for _ in 1..MOST {
            connections.serve(peer(2), pending());
        }
        for last in 3..=4 {
            connections.serve(peer(last), pending());
        }
        let has = |last| connections.places.iter().filter(|(ip, _)| *ip == peer(last)).count();
        assert_eq!([1, 2, 3, 4].map(has), [1, MOST - 3, 1, 1]);
        let ended = [connections.tasks.join_next().await, connections.tasks.join_next().await];
        assert!(ended.into_iter().all(|task| task.unwrap().unwrap_err().is_cancelled()));
    }

    #[tokio::test]
    async fn of_addresses_with_one_connection_each_the_oldest_gives_way() {
        let mut connections = ConnectionLimit::new(MOST);
        for last in 0..=MOST {
            connections.serve(peer(u8::try_from(last).unwrap()), pending());
        }
        assert_eq!(connections.places.len(), MOST);
        assert_eq!(connections.places[0].0, peer(1));
    }
}
