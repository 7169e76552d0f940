//! The change of a live watch to another policy: its client's stream stays open, and gets events
//! for the objects that leave and enter the shard.
//!
//! 1. The upstream's watch has ended at S, the last position that the client was shown.
//! 2. The objects that change hands are listed, exactly as of S, with the client's credentials.
//! 3. A new watch is opened from S. Until here nothing was sent: after any failure the client gets
//!    a 410 and lists again, as it would without all this.
//! 4. DELETED and ADDED are sent, in [`Turn`]s with the other watches of the pod, then a bookmark
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
use http::{HeaderMap, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use tokio::{sync::mpsc, time::timeout};

use crate::{
    policy::{Handed, Page, Part, Share, Way, difference, watch_from},
    proxy::{
        feed::InForce,
        live::{Member, Turn},
        outcome::Why,
        shared::Pair,
        upstream::{
            Kept, OtherConnection, Place, Probe, Replacement, Room, Upstream, UpstreamBody,
            settled_way, understood,
        },
    },
    wire::{
        RequestInfo, ResourceVersion,
        frames::{
            Bookmark, Continue, EventKind, Leaving, ListHead, ListItems, Listed, TypeMeta,
            object_event,
        },
        media::{Encoding, as_list},
    },
};

/// Timeout of the lists and the new watch together.
const LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of objects that change hands in one watch.
const MAX_MOVED: usize = 16 << 20;
/// Bytes that are sent to the client at once.
const PIECE: usize = 64 << 10;

/// The user agents of clients that do not take DELETED for an end, but a `deletionTimestamp`: kopf
/// stops an object's timers and daemons by it (`kopf/_core/reactor/processing.py`).
const IGNORE_DELETED: [&str; 1] = ["kopf/"];

/// A change that is under way.
pub(super) struct Changing {
    work: Pin<Box<dyn Future<Output = Option<Changed>>>>,
    events: mpsc::Receiver<Bytes>,
    end: Option<Option<Changed>>,
}

pub(super) struct Changed {
    /// The policy that the watch shows from now on.
    pub(super) to: Arc<InForce>,
    pub(super) upstream: UpstreamBody,
    /// The part of its selected objects that is in the shard.
    pub(super) share: Share,
}

/// The next part of a change.
pub(super) enum Progress {
    Bytes(Bytes),
    /// The change is done: `None` if the client has to list again.
    Done(Option<Changed>),
}

/// A change that can be begun.
pub(super) struct Transfer {
    pub(super) asked: Rc<Kept>,
    pub(super) pair: Rc<Pair>,
    /// The replacement of the connection in HTTP/1.1, which the watch that ends takes along.
    pub(super) replacement: Option<Replacement>,
    pub(super) encoding: Encoding,
    /// The position that the client was shown last.
    pub(super) at: u64,
    pub(super) hides_bookmarks: bool,
    pub(super) from: Arc<InForce>,
    pub(super) to: Arc<InForce>,
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
        let bookmark = match &moved.kind {
            _ if moved.events.is_empty() || self.hides_bookmarks => None,
            Some(TypeMeta { api_version, kind }) => {
                let at = ResourceVersion::parse(self.at.to_string().as_bytes());
                Some(Bookmark::new(api_version, kind, at)?.event(self.encoding))
            }
            None => return None,
        };
        for turn in Turn::ALL {
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
            out.send(bookmark.into()).await.ok()?;
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
        let own = self.asked.on_behalf();
        let before = settled_way(upstream, &self.from.sharding, &info, own).await.ok()?;
        let after = settled_way(upstream, &self.to.sharding, &info, own).await.ok()?;
        let is_in_namespace = info.resource()?.namespace.is_some();
        let mut moved = Moved::new(&self.pair.worker.shared.moved);
        for part in difference(before.narrow()?, after.narrow()?, is_in_namespace)? {
            self.list(upstream, &info, &part, &mut moved).await?;
        }
        let query = watch_from(&info, self.at, self.asked.since.elapsed().as_secs());
        let info = RequestInfo::parse(&Method::GET, path, Some(&query)).ok()?;
        let changed = self.watch(upstream, &info, &after).await?;
        Some((moved, changed))
    }

    /// Lists all pages of one part; `None` if one fails.
    async fn list(
        &self,
        upstream: &Upstream,
        info: &RequestInfo<'_>,
        part: &Part,
        moved: &mut Moved,
    ) -> Option<()> {
        let own = self.asked.on_behalf();
        let accept = match own.headers.get(header::ACCEPT) {
            Some(accept) => Some(as_list(accept.to_str().ok()?).parse().ok()?),
            None => None,
        };
        let probe = Probe { upstream, info, own };
        let is_hash_pushed = match &part.hashes {
            Some(hashes) if hashes.may_be_pushed(&info.options) => {
                probe.understands_hashes(hashes).await
            }
            _ => false,
        };
        let mut token = String::new();
        loop {
            let page = Page { at: self.at, token: &token, is_hash_pushed };
            let target = part.list(info, page).ok()??;
            let request = own.request(upstream, Method::GET, &target, accept.clone(), None);
            let reply = own.send(upstream, Why::Difference, request.ok()?).await.ok()?;
            // A cluster-scoped resource has no collection in a namespace.
            if reply.status() == StatusCode::NOT_FOUND && part.namespace.is_some() {
                return Some(());
            }
            let head = self.page(reply, part, moved).await?;
            token = match head.meta.continue_token {
                Continue::None => return Some(()),
                Continue::Token(token) => token,
                Continue::Unreadable => return None,
            };
        }
    }

    async fn page(
        &self,
        reply: Response<UpstreamBody>,
        part: &Part,
        moved: &mut Moved,
    ) -> Option<ListHead> {
        if reply.status() != StatusCode::OK || !self.is_readable(reply.headers()) {
            return None;
        }
        let mut items = ListItems::new(self.encoding)?;
        let mut body = reply.into_body();
        let mut page = Vec::new();
        let mut is_known = true;
        while let Some(frame) = body.frame().await {
            let Ok(chunk) = frame.ok()?.into_data() else { continue };
            let taken = items.feed(&chunk, &mut |item| {
                let kind = match part.judge(&item.object) {
                    Handed::Not => return,
                    Handed::Unknown => {
                        is_known = false;
                        return;
                    }
                    Handed::Over => EventKind::Deleted,
                    Handed::In => EventKind::Added,
                };
                let has_type = !item.object.kind.is_empty() && !item.object.api_version.is_empty();
                if has_type && moved.kind.is_none() {
                    moved.kind = Some(TypeMeta {
                        api_version: item.object.api_version.into(),
                        kind: item.object.kind.into(),
                    });
                }
                let turn = Turn::of(kind, item.has_owner);
                moved.grow(item.bytes.len());
                page.push((turn, kind, has_type, item.bytes.to_vec()));
            });
            taken.ok()?;
            if !is_known || !moved.is_bounded {
                return None;
            }
        }
        let head = items.finish().ok()?;
        // A server that responds with another version does not honour `Exact`. A Table has rows, of
        // which one alone is not an event.
        let at = ResourceVersion::parse(self.at.to_string().as_bytes());
        if head.meta.resource_version != at || head.kind == "Table" {
            return None;
        }
        let kind = TypeMeta::of_items(&head.api_version, &head.kind);
        if moved.kind.is_none() {
            moved.kind.clone_from(&kind);
        }
        let leaving = self.leaving();
        for (turn, event, has_type, mut bytes) in page {
            if event == EventKind::Deleted {
                bytes = leaving.put_into(self.encoding, &bytes)?;
            }
            let listed = Listed { bytes: &bytes, has_type };
            let event = object_event(self.encoding, event, kind.as_ref(), listed)?;
            moved.events.push((turn, event));
        }
        Some(head)
    }

    /// The signs by which this client learns that an object leaves.
    fn leaving(&self) -> Leaving {
        let agent = self.asked.on_behalf().headers.get(header::USER_AGENT);
        let agent = agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let ignores_deleted = IGNORE_DELETED.iter().any(|prefix| agent.starts_with(prefix));
        let now = || self.pair.worker.shared.clock.unix().as_secs().try_into().ok();
        Leaving { at: self.at, deleted: ignores_deleted.then(now).flatten() }
    }

    /// Opens the watch under the new policy.
    async fn watch(
        &self,
        upstream: &Upstream,
        info: &RequestInfo<'_>,
        after: &Way,
    ) -> Option<Changed> {
        let own = self.asked.on_behalf();
        let mut rewrite = self.to.sharding.rewrite(after, info).ok()?;
        let narrow = after.narrow()?;
        if narrow.scope.is_some() {
            let (pushed, _) = understood(upstream, info, &narrow.share, own).await;
            rewrite.push(&pushed, &info.options);
        }
        let target = rewrite.target(info);
        let target = target.unwrap_or_else(|| format!("{}?{}", info.path, info.query.as_str()));
        let request = own.request(upstream, Method::GET, &target, None, None).ok()?;
        let reply = own.send(upstream, Why::Watch, request).await.ok()?;
        let is_usable = reply.status() == StatusCode::OK && self.is_readable(reply.headers());
        is_usable.then(|| Changed {
            to: Arc::clone(&self.to),
            upstream: reply.into_body(),
            share: narrow.share.clone(),
        })
    }

    /// Whether a response is in the encoding of the client's stream, which it has to go into.
    fn is_readable(&self, headers: &HeaderMap) -> bool {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        kind.and_then(Encoding::of_content_type) == Some(self.encoding)
            && !headers.contains_key(header::CONTENT_ENCODING)
    }
}

impl Turn {
    const fn of(kind: EventKind, has_owner: bool) -> Self {
        match (kind, has_owner) {
            (EventKind::Deleted, false) => Self::ParentsLeave,
            (EventKind::Deleted, true) => Self::ChildrenLeave,
            (_, true) => Self::ChildrenCome,
            (_, false) => Self::ParentsCome,
        }
    }
}

/// The events of one change, held until all of them are known.
struct Moved {
    events: Vec<(Turn, Vec<u8>)>,
    kind: Option<TypeMeta>,
    place: Place,
    /// Whether there was room for all of them.
    is_bounded: bool,
}

impl Moved {
    fn new(room: &Arc<Room>) -> Self {
        Self { events: Vec::new(), kind: None, place: Place::empty(room), is_bounded: true }
    }

    fn grow(&mut self, more: usize) {
        let bytes = self.place.bytes().saturating_add(more);
        self.is_bounded &= self.place.set(bytes) && bytes <= MAX_MOVED;
    }

    /// The events of a turn, in pieces.
    fn take(&mut self, turn: Turn) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        let mut piece = Vec::new();
        for (_, event) in self.events.extract_if(.., |(of, _)| *of == turn) {
            piece.extend_from_slice(&event);
            if piece.len() >= PIECE {
                pieces.push(std::mem::take(&mut piece).into());
            }
        }
        if !piece.is_empty() {
            pieces.push(piece.into());
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn what_changes_hands_is_bounded_for_each_watch_and_for_all() {
        let room = Room::new(2 * MAX_MOVED, &Gauge::default());
        let [mut one, mut two, mut three] = [(); 3].map(|()| Moved::new(&room));
        for moved in [&mut one, &mut two] {
            moved.grow(MAX_MOVED - 1);
            moved.grow(1);
            assert!(moved.is_bounded);
        }
        three.grow(1);
        assert!(!three.is_bounded, "the others fill the room");
        drop((two, three));
        one.grow(1);
        assert!(!one.is_bounded, "it is more than one watch may move");
        drop(one);
        let mut four = Moved::new(&room);
        four.grow(MAX_MOVED);
        assert!(four.is_bounded, "what is over takes no room");
    }
}
