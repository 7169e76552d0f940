//! The events of a watch on their way to the client.
//!
//! Where a selector says all of the scope, the bytes pass untouched and each event's position is
//! noted. Else an event leaves when it is whole and was judged, and the client is told now and then
//! where its stream is. What nothing limits passes even where its events cannot be told apart; it is
//! broken off when that changes.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::{BodyError, watch::Live};
use crate::{
    policy::Judged,
    proxy::collection::Bookmarks,
    wire::{
        frames::{FrameError, WatchFilter, WatchScanner},
        media::Encoding,
    },
};

/// How long an event that has begun may take to end when the watch must end after it.
const EVENT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a client may not know where its stream is. Informers compare it with what they wrote
/// themselves, and wait.
const BOOKMARK_DELAY: Duration = Duration::from_millis(200);

/// See the module. Dropping it ends the upstream's watch.
pub(in crate::proxy) struct Passing {
    upstream: Incoming,
    events: Events,
    timer: Option<Pin<Box<Sleep>>>,
    held: usize,
}

/// How the events are looked at.
pub(in crate::proxy) enum Events {
    /// They pass untouched.
    Followed(Box<WatchScanner>),
    /// Those of others are left out.
    Judged(Box<WatchFilter>, Judged),
    /// They cannot be: nothing limits them, and they pass untouched.
    Unread,
}

/// What came of the upstream's watch.
pub(super) enum Passed {
    /// For the client.
    Bytes(Bytes),
    /// The same, and no event follows: the watch is to end or change here.
    Last(Bytes),
    /// An event cannot be judged: the client has to list again. What is given leaves before.
    Unreadable(Vec<u8>, FrameError),
    /// Behind the last bytes.
    Trailers(HeaderMap),
    /// It has ended.
    End,
}

impl Events {
    /// `None` for an encoding in which events cannot be told apart.
    pub(in crate::proxy) fn new(encoding: Encoding, judged: &Judged) -> Option<Self> {
        Some(match judged {
            Judged::Each { .. } => {
                Self::Judged(Box::new(WatchFilter::new(encoding)?), judged.clone())
            }
            _ => Self::Followed(Box::new(WatchScanner::new(encoding)?)),
        })
    }
}

impl Passing {
    pub(super) fn new(upstream: Incoming, events: Events) -> Self {
        Self { upstream, events, timer: None, held: 0 }
    }

    /// Whether the client's stream may end or be told something here.
    pub(super) fn at_boundary(&self) -> bool {
        match &self.events {
            Events::Followed(scanner) => scanner.at_boundary(),
            Events::Judged(..) => true,
            Events::Unread => false,
        }
    }

    /// What must stand in front of an event of our own.
    pub(super) fn separator(&self) -> &'static [u8] {
        match &self.events {
            Events::Followed(scanner) => scanner.separator(),
            Events::Judged(..) | Events::Unread => b"",
        }
    }

    /// Something for the client. `is_last` says that the watch is to end or change at the end of
    /// an event.
    pub(super) fn poll(
        &mut self,
        live: &mut Live,
        is_last: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Passed, BodyError>> {
        loop {
            let frame = match Pin::new(&mut self.upstream).poll_frame(cx) {
                Poll::Pending => return self.poll_timer(live, is_last, cx),
                Poll::Ready(None) => return Poll::Ready(self.end(live)),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            let passed = match frame.into_data() {
                Ok(chunk) => self.take(chunk, live, is_last)?,
                Err(frame) => match frame.into_trailers() {
                    Ok(trailers) => Passed::Trailers(trailers),
                    Err(_) => continue,
                },
            };
            match passed {
                Passed::Bytes(bytes) if bytes.is_empty() => {}
                passed => return Poll::Ready(Ok(passed)),
            }
        }
    }

    fn take(
        &mut self,
        mut chunk: Bytes,
        live: &mut Live,
        is_last: bool,
    ) -> Result<Passed, BodyError> {
        match &mut self.events {
            Events::Unread if is_last => Err(BodyError::Unread),
            Events::Unread => {
                live.shows_unread();
                Ok(Passed::Bytes(chunk))
            }
            Events::Followed(scanner) => match followed(scanner, &chunk, live, is_last) {
                Ok(None) => Ok(Passed::Bytes(chunk)),
                Ok(Some(at)) => {
                    chunk.truncate(at);
                    Ok(Passed::Last(chunk))
                }
                Err(error) if live.is_limited() => Err(error.into()),
                Err(_) => {
                    self.events = Events::Unread;
                    self.take(chunk, live, is_last)
                }
            },
            Events::Judged(filter, judged) => {
                let mut out = Vec::new();
                let failed = filtered(filter, judged, &chunk, live, &mut out).err();
                let held = filter.held();
                self.tell_held(live, held);
                Ok(match failed {
                    None => Passed::Bytes(out.into()),
                    Some(error) => Passed::Unreadable(out, error),
                })
            }
        }
    }

    /// Nothing comes from the upstream now.
    fn poll_timer(
        &mut self,
        live: &Live,
        is_last: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Passed, BodyError>> {
        match &mut self.events {
            Events::Unread if is_last => Poll::Ready(Err(BodyError::Unread)),
            Events::Followed(_) if is_last => {
                ready!(poll_in(&mut self.timer, EVENT_TIMEOUT, cx));
                Poll::Ready(Err(BodyError::Stalled))
            }
            Events::Judged(filter, _)
                if live.bookmarks() == Bookmarks::Always && filter.has_bookmark() =>
            {
                ready!(poll_in(&mut self.timer, BOOKMARK_DELAY, cx));
                self.timer = None;
                let bookmark = filter.take_bookmark().unwrap_or_default();
                Poll::Ready(Ok(Passed::Bytes(bookmark.into())))
            }
            _ => {
                self.timer = None;
                Poll::Pending
            }
        }
    }

    fn end(&mut self, live: &Live) -> Result<Passed, BodyError> {
        self.tell_held(live, 0);
        match &self.events {
            Events::Judged(filter, _) if !filter.at_boundary() => Err(BodyError::Stalled),
            _ => Ok(Passed::End),
        }
    }

    fn tell_held(&mut self, live: &Live, held: usize) {
        live.metrics().filter_memory(self.held, held);
        self.held = held;
    }

    /// Nothing more is taken from it.
    pub(super) fn close(mut self, live: &Live) {
        self.tell_held(live, 0);
    }
}

/// Notes the events that end in this chunk; with `is_last`, the place where the first of them does.
fn followed(
    scanner: &mut WatchScanner,
    chunk: &[u8],
    live: &mut Live,
    is_last: bool,
) -> Result<Option<usize>, FrameError> {
    for end in scanner.feed(chunk) {
        let end = end?;
        live.shows(end.event);
        if is_last {
            return Ok(Some(end.at));
        }
    }
    Ok(None)
}

fn filtered(
    filter: &mut WatchFilter,
    judged: &Judged,
    mut rest: &[u8],
    live: &mut Live,
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    let (mut kept, mut dropped) = (0, 0);
    while let Some(passed) = filter.next(rest, &mut |object| judged.judge(object), out)? {
        live.shows(passed.event);
        if passed.is_kept {
            kept += 1;
        } else {
            dropped += 1;
        }
        rest = rest.get(passed.at..).unwrap_or_default();
    }
    live.metrics().filtered(live.resource(), kept, dropped);
    Ok(())
}

fn poll_in(timer: &mut Option<Pin<Box<Sleep>>>, after: Duration, cx: &mut Context<'_>) -> Poll<()> {
    timer.get_or_insert_with(|| Box::pin(sleep(after))).as_mut().poll(cx)
}
