//! The events of a watch on their way to the client.
//!
//! If a selector expresses all of the scope, the bytes pass untouched and each event's position is
//! recorded. Else an event is sent when it is whole and was judged, and bookmarks keep the client's
//! position current. Bookmarks that the client did not ask for are left out: they move our own
//! knowledge of its position. A watch that nothing limits passes even if its events cannot be parsed; it is
//! broken off when it must end or change.

mod held;

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use tokio::time::{Sleep, sleep};

pub(super) use self::held::Held;
use super::{error::BodyError, shown::Shown};
use crate::{collection::Bookmarks, shared::Pair, upstream::UpstreamBody};
use ctrlmesh_policy::Filter;
use ctrlmesh_wire::{
    frames::{EventKind, FrameError, WatchFilter, WatchScanner},
    media::Encoding,
};

/// The time in which an event that has begun must end, when the watch must end after it.
const EVENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time after which a bookmark reports the stream's position. Informers compare it with their
/// own writes, and wait.
const BOOKMARK_DELAY: Duration = Duration::from_millis(200);

/// The upstream's side of a watch, see the module. Dropping it ends the upstream's watch.
pub(crate) struct Passing {
    upstream: UpstreamBody,
    events: Treatment,
    timer: Option<Pin<Box<Sleep>>>,
    held: Held,
}

/// The treatment of the events.
pub(crate) enum Treatment {
    /// Events that pass unchanged, and whose positions are recorded.
    Reflector(Box<WatchScanner>),
    /// Events without those of other shards.
    Judged(Box<WatchFilter>, Filter),
    /// Events that cannot be parsed: no limit applies to them, and they pass unchanged.
    Unparsed,
}

/// The next portion of the upstream's watch.
pub(super) enum Portion {
    Bytes(Bytes),
    /// Bytes up to the end of an event: the watch is to end or change here.
    Last(Bytes),
    /// An event cannot be judged: the client has to list again, after these bytes.
    Unreadable(Vec<u8>, FrameError),
    /// The trailers, after the last bytes.
    Trailers(HeaderMap),
    End,
}

impl Treatment {
    /// A passing watch, without bookmarks if they are hidden. `None` for an encoding whose events
    /// cannot be separated.
    pub(crate) fn new(encoding: Encoding, share: &Filter, hides_bookmarks: bool) -> Option<Self> {
        let filter = match (share.is_each(), hides_bookmarks) {
            (false, false) => return Some(Self::Reflector(Box::new(WatchScanner::new(encoding)?))),
            (false, true) => WatchFilter::of_bookmarks(encoding)?,
            (true, false) => WatchFilter::new(encoding)?,
            (true, true) => WatchFilter::new(encoding)?.without_bookmarks(),
        };
        Some(Self::Judged(Box::new(filter), share.clone()))
    }
}

impl Passing {
    pub(super) fn new(pair: &Pair, upstream: UpstreamBody, events: Treatment) -> Self {
        let held = Held::new(&pair.worker.shared.unfinished);
        Self { upstream, events, timer: None, held }
    }

    /// Whether the stream is between two events, where it may end or get an event of our own.
    pub(super) fn is_between_events(&self) -> bool {
        match &self.events {
            Treatment::Reflector(scanner) => scanner.is_between(),
            Treatment::Judged(..) => true,
            Treatment::Unparsed => false,
        }
    }

