//! A review's body, held until its owner is known.

use std::{collections::VecDeque, io, rc::Rc, sync::Arc};

use bytes::Bytes;
use http_body_util::BodyExt;
use memmap2::MmapMut;

use crate::upstream::{ClientBody, Place, Room};
use ctrlmesh_policy::{Answerer, ControllerShards, Here, Owner, Refusal, Refused};
use ctrlmesh_wire::review::{Operation, Reader, Review};

/// Bytes of a copied piece.
const BLOCK: usize = 256 << 10;

/// The facts of a review whose owner is known.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) api_version: Box<str>,
    pub(super) uid: Box<str>,
    pub(super) verb: &'static str,
    pub(super) resource: Box<str>,
    pub(super) subresource: Option<Box<str>>,
    pub(super) namespace: Option<Box<str>>,
    /// The shard that owns the object. `None` if none does, or it is unknown.
    pub(super) shard: Option<Box<str>>,
    pub(super) whose: ReviewRoute,
}

/// The answerer of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewRoute {
    /// This pod: its shard owns the object, or no one does alone.
    Own,
    /// This pod, since a fact that decides is not in the review.
    Unclear,
    /// This pod, since no shard owns the object.
    Unowned,
    /// A pod of [`Known::shard`].
    Sibling,
    /// No one: the request is allowed.
    Allowed,
    /// No one: the request is denied.
    Denied,
    /// No one: the shard is unknown.
    Unknown,
}

/// Reads a body until its owner is known, and puts it back. `None` if it is no review that can be
/// read. Fails with `NoReviewRoom`; with `BadBody` if the body is cut off.
pub(super) async fn known(
    body: &mut ClientBody,
    siblings: &ControllerShards,
    room: &Arc<Room>,
) -> Result<Option<Known>, Refused> {
    let mut place = Place::empty(room);
    let mut held = Held::default();
    let mut reader = Reader::new();
    let known = loop {
        let piece = match body.frame().await {
            None => break reader.finish().ok().and_then(|()| judged(&reader, siblings)),
            Some(Err(_)) => return Err(Refusal::BadBody.because("the review was cut off")),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(piece) => piece,
                Err(_trailers) => continue,
            },
        };
        let bytes = place.bytes().saturating_add(piece.len());
        place.grow(bytes).map_err(|_| no_room(bytes))?;
        let read = reader.feed(&piece);
        held.push(piece).map_err(|_| no_room(bytes))?;
        match (read, judged(&reader, siblings)) {
            (Err(_), _) => break None,
            (Ok(()), Some(known)) => break Some(known),
            (Ok(()), None) => {}
        }
    };
    body.put_back(held.into_pieces(), Rc::new(place));
    Ok(known)
}

/// All of a body that comes in one piece, which stays the body's. `None` if there is more of it, or
/// nothing. Fails as [`known`] does.
pub(super) async fn in_one_piece(
    body: &mut ClientBody,
    room: &Arc<Room>,
) -> Result<Option<Bytes>, Refused> {
    let piece = match body.frame().await.transpose() {
        Err(_) => return Err(Refusal::BadBody.because("the review was cut off")),
        Ok(frame) => frame.and_then(|frame| frame.into_data().ok()),
    };
    let Some(piece) = piece else { return Ok(None) };
    let mut place = Place::empty(room);
    place.grow(piece.len()).map_err(|_| no_room(piece.len()))?;
    body.put_back(VecDeque::from([piece.clone()]), Rc::new(place));
    Ok(body.held_whole().map(|_| piece))
}

/// The facts in a body that came in one piece. `None` if it is no review that can be read.
pub(super) fn known_in(piece: &[u8], siblings: &ControllerShards) -> Option<Known> {
    let mut reader = Reader::new();
    reader.feed(piece).ok()?;
    judged(&reader, siblings)
        .or_else(|| reader.finish().ok().and_then(|()| judged(&reader, siblings)))
}

/// The bytes that were read. What follows the first piece is copied: each is a slice of a buffer of
/// the connection, which it would keep, and of which it may be a small part.
#[derive(Default)]
struct Held {
    pieces: VecDeque<Bytes>,
    block: Option<Block>,
}

