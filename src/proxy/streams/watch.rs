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
    body::BodyError,
    change::{Asked, Changed, Changing, Progress, Transfer},
    live::{LiveStream, Subject},
    machine::{Goal, Input, Output},
    passing::{Events, Passing, Portion},
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
    source: Source,
    live: Live,
}

/// The source of the bytes for the client.
enum Source {
    Upstream(Box<Passing>),
    Change(Changing),
    None,
}

/// The state of a watch, whatever happens to its events.
pub(super) struct Live {
    encoding: Encoding,
    stream: Rc<LiveStream>,
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
            source: Source::Upstream(Box::new(Passing::new(upstream, events))),
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
            let bytes = match &mut self.source {
                Source::None => return Poll::Ready(None),
                Source::Change(changing) => match ready!(changing.poll(cx)) {
                    Progress::Bytes(bytes) => Some(bytes),
                    Progress::Done(changed) => self.changed(changed),
                },
                Source::Upstream(passing) => {
                    let is_last = self.live.stream.has_order();
                    if is_last && passing.is_between_events() {
                        self.step(Input::BetweenEvents)
                    } else {
                        self.live.stream.wake_by(cx.waker());
                        match ready!(passing.poll(&mut self.live, is_last, cx)) {
                            Ok(Portion::Trailers(trailers)) => {
                                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                            }
                            Ok(portion) => self.pass(portion),
                            Err(error) => {
                                self.end();
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

    /// The bytes for the client in a portion of the upstream's watch.
    fn pass(&mut self, portion: Portion) -> Option<Bytes> {
        match portion {
            Portion::Bytes(bytes) => Some(bytes),
            Portion::Last(bytes) => {
                let mut whole = BytesMut::from(&bytes[..]);
                whole.extend(self.step(Input::BetweenEvents).unwrap_or_default());
                Some(whole.freeze())
            }
            Portion::Unreadable(mut bytes, error) => {
                self.end();
                let why = format!("an event cannot be judged, {error}: list again");
                bytes.extend_from_slice(&self.live.expire(&why));
                Some(bytes.into())
            }
            Portion::Trailers(_) | Portion::End => {
                self.end();
                None
            }
        }
    }

    /// Does what has to be done; returns the bytes to send for it, if any.
    fn step(&mut self, input: Input<'_, Subject>) -> Option<Bytes> {
        let separator = match &self.source {
            Source::Upstream(passing) => passing.separator(),
            _ => b"",
        };
        match self.live.stream.step(input) {
            Output::Change(goal) => {
                let Some(transfer) = self.live.transfer(goal) else {
                    return self.step(Input::Failed);
                };
                self.leave();
                self.source = Source::Change(Changing::begin(transfer));
                (!separator.is_empty()).then(|| Bytes::from_static(separator))
            }
            Output::Expire { .. } => {
                self.leave();
                let why = "the objects that this shard sees have changed: list again";
                Some([separator, &self.live.expire(why)].concat().into())
            }
            Output::Drain => {
                self.leave();
                self.live.ended = Ended::Drained;
                None
            }
            Output::Nothing
            | Output::CarriedOver
            | Output::Ordered
            | Output::OrderedToExpire
            | Output::Late => None,
        }
    }

    /// Continues the watch after a change, or expires it if the change failed.
    fn changed(&mut self, changed: Option<Changed>) -> Option<Bytes> {
        let events =
            changed.as_ref().and_then(|changed| Events::new(self.live.encoding, &changed.share));
        match (changed, events) {
            (Some(Changed { to, upstream, .. }), Some(events)) => {
                self.live.carried_over(&to);
                self.source = Source::Upstream(Box::new(Passing::new(upstream, events)));
                self.step(Input::Changed)
            }
            _ => self.step(Input::Failed),
        }
    }

    fn end(&mut self) {
        self.leave();
        self.live.stream.step(Input::Ended);
    }

    /// Leaves the source.
    fn leave(&mut self) {
        if let Source::Upstream(passing) = std::mem::replace(&mut self.source, Source::None) {
            passing.close(&self.live);
        }
    }
}

impl Drop for WatchBody {
    fn drop(&mut self) {
        self.leave();
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
        let stream = worker.live.register(pair.id, subject, in_force);
        let by_difference = worker.shared.on_change == OnChange::Difference;
        // HTTP/1.1 needs a second connection for it, which to the API server is another client.
        let asked = asked.filter(|_| by_difference && pair.upstream.is_h2()).map(Rc::new);
        let pair = Rc::clone(pair);
        let ended = Ended::Complete;
        let live = Self {
            encoding,
            stream,
            position,
            resource,
            bookmarks,
            at: from,
            asked,
            key,
            pair,
            ended,
        };
        live.update_may_change();
        live.stream.catch_up(&present);
        live
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
            self.pair.grants.borrow_mut().give(self.key, at, epoch);
            if self.bookmarks == Bookmarks::AfterInitial {
                self.bookmarks = Bookmarks::Always;
                self.update_may_change();
            }
        }
    }

    /// Whether the client may see only a part of it.
    pub(super) fn is_limited(&self) -> bool {
        self.stream.is_limited()
    }

    /// Records that the client is about to see events that cannot be parsed.
    pub(super) fn shows_unread(&mut self) {
        self.position.show_unread(self.stream.epoch());
        self.asked = None;
        self.update_may_change();
    }

    /// The last event to send to a client that must list anew.
    fn expire(&mut self, why: &str) -> Bytes {
        self.ended = Ended::Expired;
        Refusal::Expired.because(why).status.error_event(self.encoding)
    }

    /// Updates whether it can be brought over: a stream without bookmarks, or before the end of its
    /// initial events, has no position for that.
    fn update_may_change(&self) {
        let may_change =
            self.bookmarks == Bookmarks::Always && self.at.is_some() && self.asked.is_some();
        self.stream.step(Input::MayChange(may_change));
    }

    /// The change that brings the watch over; `None` without a position.
    fn transfer(&self, goal: Goal<Subject>) -> Option<Transfer> {
        Some(Transfer {
            asked: Rc::clone(self.asked.as_ref()?),
            pair: Rc::clone(&self.pair),
            encoding: self.encoding,
            at: self.at?,
            from: self.stream.in_force(),
            to: goal.to,
            member: goal.member,
        })
    }

    fn carried_over(&self, to: &Arc<InForce>) {
        self.metrics().count_stream_change("difference");
        let (resource, epoch) = (&self.resource, to.epoch.get());
        tracing::debug!(%resource, epoch, at = self.at, "a watch was brought over by difference");
    }
}
