//! Clients that stop reading.
//!
//! A response that its client does not read holds at most one stream window of the upstream leg.
//! Many of them together could hold the connection's whole window, and with it every other request
//! of the pair. So what unread responses of one pair may hold is capped, and beyond it the response
//! that waits longest is reset: its client repeats the request when it reads again.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use tokio::{task, time::Instant};

/// Unread responses of one pair: 32 stream windows of 512 KiB are 16 MiB.
const MAX_STALLED: usize = 32;
/// A client that has not asked for more for this long does not read.
const STALLED_AFTER: Duration = Duration::from_secs(10);
/// A short response is complete within this many frames and is not followed.
const SHORT: u8 = 3;

/// The responses of one pair that are under way.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Stalls {
    open: RefCell<BTreeMap<u64, Rc<Flow>>>,
    next: Cell<u64>,
}

#[derive(Debug)]
struct Flow {
    task: task::Id,
    /// When the client was given something and has not asked for more since.
    waits_since: Cell<Option<Instant>>,
}

/// Follows one response.
#[derive(Debug)]
pub(in crate::proxy) struct Follower {
    all: Rc<Stalls>,
    frames: u8,
    flow: Option<(u64, Rc<Flow>)>,
}

impl Stalls {
    pub(in crate::proxy) fn follower(self: &Rc<Self>) -> Follower {
        Follower { all: Rc::clone(self), frames: 0, flow: None }
    }

    /// The tasks to end so that the pair holds no more than it may, those that wait longest first.
    pub(in crate::proxy) fn excess(&self) -> Vec<task::Id> {
        let open = self.open.borrow();
        let mut stalled: Vec<_> = open
            .values()
            .filter_map(|flow| Some((flow.waits_since.get()?, flow.task)))
            .filter(|(since, _)| since.elapsed() >= STALLED_AFTER)
            .collect();
        stalled.sort_unstable_by_key(|(since, _)| *since);
        let excess = stalled.len().saturating_sub(MAX_STALLED);
        stalled.into_iter().take(excess).map(|(_, task)| task).collect()
    }
}

impl Follower {
    /// The client asks for more.
    pub(super) fn asked(&self) {
        if let Some((_, flow)) = &self.flow {
            flow.waits_since.set(None);
        }
    }

    /// The client was given a frame.
    pub(super) fn gave(&mut self) {
        if let Some((_, flow)) = &self.flow {
            flow.waits_since.set(Some(Instant::now()));
            return;
        }
        self.frames = self.frames.saturating_add(1);
        if self.frames > SHORT
            && let Some(task) = task::try_id()
        {
            let id = self.all.next.get();
            self.all.next.set(id + 1);
            let flow = Rc::new(Flow { task, waits_since: Cell::new(Some(Instant::now())) });
            self.all.open.borrow_mut().insert(id, Rc::clone(&flow));
            self.flow = Some((id, flow));
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some((id, _)) = &self.flow {
            self.all.open.borrow_mut().remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn t74_those_that_wait_longest_are_the_excess() {
        let all = Rc::new(Stalls::default());
        let mut tasks = task::JoinSet::new();
        let local = task::LocalSet::new();
        let _inside = local.enter();
        let mut followers = Vec::new();
        for _ in 0..MAX_STALLED + 3 {
            let mut follower = all.follower();
            let stalled = async move {
                for _ in 0..=SHORT {
                    follower.gave();
                }
                follower
            };
            tasks.spawn_local(stalled);
            followers.push(local.run_until(tasks.join_next()).await.unwrap().unwrap());
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(all.excess(), [], "nobody has waited long");
        advance(STALLED_AFTER).await;
        let first: Vec<_> = all.open.borrow().values().take(3).map(|flow| flow.task).collect();
        assert_eq!(all.excess(), first);
        followers[0].asked();
        drop(followers.remove(5));
        assert_eq!(all.excess(), first[1..2]);
    }
}
