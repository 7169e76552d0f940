//! Clients that stop reading.
//!
//! An *unread* response is one whose client does not read it: it holds at most one stream window of
//! the upstream leg. Many of them together could hold the connection's whole window, and with it
//! every other request of the pair. So the unread responses of one pair are capped, and beyond that
//! the response that waits longest is reset: its client repeats the request when it reads again.
//!
//! Those of all pairs together are capped too. Beyond that each pair has an equal share, and
//! responses may wait less: a client that reads does not pay for one that does not.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    task,
    time::{Instant, timeout},
};

/// Unread responses of one pair. A full stream window of 512 KiB takes 1.1 MiB with the buffers in
/// which it came (measured), so these take 35 MiB.
const MAX_STALLED: usize = 32;
/// Unread responses of all pairs: 53 MiB, and half as much again while more of them arrive than are
/// reset. Each data thread may keep the memory of its peak; the container has 256 MiB.
const MAX_UNREAD: usize = 48;
/// The time without a poll after which a response counts as unread by its client.
const STALLED_AFTER: Duration = Duration::from_secs(10);
/// The time for reading if there are more unread responses than allowed. The second time is for an excess of half
/// that number. Such responses fill within a second.
const STALLED_AFTER_CROWDED: Duration = Duration::from_millis(400);
const STALLED_AFTER_FLOODED: Duration = Duration::from_millis(10);
/// The excess that counts as a flood.
const FLOOD: usize = MAX_UNREAD / 2;
/// The growth of the excess after which it is time to look again.
const SURGE: usize = FLOOD / 4;
/// Interval of checks whether clients read.
const LOOK: Duration = Duration::from_secs(5);

/// The number of unread responses of all pairs at this moment.
#[derive(Debug, Default)]
pub(super) struct Unread {
    responses: AtomicUsize,
    /// Pairs with unread responses.
    pairs: AtomicUsize,
    /// The signal that there are more than may be, or still more.
    crowded: Notify,
}

/// The responses of one pair that are under way.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    open: RefCell<BTreeMap<u64, Rc<Flow>>>,
    next: Cell<u64>,
    unread: Cell<usize>,
    of_all: Arc<Unread>,
}

#[derive(Debug)]
struct Flow {
    task: task::Id,
    /// The time of the last frame, if the client has not asked for more since.
    waits_since: Cell<Option<Instant>>,
    is_reset: Cell<bool>,
}

#[derive(Debug)]
pub(super) struct Follower {
    all: Rc<Stalls>,
    flow: Option<(u64, Rc<Flow>)>,
}

impl Unread {
    /// The number beyond the cap, or `None` if there is room.
    fn excess(&self) -> Option<usize> {
        let excess = self.responses.load(Ordering::Relaxed).saturating_sub(MAX_UNREAD);
        (excess > 0).then_some(excess)
    }

    /// The unread responses that one pair may have, and the wait after which one counts.
    fn allowance(&self) -> (usize, Duration) {
        let Some(excess) = self.excess() else { return (MAX_STALLED, STALLED_AFTER) };
        let share = MAX_UNREAD / self.pairs.load(Ordering::Relaxed).max(1);
        (share.min(MAX_STALLED), patience(excess))
    }
}

/// The time that a response may wait with this excess.
fn patience(excess: usize) -> Duration {
    let room = u32::try_from(FLOOD.saturating_sub(excess)).unwrap_or(u32::MAX);
    let most = u32::try_from(FLOOD).unwrap_or(u32::MAX);
    (STALLED_AFTER_CROWDED * room / most).max(STALLED_AFTER_FLOODED)
}

impl Stalls {
    pub(super) fn new(of_all: Arc<Unread>) -> Self {
        Self { of_all, ..Self::default() }
    }

    pub(super) fn follower(self: &Rc<Self>) -> Follower {
        Follower { all: Rc::clone(self), flow: None }
    }

    /// Resolves when it is time to ask [which responses to reset](Self::to_reset) again.
    pub(super) async fn time_to_look(&self) {
        let crowded = self.of_all.crowded.notified();
        let pause = self.of_all.excess().map_or(LOOK, |excess| patience(excess) / 2);
        let _ = timeout(pause, crowded).await;
    }

    /// The tasks to end so that the pair stays within its share, those that wait longest first.
    /// Their responses count as reset from now on.
    pub(super) fn to_reset(&self) -> Vec<task::Id> {
        let (most, after) = self.of_all.allowance();
        let open = self.open.borrow();
        let mut stalled: Vec<_> = open
            .values()
            .filter_map(|flow| Some((flow.waits_since.get()?, flow)))
            .filter(|(since, _)| since.elapsed() >= after)
            .collect();
        stalled.sort_unstable_by_key(|(since, _)| *since);
        let excess = stalled.len().saturating_sub(most);
        let reset = |(_, flow): (_, &Rc<Flow>)| {
            flow.is_reset.set(true);
            flow.task
        };
        stalled.into_iter().take(excess).map(reset).collect()
    }

