//! Disconnected watchers, whose cache may hold objects of a former scope.
//!
//! Hides how long such a client counts, and that one of a collection is as good as another. Does not
//! know why a watch ended, or what waits for the client.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use ctrlmesh_policy::Epoch;

/// The time in which a client asks again, if it does: client-go's reflector pauses for up to thirty
/// seconds, and for as long again by jitter (`NewExponentialBackoffManager` in its `reflector.go`).
pub(super) const PAUSE: Duration = Duration::from_secs(65);
/// Most clients that are told apart.
const MOST: usize = 1024;

/// The disconnected clients of one process.
#[derive(Debug)]
pub(super) struct DisconnectedClients {
    clients: Mutex<Clients>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Clients {
    /// The clients, by the time at which they left.
    told_apart: VecDeque<DisconnectedClient>,
    /// The last one of those beyond.
    last: Option<DisconnectedClient>,
}

/// A client that was shown a collection, a path with its selectors.
#[derive(Clone, Copy, Debug)]
struct DisconnectedClient {
    collection: u64,
    epoch: Epoch,
    until: Instant,
}

impl DisconnectedClients {
    pub(super) fn new() -> Self {
        Self { clients: Mutex::default(), changed: watch::Sender::new(()) }
    }

    /// Records that a watch has ended, whose client was shown the collection in this epoch.
    pub(super) fn left(&self, collection: u64, epoch: Epoch) {
        let now = Instant::now();
        let Clients { told_apart, last } = &mut *self.clients.lock();
        told_apart.retain(|client| client.until > now);
        let client = DisconnectedClient { collection, epoch, until: now + PAUSE };
        if told_apart.len() < MOST {
            told_apart.push_back(client);
        } else {
            let epoch = last.map_or(epoch, |last| last.epoch.min(epoch));
            *last = Some(DisconnectedClient { epoch, ..client });
        }
    }

    /// Records that a client has asked for the collection, or for anything (`None`): if it gets nothing,
    /// it pauses again.
    pub(super) fn has_asked(&self, collection: Option<u64>) {
        let now = Instant::now();
        let Clients { told_apart, last } = &mut *self.clients.lock();
        let is_of =
            |client: &&mut DisconnectedClient| collection.is_none_or(|of| client.collection == of);
        let all = told_apart.iter_mut().filter(is_of).chain(last);
        for client in all.filter(|client| client.until > now) {
            client.until = now + PAUSE;
        }
    }

    /// Records that a client was shown the collection again.
    pub(super) fn came_back(&self, collection: u64) {
        let Clients { told_apart, .. } = &mut *self.clients.lock();
        if let Some(at) = told_apart.iter().position(|client| client.collection == collection) {
            told_apart.remove(at);
            self.changed.send_replace(());
        }
    }

    /// Waits until no client may go by what it was shown in this epoch, or before.
    pub(super) async fn have_come_back(&self, epoch: Epoch) {
        let mut changes = self.changed.subscribe();
        while let Some(until) = self.until(epoch) {
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep_until(until) => {}
            }
        }
    }

    /// The time at which the last of these clients counts no more.
    fn until(&self, epoch: Epoch) -> Option<Instant> {
        let now = Instant::now();
        let Clients { told_apart, last } = &*self.clients.lock();
        let waits = |client: &&DisconnectedClient| client.epoch <= epoch && client.until > now;
        told_apart.iter().chain(last).filter(waits).map(|client| client.until).max()
    }
}

#[cfg(test)]
mod tests {
    use std::iter::successors;

    use super::*;

    /// The first epochs.
    fn epochs() -> impl Iterator<Item = Epoch> {
        successors(Some(Epoch::default().next()), |epoch| Some(epoch.next()))
    }

    /// The time after which the clients of an epoch are back.
    async fn wait(disconnected: &DisconnectedClients, epoch: Epoch) -> Duration {
        let began = Instant::now();
        disconnected.have_come_back(epoch).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn i14_a_client_is_waited_for_until_it_is_back_or_has_had_its_time() {
        let disconnected = DisconnectedClients::new();
        let [first, second, third] = epochs().take(3).collect::<Vec<_>>()[..] else { panic!() };
        disconnected.left(7, second);
        assert_eq!(wait(&disconnected, first).await, Duration::ZERO, "it was shown another since");
        disconnected.left(7, second);
        disconnected.came_back(8);
        disconnected.came_back(7);
        let (waited, ()) = tokio::join!(wait(&disconnected, third), async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            disconnected.came_back(7);
        });
        assert_eq!(waited, Duration::from_secs(3), "both are back");
        disconnected.left(7, second);
        let waited = wait(&disconnected, second).await;
        assert!((PAUSE..PAUSE + Duration::from_millis(2)).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn i14_a_client_that_asks_and_gets_nothing_is_waited_for_anew() {
        let disconnected = DisconnectedClients::new();
        let epoch = Epoch::default().next();
        disconnected.left(7, epoch);
        let later = Duration::from_secs(40);
        let (waited, ()) = tokio::join!(wait(&disconnected, epoch), async {
            tokio::time::sleep(later).await;
            disconnected.has_asked(Some(8));
            disconnected.has_asked(Some(7));
            tokio::time::sleep(later).await;
            disconnected.has_asked(None);
        });
        let wanted = 2 * later + PAUSE;
        assert!((wanted..wanted + Duration::from_millis(4)).contains(&waited), "{waited:?}");
        // One that has had its time does not begin again.
        disconnected.has_asked(None);
        assert_eq!(wait(&disconnected, epoch).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn bad_thousands_of_clients_that_leave_take_bounded_room_and_are_all_waited_for() {
        let disconnected = DisconnectedClients::new();
        let epoch = Epoch::default().next();
        for collection in 0..5000 {
            disconnected.left(collection, epoch);
        }
        assert_eq!(disconnected.clients.lock().told_apart.len(), MOST);
        for collection in 0..5000 {
            disconnected.came_back(collection);
        }
        let waited = wait(&disconnected, epoch).await;
        assert!((PAUSE..PAUSE + Duration::from_millis(2)).contains(&waited), "{waited:?}");
    }
}
