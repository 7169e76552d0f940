//! The bodies of requests on their way upstream, the rooms of memory, and the unneeded rest of a client's body.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::pending,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use memchr::memmem;
use prometheus_client::metrics::gauge::Gauge;
use tokio::{sync::Notify, time::timeout};

use ctrlmesh_policy::{Refusal, Refused};

/// How much of an unneeded body is discarded, and for how long, so that its client reads the response. It
/// is several times the API server's limit, since larger bodies are refused, too. A client that sends more
/// waits for the rest of the time.
const READ_AWAY: usize = 16 << 20;
const READ_AWAY_WITHIN: Duration = Duration::from_secs(5);

/// The stream window of HTTP/2 towards the client, which is in the same pod: a larger one is no
/// faster.
pub(crate) const UPLOAD_WINDOW: u32 = 64 << 10;
/// The most bytes of one body that wait in the proxy: in HTTP/2 a window and a frame, in HTTP/1.1
/// the buffers of both connections.
const MAX_WAITING_H2: u64 = (UPLOAD_WINDOW as u64) + (16 << 10);
const MAX_WAITING_H1: u64 = 512 << 10;
/// The last bytes of a room are for small bodies, and the very last for those of a Lease: pairs of a
/// body's size and the bytes that larger bodies must leave free.
const KEPT: [(usize, usize); 2] = [(64 << 10, 4 << 20), (4 << 10, 1 << 20)];

/// Memory that all connections share.
#[derive(Debug)]
pub(crate) struct Room {
    size: usize,
    taken: AtomicUsize,
    shown: Gauge,
}

/// The part of a room that one body or stream takes.
#[derive(Debug)]
pub(crate) struct Place {
    bytes: usize,
    room: Arc<Room>,
}

impl Room {
    /// A room of `size` bytes; `shown` counts those that are taken.
    pub(crate) fn new(size: usize, shown: &Gauge) -> Arc<Self> {
        Arc::new(Self { size, taken: AtomicUsize::default(), shown: shown.clone() })
    }
}

impl Place {
    pub(crate) fn empty(room: &Arc<Room>) -> Self {
        Self { bytes: 0, room: Arc::clone(room) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Grows to so many bytes. If they are not free it fails with `NoRoom` and gives up those that it
    /// has, in one step: of several bodies that together fill the room, one is refused at a time, and
    /// the others go on.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Refused> {
        let has = self.bytes;
        let more = bytes.saturating_sub(has);
        let kept = KEPT.iter().filter(|(size, _)| bytes > *size).map(|(_, kept)| *kept).max();
        let most = self.room.size.saturating_sub(kept.unwrap_or(0));
        let grown = |taken: usize| taken.checked_add(more).filter(|taken| *taken <= most);
        let take = |taken: usize| Some(grown(taken).unwrap_or_else(|| taken.wrapping_sub(has)));
        let (Ok(before) | Err(before)) = self.room.taken.fetch_update(Relaxed, Relaxed, take);
        let is_free = grown(before).is_some();
        self.bytes = if is_free { has + more } else { 0 };
        self.room.shown.inc_by(signed(self.bytes) - signed(has));
        if is_free {
            return Ok(());
        }
        let why = "the bodies of other requests fill the memory for bodies: send the request again";
        Err(Refusal::NoRoom.because(why))
    }

    /// Takes so many bytes from now on, free or not. Returns whether they were free, or no other
    /// place has any.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let change = bytes.wrapping_sub(before);
        let taken = self.room.taken.fetch_add(change, Relaxed).wrapping_add(change);
        self.room.shown.inc_by(signed(bytes) - signed(before));
        taken <= self.room.size || taken == bytes
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.set(0);
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// A request's body on its way upstream: streamed as it arrives, or buffered whole and perhaps
/// changed.
pub(crate) type RequestBody = Either<ClientBody, Full<Bytes>>;

/// The body of a client's request.
#[derive(Debug)]
pub(crate) struct ClientBody {
    /// Bytes that were read and put back, which come first.
    held: VecDeque<Bytes>,
    body: Option<Incoming>,
    /// The owner of the rest when this is dropped.
    leftover: Option<Rc<Leftover>>,
    /// Whether the client sends: one that waits for `100 Continue` does so once the body is polled.
    is_awaited: bool,
    /// The memory that it may take.
    place: Option<Rc<Place>>,
    /// The text that is looked for in it.
    sought: Option<Box<Sought>>,
}

/// A text that is looked for in a body while it passes.
#[derive(Debug)]
struct Sought {
    text: &'static [u8],
    /// The last bytes, which may begin the text.
    tail: Vec<u8>,
    is_found: Rc<Cell<bool>>,
}

/// All bytes of a body, and the room that they take for as long as anybody has them.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    held: VecDeque<Bytes>,
    place: Option<Rc<Place>>,
}

impl ClientBody {
    /// The request with its body. `leftover` takes the part that is not read.
    pub(crate) fn of(request: Request<Incoming>, leftover: Option<Rc<Leftover>>) -> Request<Self> {
        let is_awaited = !request.headers().contains_key(header::EXPECT);
        request.map(|body| Self {
            held: VecDeque::new(),
            body: Some(body),
            leftover,
            is_awaited,
            place: None,
            sought: None,
        })
    }

    /// Puts back bytes that were read: the next frames of the body. It keeps the room that they
    /// take to its end.
    pub(crate) fn put_back(&mut self, held: VecDeque<Bytes>, place: Rc<Place>) {
        self.held = held;
        self.place = Some(place);
    }

