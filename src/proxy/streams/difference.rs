//! The objects that change hands as of one position, as events of a client's watch.
//!
//! Hides the lists that find them, and how they are read. Does not know why the client's scope is
//! another, or what comes before and after these events.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, header};
use http_body_util::BodyExt;

use crate::{
    live::MovePhase,
    outcome::Why,
    upstream::{ClientContext, Place, Probe, Room, Upstream, UpstreamBody, namespaced},
};
use ctrlmesh_net::Clock;
use ctrlmesh_policy::{Handed, Page, Part, RequestAction, Sharding, difference};
use ctrlmesh_wire::{
    RequestInfo, ResourceVersion,
    frames::{
        Bookmark, Continue, EventKind, Leaving, ListHead, ListItems, Listed, TypeMeta, object_event,
    },
    media::{Encoding, as_list},
};

/// Most bytes of objects that change hands in one watch.
const MAX_MOVED: usize = 16 << 20;
/// Bytes that are sent to the client at once.
const PIECE: usize = 64 << 10;

/// The user agents of clients that do not take DELETED for an end, but a `deletionTimestamp`: kopf
/// stops an object's timers and daemons by it (`kopf/_core/reactor/processing.py`).
const IGNORE_DELETED: [&str; 1] = ["kopf/"];

/// The lists of a collection as of one position, with the client's credentials.
pub(crate) struct Lists<'l> {
    pub(crate) upstream: &'l Upstream,
    pub(crate) own: ClientContext<'l>,
    /// The watch.
    pub(crate) info: &'l RequestInfo<'l>,
    /// The position.
    pub(crate) at: u64,
    pub(crate) clock: &'l Clock,
    /// The encoding of the watch. `None` until a list shows it.
    pub(crate) encoding: Option<Encoding>,
}

impl Lists<'_> {
    /// Adds the objects that one sharding shows and the other does not. `None` if a list fails.
    pub(crate) async fn add(
        &mut self,
        before: &Arc<Sharding>,
        after: &Arc<Sharding>,
        moved: &mut Moved,
    ) -> Option<()> {
        let [before, after] = [self.action(before).await?, self.action(after).await?];
        let is_in_namespace = self.info.resource()?.namespace.is_some();
        for part in difference(before.restriction()?, after.restriction()?, is_in_namespace)? {
            self.list(&part, moved).await?;
        }
        Some(())
    }

    /// The decision of a sharding about the watch; `None` if what it depends on is not known.
    async fn action(&self, sharding: &Sharding) -> Option<RequestAction> {
        let is_namespaced = namespaced(self.upstream, sharding, self.info, self.own).await.ok()?;
        Some(sharding.action(self.info, is_namespaced))
    }

    /// Lists all pages of one part; `None` if one fails.
    async fn list(&mut self, part: &Part, moved: &mut Moved) -> Option<()> {
        let Self { upstream, own, info, .. } = *self;
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
        &mut self,
        reply: Response<UpstreamBody>,
        part: &Part,
        moved: &mut Moved,
    ) -> Option<ListHead> {
        let is_whole = reply.status() == StatusCode::OK;
        let encoding = encoding_of(reply.headers()).filter(|_| is_whole)?;
        if *self.encoding.get_or_insert(encoding) != encoding {
            return None;
        }
        let mut items = ListItems::new(encoding)?;
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
                let has_type = moved.has_type(item.object.api_version, item.object.kind);
                if !moved.is_new(item.object.namespace, item.object.name) {
                    return;
                }
                let turn = MovePhase::of(kind, item.has_owner);
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
                bytes = leaving.put_into(encoding, &bytes)?;
            }
            let listed = Listed { bytes: &bytes, has_type };
            let event = object_event(encoding, event, kind.as_ref(), listed)?;
            moved.events.push((turn, event));
        }
        Some(head)
    }

    /// The signs by which this client learns that an object leaves.
    fn leaving(&self) -> Leaving {
        let agent = self.own.headers.get(header::USER_AGENT);
        let agent = agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let ignores_deleted = IGNORE_DELETED.iter().any(|prefix| agent.starts_with(prefix));
        let now = || self.clock.unix().as_secs().try_into().ok();
        Leaving { at: self.at, deleted: ignores_deleted.then(now).flatten() }
    }
}

/// The encoding of a response whose items can be read.
pub(crate) fn encoding_of(headers: &HeaderMap) -> Option<Encoding> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(Encoding::of_content_type)
        .filter(|_| !headers.contains_key(header::CONTENT_ENCODING))
}

impl MovePhase {
    const fn of(kind: EventKind, has_owner: bool) -> Self {
        match (kind, has_owner) {
            (EventKind::Deleted, false) => Self::ParentsLeave,
            (EventKind::Deleted, true) => Self::ChildrenLeave,
            (_, true) => Self::ChildrenCome,
            (_, false) => Self::ParentsCome,
        }
    }
}

/// The events that precede those of the upstream's watch.
pub(crate) struct Prelude {
    pieces: VecDeque<Bytes>,
    /// The room that they take.
    _place: Place,
}

impl Prelude {
    /// The next of them. `None` if all are sent.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.pieces.pop_front()
    }
}

/// The events for the objects that change hands, held until all of them are known.
pub(crate) struct Moved {
    events: Vec<(MovePhase, Vec<u8>)>,
    kind: Option<TypeMeta>,
    place: Place,
    /// The objects of several differences, each of which is notified once. `None` for one difference.
    told: Option<HashSet<(Box<str>, Box<str>)>>,
    /// Whether there was room for all of them.
    is_bounded: bool,
}

impl Moved {
    pub(crate) fn new(room: &Arc<Room>) -> Self {
        let place = Place::empty(room);
        Self { events: Vec::new(), kind: None, place, told: None, is_bounded: true }
    }

    /// Those of several differences.
    pub(crate) fn of_several(room: &Arc<Room>) -> Self {
        Self { told: Some(HashSet::new()), ..Self::new(room) }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether an object says its type, which is that of the others.
    fn has_type(&mut self, api_version: &str, kind: &str) -> bool {
        let has_type = !kind.is_empty() && !api_version.is_empty();
        if has_type && self.kind.is_none() {
            self.kind = Some(TypeMeta { api_version: api_version.into(), kind: kind.into() });
        }
        has_type
    }

    /// Whether the object was not told yet.
    fn is_new(&mut self, namespace: &str, name: &str) -> bool {
        let new = (namespace.into(), name.into());
        self.told.as_mut().is_none_or(|told| told.insert(new))
    }

    /// A bookmark at a position, in an encoding. `None` if the objects' kind is not known.
    pub(crate) fn bookmark(&self, at: u64, encoding: Encoding) -> Option<Bytes> {
        let TypeMeta { api_version, kind } = self.kind.as_ref()?;
        let at = ResourceVersion::parse(at.to_string().as_bytes());
        Some(Bookmark::new(api_version, kind, at)?.event(encoding).into())
    }

    /// All events in the order of the turns, then the bookmark.
    pub(crate) fn into_prelude(mut self, bookmark: Option<Bytes>) -> Prelude {
        let pieces = MovePhase::ALL.into_iter().flat_map(|turn| self.take(turn));
        let pieces = pieces.collect::<Vec<_>>().into_iter().chain(bookmark).collect();
        Prelude { pieces, _place: self.place }
    }

    fn grow(&mut self, more: usize) {
        let bytes = self.place.bytes().saturating_add(more);
        self.is_bounded &= self.place.set(bytes) && bytes <= MAX_MOVED;
    }

    /// The events of a turn, in pieces.
    pub(crate) fn take(&mut self, turn: MovePhase) -> Vec<Bytes> {
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
