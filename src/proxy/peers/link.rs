//! One connection to a peer, and the requests over it.

use std::{
    cell::Cell,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

use super::{
    failed::{Failed, Reason},
    table::Chosen,
};
use crate::upstream::http2::{NoResponse, Received, Sender};

/// The time without a request after which a connection is closed.
const IDLE: Duration = Duration::from_secs(60);
/// Requests at once if the peer names no limit, or a higher one.
const MOST_REQUESTS: usize = 1 << 10;

/// A connection that takes requests.
pub(super) struct Session {
    sender: Sender,
    /// The requests that may begin; closed when no further one may.
    slots: Arc<Semaphore>,
    limit: usize,
    used: Cell<Instant>,
}

/// A place for one request on a connection to the peer.
pub(crate) struct PooledConnection(InUse);

/// The body of a peer's response. Dropping it before its end cancels the request.
pub(crate) struct PeerBody {
    received: Received,
    _in_use: InUse,
}

/// The part of a connection that one request takes.
struct InUse {
    session: Rc<Session>,
    _chosen: Chosen,
    _slot: OwnedSemaphorePermit,
}

impl Session {
    /// A session over a connection of which nothing is in use.
    pub(super) fn new(sender: Sender, stream_limit: Option<u32>) -> Self {
        let limit = stream_limit.and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.map_or(MOST_REQUESTS, |limit| limit.min(MOST_REQUESTS));
        let (slots, used) = (Arc::new(Semaphore::new(limit)), Cell::new(Instant::now()));
        Self { sender, slots, limit, used }
    }

    /// Waits for a place. Gives the choice back if the connection takes no further requests.
    pub(super) async fn line(self: Rc<Self>, chosen: Chosen) -> Result<PooledConnection, Chosen> {
        match Arc::clone(&self.slots).acquire_owned().await {
            Ok(slot) => Ok(PooledConnection(InUse { session: self, _chosen: chosen, _slot: slot })),
            Err(_closed) => Err(chosen),
        }
    }

    /// Lets no further request begin. Those that wait for a place are notified.
    pub(super) fn close(&self) {
        self.slots.close();
    }

    /// Resolves when the peer takes no further requests.
    pub(super) fn over(&self) -> impl Future<Output = ()> + use<> {
        let over = self.sender.over();
        async move {
            let _ = over.await;
        }
    }

    /// Resolves when there was no request for a while.
    pub(super) async fn idle(&self) {
        loop {
            let due = self.used.get() + IDLE;
            if Instant::now() < due {
                sleep_until(due).await;
            } else if self.idle_since().is_some() {
                return;
            } else {
                self.used.set(Instant::now());
            }
        }
    }

    /// The time of the last request. `None` while there are any.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.slots.available_permits() == self.limit).then(|| self.used.get())
    }
}

impl PooledConnection {
    /// Sends a request; the future waits for the head of the response. Dropping it cancels the
    /// request.
    pub(crate) fn send<B>(
        self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<PeerBody>, Failed>> + use<B>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
    {
        let Self(in_use) = self;
        let sent = in_use.session.sender.send(request);
        async move {
            let reply = sent?.await?;
            Ok(reply.map(|received| PeerBody { received, _in_use: in_use }))
        }
    }
}

impl From<NoResponse> for Failed {
    fn from(why: NoResponse) -> Self {
        match why {
            NoResponse::Unprocessed => Self::Unsent(Reason::Lost),
            NoResponse::Cut(_) => Self::Lost(Reason::Lost),
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.session.used.set(Instant::now());
    }
}

impl Body for PeerBody {
    type Data = Bytes;
    type Error = <Received as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.received).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.received.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.received.size_hint()
    }
}