    /// The bytes that were put back, if they are all of it.
    pub(crate) fn held_whole(&self) -> Option<Whole> {
        let is_all = self.body.as_ref().is_none_or(Body::is_end_stream);
        is_all.then(|| Whole { held: self.held.clone(), place: self.place.clone() })
    }

    /// Looks for a text in the bytes that are still to come. The cell says whether it has come.
    pub(crate) fn seek(&mut self, text: &'static [u8]) -> Rc<Cell<bool>> {
        let is_found = Rc::new(Cell::new(false));
        let sought = Sought { text, tail: Vec::new(), is_found: Rc::clone(&is_found) };
        self.sought = Some(Box::new(sought));
        is_found
    }

    /// The body of a whole, once more.
    pub(crate) fn of_whole(whole: Whole) -> Self {
        let Whole { held, place } = whole;
        Self { held, body: None, leftover: None, is_awaited: true, place, sought: None }
    }

    /// Takes room for the bytes of the body that may wait in the proxy for the API server. The body keeps the
    /// place to its end, and so does the holder of the returned handle: sent bytes may still wait in the
    /// connection until the response has come. Fails with `NoRoom`.
    pub(crate) fn take_room(&mut self, room: &Arc<Room>) -> Result<Option<Rc<Place>>, Refused> {
        if self.is_end_stream() {
            return Ok(None);
        }
        let most = if self.leftover.is_some() { MAX_WAITING_H1 } else { MAX_WAITING_H2 };
        let waiting = self.size_hint().upper().map_or(most, |length| length.min(most));
        let mut place = Place::empty(room);
        place.grow(usize::try_from(waiting).unwrap_or(usize::MAX))?;
        Ok(self.place.insert(Rc::new(place)).clone().into())
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.is_awaited = true;
        let frame = match (self.held.pop_front(), &mut self.body) {
            (Some(first), _) => Some(Ok(Frame::data(first))),
            (None, Some(body)) => ready!(Pin::new(body).poll_frame(cx)),
            (None, None) => None,
        };
        if let (Some(sought), Some(Ok(frame))) = (&mut self.sought, &frame)
            && let Some(bytes) = frame.data_ref()
        {
            sought.see(bytes);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.body.as_ref().map(Body::size_hint).unwrap_or_default();
        let held = self.held.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint.set_lower(rest.lower().saturating_add(held));
        hint
    }
}

impl Sought {
    fn see(&mut self, bytes: &[u8]) {
        if self.is_found.get() {
            return;
        }
        // What two frames have in common has less than the text before and behind the cut.
        let less = self.text.len() - 1;
        self.tail.extend_from_slice(bytes.get(..less).unwrap_or(bytes));
        let is_here =
            [&self.tail, bytes].into_iter().any(|part| memmem::find(part, self.text).is_some());
        self.is_found.set(is_here);
        if bytes.len() >= less {
            self.tail.clear();
            self.tail.extend_from_slice(bytes.get(bytes.len() - less..).unwrap_or_default());
        } else {
            let surplus = self.tail.len().saturating_sub(less);
            self.tail.drain(..surplus);
        }
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if let (Some(body), Some(leftover)) = (self.body.take(), &self.leftover)
            && self.is_awaited
            && !body.is_end_stream()
        {
            leftover.body.replace(Some(body));
            leftover.left.notify_one();
        }
    }
}

/// The rest of the body of an HTTP/1.1 request that is answered. The connection carries no other
/// request before it is read; if it is closed before, the kernel may drop the response with it.
#[derive(Debug, Default)]
pub(crate) struct Leftover {
    body: RefCell<Option<Incoming>>,
    left: Notify,
}

impl Leftover {
    /// Discards the rest of each body, for as long as it is polled.
    pub(crate) async fn read_away(&self) {
        loop {
            self.left.notified().await;
            if let Some(body) = self.body.take() {
                // Bytes that arrive later end with the connection.
                let _ = timeout(READ_AWAY_WITHIN, read_away(body)).await;
            }
        }
    }
}

async fn read_away(mut body: Incoming) {
    let mut left = READ_AWAY;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(length) else {
            // The client cannot send more and may read the response. Closing now would reset the
            // connection and lose the response (`rstAvoidanceDelay` of Go's `net/http/server.go`).
            return pending().await;
        };
        left = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_bodies_that_fill_a_room_together_one_is_refused() {
        const HALF: usize = 32 << 20;
        let shown = Gauge::default();
        let room = Room::new(2 * HALF, &shown);
        let [mut one, mut two] = [Place::empty(&room), Place::empty(&room)];
        one.grow(HALF).unwrap();
        two.grow(HALF / 2).unwrap();
        one.grow(HALF + HALF / 2).unwrap_err();
        // The refused one is still there: it is about to answer its client.
        two.grow(HALF + HALF / 2).unwrap();
        assert_eq!((one.bytes(), shown.get()), (0, signed(HALF + HALF / 2)));
        drop((one, two));
        assert_eq!((room.taken.load(Relaxed), shown.get()), (0, 0));
    }

    #[test]
    fn the_room_of_a_body_is_taken_for_as_long_as_it_may_be_sent_again() {
        let room = Room::new(100, &Gauge::default());
        let mut place = Place::empty(&room);
        place.grow(60).unwrap();
        let mut body = ClientBody::of_whole(Whole { held: VecDeque::new(), place: None });
        body.put_back([Bytes::from_static(b"{}")].into(), Rc::new(place));
        let again = body.held_whole().unwrap();
        drop(body);
        assert!(Place::empty(&room).grow(60).is_err());
        drop(again);
        assert!(Place::empty(&room).grow(60).is_ok());
    }
}
