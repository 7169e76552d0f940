//! A watch of which the events of others are left out on its way to the client.
//!
//! An event leaves when it is whole and was judged, so the client's stream may end or be told
//! something at any time.

use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::{BodyError, watch::Live};
use crate::{
    policy::{GroupResource, Judged},
    proxy::{
        collection::{Bookmarks, Collection},
        outcome::Ended,
        pair::Pair,
    },
    wire::{
        frames::{FrameError, WatchFilter},
        media::Encoding,
    },
};

/// How long a client may not know where its stream is. Informers compare it with what they wrote
/// themselves, and wait.
const BOOKMARK_DELAY: Duration = Duration::from_millis(200);

/// See the module.
pub(in crate::proxy) struct JudgedWatch {
    /// Gone once the watch has ended: dropping it ends the upstream's watch too.
    upstream: Option<Incoming>,
    filter: WatchFilter,
    judged: Judged,
    resource: GroupResource,
    live: Live,
    bookmarks: Bookmarks,
    bookmark: Option<Pin<Box<Sleep>>>,
    pair: Rc<Pair>,
    held: usize,
}

impl JudgedWatch {
    pub(in crate::proxy) fn new(
        pair: &Rc<Pair>,
        upstream: Incoming,
        collection: Collection,
        encoding: Encoding,
        filter: WatchFilter,
    ) -> Self {
        Self {
            upstream: Some(upstream),
            filter,
            judged: collection.judged.clone(),
            resource: collection.subject.resource.clone(),
            bookmarks: collection.bookmarks,
            live: Live::new(pair, collection, encoding),
            bookmark: None,
            pair: Rc::clone(pair),
            held: 0,
        }
    }

    /// How it ended, once it has.
    pub(super) fn ended(&self) -> Ended {
        self.live.ended()
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(upstream) = &mut self.upstream else { return Poll::Ready(None) };
            if let Some(order) = self.live.ordered() {
                self.upstream = None;
                return Poll::Ready(self.live.end(order).map(|bytes| Ok(Frame::data(bytes))));
            }
            self.live.wake_by(cx);
            let frame = match Pin::new(upstream).poll_frame(cx) {
                Poll::Pending => {
                    let bookmark = ready!(self.poll_bookmark(cx));
                    return Poll::Ready(Some(Ok(Frame::data(bookmark))));
                }
                Poll::Ready(None) => return Poll::Ready(self.finish().map(Err)),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            let out = match frame.into_data() {
                Ok(chunk) => self.take(&chunk),
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            };
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out.into()))));
            }
        }
    }

    /// What of a chunk may leave. An event that cannot be judged ends the watch: the client lists,
    /// and is told there what is wrong.
    fn take(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if let Err(error) = self.filter(chunk, &mut out) {
            self.upstream = None;
            let why = format!("an event cannot be judged, {error}: list again");
            out.extend_from_slice(&self.live.expire(&why));
        }
        self.tell_held(self.filter.held());
        out
    }

    fn filter(&mut self, mut rest: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
        let Self { filter, judged, live, .. } = self;
        let (mut kept, mut dropped) = (0, 0);
        while let Some(passed) = filter.next(rest, &mut |object| judged.judge(object), out)? {
            live.shows(passed.event);
            if passed.event.initial_events_end && self.bookmarks == Bookmarks::AfterInitial {
                self.bookmarks = Bookmarks::Always;
            }
            if passed.is_kept {
                kept += 1
            } else {
                dropped += 1
            }
            rest = rest.get(passed.at..).unwrap_or_default();
        }
        self.pair.worker.shared.metrics.filtered(&self.resource, kept, dropped);
        Ok(())
    }

    /// Ready with a bookmark when the client has not known for long where its stream is.
    fn poll_bookmark(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        if self.bookmarks != Bookmarks::Always || !self.filter.has_bookmark() {
            self.bookmark = None;
            return Poll::Pending;
        }
        let timer = self.bookmark.get_or_insert_with(|| Box::pin(sleep(BOOKMARK_DELAY)));
        ready!(timer.as_mut().poll(cx));
        self.bookmark = None;
        self.filter.take_bookmark().map_or(Poll::Pending, |bytes| Poll::Ready(bytes.into()))
    }

    /// The upstream's stream has ended.
    fn finish(&mut self) -> Option<BodyError> {
        self.upstream = None;
        (!self.filter.at_boundary()).then_some(BodyError::Stalled)
    }

    fn tell_held(&mut self, held: usize) {
        self.pair.worker.shared.metrics.filter_memory(self.held, held);
        self.held = held;
    }
}

impl Drop for JudgedWatch {
    fn drop(&mut self) {
        self.tell_held(0);
    }
}

impl std::fmt::Debug for JudgedWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JudgedWatch").finish_non_exhaustive()
    }
}
