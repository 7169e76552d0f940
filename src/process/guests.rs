//! The connections of a port that anybody may call.
//!
//! Hides who gives way when there are too many. Does not know what they say.

use std::{cmp::Reverse, collections::VecDeque, net::IpAddr};

use tokio::task::{AbortHandle, JoinSet};

/// The connections that are served, the oldest first.
#[derive(Debug)]
pub struct Guests {
    tasks: JoinSet<()>,
    places: VecDeque<(IpAddr, AbortHandle)>,
    most: usize,
}

impl Guests {
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
        let mut guests = Guests::new(MOST);
        guests.serve(peer(1), pending());
        for _ in 1..MOST {
            guests.serve(peer(2), pending());
        }
        for last in 3..=4 {
            guests.serve(peer(last), pending());
        }
        let has = |last| guests.places.iter().filter(|(ip, _)| *ip == peer(last)).count();
        assert_eq!([1, 2, 3, 4].map(has), [1, MOST - 3, 1, 1]);
        let ended = [guests.tasks.join_next().await, guests.tasks.join_next().await];
        assert!(ended.into_iter().all(|task| task.unwrap().unwrap_err().is_cancelled()));
    }

    #[tokio::test]
    async fn of_addresses_with_one_connection_each_the_oldest_gives_way() {
        let mut guests = Guests::new(MOST);
        for last in 0..=MOST {
            guests.serve(peer(u8::try_from(last).unwrap()), pending());
        }
        assert_eq!(guests.places.len(), MOST);
        assert_eq!(guests.places[0].0, peer(1));
    }
}