    /// The bytes that must precede an event of our own.
    pub(super) fn separator(&self) -> &'static [u8] {
        match &self.events {
            Treatment::Reflector(scanner) => scanner.separator(),
            Treatment::Judged(..) | Treatment::Unparsed => b"",
        }
    }

    /// The next portion for the client. `is_last` is true if the watch is to end or change at the
    /// end of an event.
    pub(super) fn poll(
        &mut self,
        shown: &mut Shown,
        is_last: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Portion, BodyError>> {
        loop {
            let frame = match Pin::new(&mut self.upstream).poll_frame(cx) {
                Poll::Pending => return self.poll_timer(shown, is_last, cx),
                Poll::Ready(None) => return Poll::Ready(self.end()),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            let passed = match frame.into_data() {
                Ok(chunk) => self.take(chunk, shown, is_last)?,
                Err(frame) => match frame.into_trailers() {
                    Ok(trailers) => Portion::Trailers(trailers),
                    Err(_) => continue,
                },
            };
            match passed {
                Portion::Bytes(bytes) if bytes.is_empty() => {}
                passed => return Poll::Ready(Ok(passed)),
            }
        }
    }

    fn take(
        &mut self,
        mut chunk: Bytes,
        shown: &mut Shown,
        is_last: bool,
    ) -> Result<Portion, BodyError> {
        match &mut self.events {
            Treatment::Unparsed if is_last => Err(BodyError::Unparsed),
            Treatment::Unparsed => {
                shown.shows_unread();
                Ok(Portion::Bytes(chunk))
            }
            Treatment::Reflector(scanner) => match reflector(scanner, &chunk, shown, is_last) {
                Ok(None) => Ok(Portion::Bytes(chunk)),
                Ok(Some(at)) => {
                    chunk.truncate(at);
                    Ok(Portion::Last(chunk))
                }
                Err(error) if shown.stream.is_limited() => Err(error.into()),
                Err(_) => {
                    self.events = Treatment::Unparsed;
                    self.take(chunk, shown, is_last)
                }
            },
            Treatment::Judged(filter, share) => {
                let mut out = Vec::new();
                let failed = filtered(filter, share, &chunk, shown, &mut out).err();
                let held = filter.held();
                self.held.set(held)?;
                Ok(match failed {
                    None => Portion::Bytes(out.into()),
                    Some(error) => Portion::Unreadable(out, error),
                })
            }
        }
    }

    /// Waits for the timer while nothing arrives from the upstream.
    fn poll_timer(
        &mut self,
        shown: &Shown,
        is_last: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Portion, BodyError>> {
        match &mut self.events {
            Treatment::Unparsed if is_last => Poll::Ready(Err(BodyError::Unparsed)),
            Treatment::Reflector(_) if is_last => {
                ready!(poll_in(&mut self.timer, EVENT_TIMEOUT, cx));
                Poll::Ready(Err(BodyError::Stalled))
            }
            Treatment::Judged(filter, _)
                if shown.bookmarks == Bookmarks::Always
                    && !shown.hides_bookmarks
                    && filter.has_bookmark() =>
            {
                ready!(poll_in(&mut self.timer, BOOKMARK_DELAY, cx));
                self.timer = None;
                let bookmark = filter.take_bookmark().unwrap_or_default();
                Poll::Ready(Ok(Portion::Bytes(bookmark.into())))
            }
            _ => {
                self.timer = None;
                Poll::Pending
            }
        }
    }

    fn end(&self) -> Result<Portion, BodyError> {
        match &self.events {
            Treatment::Judged(filter, _) if !filter.is_between() => Err(BodyError::Stalled),
            _ => Ok(Portion::End),
        }
    }
}

/// Records the events that end in this chunk. With `is_last`, returns where the first of them ends.
fn reflector(
    scanner: &mut WatchScanner,
    chunk: &[u8],
    shown: &mut Shown,
    is_last: bool,
) -> Result<Option<usize>, FrameError> {
    for end in scanner.feed(chunk) {
        let end = end?;
        shown.shows(end.event);
        if is_last {
            return Ok(Some(end.at));
        }
    }
    Ok(None)
}

fn filtered(
    filter: &mut WatchFilter,
    share: &Filter,
    mut rest: &[u8],
    shown: &mut Shown,
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    let (mut kept, mut dropped) = (0, 0);
    while let Some(passed) = filter.next(rest, &mut |object| share.judge(object), out)? {
        shown.shows(passed.event);
        if passed.is_kept {
            kept += 1;
        } else if passed.event.kind != EventKind::Bookmark {
            dropped += 1;
        }
        rest = rest.get(passed.at..).unwrap_or_default();
    }
    if share.is_each() {
        shown.metrics().filtered(&shown.resource, kept, dropped);
    }
    Ok(())
}

fn poll_in(timer: &mut Option<Pin<Box<Sleep>>>, after: Duration, cx: &mut Context<'_>) -> Poll<()> {
    timer.get_or_insert_with(|| Box::pin(sleep(after))).as_mut().poll(cx)
}