/// Memory of its own, not of the allocator: that keeps for each thread what it was given back, and with
/// large reviews on two threads it had 25 MiB more than they hold.
struct Block {
    map: MmapMut,
    filled: usize,
}

impl Held {
    /// Fails if the kernel has no memory.
    fn push(&mut self, mut piece: Bytes) -> io::Result<()> {
        if self.pieces.is_empty() {
            self.pieces.push_back(piece);
            return Ok(());
        }
        while !piece.is_empty() {
            let mut block = match self.block.take() {
                Some(block) => block,
                None => Block { map: MmapMut::map_anon(BLOCK)?, filled: 0 },
            };
            block.take(&mut piece);
            if block.filled < BLOCK {
                self.block = Some(block);
            } else {
                self.pieces.push_back(block.freeze());
            }
        }
        Ok(())
    }

    fn into_pieces(mut self) -> VecDeque<Bytes> {
        self.pieces.extend(self.block.map(Block::freeze));
        self.pieces
    }
}

impl Block {
    /// Takes as much of a piece as there is room for.
    fn take(&mut self, piece: &mut Bytes) {
        let room = self.map.get_mut(self.filled..).unwrap_or_default();
        let taken = piece.split_to(piece.len().min(room.len()));
        if let Some(room) = room.get_mut(..taken.len()) {
            room.copy_from_slice(&taken);
        }
        self.filled += taken.len();
    }

    fn freeze(self) -> Bytes {
        Bytes::from_owner(self.map).split_to(self.filled)
    }
}

fn no_room(bytes: usize) -> Refused {
    Refusal::NoReviewRoom.because(format!(
        "reviews whose owner is not known yet fill the memory for them, and this one has {} KiB \
         before it is",
        bytes >> 10
    ))
}

/// The facts, if they decide.
fn judged(reader: &Reader, siblings: &ControllerShards) -> Option<Known> {
    let review = reader.review()?;
    let owner = siblings.owner(&review)?;
    let whose = match (siblings.answerer(owner), owner) {
        (Answerer::Here, Owner::Here(Here::FactMissing)) => ReviewRoute::Unclear,
        (Answerer::Here, Owner::Unowned | Owner::Unknown) => ReviewRoute::Unowned,
        (Answerer::Here, _) => ReviewRoute::Own,
        (Answerer::Sibling(_), _) => ReviewRoute::Sibling,
        (Answerer::Allow, _) => ReviewRoute::Allowed,
        (Answerer::Deny, _) => ReviewRoute::Denied,
        (Answerer::Fail, _) => ReviewRoute::Unknown,
    };
    let shard = match owner {
        Owner::Here(Here::Own) => siblings.names().next(),
        Owner::Sibling(shard) => Some(shard),
        Owner::Here(_) | Owner::Unowned | Owner::Unknown => None,
    };
    Some(of(&review, shard, whose))
}

fn of(review: &Review<'_>, shard: Option<&str>, whose: ReviewRoute) -> Known {
    let text = |text: &str| (!text.is_empty()).then(|| text.into());
    Known {
        api_version: review.api_version.into(),
        uid: review.uid.into(),
        verb: match review.operation {
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Delete => "delete",
            Operation::Connect => "connect",
            Operation::Other => "unknown",
        },
        resource: review.resource.into(),
        subresource: text(review.subresource),
        namespace: text(review.namespace),
        shard: shard.map(Into::into),
        whose,
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn i13_what_is_held_comes_back_in_order(sizes in vec(0..3 * BLOCK, 0..6)) {
            let mut held = Held::default();
            let mut given = Vec::new();
            for (at, size) in (0_u8..).zip(sizes) {
                let piece = vec![at; size];
                held.push(piece.clone().into()).unwrap();
                given.extend(piece);
            }
            prop_assert_eq!(held.into_pieces().into_iter().flatten().collect::<Vec<_>>(), given);
        }
    }

    #[test]
    fn i13_what_is_held_keeps_no_further_buffer_of_its_connection() {
        let mut held = Held::default();
        held.push(Bytes::from_static(b"{")).unwrap();
        let buffer = Bytes::from(vec![b'x'; BLOCK]);
        held.push(buffer.slice(..10)).unwrap();
        assert!(buffer.is_unique());
        assert_eq!(held.into_pieces().iter().map(Bytes::len).sum::<usize>(), 11);
    }
}
