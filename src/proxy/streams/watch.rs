//! A watch on its way to the client: its bytes pass untouched, each event's position is noted, and
//! it ends between two events when it is told to.

use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::{BodyError, Order, Registered};
use crate::{
    policy::{
        Epoch, Refusal,
        positions::{Position, Resume},
    },
    proxy::{collection::Collection, outcome::Ended, pair::Pair},
    wire::{
        frames::{Event, EventKind, WatchScanner},
        media::Encoding,
    },
};

/// How long an event that has begun may take to end when the watch must end after it.
const EVENT_TIMEOUT: Duration = Duration::from_secs(2);

/// See the module.
pub(in crate::proxy) struct WatchBody {
    /// Gone once the watch has ended: dropping it ends the upstream's watch too.
    upstream: Option<Incoming>,
    scanner: Option<WatchScanner>,
    live: Live,
    late: Option<Pin<Box<Sleep>>>,
}

/// What is known of a watch, whatever becomes of its events.
pub(super) struct Live {
    encoding: Encoding,
    registered: Registered,
    position: std::sync::Arc<Position>,
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
    ) -> Self {
        Self {
            upstream: Some(upstream),
            scanner: WatchScanner::new(encoding),
            live: Live::new(pair, collection, encoding),
            late: None,
        }
    }

    /// How it ended, once it has.
    pub(super) fn ended(&self) -> Ended {
        self.live.ended
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let (Some(upstream), Some(scanner)) = (&mut self.upstream, &self.scanner) else {
            return Poll::Ready(None);
        };
        let order = self.live.ordered();
        if let Some(order) = order
            && scanner.at_boundary()
        {
            let last = self.end(order);
            return Poll::Ready(last.map(|bytes| Ok(Frame::data(bytes))));
        }
        self.live.wake_by(cx);
        match Pin::new(upstream).poll_frame(cx) {
            Poll::Pending => {
                if order.is_some() {
                    ready!(self.poll_late(cx));
                    self.upstream = None;
                    return Poll::Ready(Some(Err(BodyError::Stalled)));
                }
                Poll::Pending
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(chunk) => Poll::Ready(Some(self.take(chunk, order).map(Frame::data))),
                Err(trailers) => Poll::Ready(Some(Ok(trailers))),
            },
        }
    }

    /// Notes the events that end in the chunk. Where the watch must end, it is cut behind the first
    /// of them.
    fn take(&mut self, mut chunk: Bytes, order: Option<Order>) -> Result<Bytes, BodyError> {
        let Some(scanner) = &mut self.scanner else { return Ok(chunk) };
        let mut cut = None;
        for end in scanner.feed(&chunk) {
            let end = end?;
            self.live.shows(end.event);
            if order.is_some() {
                cut = Some(end.at);
                break;
            }
        }
        let (Some(order), Some(at)) = (order, cut) else { return Ok(chunk) };
        chunk.truncate(at);
        let mut whole = BytesMut::from(&chunk[..]);
        whole.extend(self.end(order));
        Ok(whole.freeze())
    }

    /// Ends the watch at an event boundary; gives the last event to send.
    fn end(&mut self, order: Order) -> Option<Bytes> {
        self.upstream = None;
        let separator = self.scanner.take().map_or(&b""[..], |scanner| scanner.separator());
        let event = self.live.end(order)?;
        Some(if separator.is_empty() { event } else { [separator, &event].concat().into() })
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.late.get_or_insert_with(|| Box::pin(sleep(EVENT_TIMEOUT))).as_mut().poll(cx)
    }
}

impl std::fmt::Debug for WatchBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchBody").field("ended", &self.live.ended).finish_non_exhaustive()
    }
}

impl Live {
    pub(super) fn new(pair: &Rc<Pair>, collection: Collection, encoding: Encoding) -> Self {
        let Collection { subject, position, in_force, key, .. } = collection;
        let worker = &pair.worker;
        let present = worker.shared.feed.in_force().unwrap_or_else(|| in_force.clone());
        let registered = worker.live.register(pair.id, subject, in_force, &present);
        let pair = Rc::clone(pair);
        Self { encoding, registered, position, key, pair, ended: Ended::Complete }
    }

    /// How it ended, once it has.
    pub(super) fn ended(&self) -> Ended {
        self.ended
    }

    /// The order to obey, if one was given.
    pub(super) fn ordered(&self) -> Option<Order> {
        self.registered.stream.ordered()
    }

    /// An order that is given from now on wakes whoever polls.
    pub(super) fn wake_by(&self, cx: &Context<'_>) {
        self.registered.stream.wake_by(cx.waker());
    }

    /// Notes an event before the client can see it.
    pub(super) fn shows(&self, event: Event) {
        let stream = &self.registered.stream;
        let epoch = stream.epoch();
        stream.showed(show(&self.position, event, epoch));
        if event.initial_events_end
            && let Some(at) = Resume::at(event.resource_version)
        {
            self.pair.grants.borrow_mut().give(self.key, at, epoch);
        }
    }

    /// The last event to send, if there is one.
    pub(super) fn end(&mut self, order: Order) -> Option<Bytes> {
        match order {
            Order::Drain => {
                self.ended = Ended::Drained;
                None
            }
            Order::Expire => {
                let why = "the objects that this shard sees have changed: list again";
                Some(self.expire(why))
            }
        }
    }

    /// The last event to send to a client that must list anew.
    pub(super) fn expire(&mut self, why: &str) -> Bytes {
        self.ended = Ended::Expired;
        Refusal::Expired.because(why).status().error_event(self.encoding)
    }
}

/// Notes that an event is shown, before the client can see it.
fn show(position: &Position, event: Event, epoch: Epoch) -> Option<u64> {
    if event.kind == EventKind::Error {
        return None;
    }
    match Resume::at(event.resource_version) {
        Some(Resume::Number(rv)) => {
            position.show(rv, epoch);
            Some(rv)
        }
        _ => None,
    }
}
