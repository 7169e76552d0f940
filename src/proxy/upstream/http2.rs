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

/// Unsent bytes that one request or response may hold.
pub(in crate::proxy) const SEND_BUFFER: usize = 64 << 10;
/// Bytes of headers: Go accepts a mebibyte, in any number of lines.
pub(in crate::proxy) const MAX_HEADERS: u32 = 1 << 20;
/// The PINGs' interval, as in client-go.
pub(in crate::proxy) const PING_INTERVAL: Duration = Duration::from_secs(30);
pub(in crate::proxy) const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// The stream limit before the upstream's SETTINGS have arrived: more than a peer can set.
const UNKNOWN: usize = usize::MAX - 1;

/// The sizes and times of a connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Bounds {
    /// Unread bytes of one response.
    pub(in crate::proxy) stream_window: u32,
    /// Those of all responses.
    pub(in crate::proxy) connection_window: u32,
    /// The time without a part of a response after which the upstream is asked whether it lives.
    pub(in crate::proxy) ping_interval: Duration,
    /// The time that its answer may take.
    pub(in crate::proxy) ping_timeout: Duration,
}

/// The bounds of a connection to an API server. A stalled watch holds at most one stream window; the
/// connection window is that of 128 of them, so stalled watches never starve a Lease. With half the
/// stream window the API server stops in the middle of a long list, and waits for us.
pub(in crate::proxy) const OF_API_SERVER: Bounds = Bounds {
    stream_window: 512 << 10,
    connection_window: 64 << 20,
    ping_interval: PING_INTERVAL,
    ping_timeout: PING_TIMEOUT,
};

/// Sends requests over one connection.
#[derive(Clone)]
pub(in crate::proxy) struct Sender {
    h2: Rc<Requests>,
    heard: Heard,
    /// The signal that no request can be sent any more.
    over: Rc<Notify>,
}

