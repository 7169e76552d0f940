//! The connection that carries the requests of an HTTP/1.1 client at present.
//!
//! A response in HTTP/1.1 cannot be ended early without its connection. So a watch that is brought
//! over to another policy goes on over another connection, which carries all later requests, too.

use std::{
    cell::{Cell, RefCell},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};

use hyper_util::rt::TokioIo;

use super::{
    connection::{Line, Upstream, h1_requests},
    dial::{Redial, UpstreamConn},
};

/// A connection of HTTP/1.1 while it runs.
type RunningDial = Pin<Box<dyn Future<Output = hyper::Result<()>>>>;

/// The present connection of a client, see the module.
pub(crate) struct CurrentConnection {
    redial: Redial,
    running: RefCell<Option<RunningDial>>,
    /// The end of the connection, until it was reported.
    ended: Cell<Option<hyper::Result<()>>>,
    /// Replacements that are under way: the end of the connection is theirs.
    replacements: Cell<u32>,
    waker: RefCell<Option<Waker>>,
}

/// A replacement that is under way. Dropping it ends it.
pub(crate) struct Replacement(Rc<CurrentConnection>);

/// Another connection to the same server, which runs while it is polled.
pub(crate) struct OtherConnection {
    pub(crate) upstream: Upstream,
    pub(crate) running: RunningDial,
}

impl CurrentConnection {
    /// The first connection of a client, and the way to another.
    pub(crate) fn new(
        running: impl Future<Output = hyper::Result<()>> + 'static,
        redial: Redial,
    ) -> Rc<Self> {
        Rc::new(Self {
            redial,
            running: RefCell::new(Some(Box::pin(running))),
            ended: Cell::default(),
            replacements: Cell::default(),
            waker: RefCell::default(),
        })
    }

    /// Runs the connection, and each that replaces it, until one ends that is not replaced.
    pub(crate) fn poll_end(&self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        drop(waker);
        let mut running = self.running.borrow_mut();
        if let Some(connection) = running.as_mut() {
            let ended = ready!(connection.as_mut().poll(cx));
            // It holds the requests that it did not send.
            *running = None;
            self.ended.set(Some(ended));
        }
        if self.replacements.get() > 0 {
            return Poll::Pending;
        }
        self.ended.take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Begins to replace it: from now on its end is not the client's.
    pub(crate) fn replacement(self: &Rc<Self>) -> Replacement {
        self.replacements.update(|count| count + 1);
        Replacement(Rc::clone(self))
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Replacement {
    /// Connects to the server of `present`, as its client did. `None` if it cannot be reached.
    pub(crate) async fn connect(&self, present: &Upstream) -> Option<OtherConnection> {
        let connected = self.0.redial.dial().await.ok()?;
        let UpstreamConn { stream, server, name, understood, own, .. } = connected;
        let (sender, connection) = h1_requests().handshake(TokioIo::new(stream)).await.ok()?;
        let running = async move {
            let _own = own;
            connection.with_upgrades().await
        };
        let upstream = present.over(Line::H1(RefCell::new(sender)), server, name, understood);
        Some(OtherConnection { upstream, running: Box::pin(running) })
    }

    /// Puts the other connection in place of `present`, which is closed.
    pub(crate) fn finish(self, present: &Upstream, other: OtherConnection) {
        present.goes_on_over(other.upstream);
        self.0.ended.take();
        *self.0.running.borrow_mut() = Some(other.running);
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        self.0.replacements.update(|count| count.saturating_sub(1));
        self.0.wake();
    }
}
