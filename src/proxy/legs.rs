//! The two connections of a pair, in the same HTTP version, until one of them ends.
//!
//! So GOAWAY, flow control, stream limits and identity stay what they would be without us.

use std::{
    cell::{Cell, RefCell},
    error::Error,
    future::{pending, poll_fn},
    pin::{Pin, pin},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, future::join};
use http::{Request, Response};
use hyper::{
    body::Incoming,
    server::conn::{self as client_conn, http1::UpgradeableConnection},
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::TcpStream,
    time::{Instant, sleep_until, timeout},
};
use tokio_rustls::server;

use super::{
    outcome::Closed,
    request,
    shared::{LAST_CALL, Pair, Tasks, Worker},
    stall::Stalls,
    streams::ReplyBody,
    upstream::{
        Broken, Capabilities, ClientBody, CurrentConnection, Leftover, Line, MAX_HEADER_COUNT,
        Redial, Server, UPLOAD_WINDOW, Upstream, UpstreamConn, UpstreamTlsStream, h1_requests,
        http2::{self, MAX_HEADERS, PING_INTERVAL, PING_TIMEOUT, SEND_BUFFER},
    },
};
use ctrlmesh_net::{
    capped_reads::CappedReads, clock::reached, close_tracker::CloseTracker, cork::Corked,
    drain::Draining, tls::H2,
};

/// Streams at once if the upstream names no limit: the API server's own default.
const STREAM_LIMIT: u32 = 250;
/// The HTTP/2 window of all uploads of a connection, so that one that waits holds up no other.
const CONNECTION_WINDOW: u32 = STREAM_LIMIT * UPLOAD_WINDOW;
/// Timeout of the upstream's SETTINGS.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time, longer than the API server keeps an idle connection, so that it is the one to close
/// it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);
/// Timeout of both connections' orderly end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves the client until one side ends.
pub(super) async fn serve(
    worker: Rc<Worker>,
    id: u64,
    client: server::TlsStream<TcpStream>,
    upstream: UpstreamConn,
    draining: Draining,
) -> Closed {
    let UpstreamConn { stream: upstream, server, name, understood, own, redial } = upstream;
    let tasks = Tasks::default();
    let is_h2 = upstream.get_ref().1.alpn_protocol() == Some(H2);
    let metrics = Arc::clone(&worker.shared.metrics);
    let (client, peer_closed) = CloseTracker::new(client);
    let common = Common { worker, id, server, name, understood };
    let legs = Legs { client, upstream, draining, common };
    let closed = match is_h2 {
        true => serve_h2(legs, &tasks).await,
        false => serve_h1(legs, redial, &tasks).await,
    };
    metrics.panics.inc_by(tasks.end());
    drop(own);
    closed.after(&peer_closed)
}

/// The client's connection.
pub(super) type ClientStream = CloseTracker<server::TlsStream<TcpStream>>;

/// Both connections, ready for HTTP.
struct Legs {
    client: ClientStream,
    upstream: UpstreamTlsStream,
    draining: Draining,
    common: Common,
}

/// The part of a pair that is the same in both versions of HTTP.
struct Common {
    worker: Rc<Worker>,
    id: u64,
    server: Arc<Server>,
    name: String,
    understood: Arc<Capabilities>,
}

impl Common {
    fn pair(self, line: Line, tasks: &Tasks, writes: &Tasks, stalls: &Rc<Stalls>) -> Pair {
        let Self { worker, id, server, name, understood } = self;
        let metrics = Arc::clone(&worker.shared.metrics);
        Pair {
            id,
            worker,
            upstream: Upstream::new(line, server, name, id, metrics, understood),
            grants: RefCell::default(),
            tasks: tasks.clone(),
            writes: writes.clone(),
            left_behind: Cell::default(),
            stalls: Rc::clone(stalls),
            is_upgrading: Rc::default(),
            leftover: None,
            current: None,
        }
    }
}

/// Serves the requests of a pair.
fn requests(
    pair: Rc<Pair>,
) -> impl Service<Request<Incoming>, Response = Response<ReplyBody>, Error = Broken, Future: 'static>
{
    service_fn(move |request| {
        let request = ClientBody::of(request, pair.leftover.clone());
        Box::pin(request::serve(Rc::clone(&pair), request))
    })
}

