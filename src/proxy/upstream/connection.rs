//! One connection to an API server, as requests may use it.

use std::{cell::RefCell, future::poll_fn, sync::Arc};

use http::{Request, Response, Version};
use hyper::{body::Incoming, client::conn};

use super::{
    body::RequestBody,
    known::{Discovered, Understood},
};
use crate::proxy::{config::Pushdown, metrics::Metrics};

/// The API server at the end of one connection, and what it was found to be able to do.
pub(in crate::proxy) struct Upstream {
    line: Line,
    /// `HOST:PORT`.
    pub(in crate::proxy) name: String,
    /// The number of the pair, for the log.
    pub(super) connection: u64,
    pub(super) metrics: Arc<Metrics>,
    pub(super) pushdown: Pushdown,
    pub(super) understood: Understood,
    pub(super) discovered: Discovered,
}

/// The HTTP connection.
pub(in crate::proxy) enum Line {
    H2(conn::http2::SendRequest<RequestBody>),
    H1(RefCell<conn::http1::SendRequest<RequestBody>>),
}

/// Reasons for no response: the client gets a protocol error, never an invented response.
#[derive(Debug, thiserror::Error)]
pub(in crate::proxy) enum Broken {
    /// The upstream never saw the request, so the client may send it again elsewhere.
    #[error("the request was not sent upstream")]
    Unsent(#[source] h2::Error),
    /// The upstream broke off.
    #[error("the upstream broke off")]
    Upstream(#[from] hyper::Error),
}

impl Upstream {
    /// An API server of which nothing is known yet.
    pub(in crate::proxy) fn new(
        line: Line,
        name: String,
        connection: u64,
        metrics: Arc<Metrics>,
        pushdown: Pushdown,
    ) -> Self {
        let (understood, discovered) = (Understood::default(), Discovered::default());
        Self { line, name, connection, metrics, pushdown, understood, discovered }
    }

    /// Whether it carries several requests at a time.
    pub(in crate::proxy) fn is_h2(&self) -> bool {
        matches!(self.line, Line::H2(_))
    }

    pub(super) fn version(&self) -> Version {
        if self.is_h2() { Version::HTTP_2 } else { Version::HTTP_11 }
    }

    /// Sends a request and waits for the head of the response.
    pub(in crate::proxy) async fn send(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Broken> {
        let sent = match &self.line {
            Line::H2(sender) => sender.clone().try_send_request(request).await,
            Line::H1(sender) => {
                poll_fn(|cx| sender.borrow_mut().poll_ready(cx)).await?;
                let sending = sender.borrow_mut().try_send_request(request);
                sending.await
            }
        };
        sent.map_err(|mut error| match error.take_message() {
            Some(_) => Broken::Unsent(h2::Reason::REFUSED_STREAM.into()),
            None => Broken::Upstream(error.into_error()),
        })
    }
}
