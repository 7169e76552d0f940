//! The change of a live watch to another policy: its client's stream stays open, and gets events
//! for the objects that leave and enter the shard.
//!
//! 1. The upstream's watch has ended at S, the last position that the client was shown.
//! 2. The objects that change hands are listed, exactly as of S, with the client's credentials.
//! 3. A new watch is opened from S. Until here nothing was sent: after any failure the client gets
//!    a 410 and lists again, as it would without all this.
//! 4. DELETED and ADDED are sent, in [`MovePhase`]s with the other watches of the pod, then a bookmark
//!    at S where the client asked for bookmarks. A DELETED has version S, an ADDED its own: that is
//!    the precondition of the client's next write.
//! 5. The events of the new watch follow.

use std::{
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::{sync::mpsc, time::timeout};

use super::difference::{Lists, Moved, encoding_of};
use crate::{
    live::{Member, MovePhase},
    outcome::Why,
    policy_store::ActivePolicy,
    shared::Pair,
    upstream::{
        OtherConnection, Replacement, SavedRequest, Upstream, UpstreamBody, namespaced, understood,
    },
};
use ctrlmesh_policy::{Filter, RequestAction, watch_from};
use ctrlmesh_wire::{RequestInfo, media::Encoding};

/// Timeout of the lists and the new watch together.
const LIMIT: Duration = Duration::from_secs(10);

/// A change that is under way.
pub(super) struct Changing {
    work: Pin<Box<dyn Future<Output = Option<Changed>>>>,
    events: mpsc::Receiver<Bytes>,
    end: Option<Option<Changed>>,
}

pub(super) struct Changed {
    /// The policy that the watch shows from now on.
    pub(super) to: Arc<ActivePolicy>,
    pub(super) upstream: UpstreamBody,
    /// The part of its selected objects that is in the shard.
    pub(super) filter: Filter,
}

/// The next part of a change.
pub(super) enum Progress {
    Bytes(Bytes),
    /// The change is done: `None` if the client has to list again.
    Done(Option<Changed>),
}

/// A change that can be begun.
pub(super) struct Transfer {
    pub(super) asked: Rc<SavedRequest>,
    pub(super) pair: Rc<Pair>,
    /// The replacement of the connection in HTTP/1.1, which the watch that ends takes along.
    pub(super) replacement: Option<Replacement>,
    pub(super) encoding: Encoding,
    /// The position that the client was shown last.
    pub(super) at: u64,
    pub(super) hides_bookmarks: bool,
    pub(super) from: Arc<ActivePolicy>,
    pub(super) to: Arc<ActivePolicy>,
    pub(super) member: Option<Member>,
}

impl Changing {
    pub(super) fn begin(transfer: Transfer) -> Self {
        let (sender, events) = mpsc::channel(1);
        Self { work: Box::pin(transfer.carry_out(sender)), events, end: None }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Progress> {
        if self.end.is_none()
            && let Poll::Ready(end) = self.work.as_mut().poll(cx)
        {
            self.end = Some(end);
        }
        match self.events.poll_recv(cx) {
            Poll::Ready(Some(bytes)) => Poll::Ready(Progress::Bytes(bytes)),
            // Events that were sent come before the end.
            _ => self.end.take().map_or(Poll::Pending, |end| Poll::Ready(Progress::Done(end))),
        }
    }
}

impl Transfer {
    async fn carry_out(mut self, out: mpsc::Sender<Bytes>) -> Option<Changed> {
        let (mut moved, changed) = timeout(LIMIT, self.prepare()).await.ok()??;
        let bookmark = match moved.is_empty() || self.hides_bookmarks {
            true => None,
            false => Some(moved.bookmark(self.at, self.encoding)?),
        };
        for turn in MovePhase::ALL {
            let events = moved.take(turn);
            let has_moved = !events.is_empty();
            if let (Some(member), true) = (&self.member, has_moved) {
                member.wait_for(turn).await;
            }
            for piece in events {
                out.send(piece).await.ok()?;
            }
            // Room for another piece means that the client's stream took the last.
            drop(out.reserve().await.ok()?);
            if let Some(member) = &mut self.member {
                member.end(turn, has_moved);
            }
        }
        if let Some(bookmark) = bookmark {
            out.send(bookmark).await.ok()?;
        }
        Some(changed)
    }

    /// Lists the objects that change hands and opens the new watch, in HTTP/1.1 over another
    /// connection. Nothing was sent if it fails.
    async fn prepare(&mut self) -> Option<(Moved, Changed)> {
        let present = &self.pair.upstream;
        let Some(replacement) = self.replacement.take() else {
            return self.prepare_over(present).await;
        };
        let _permit = self.pair.worker.shared.replacing.acquire().await.ok()?;
        let mut other = replacement.connect(present).await?;
        let OtherConnection { upstream, running } = &mut other;
        let prepared = tokio::select! {
            prepared = self.prepare_over(upstream) => prepared?,
            _ = running => return None,
        };
        replacement.finish(present, other);
        Some(prepared)
    }

    async fn prepare_over(&self, upstream: &Upstream) -> Option<(Moved, Changed)> {
        let (path, query) = (self.asked.uri.path(), self.asked.uri.query());
        let info = RequestInfo::parse(&Method::GET, path, query).ok()?;
        let own = self.asked.client_context();
        let shared = &self.pair.worker.shared;
        let mut moved = Moved::new(&shared.moved);
        let (clock, encoding) = (&shared.clock, Some(self.encoding));
        let mut lists = Lists { upstream, own, info: &info, at: self.at, clock, encoding };
        lists.add(&self.from.sharding, &self.to.sharding, &mut moved).await?;
        let is_namespaced = namespaced(upstream, &self.to.sharding, &info, own).await.ok()?;
        let after = self.to.sharding.action(&info, is_namespaced);
        let query = watch_from(&info, self.at, self.asked.since.elapsed().as_secs());
        let info = RequestInfo::parse(&Method::GET, path, Some(&query)).ok()?;
        let changed = self.watch(upstream, &info, &after).await?;
        Some((moved, changed))
    }

    /// Opens the watch under the new policy.
    async fn watch(
        &self,
        upstream: &Upstream,
        info: &RequestInfo<'_>,
        after: &RequestAction,
    ) -> Option<Changed> {
        let own = self.asked.client_context();
        let mut rewrite = self.to.sharding.rewrite(after, info).ok()?;
        let restriction = after.restriction()?;
        if restriction.scope.is_some() {
            let (pushed, _) = understood(upstream, info, &restriction.filter, own).await;
            rewrite.push(&pushed, &info.options);
        }
        let target = rewrite.target(info);
        let target = target.unwrap_or_else(|| format!("{}?{}", info.path, info.query.as_str()));
        let request = own.request(upstream, Method::GET, &target, None, None).ok()?;
        let reply = own.send(upstream, Why::Watch, request).await.ok()?;
        let is_usable =
            reply.status() == StatusCode::OK && encoding_of(reply.headers()) == Some(self.encoding);
        is_usable.then(|| Changed {
            to: Arc::clone(&self.to),
            upstream: reply.into_body(),
            filter: restriction.filter.clone(),
        })
    }
}
