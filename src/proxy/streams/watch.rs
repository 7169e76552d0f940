//! A watch on its way to the client, from its first event to its last.
//!
//! An order ends it between two events, or brings it over to another policy if possible.

use std::{
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use hyper::body::Incoming;

use super::{
    BodyError, Next, Order, Registered,
    change::{Asked, Changed, Changing, Plan, Progress},
    passing::{Events, Passed, Passing},
};
use crate::{
    policy::{
        GroupResource, Refusal,
        positions::{Position, Resume},
    },
    proxy::{
        collection::{Bookmarks, Collection},
        config::OnChange,
        feed::InForce,
        metrics::Metrics,
        outcome::Ended,
        pair::Pair,
    },
    wire::{
        frames::{Event, EventKind},
        media::Encoding,
    },
};

/// The body of a watch, see the module.
pub(in crate::proxy) struct WatchBody {
    state: State,
    live: Live,
}

enum State {
    Passing(Box<Passing>),
    Changing(Changing),
    Ended,
}

/// The state of a watch, whatever happens to its events.
pub(super) struct Live {
    encoding: Encoding,
    registered: Registered,
    position: Arc<Position>,
    resource: GroupResource,
    bookmarks: Bookmarks,
    /// The last position that the client was shown, or the one that it asked for.
    at: Option<u64>,
    asked: Option<Rc<Asked>>,
    key: u64,
    pair: Rc<Pair>,
    ended: Ended,
}

impl WatchBody {
    pub(in crate::proxy) fn new(
        pair: &Rc<Pair>,
        upstream: Incoming,
        collection: Collection,
        encoding: Encoding,
        events: Events,
    ) -> Self {
        Self {
            state: State::Passing(Box::new(Passing::new(upstream, events))),
            live: Live::new(pair, collection, encoding),
        }
    }

    /// The way it ended, once it has.
    pub(super) fn ended(&self) -> Ended {
        self.live.ended
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let bytes = match &mut self.state {
                State::Ended => return Poll::Ready(None),
                State::Changing(changing) => match ready!(changing.poll(cx)) {
                    Progress::Bytes(bytes) => Some(bytes),
                    Progress::Done(changed) => self.changed(changed),
                },
                State::Passing(passing) => {
                    let order = self.live.ordered();
                    if let Some(order) = order
                        && passing.at_boundary()
                    {
                        self.obey(order)
                    } else {
                        self.live.wake_by(cx);
                        match ready!(passing.poll(&mut self.live, order.is_some(), cx)) {
                            Ok(Passed::Trailers(trailers)) => {
                                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                            }
                            Ok(passed) => self.passed(passed, order),
                            Err(error) => {
                                self.close();
                                return Poll::Ready(Some(Err(error)));
                            }
                        }
                    }
                }
            };
            if let Some(bytes) = bytes {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }

    /// The bytes for the client in a part of the upstream's watch.
    fn passed(&mut self, passed: Passed, order: Option<Order>) -> Option<Bytes> {
        match passed {
            Passed::Bytes(bytes) => Some(bytes),
            Passed::Last(bytes) => {
                let mut whole = BytesMut::from(&bytes[..]);
                if let Some(more) = order.and_then(|order| self.obey(order)) {
                    whole.extend(more);
                }
                Some(whole.freeze())
            }
            Passed::Unreadable(mut bytes, error) => {
                self.close();
                let why = format!("an event cannot be judged, {error}: list again");
                bytes.extend_from_slice(&self.live.expire(&why));
                Some(bytes.into())
            }
            Passed::Trailers(_) | Passed::End => {
                self.close();
                None
            }
        }
    }

    /// Ends or changes the watch between two events; returns the last bytes to send, if any.
    fn obey(&mut self, order: Order) -> Option<Bytes> {
        let separator = match &self.state {
            State::Passing(passing) => passing.separator(),
            _ => b"",
        };
        match order {
            Order::Drain => {
                self.close();
                self.live.ended = Ended::Drained;
                None
            }
            Order::Change => match self.live.registered.stream.take_next() {
                None => None,
                Some(next) => match self.live.plan(next) {
                    None => Some(self.expire(separator)),
                    Some(plan) => {
                        self.close();
                        self.state = State::Changing(Changing::begin(plan));
                        (!separator.is_empty()).then(|| Bytes::from_static(separator))
                    }
                },
            },
            Order::Expire => Some(self.expire(separator)),
        }
    }

    /// Continues the watch after a change, or expires it if the change failed.
    fn changed(&mut self, changed: Option<Changed>) -> Option<Bytes> {
        let events =
            changed.as_ref().and_then(|changed| Events::new(self.live.encoding, &changed.share));
        match (changed, events) {
            (Some(Changed { to, upstream, .. }), Some(events)) => {
                self.live.carried_over(&to);
                self.state = State::Passing(Box::new(Passing::new(upstream, events)));
                None
            }
            _ => Some(self.expire(b"")),
        }
    }

    fn expire(&mut self, separator: &[u8]) -> Bytes {
        self.close();
        if self.live.ordered() != Some(Order::Expire) {
            self.live.count_change("expired");
        }
        let event = self.live.expire("the objects that this shard sees have changed: list again");
        [separator, &event].concat().into()
    }

    fn close(&mut self) {
        if let State::Passing(passing) = std::mem::replace(&mut self.state, State::Ended) {
            passing.close(&self.live);
        }
    }
}

impl Drop for WatchBody {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for WatchBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchBody").field("ended", &self.live.ended).finish_non_exhaustive()
    }
}

impl Live {
    fn new(pair: &Rc<Pair>, collection: Collection, encoding: Encoding) -> Self {
        let Collection { subject, position, in_force, key, bookmarks, from, asked, .. } =
            collection;
        let worker = &pair.worker;
        if let Some(from) = from {
            // A client that resumes from this position later has seen events of this policy.
            position.show(Resume::Number(from), in_force.epoch);
        }
        let resource = subject.resource.clone();
        let present = worker.shared.feed.in_force().unwrap_or_else(|| in_force.clone());
        let registered = worker.live.register(pair.id, subject, in_force, &present);
        let by_difference = worker.shared.on_change == OnChange::Difference;
        // HTTP/1.1 needs a second connection for it, which to the API server is another client.
        let asked = asked.filter(|_| by_difference && pair.upstream.is_h2()).map(Rc::new);
        let pair = Rc::clone(pair);
        let ended = Ended::Complete;
        let live = Self {
            encoding,
            registered,
            position,
            resource,
            bookmarks,
            at: from,
            asked,
            key,
            pair,
            ended,
        };
        live.tell_whether_it_may_change();
        live
    }

    /// The order to obey, if one was given.
    fn ordered(&self) -> Option<Order> {
        self.registered.stream.ordered()
    }

    /// Sets the waker for orders that are given from now on.
    fn wake_by(&self, cx: &Context<'_>) {
        self.registered.stream.wake_by(cx.waker());
    }

    pub(super) fn bookmarks(&self) -> Bookmarks {
        self.bookmarks
    }

    pub(super) fn resource(&self) -> &GroupResource {
        &self.resource
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.pair.worker.shared.metrics
    }

    /// Records an event before the client can see it.
    pub(super) fn shows(&mut self, event: Event) {
        let stream = &self.registered.stream;
        let epoch = stream.epoch();
        let shown = Resume::at(event.resource_version).filter(|_| event.kind != EventKind::Error);
        if let Some(at) = shown {
            self.position.show(at, epoch);
        }
        let number = match shown {
            Some(Resume::Number(at)) => Some(at),
            _ => None,
        };
        self.at = number.or(self.at);
        stream.showed(number);
        if event.initial_events_end
            && let Some(at) = Resume::at(event.resource_version)
        {
            self.pair.grants.borrow_mut().give(self.key, at, epoch);
            if self.bookmarks == Bookmarks::AfterInitial {
                self.bookmarks = Bookmarks::Always;
                self.tell_whether_it_may_change();
            }
        }
    }

    /// Whether the client may see only a part of it.
    pub(super) fn is_limited(&self) -> bool {
        self.registered.stream.is_limited()
    }

    /// Records that the client is about to see events that cannot be parsed.
    pub(super) fn shows_unread(&mut self) {
        self.position.show_unread(self.registered.stream.epoch());
        self.asked = None;
        self.tell_whether_it_may_change();
    }

    /// The last event to send to a client that must list anew.
    fn expire(&mut self, why: &str) -> Bytes {
        self.ended = Ended::Expired;
        Refusal::Expired.because(why).status.error_event(self.encoding)
    }

    /// Updates whether it can be brought over: a stream without bookmarks, or before the end of its
    /// initial events, has no position for that.
    fn tell_whether_it_may_change(&self) {
        let may_change =
            self.bookmarks == Bookmarks::Always && self.at.is_some() && self.asked.is_some();
        self.registered.stream.may_change(may_change);
    }

    /// The plan to bring the watch over, or `None` if it has no position, or is of another lock:
    /// that is another object.
    fn plan(&self, next: Next) -> Option<Plan> {
        let Next { to, member } = next;
        let stream = &self.registered.stream;
        if !stream.may_change.get() || stream.is_of_another_lock(&to) {
            return None;
        }
        Some(Plan {
            asked: Rc::clone(self.asked.as_ref()?),
            pair: Rc::clone(&self.pair),
            encoding: self.encoding,
            at: self.at?,
            from: self.registered.stream.in_force(),
            to,
            member,
        })
    }

    fn carried_over(&self, to: &Arc<InForce>) {
        self.count_change("difference");
        let (resource, epoch) = (&self.resource, to.epoch.get());
        tracing::debug!(%resource, epoch, at = self.at, "a watch was brought over by difference");
        self.registered.stream.carry_over(to);
    }

    fn count_change(&self, how: &'static str) {
        self.metrics().count_stream_change(how);
    }
}
