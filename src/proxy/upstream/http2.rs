//! HTTP/2 to the API server, and to a peer.
//!
//! Hides the engine, which is h2. The future that sends a request polls for the response itself,
//! and sends the request's body meanwhile: hyper's client has a task and two channels in between.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    pin::Pin,
    rc::{Rc, Weak},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use h2::{Ping, PingPong, Reason, RecvStream, SendStream, client};
use http::{Method, Request, Response, header};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use ctrlmesh_net::cork::Corked;

/// Unsent bytes that one request or response may hold.
pub(crate) const SEND_BUFFER: usize = 64 << 10;
/// Bytes of headers: Go accepts a mebibyte, in any number of lines.
pub(crate) const MAX_HEADERS: u32 = 1 << 20;
/// Bytes at the beginning of a body that leave with the head. A stream has no window before its head
/// is written: who waits for one writes twice, and wakes the upstream twice.
const WITH_HEAD: usize = 16 << 10;
/// The PINGs' interval, as in client-go.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(30);
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// The stream limit before the upstream's SETTINGS have arrived: more than a peer can set.
const UNKNOWN: usize = usize::MAX - 1;

/// The sizes and times of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Unread bytes of one response.
    pub(crate) stream_window: u32,
    /// Unread bytes of all responses.
    pub(crate) connection_window: u32,
    /// The time without a part of a response after which the upstream is asked whether it lives.
    pub(crate) ping_interval: Duration,
    /// The time that its answer may take.
    pub(crate) ping_timeout: Duration,
}

/// The bounds of a connection to an API server. A stalled watch holds at most one stream window; the
/// connection window is that of 128 of them, so stalled watches never starve a Lease. With half the
/// stream window the API server stops in the middle of a long list, and waits for us.
pub(crate) const OF_API_SERVER: Bounds = Bounds {
    stream_window: 512 << 10,
    connection_window: 64 << 20,
    ping_interval: PING_INTERVAL,
    ping_timeout: PING_TIMEOUT,
};

/// Sends requests over one connection.
#[derive(Clone)]
pub(crate) struct Sender {
    h2: Rc<Requests>,
    heard: Heard,
    /// The signal that no request can be sent any more.
    over: Rc<Notify>,
}

/// The connection: requests and responses advance only [while it runs](Self::run).
pub(crate) struct Connection<T> {
    h2: client::Connection<Corked<T>, Bytes>,
    io: Corked<T>,
    /// The senders' end: the connection ends with the last of them.
    requests: Weak<Requests>,
    heard: Heard,
    over: Rc<Notify>,
    bounds: Bounds,
}

/// The engine's end for requests.
type Requests = RefCell<client::SendRequest<Bytes>>;

/// Reasons for no response.
#[derive(Debug)]
pub(crate) enum NoResponse {
    /// The upstream has not processed the request and will not: it may be sent again. A GOAWAY says
    /// so of the streams beyond its last, a reset with REFUSED_STREAM of its own (RFC 9113 sections
    /// 6.8 and 8.7).
    Unprocessed,
    /// The stream or the connection was cut off.
    Cut(h2::Error),
}

/// The body of a response. The rest of the request's body is sent while this is polled.
pub(crate) struct Received {
    stream: RecvStream,
    upload: Upload,
    heard: Heard,
}

/// A request's body that is being sent. `None` if all of it is.
type Upload = Option<Pin<Box<dyn Future<Output = ()>>>>;

/// The time when the upstream last sent a part of a response.
type Heard = Rc<Cell<Instant>>;

/// Begins HTTP/2 and waits for the upstream's SETTINGS. The client can then be offered the same stream limit
/// before it opens its first stream. Fails if the upstream ends the connection.
pub(crate) async fn connect<T>(io: T, bounds: Bounds) -> Result<(Sender, Connection<T>), h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let io = Corked::new(io);
    let (sender, mut connection) = client::Builder::new()
        .initial_max_send_streams(UNKNOWN)
        .initial_window_size(bounds.stream_window)
        .initial_connection_window_size(bounds.connection_window)
        .max_header_list_size(MAX_HEADERS)
        .max_send_buffer_size(SEND_BUFFER)
        .enable_push(false)
        .handshake(io.clone())
        .await?;
    let has_settings = |cx: &mut Context<'_>| match poll(&mut connection, &io, cx) {
        Poll::Ready(ended) => Poll::Ready(ended.and(Err(Reason::NO_ERROR.into()))),
        Poll::Pending if connection.max_concurrent_send_streams() == UNKNOWN => Poll::Pending,
        Poll::Pending => Poll::Ready(Ok(())),
    };
    poll_fn(has_settings).await?;
    let (heard, over) = (Rc::new(Cell::new(Instant::now())), Rc::<Notify>::default());
    let h2 = Rc::new(RefCell::new(sender));
    let requests = Rc::downgrade(&h2);
    let sender = Sender { h2, heard: Rc::clone(&heard), over: Rc::clone(&over) };
    Ok((sender, Connection { h2: connection, io, requests, heard, over, bounds }))
}

