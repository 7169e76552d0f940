//! The API server at the end of one connection, as requests may use it.
//!
//! Hides the HTTP version, the part of a client's request that goes along with one of our own, and
//! the probes by which the server's abilities are found out. Knows no policy in force and nothing
//! of the client's connection.

mod behalf;
mod body;
mod discovery;
mod hop_by_hop;
mod present;
mod understood;

use std::{cell::RefCell, future::poll_fn, sync::Arc};

use http::{Request, Response, Version};
use hyper::{body::Incoming, client::conn};

pub(super) use self::{
    behalf::{Kept, METADATA, OnBehalf, with_target},
    body::{ClientBody, Leftover, RequestBody},
    discovery::{SEGMENT, Served, ServedResource, path as discovery_path, settle},
    hop_by_hop::strip_hop_by_hop,
    present::{Present, present},
    understood::{Probe, understood},
};
use self::{discovery::Discovered, understood::Understood};
use super::{config::Pushdown, metrics::Metrics};

/// See the module.
pub(super) struct Upstream {
    line: Line,
    /// `HOST:PORT`.
    pub(super) name: String,
    /// The number of the pair, for the log.
    connection: u64,
    metrics: Arc<Metrics>,
    pushdown: Pushdown,
    understood: Understood,
    discovered: Discovered,
}

/// The HTTP connection.
pub(super) enum Line {
    H2(conn::http2::SendRequest<RequestBody>),
    H1(RefCell<conn::http1::SendRequest<RequestBody>>),
}

/// Reasons for no response: the client gets a protocol error, never an invented response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The upstream never saw the request, so the client may send it again elsewhere.
    #[error("the request was not sent upstream")]
    Unsent(#[source] h2::Error),
    /// The upstream broke off.
    #[error("the upstream broke off")]
    Upstream(#[from] hyper::Error),
}

impl Upstream {
    /// An API server of which nothing is known yet.
    pub(super) fn new(
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
    pub(super) fn is_h2(&self) -> bool {
        matches!(self.line, Line::H2(_))
    }

    fn version(&self) -> Version {
        if self.is_h2() { Version::HTTP_2 } else { Version::HTTP_11 }
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(
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
