//! One connection to an API server, as requests may use it.

use std::{cell::RefCell, error::Error, future::poll_fn, sync::Arc};

use futures_util::future;
use http::{Request, Response, Version};
use http_body_util::Either;
use hyper::{body::Incoming, client::conn::http1};

use super::{
    body::RequestBody,
    http2::{self, NoResponse, Received},
    server::{Capabilities, Server},
};
use crate::metrics::Metrics;

/// Header lines of an HTTP/1.1 head. Each head takes room for all of them, 64 bytes a line. This
/// many cost 60 ns; twice as many are given back to the kernel each time and cost 20 µs.
pub(crate) const MAX_HEADER_COUNT: usize = 2 << 10;
/// Unsent bytes of a request, and bytes of a response's head, in HTTP/1.1.
const UPSTREAM_BUFFER: usize = 128 << 10;

/// The API server at the end of one connection, and the abilities that it has shown.
pub(crate) struct Upstream {
    line: Line,
    pub(crate) server: Arc<Server>,
    /// The server's `HOST:PORT`.
    pub(crate) name: String,
    /// The number of the pair, for the log.
    pub(super) connection: u64,
    pub(super) metrics: Arc<Metrics>,
    pub(crate) understood: Arc<Capabilities>,
}

pub(crate) enum Line {
    H2(http2::Sender),
    H1(RefCell<http1::SendRequest<RequestBody>>),
}

/// Reasons for no response: the client gets a protocol error, never an invented response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The upstream has not processed the request and will not, so the client may send it again
    /// elsewhere.
    #[error("the upstream did not process the request")]
    Unprocessed(#[source] h2::Error),
    /// The upstream closed a connection of HTTP/1.1 in order, without a response: it may have closed an
    /// idle one when the request was on its way.
    #[error("the upstream closed the connection without a response")]
    Closed(#[source] hyper::Error),
    #[error("the upstream broke off")]
    Upstream(#[from] Cut),
}

impl Broken {
    /// A request that was not sent, so that the client may send it again elsewhere.
    pub(crate) fn unsent() -> Self {
        Self::Unprocessed(h2::Reason::REFUSED_STREAM.into())
    }
}

/// The body of an upstream's response, in HTTP/1.1 or HTTP/2.
pub(crate) type UpstreamBody = Either<Incoming, Received>;

/// An error of the upstream's connection, or of one stream of it.
pub(crate) type Cut = Box<dyn Error + Send + Sync>;

impl Upstream {
    /// An API server, and the abilities that it has shown.
    pub(crate) fn new(
        line: Line,
        server: Arc<Server>,
        name: String,
        connection: u64,
        metrics: Arc<Metrics>,
        understood: Arc<Capabilities>,
    ) -> Self {
        Self { line, server, name, connection, metrics, understood }
    }

    /// Whether it carries several requests at a time.
    pub(crate) fn is_h2(&self) -> bool {
        self.line.is_h2()
    }

    pub(super) fn version(&self) -> Version {
        if self.is_h2() { Version::HTTP_2 } else { Version::HTTP_11 }
    }

    /// Sends a request; the future waits for the head of the response.
    pub(crate) fn send(
        &self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, Broken>> {
        self.line.send(request)
    }

    /// The same server over another line; it may be another machine.
    pub(super) fn over(
        &self,
        line: Line,
        server: Arc<Server>,
        name: String,
        understood: Arc<Capabilities>,
    ) -> Self {
        let metrics = Arc::clone(&self.metrics);
        Self { line, server, name, connection: self.connection, metrics, understood }
    }

    /// Sends all later requests over another line of HTTP/1.1.
    pub(super) fn goes_on_over(&self, other: Self) {
        if let (Line::H1(present), Line::H1(other)) = (&self.line, other.line) {
            present.replace(other.into_inner());
        }
    }
}

/// HTTP/1.1 with a server.
pub(crate) fn h1_requests() -> http1::Builder {
    let mut requests = http1::Builder::new();
    requests.max_headers(MAX_HEADER_COUNT).max_buf_size(UPSTREAM_BUFFER);
    requests
}

impl Line {
    /// Whether it carries several requests at a time.
    pub(crate) fn is_h2(&self) -> bool {
        matches!(self, Self::H2(_))
    }

    /// Whether a request that is sent now does not wait for another.
    pub(crate) fn is_free(&self) -> bool {
        match self {
            Self::H2(sender) => !sender.is_over(),
            Self::H1(sender) => sender.borrow().is_ready(),
        }
    }

    /// Whether no request can be sent any more.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::H2(sender) => sender.is_over(),
            Self::H1(sender) => sender.borrow().is_closed(),
        }
    }

    /// Sends a request; the future waits for the head of the response. The request of HTTP/2 is
    /// gone by then: what a future holds is copied when its task starts.
    pub(crate) fn send(
        &self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, Broken>> {
        match self {
            Self::H2(sender) => {
                let sent = sender.send(request);
                future::Either::Left(async {
                    let reply = sent?.await?;
                    Ok(reply.map(UpstreamBody::Right))
                })
            }
            Self::H1(sender) => future::Either::Right(Box::pin(send_h1(sender, request))),
        }
    }
}

async fn send_h1(
    sender: &RefCell<http1::SendRequest<RequestBody>>,
    request: Request<RequestBody>,
) -> Result<Response<UpstreamBody>, Broken> {
    poll_fn(|cx| sender.borrow_mut().poll_ready(cx)).await.map_err(|_| Broken::unsent())?;
    let sending = sender.borrow_mut().try_send_request(request);
    let reply = sending.await.map_err(|mut error| match error.take_message() {
        Some(_) => Broken::unsent(),
        None => match error.into_error() {
            error if error.is_incomplete_message() => Broken::Closed(error),
            error => Broken::Upstream(error.into()),
        },
    })?;
    Ok(reply.map(UpstreamBody::Left))
}

impl From<NoResponse> for Broken {
    fn from(why: NoResponse) -> Self {
        match why {
            NoResponse::Unprocessed => Self::unsent(),
            NoResponse::Cut(error) => Self::Upstream(error.into()),
        }
    }
}