/// Advances a connection, and sends together all that it wrote: the head of a request and its body.
/// Resolves when it has ended, or can send no more.
fn poll<T: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut client::Connection<Corked<T>, Bytes>,
    io: &Corked<T>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    match (connection.poll_unpin(cx), io.poll_uncork(cx)) {
        (Poll::Pending, Poll::Ready(Err(_))) => Poll::Ready(Err(Reason::NO_ERROR.into())),
        (ended, _) => ended,
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// The upstream's `SETTINGS_MAX_CONCURRENT_STREAMS`. `None` if it sets no limit.
    pub(crate) fn stream_limit(&self) -> Option<u32> {
        u32::try_from(self.h2.max_concurrent_send_streams()).ok()
    }

    /// Runs it until it has ended, or the upstream does not answer. It ends with the last of its
    /// senders and responses.
    pub(crate) async fn run(mut self) {
        let pings = self.h2.ping_pong();
        let Self { h2: mut connection, io, mut requests, heard, over, bounds } = self;
        // A GOAWAY is heard at once, so that no request of the client's comes too late.
        let ended = poll_fn(|cx| {
            let ended = poll(&mut connection, &io, cx);
            let is_over =
                |h2: Rc<Requests>| !matches!(h2.borrow_mut().poll_ready(cx), Poll::Ready(Ok(())));
            if requests.upgrade().is_some_and(is_over) {
                over.notify_one();
                requests = Weak::new();
            }
            ended
        });
        tokio::select! {
            _ended = ended => {}
            () = silence(pings, &heard, bounds) => {}
        }
        over.notify_one();
    }
}

/// Resolves when the upstream does not answer a PING.
async fn silence(pings: Option<PingPong>, heard: &Cell<Instant>, bounds: Bounds) {
    let Some(mut pings) = pings else { return };
    loop {
        let due = heard.get() + bounds.ping_interval;
        if Instant::now() < due {
            sleep_until(due).await;
        } else if let Ok(Ok(_)) = timeout(bounds.ping_timeout, pings.ping(Ping::opaque())).await {
            heard.set(Instant::now());
        } else {
            return;
        }
    }
}

impl Sender {
    /// Resolves when no request can be sent any more. Fails when the upstream did not end the
    /// connection in an orderly way.
    pub(crate) fn over(&self) -> impl Future<Output = Result<(), h2::Error>> + use<> {
        let Self { h2, over, .. } = self.clone();
        async move {
            over.notified().await;
            let ended = poll_fn(|cx| h2.borrow_mut().poll_ready(cx)).await;
            ended.or_else(|error| match error.reason() {
                Some(Reason::NO_ERROR) => Ok(()),
                _ => Err(error),
            })
        }
    }

    /// Whether no request can be sent any more.
    pub(crate) fn is_over(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(self.h2.borrow_mut().poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// Sends a request; the future waits for the head of the response. Streams beyond the
    /// upstream's limit wait in the engine: clients are held to that limit, so they are few. Fails
    /// with [`NoResponse::Unprocessed`] if no request can be sent any more.
    pub(crate) fn send<B>(
        &self,
        request: Request<B>,
    ) -> Result<impl Future<Output = Result<Response<Received>, NoResponse>> + use<B>, NoResponse>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
    {
        let (mut head, body) = request.into_parts();
        let is_expected = !matches!(head.method, Method::GET | Method::HEAD | Method::DELETE);
        if let Some(length) = body.size_hint().exact().filter(|length| is_expected || *length > 0) {
            head.headers.entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
        }
        let is_whole = body.is_end_stream();
        // Of its own: one that has a stream beyond the limit takes no other.
        let mut h2 = self.h2.borrow().clone();
        let Ok((mut response, to)) = h2.send_request(Request::from_parts(head, ()), is_whole)
        else {
            self.over.notify_one();
            return Err(NoResponse::Unprocessed);
        };
        let mut upload: Upload = if is_whole { None } else { Some(Box::pin(send(body, to))) };
        let heard = Rc::clone(&self.heard);
        Ok(async move {
            let response = poll_fn(|cx| {
                advance(&mut upload, cx);
                response.poll_unpin(cx)
            });
            let response = response.await?;
            heard.set(Instant::now());
            Ok(response.map(|stream| Received { stream, upload, heard }))
        })
    }
}

fn advance(upload: &mut Upload, cx: &mut Context<'_>) {
    if upload.as_mut().is_some_and(|sending| sending.poll_unpin(cx).is_ready()) {
        *upload = None;
    }
}

/// Sends a body as the upstream takes it. Ends early if the upstream wants no more of it.
async fn send(mut body: impl Body<Data = Bytes> + Unpin, mut to: SendStream<Bytes>) {
    let mut with_head = WITH_HEAD;
    while let Some(frame) = body.frame().await {
        let sent = match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                let is_last = body.is_end_stream();
                // Room for one byte is enough: the rest of this frame may wait in the engine.
                let must_wait = data.len() > with_head;
                with_head = with_head.saturating_sub(data.len());
                to.reserve_capacity(data.len().min(1));
                while must_wait && to.capacity() == 0 {
                    let Some(Ok(_)) = poll_fn(|cx| to.poll_capacity(cx)).await else { return };
                }
                to.send_data(data, is_last)
            }
            Ok(Err(frame)) => match frame.into_trailers() {
                Ok(trailers) => to.send_trailers(trailers),
                Err(_) => continue,
            },
            Err(_cut_off) => return to.send_reset(Reason::CANCEL),
        };
        if sent.is_err() || body.is_end_stream() {
            return;
        }
    }
    // Fails if trailers have ended it.
    let _ = to.send_data(Bytes::new(), true);
}

impl From<h2::Error> for NoResponse {
    fn from(error: h2::Error) -> Self {
        let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        match error.is_remote() && (error.is_go_away() || is_refused) {
            true => Self::Unprocessed,
            false => Self::Cut(error),
        }
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        advance(&mut self.upload, cx);
        let frame = match ready!(self.stream.poll_data(cx)) {
            Some(Ok(bytes)) => {
                // Fails if the stream was reset, which the next poll returns.
                let _ = self.stream.flow_control().release_capacity(bytes.len());
                Ok(Some(Frame::data(bytes)))
            }
            Some(Err(error)) => Err(error),
            None => ready!(self.stream.poll_trailers(cx)).map(|last| last.map(Frame::trailers)),
        };
        self.heard.set(Instant::now());
        Poll::Ready(frame.transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

#[cfg(test)]
mod tests;
