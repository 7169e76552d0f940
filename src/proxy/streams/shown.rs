//! The state of a watch as its client knows it, whatever happens to its events.

use std::{rc::Rc, sync::Arc};

use bytes::Bytes;

use super::change::Transfer;
use crate::{
    collection::{Bookmarks, Collection},
    config::OnChange,
    live::{Goal, Input, LiveStream, Subject},
    metrics::Metrics,
    outcome::Ended,
    policy_store::ActivePolicy,
    positions::{Position, Resume},
    shared::Pair,
    upstream::{CurrentConnection, SavedRequest},
};
use ctrlmesh_policy::{GroupResource, Refusal};
use ctrlmesh_wire::{
    frames::{Event, EventKind},
    media::Encoding,
};

/// The position that the client of a watch was shown, and the state that follows from it.
pub(super) struct Shown {
    pub(super) encoding: Encoding,
    pub(super) stream: Rc<LiveStream>,
    position: Arc<Position>,
    pub(super) resource: GroupResource,
    pub(super) bookmarks: Bookmarks,
    pub(super) hides_bookmarks: bool,
    /// The last position that the client was shown, or the one that it asked for.
    at: Option<u64>,
    asked: Option<Rc<SavedRequest>>,
    key: u64,
    pub(super) pair: Rc<Pair>,
    pub(super) ended: Ended,
}

impl Shown {
    pub(super) fn new(pair: &Rc<Pair>, collection: Collection, encoding: Encoding) -> Self {
        let Collection { subject, position, active, key, from, asked, .. } = collection;
        let Collection { bookmarks, hides_bookmarks, .. } = collection;
        let worker = &pair.worker;
        if let Some(from) = from {
            // A client that resumes from this position later has seen events of this policy.
            position.show(Resume::Number(from), active.epoch);
        }
        let resource = subject.resource.clone();
        let present = worker.shared.policy_store.active().unwrap_or_else(|| active.clone());
        let stream = worker.live.register(pair.id, subject, active);
        let by_difference = worker.shared.on_change == OnChange::Difference;
        let asked = asked.filter(|_| by_difference).map(Rc::new);
        let pair = Rc::clone(pair);
        let ended = Ended::Complete;
        let shown = Self {
            encoding,
            stream,
            position,
            resource,
            bookmarks,
            hides_bookmarks,
            at: from,
            asked,
            key,
            pair,
            ended,
        };
        shown.update_may_change();
        shown.stream.catch_up(&present);
        shown
    }

    /// Records that its client has what the present policy shows at the position that it asked for.
    pub(super) fn came_back(&self) {
        if self.at.is_some() {
            self.pair.worker.shared.policy_store.came_back(self.key);
        }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.pair.worker.shared.metrics
    }

    /// Records an event before the client can see it.
    pub(super) fn shows(&mut self, event: Event) {
        let epoch = self.stream.epoch();
        let shown = Resume::at(event.resource_version).filter(|_| event.kind != EventKind::Error);
        if let Some(at) = shown {
            self.position.show(at, epoch);
        }
        let number = match shown {
            Some(Resume::Number(at)) => Some(at),
            _ => None,
        };
        self.at = number.or(self.at);
        self.stream.showed(number);
        if event.initial_events_end
            && let Some(at) = Resume::at(event.resource_version)
        {
            self.pair.grants.borrow_mut().give(self.key, at, epoch, &self.position);
            self.pair.worker.shared.policy_store.came_back(self.key);
            self.has_initial();
        }
        // Any bookmark comes after the initial events. The client itself need not know it.
        if self.hides_bookmarks && event.kind == EventKind::Bookmark {
            self.has_initial();
        }
    }

    fn has_initial(&mut self) {
        if self.bookmarks == Bookmarks::AfterInitial {
            self.bookmarks = Bookmarks::Always;
            self.update_may_change();
        }
    }

    /// Records that the client is about to see events that cannot be parsed.
    pub(super) fn shows_unread(&mut self) {
        self.position.show_unread(self.stream.epoch());
        self.asked = None;
        self.update_may_change();
    }

    /// The last event to send to a client that must list again.
    pub(super) fn expire(&mut self, why: &str) -> Bytes {
        self.ended = Ended::Expired;
        self.pair.grants.borrow_mut().leave(self.key);
        Refusal::Expired.because(why).status.error_event(self.encoding)
    }

    /// Updates whether the watch can be brought over: a stream without bookmarks, or before the end
    /// of its initial events, has no position for that.
    fn update_may_change(&self) {
        let may_change =
            self.bookmarks == Bookmarks::Always && self.at.is_some() && self.asked.is_some();
        self.stream.step(Input::MayChange(may_change));
    }

    /// The change that brings the watch over; `None` without a position.
    pub(super) fn transfer(&self, goal: Goal<Subject>) -> Option<Transfer> {
        Some(Transfer {
            asked: Rc::clone(self.asked.as_ref()?),
            pair: Rc::clone(&self.pair),
            replacement: self.pair.current.as_ref().map(CurrentConnection::replacement),
            encoding: self.encoding,
            at: self.at?,
            hides_bookmarks: self.hides_bookmarks,
            from: self.stream.active(),
            to: goal.to,
            member: goal.member,
        })
    }

    pub(super) fn carried_over(&self, to: &Arc<ActivePolicy>) {
        self.pair.grants.borrow_mut().bring_over(self.key, to.epoch, &self.position);
        self.metrics().count_stream_change("difference");
        let (resource, epoch) = (&self.resource, to.epoch.get());
        tracing::debug!(%resource, epoch, at = self.at, "a watch was brought over by difference");
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // The client has what it was shown until it comes back.
        if self.stream.is_limited() {
            self.pair.worker.shared.policy_store.has_left(self.key, self.stream.epoch());
        }
    }
}