/// The connection: requests and responses advance only [while it runs](Self::run).
pub(in crate::proxy) struct Connection<T> {
    h2: client::Connection<T, Bytes>,
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
pub(in crate::proxy) enum NoResponse {
    /// The upstream has not processed the request and will not: it may be sent again. A GOAWAY says
    /// so of the streams beyond its last, a reset with REFUSED_STREAM of its own (RFC 9113 sections
    /// 6.8 and 8.7).
    Unprocessed,
    /// The stream or the connection was cut off.
    Cut(h2::Error),
}

/// The body of a response. The rest of the request's body is sent while this is polled.
pub(in crate::proxy) struct Received {
    stream: RecvStream,
    upload: Upload,
    heard: Heard,
}

/// A request's body that is being sent. `None` if all of it is.
type Upload = Option<Pin<Box<dyn Future<Output = ()>>>>;

/// The time when the upstream last sent a part of a response.
type Heard = Rc<Cell<Instant>>;

/// Begins HTTP/2 and waits for the upstream's SETTINGS, so that the client can be offered the same
/// stream limit before it opens its first stream. Fails if the upstream ends the connection.
pub(in crate::proxy) async fn connect<T>(
    io: T,
    bounds: Bounds,
) -> Result<(Sender, Connection<T>), h2::Error>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (sender, mut connection) = client::Builder::new()
        .initial_max_send_streams(UNKNOWN)
        .initial_window_size(bounds.stream_window)
        .initial_connection_window_size(bounds.connection_window)
        .max_header_list_size(MAX_HEADERS)
        .max_send_buffer_size(SEND_BUFFER)
        .enable_push(false)
        .handshake(io)
        .await?;
    let has_settings = |cx: &mut Context<'_>| match connection.poll_unpin(cx) {
        Poll::Ready(ended) => Poll::Ready(ended.and(Err(Reason::NO_ERROR.into()))),
        Poll::Pending if connection.max_concurrent_send_streams() == UNKNOWN => Poll::Pending,
        Poll::Pending => Poll::Ready(Ok(())),
    };
    poll_fn(has_settings).await?;
    let (heard, over) = (Rc::new(Cell::new(Instant::now())), Rc::<Notify>::default());
    let h2 = Rc::new(RefCell::new(sender));
    let requests = Rc::downgrade(&h2);
    let sender = Sender { h2, heard: Rc::clone(&heard), over: Rc::clone(&over) };
    Ok((sender, Connection { h2: connection, requests, heard, over, bounds }))
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// The upstream's `SETTINGS_MAX_CONCURRENT_STREAMS`. `None` if it sets no limit.
    pub(in crate::proxy) fn stream_limit(&self) -> Option<u32> {
        u32::try_from(self.h2.max_concurrent_send_streams()).ok()
    }

    /// Runs it until it has ended, or the upstream does not answer. It ends with the last of its
    /// senders and responses.
    pub(in crate::proxy) async fn run(mut self) {
        let pings = self.h2.ping_pong();
        let Self { h2: mut connection, mut requests, heard, over, bounds } = self;
        // A GOAWAY is heard at once, so that no request of the client's comes too late.
        let ended = poll_fn(|cx| {
            let ended = connection.poll_unpin(cx);
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
    pub(in crate::proxy) fn over(&self) -> impl Future<Output = Result<(), h2::Error>> + use<> {
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
    pub(in crate::proxy) fn is_over(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(self.h2.borrow_mut().poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// Sends a request; the future waits for the head of the response. Streams beyond the
    /// upstream's limit wait in the engine: clients are held to that limit, so they are few. Fails
    /// with [`NoResponse::Unprocessed`] if no request can be sent any more.
    pub(in crate::proxy) fn send<B>(
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
    while let Some(frame) = body.frame().await {
        let sent = match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                let is_last = body.is_end_stream();
                // Room for one byte is enough: the rest of this frame may wait in the engine.
                to.reserve_capacity(data.len().min(1));
                while to.capacity() == 0 && !data.is_empty() {
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
mod tests {
    use std::{convert::Infallible, iter::repeat_with};

    use futures_util::stream::iter;
    use h2::server;
    use http_body_util::{Empty, StreamBody};
    use tokio::{
        io::{DuplexStream, duplex},
        task::{JoinSet, LocalSet},
    };

    use super::*;

    type Server = server::Connection<DuplexStream, Bytes>;

    async fn connected(limit: Option<u32>) -> (Sender, Connection<DuplexStream>, Server) {
        let (near, far) = duplex(1 << 20);
        let mut server = server::Builder::new();
        if let Some(limit) = limit {
            server.max_concurrent_streams(limit);
        }
        let (client, server) = tokio::join!(connect(near, OF_API_SERVER), server.handshake(far));
        let (sender, connection) = client.unwrap();
        (sender, connection, server.unwrap())
    }

    /// A request with 300,000 bytes in frames: several times the server's window.
    fn post() -> Request<impl Body<Data = Bytes> + Unpin> {
        let frame = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; 30_000])));
        let body = StreamBody::new(iter(repeat_with(frame).take(10)));
        Request::post("https://upstream/api/v1/pods").body(body).unwrap()
    }

    fn get() -> Request<impl Body<Data = Bytes> + Unpin> {
        Request::get("https://upstream/api/v1/pods").body(Empty::new()).unwrap()
    }

    /// Drives both ends of a connection while `script` runs. The server gives each request to it.
    async fn driven<F: Future>(
        connection: Connection<DuplexStream>,
        mut server: Server,
        script: impl FnOnce(Accepts) -> F,
    ) -> F::Output {
        let (give, accepts) = tokio::sync::mpsc::channel(1);
        let accept = async move {
            while let Some(Ok(accepted)) = server.accept().await {
                give.send(accepted).await.unwrap();
            }
        };
        let mut tasks = JoinSet::new();
        let local = LocalSet::new();
        tasks.spawn_local_on(connection.run(), &local);
        tasks.spawn_local_on(accept, &local);
        local.run_until(script(accepts)).await
    }

    /// Waits for the end of a test, which hangs if a notice does not come.
    async fn within<T>(test: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(10), test).await.expect("it ends in time")
    }

    type Accepts = tokio::sync::mpsc::Receiver<(Request<RecvStream>, server::SendResponse<Bytes>)>;

    #[tokio::test]
    async fn the_upstreams_stream_limit_is_known_from_the_start() {
        for limit in [None, Some(0), Some(7), Some(u32::MAX)] {
            let (_sender, connection, _server) = connected(limit).await;
            assert_eq!(connection.stream_limit(), limit);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_is_silent_ends_the_connection() {
        let (sender, connection, _server) = connected(None).await;
        let started = Instant::now();
        connection.run().await;
        assert_eq!(started.elapsed(), PING_INTERVAL + PING_TIMEOUT);
        sender.over().await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_answers_pings_keeps_it() {
        let (sender, connection, server) = connected(None).await;
        let kept = driven(connection, server, |_| timeout(PING_INTERVAL * 9, sender.over()));
        assert!(kept.await.is_err(), "it is not over");
    }

    #[tokio::test]
    async fn the_rest_of_a_body_is_sent_while_the_response_is_read() {
        let (sender, connection, server) = connected(None).await;
        let script = |mut accepts: Accepts| async move {
            let sent = sender.send(post()).unwrap();
            let serve = async {
                let (request, mut respond) = accepts.recv().await.unwrap();
                let mut reply = respond.send_response(Response::new(()), false).unwrap();
                let (mut upload, mut length) = (request.into_body(), 0);
                while let Some(data) = upload.data().await {
                    let data = data.unwrap();
                    length += data.len();
                    upload.flow_control().release_capacity(data.len()).unwrap();
                }
                reply.send_data(Bytes::from(length.to_string()), true).unwrap();
            };
            let read =
                async { sent.await.unwrap().into_body().collect().await.unwrap().to_bytes() };
            assert_eq!(tokio::join!(read, serve).0, "300000");
        };
        driven(connection, server, script).await;
    }

    #[tokio::test]
    async fn a_goaway_is_heard_while_a_response_goes_on() {
        let (sender, connection, mut server) = connected(None).await;
        let script = async {
            let sent = sender.send(get()).unwrap();
            let (_request, mut respond) = server.accept().await.unwrap().unwrap();
            let mut reply = respond.send_response(Response::new(()), false).unwrap();
            server.graceful_shutdown();
            let serve = async { while server.accept().await.is_some() {} };
            let read = async {
                sender.over().await.unwrap();
                reply.send_data(Bytes::from_static(b"all"), true).unwrap();
                drop(reply);
                let body = sent.await.unwrap().into_body();
                assert_eq!(body.collect().await.unwrap().to_bytes(), "all");
                assert!(matches!(sender.send(get()), Err(NoResponse::Unprocessed)));
                drop(sender);
            };
            tokio::join!(serve, read);
        };
        within(async { tokio::join!(connection.run(), script) }).await;
    }

    #[tokio::test]
    async fn a_request_beyond_the_last_stream_of_a_goaway_may_be_sent_again() {
        let (sender, connection, mut server) = connected(None).await;
        let script = async {
            let first = sender.send(get()).unwrap();
            let mut respond = server.accept().await.unwrap().unwrap().1;
            let _reply = respond.send_response(Response::new(()), false).unwrap();
            let begun = tokio::select! {
                begun = first => begun.unwrap(),
                _ = server.accept() => unreachable!(),
            };
            let second = sender.send(get()).unwrap();
            // The server has not read the second request.
            server.abrupt_shutdown(Reason::NO_ERROR);
            let serve = async { while server.accept().await.is_some() {} };
            let (second, begun, ()) = tokio::join!(second, begun.into_body().collect(), serve);
            assert!(matches!(second, Err(NoResponse::Unprocessed)));
            assert!(begun.is_err(), "the first was processed, and is cut off");
        };
        within(async { tokio::join!(connection.run(), script) }).await;
    }

    #[tokio::test]
    async fn a_request_that_is_refused_may_be_sent_again() {
        for (reason, may_be_sent_again) in
            [(Reason::REFUSED_STREAM, true), (Reason::CANCEL, false), (Reason::NO_ERROR, false)]
        {
            let (sender, connection, server) = connected(None).await;
            let script = |mut accepts: Accepts| async move {
                let sent = sender.send(get()).unwrap();
                accepts.recv().await.unwrap().1.send_reset(reason);
                sent.await
            };
            let reset = driven(connection, server, script).await;
            let is_unprocessed = matches!(reset, Err(NoResponse::Unprocessed));
            assert_eq!(is_unprocessed, may_be_sent_again, "{reason:?}");
        }
    }

    #[tokio::test]
    async fn an_upstream_that_ends_before_its_settings_is_not_connected() {
        let (near, far) = duplex(1 << 10);
        drop(far);
        assert!(connect(near, OF_API_SERVER).await.is_err());
    }

    #[tokio::test]
    async fn a_response_that_is_reset_without_an_error_is_cut_off() {
        let (sender, connection, server) = connected(None).await;
        let script = |mut accepts: Accepts| async move {
            let sent = sender.send(get()).unwrap();
            let mut respond = accepts.recv().await.unwrap().1;
            let mut reply = respond.send_response(Response::new(()), false).unwrap();
            let mut body = sent.await.unwrap().into_body();
            reply.send_data(Bytes::from_static(b"half"), false).unwrap();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
            reply.send_reset(Reason::NO_ERROR);
            let cut = body.collect().await.unwrap_err();
            assert_eq!(cut.reason(), Some(Reason::NO_ERROR));
        };
        driven(connection, server, script).await;
    }

    /// RFC 9113 section 8.1: the server resets the stream with NO_ERROR behind its response.
    #[tokio::test]
    async fn a_response_before_the_end_of_the_request_is_whole() {
        let (sender, connection, server) = connected(None).await;
        let script = |mut accepts: Accepts| async move {
            let sent = sender.send(post()).unwrap();
            let (request, mut respond) = accepts.recv().await.unwrap();
            let mut reply = respond.send_response(Response::new(()), false).unwrap();
            reply.send_data(Bytes::from_static(b"enough"), true).unwrap();
            drop((request, respond, reply));
            let body = sent.await.unwrap().into_body().collect().await.unwrap();
            assert_eq!(body.to_bytes(), "enough");
        };
        driven(connection, server, script).await;
    }

    #[tokio::test]
    async fn a_response_that_is_dropped_resets_its_stream() {
        let (sender, connection, server) = connected(None).await;
        let script = |mut accepts: Accepts| async move {
            let sent = sender.send(post()).unwrap();
            let (request, mut respond) = accepts.recv().await.unwrap();
            let _reply = respond.send_response(Response::new(()), false).unwrap();
            drop(sent.await.unwrap());
            let mut upload = request.into_body();
            let reset = loop {
                if let Err(error) = upload.data().await.expect("it is cut off") {
                    break error.reason().unwrap();
                }
            };
            assert_eq!(reset, Reason::CANCEL);
        };
        driven(connection, server, script).await;
    }
}