async fn serve_h2(legs: Legs, tasks: &Tasks) -> Closed {
    let Legs { client, upstream, draining, common } = legs;
    let connected = timeout(SETTINGS_TIMEOUT, http2::connect(upstream, http2::OF_API_SERVER));
    let Ok(Ok((sender, connection))) = connected.await else {
        return Closed::UpstreamLost;
    };
    let (limit, upstream) = (connection.stream_limit().unwrap_or(STREAM_LIMIT), sender.over());
    tasks.spawn(connection.run());
    let stalls = Rc::new(Stalls::new(Arc::clone(&common.worker.shared.unread)));
    let (writes, mut ending) = (Tasks::default(), draining.clone());
    let pair = common.pair(Line::H2(sender), tasks, &writes, &stalls);
    let carried = Carried { tasks: tasks.clone(), stalls, streams: limit };
    let closed = h2_client(client, requests(Rc::new(pair)), carried, upstream, draining).await;
    tokio::select! {
        () = writes.finished() => {}
        () = async { sleep_until(ending.begun().await).await } => {}
    }
    tasks.add_panics(writes.end());
    closed
}

/// The requests of a client's connection in HTTP/2.
pub(super) struct Carried {
    /// The tasks of its requests.
    pub(super) tasks: Tasks,
    /// The responses that it leaves unread.
    pub(super) stalls: Rc<Stalls>,
    /// The streams that it may have at a time.
    pub(super) streams: u32,
}

/// Serves a client in HTTP/2 until it ends, or `upstream` has and with it the requests under way.
pub(super) async fn h2_client<S, U, E>(
    client: ClientStream,
    service: S,
    carried: Carried,
    upstream: U,
    draining: Draining,
) -> Closed
where
    S: Service<Request<Incoming>, Response = Response<ReplyBody>, Error = Broken>,
    S::Future: 'static,
    U: Future<Output = Result<(), E>>,
{
    let Carried { tasks, stalls, streams } = carried;
    let io = Corked::new(client);
    let client = client_conn::http2::Builder::new(tasks.clone())
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(streams)
        .max_pending_accept_reset_streams(4 * streams as usize)
        // Each refused write whose body no one reads is one, in all of the connection's life. The client is
        // the pod's own controller, and watches are on its connection.
        .max_local_error_reset_streams(None)
        .initial_stream_window_size(UPLOAD_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEADERS)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(TokioIo::new(io.clone()), service);
    let rest = io.clone();
    let client = Box::pin(Uncorking { connection: Box::pin(client), io });
    let never_upgrades = Cell::new(false);
    let served = drive(
        client,
        |mut client, _| client.connection.as_mut().graceful_shutdown(),
        upstream,
        draining,
        &never_upgrades,
    );
    let closed = tokio::select! {
        closed = served => closed,
        () = reset_stalled(&stalls, &tasks) => Closed::Finished,
    };
    // Requests notice by themselves that their client is gone; the upstream gets a GOAWAY.
    let _ = timeout(FAREWELL, join(tasks.finished(), linger(rest))).await;
    closed
}

/// Discards what the client sends until it closes too. The kernel resets a connection that is closed
/// over unread bytes, and the client may lose the GOAWAY that lets it send its last requests again
/// (`goAwayTimeout` of Go's `http2/server.go`).
async fn linger(mut client: impl AsyncRead + Unpin) {
    let mut unread = [0; 4 << 10];
    while let Ok(1..) = client.read(&mut unread).await {}
}

async fn serve_h1(legs: Legs, redial: Redial, tasks: &Tasks) -> Closed {
    let Legs { client, upstream, mut draining, common } = legs;
    let Ok((sender, upstream)) = h1_requests().handshake(TokioIo::new(upstream)).await else {
        return Closed::UpstreamLost;
    };
    let leftover = Rc::new(Leftover::default());
    let mut pair = common.pair(Line::H1(RefCell::new(sender)), tasks, tasks, &Rc::default());
    let current = CurrentConnection::new(upstream.with_upgrades(), redial);
    pair.leftover = Some(Rc::clone(&leftover));
    pair.current = Some(Rc::clone(&current));
    let is_upgrading = Rc::clone(&pair.is_upgrading);
    let service = requests(Rc::new(pair));
    let client =
        h1_server().serve_connection(TokioIo::new(CappedReads(client)), service).with_upgrades();
    let mut upstream = pin!(poll_fn(|cx| current.poll_end(cx)).fuse());
    let finish = |client: Pin<&mut _>, _| UpgradeableConnection::graceful_shutdown(client);
    let served =
        drive(Box::pin(client), finish, upstream.as_mut(), draining.clone(), &is_upgrading);
    let closed = tokio::select! {
        closed = served => closed,
        () = leftover.read_away() => Closed::Finished,
    };
    // The remaining tasks are upgraded connections: they end with their peers or with the drain. The
    // upstream of a watch over WebSocket still has HTTP on it.
    let run_on = async {
        let _ = upstream.await;
        pending::<()>().await;
    };
    tokio::select! {
        () = tasks.finished() => closed,
        () = run_on => closed,
        () = async { sleep_until(draining.begun().await).await } => Closed::Drained,
    }
}

