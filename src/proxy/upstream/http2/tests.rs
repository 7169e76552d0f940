use std::{convert::Infallible, iter::repeat_with};

use futures_util::stream::iter;
use h2::server;
use http_body_util::{Empty, StreamBody};
use tokio::{
    io::{self, DuplexStream, ReadBuf, duplex},
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
async fn driven<T, F: Future>(
    connection: Connection<T>,
    mut server: Server,
    script: impl FnOnce(Accepts) -> F,
) -> F::Output
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
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
async fn a_head_and_its_body_are_written_together() {
    let (sender, connection, server, io) = connected_and_seen().await;
    let writes = io.writes;
    let script = |mut accepts: Accepts| async move {
        // The first request's write may hold frames of the connection's own.
        for is_first in [true, false] {
            let frame = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; 3000])));
            let body = StreamBody::new(iter(repeat_with(frame).take(3)));
            let request = Request::post("https://upstream/api/v1/pods").body(body).unwrap();
            let before = writes.get();
            let sent = sender.send(request).unwrap();
            let serve = async {
                let (request, mut respond) = accepts.recv().await.unwrap();
                let (mut body, mut length) = (request.into_body(), 0);
                while let Some(part) = body.data().await {
                    length += part.unwrap().len();
                }
                assert_eq!(length, 9000);
                assert!(is_first || writes.get() == before + 1, "{}", writes.get() - before);
                respond.send_response(Response::new(()), true).unwrap();
            };
            let (sent, ()) = tokio::join!(sent, serve);
            assert_eq!(sent.unwrap().status(), 200);
        }
    };
    within(driven(connection, server, script)).await;
}

#[tokio::test]
async fn a_connection_that_cannot_send_is_over() {
    let (sender, connection, server, io) = connected_and_seen().await;
    io.is_broken.set(true);
    let script = |_accepts| async move {
        assert!(sender.send(get()).unwrap().await.is_err());
        sender.over().await.unwrap_err();
    };
    within(driven(connection, server, script)).await;
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
        let read = async { sent.await.unwrap().into_body().collect().await.unwrap().to_bytes() };
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

/// A stream whose writes are counted, and can be made to fail while it can still be read.
struct Sending {
    stream: DuplexStream,
    seen: Seen,
}

/// The writes of a stream, and whether the next fail.
#[derive(Clone, Default)]
struct Seen {
    writes: Rc<Cell<u32>>,
    is_broken: Rc<Cell<bool>>,
}

async fn connected_and_seen() -> (Sender, Connection<Sending>, Server, Seen) {
    let (stream, far) = duplex(1 << 20);
    let seen = Seen::default();
    let near = Sending { stream, seen: seen.clone() };
    let (client, server) = tokio::join!(connect(near, OF_API_SERVER), server::handshake(far));
    let (sender, connection) = client.unwrap();
    (sender, connection, server.unwrap(), seen)
}

impl AsyncRead for Sending {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Sending {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.seen.is_broken.get() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.seen.writes.set(self.seen.writes.get() + 1);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