    /// Records since when the client leaves a response unread; `None` if it reads.
    fn note(&self, flow: &Flow, waits_since: Option<Instant>) {
        let before = flow.waits_since.replace(waits_since);
        match (before, waits_since) {
            (None, Some(_)) => {
                if self.unread.replace(self.unread.get() + 1) == 0 {
                    self.of_all.pairs.fetch_add(1, Ordering::Relaxed);
                }
                let others = self.of_all.responses.fetch_add(1, Ordering::Relaxed);
                let is_surge = |excess: usize| excess.is_multiple_of(SURGE);
                if others.checked_sub(MAX_UNREAD).is_some_and(is_surge) {
                    self.of_all.crowded.notify_waiters();
                }
            }
            (Some(_), None) => {
                if self.unread.replace(self.unread.get() - 1) == 1 {
                    self.of_all.pairs.fetch_sub(1, Ordering::Relaxed);
                }
                self.of_all.responses.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl Follower {
    /// Whether the response is reset because its client does not read.
    pub(super) fn is_reset(&self) -> bool {
        self.flow.as_ref().is_some_and(|(_, flow)| flow.is_reset.get())
    }

    /// Records that the client asks for more.
    pub(super) fn asked(&self) {
        if let Some((_, flow)) = &self.flow {
            self.all.note(flow, None);
        }
    }

    /// Records that the client was given a frame, and that there are more.
    pub(super) fn gave(&mut self) {
        if let Some((_, flow)) = &self.flow {
            self.all.note(flow, Some(Instant::now()));
            return;
        }
        if let Some(task) = task::try_id() {
            let id = self.all.next.get();
            self.all.next.set(id + 1);
            let flow = Flow { task, waits_since: Cell::new(None), is_reset: Cell::new(false) };
            let flow = Rc::new(flow);
            self.all.open.borrow_mut().insert(id, Rc::clone(&flow));
            self.all.note(&flow, Some(Instant::now()));
            self.flow = Some((id, flow));
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some((id, flow)) = &self.flow {
            self.all.note(flow, None);
            self.all.open.borrow_mut().remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// Responses that their client leaves unread from now on.
    async fn unread(all: &Rc<Stalls>, count: usize) -> Vec<Follower> {
        let mut tasks = task::JoinSet::new();
        let local = task::LocalSet::new();
        let _inside = local.enter();
        let mut followers = Vec::new();
        for _ in 0..count {
            let mut follower = all.follower();
            let stalled = async move {
                follower.gave();
                follower
            };
            tasks.spawn_local(stalled);
            followers.push(local.run_until(tasks.join_next()).await.unwrap().unwrap());
            advance(Duration::from_millis(1)).await;
        }
        followers
    }

    fn first(all: &Stalls, count: usize) -> Vec<task::Id> {
        all.open.borrow().values().take(count).map(|flow| flow.task).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn t74_those_that_wait_longest_are_the_excess() {
        let all = Rc::new(Stalls::default());
        let mut followers = unread(&all, MAX_STALLED + 3).await;
        assert_eq!(all.to_reset(), [], "no one has waited long");
        advance(STALLED_AFTER).await;
        let first = first(&all, 3);
        assert_eq!(all.to_reset(), first);
        followers[0].asked();
        drop(followers.remove(5));
        assert_eq!(all.to_reset(), first[1..2]);
    }

    #[test]
    fn the_more_there_are_the_less_time_they_have() {
        let patience: Vec<_> = [1, 12, FLOOD - 1, FLOOD, FLOOD + 1, 500].map(patience).into();
        assert!(patience.is_sorted_by(|a, b| a >= b), "{patience:?}");
        assert!(patience[0] > STALLED_AFTER_CROWDED * 9 / 10);
        assert_eq!(patience[3..], [STALLED_AFTER_FLOODED; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn t74_a_flood_is_seen_by_pairs_that_wait_to_look_again() {
        let all = Rc::new(Stalls::default());
        let _few = unread(&all, MAX_UNREAD + 1).await;
        let begun = Instant::now();
        let flood = async {
            let flood = unread(&all, FLOOD).await;
            (begun.elapsed(), flood)
        };
        let look = async {
            all.time_to_look().await;
            while all.of_all.excess() < Some(FLOOD) {
                all.time_to_look().await;
            }
            begun.elapsed()
        };
        let (seen, (came, _flood)) = tokio::join!(look, flood);
        assert!(seen <= came + STALLED_AFTER_FLOODED, "it came at {came:?}, seen at {seen:?}");
        let begun = Instant::now();
        all.time_to_look().await;
        assert!(begun.elapsed() <= STALLED_AFTER_FLOODED);
    }

    #[tokio::test(start_paused = true)]
    async fn t74_pairs_share_what_all_of_them_may_leave_unread() {
        const EACH: usize = MAX_UNREAD / 3;
        let of_all = Arc::<Unread>::default();
        let pairs: Vec<_> = (0..4).map(|_| Rc::new(Stalls::new(Arc::clone(&of_all)))).collect();
        let mut followers = Vec::new();
        for pair in &pairs[..3] {
            followers.extend(unread(pair, EACH).await);
        }
        advance(STALLED_AFTER_CROWDED).await;
        assert!(pairs.iter().all(|pair| pair.to_reset().is_empty()), "all is within the bound");

        let looks = timeout(LOOK / 2, pairs[0].time_to_look());
        let (looks, modest) = tokio::join!(looks, unread(&pairs[3], 1));
        looks.expect("it is time to look at once");
        advance(STALLED_AFTER_CROWDED).await;
        for pair in &pairs[..3] {
            assert_eq!(pair.to_reset(), first(pair, EACH - MAX_UNREAD / 4));
        }
        assert_eq!(pairs[3].to_reset(), [], "it has less than its share");

        drop(followers);
        assert_eq!(of_all.responses.load(Ordering::Relaxed), modest.len());
        assert_eq!(of_all.pairs.load(Ordering::Relaxed), 1);
    }
}
