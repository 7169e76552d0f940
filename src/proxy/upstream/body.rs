//! The bodies of requests on their way upstream, and the rest of a client's body that nobody needs.

use std::{
    cell::RefCell,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use tokio::{sync::Notify, time::timeout};

/// Bytes and time for discarding a body that nobody needs, so that its client reads the response:
/// several times the API server's limit, since larger bodies are refused, too.
const READ_AWAY: usize = 16 << 20;
const READ_AWAY_WITHIN: Duration = Duration::from_secs(5);

/// A request's body on its way upstream: streamed as it arrives, or buffered whole and perhaps
/// changed.
pub(in crate::proxy) type RequestBody = Either<ClientBody, Full<Bytes>>;

/// The body of a client's request.
#[derive(Debug)]
pub(in crate::proxy) struct ClientBody {
    body: Option<Incoming>,
    /// The owner of the rest when this is dropped.
    leftover: Option<Rc<Leftover>>,
    /// Whether the client sends: one that waits for `100 Continue` does so once the body is polled.
    is_awaited: bool,
}

impl ClientBody {
    /// The request with its body. `leftover` takes the part that is not read.
    pub(in crate::proxy) fn of(
        request: Request<Incoming>,
        leftover: Option<Rc<Leftover>>,
    ) -> Request<Self> {
        let is_awaited = !request.headers().contains_key(header::EXPECT);
        request.map(|body| Self { body: Some(body), leftover, is_awaited })
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
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
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
pub(in crate::proxy) struct Leftover {
    body: RefCell<Option<Incoming>>,
    left: Notify,
}

impl Leftover {
    /// Discards the rest of each body, for as long as it is polled.
    pub(in crate::proxy) async fn read_away(&self) {
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
        let Some(rest) = left.checked_sub(length) else { return };
        left = rest;
    }
}