/// HTTP/1.1 with a client.
pub(super) fn h1_server() -> client_conn::http1::Builder {
    let mut server = client_conn::http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_headers(MAX_HEADER_COUNT)
        .max_buf_size(MAX_HEADERS as usize)
        .header_read_timeout(IDLE_TIMEOUT);
    server
}

/// Resets unread responses of the pair beyond their bound, for as long as it is polled.
async fn reset_stalled(stalls: &Stalls, tasks: &Tasks) {
    loop {
        stalls.time_to_look().await;
        let reset = stalls.to_reset();
        if !reset.is_empty() {
            tracing::warn!(responses = reset.len(), "reset: the client leaves too much unread");
            tasks.reset(&reset);
        }
    }
}

/// A connection whose writes are flushed whenever it was polled.
struct Uncorking<C> {
    connection: Pin<Box<C>>,
    io: Corked<ClientStream>,
}

impl<C: Future<Output = hyper::Result<()>>> Future for Uncorking<C> {
    type Output = hyper::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let ended = self.connection.as_mut().poll(cx);
        // The stream's waker wakes the connection, which gets an error at its next poll.
        let _ = self.io.poll_uncork(cx);
        ended
    }
}

/// The reason why a client's connection is to take no further requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// The upstream's connection has ended.
    Upstream,
    /// A drain has begun.
    Drain,
    /// A drain is about to end.
    LastCall,
}

/// Runs both legs until the client's has ended. `finish` asks the client's connection to take no
/// further requests.
///
/// When the upstream closes, the client's connection is closed too, after the requests under way. A
/// drain does the same; a connection that came during a drain (a controller that releases its
/// lease) is served until shortly before the deadline.
pub(super) async fn drive<C, U, E>(
    mut client: Pin<Box<C>>,
    finish: impl Fn(Pin<&mut C>, Finish),
    upstream: U,
    mut draining: Draining,
    is_upgrading: &Cell<bool>,
) -> Closed
where
    C: Future<Output = hyper::Result<()>>,
    U: Future<Output = Result<(), E>>,
{
    // Fused, so that it is dropped when it has ended: it holds the requests that it did not send.
    let mut upstream = pin!(upstream.fuse());
    let mut upstream_ended = None;
    let came_late = draining.deadline().is_some();
    let mut last_call = None;
    let mut deadline = None;
    let closed = loop {
        tokio::select! {
            ended = &mut client => break how_it_ended(ended, upstream_ended, deadline),
            ended = &mut upstream, if upstream_ended.is_none() => {
                upstream_ended = Some(ended);
                if !is_upgrading.get() {
                    finish(client.as_mut(), Finish::Upstream);
                }
            }
            at = draining.begun(), if deadline.is_none() => {
                deadline = Some(at);
                last_call = Some(at.checked_sub(LAST_CALL).unwrap_or(at));
                if !came_late {
                    finish(client.as_mut(), Finish::Drain);
                }
            }
            () = reached(last_call) => {
                last_call = None;
                finish(client.as_mut(), Finish::LastCall);
            }
            () = reached(deadline) => break Closed::Drained,
        }
    };
    // The client's connection holds the upstream's request sender: without it the upstream ends.
    drop(client);
    closed
}

fn how_it_ended<E>(
    client: hyper::Result<()>,
    upstream: Option<Result<(), E>>,
    deadline: Option<Instant>,
) -> Closed {
    match (client, upstream) {
        (_, Some(Err(_))) => Closed::UpstreamLost,
        (Err(error), _) if broke_protocol(&error) => Closed::Protocol,
        // Clients may close at once when they get a drain's GOAWAY, in the middle of our own close.
        _ if deadline.is_some() => Closed::Drained,
        (Ok(()), _) => Closed::Finished,
        (Err(_), _) => Closed::ClientGone,
    }
}

/// Whether our side of the connection found a protocol error of the peer's.
fn broke_protocol(error: &hyper::Error) -> bool {
    let h2 = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    error.is_parse() || h2.is_some_and(|error| error.is_go_away() && error.is_library())
}
