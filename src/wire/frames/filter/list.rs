//! Filters lists.
//!
//! | | JSON | CBOR | protobuf |
//! |---|---|---|---|
//! | a dropped item | removed with its comma | removed | unknown field of equal length, zeros |
//! | the array of items | unchanged | indefinite length | – |
//! | `remainingItemCount` | `null` | null | unknown field |
//!
//! Protobuf lengths and CBOR counts precede the items: they were sent before an item is dropped.
//! The remaining count is left out whether or not an item was dropped, as the API server leaves it
//! out of every list with a selector.

use super::{
    super::limits::{KEPT_CAPACITY, MAX_ITEM},
    judge::{Judge, Verdict},
};
use crate::{
    media::Encoding,
    object::{
        Wanted,
        walk::{Facts, Fault, FrameError, ListMeta, Mark, Node, Step, Walker},
    },
};

/// Most bytes in front of the items: kind and metadata, and the columns of a Table.
const MAX_HEAD: usize = 4 << 20;
/// The tag of field 2, length-delimited: the items of every list.
const ITEM_TAG: u8 = 2 << 3 | 2;
/// The tag of field 15, length-delimited, which is one byte. No list has this field, and decoders
/// skip unknown ones.
const UNKNOWN_BYTES: u8 = 15 << 3 | 2;
/// The tag of field 15 with a number.
const UNKNOWN_NUMBER: u8 = 15 << 3;
/// The head of a CBOR array of indefinite length, its end, and null.
const CBOR_ARRAY: u8 = 0x9f;
const CBOR_BREAK: u8 = 0xff;
const CBOR_NULL: u8 = 0xf6;

/// Removes items from the body of a list while it passes, fed in chunks that are cut anywhere.
/// Tables and PartialObjectMetadataLists are lists, too.
#[derive(Debug)]
pub struct ListFilter {
    encoding: Encoding,
    walker: Walker,
    facts: Facts,
    meta: Option<ListMeta>,
    place: Place,
    /// Bytes that cannot be sent yet: an incomplete item, or all in front of the items.
    held: Vec<u8>,
    offset: u64,
    /// Whether an item of this JSON array was kept.
    has_left: bool,
    counts: Counts,
    failed: Option<FrameError>,
}

/// Number of items kept and dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items in the shard.
    pub kept: u64,
    /// Items outside of the shard.
    pub dropped: u64,
}

/// The part of the list that the next byte is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The head, in front of the items, of JSON and CBOR. Held, because a body without items is not
    /// a list.
    Head,
    Outside,
    /// The array of items, or in protobuf one item.
    Inside {
        /// Bytes of tag and length in front of the item, in protobuf.
        head: usize,
    },
}

impl ListFilter {
    /// A filter for this encoding; `None` for YAML, which would have to be held as a whole.
    pub fn new(encoding: Encoding) -> Option<Self> {
        Self::wanting(encoding, Wanted::default())
    }

    /// A filter whose judge is also shown the wanted facts of each object.
    pub fn wanting(encoding: Encoding, wanted: Wanted) -> Option<Self> {
        let place = match encoding {
            Encoding::Protobuf => Place::Outside,
            _ => Place::Head,
        };
        Some(Self {
            encoding,
            walker: Walker::new(encoding, Node::ItemList)?,
            facts: Facts::new(wanted),
            meta: None,
            place,
            held: Vec::new(),
            offset: 0,
            has_left: false,
            counts: Counts::default(),
            failed: None,
        })
    }

    /// Feeds the next chunk and appends the kept bytes to `out`. `judge` is asked once for each
    /// item. Fails with [`FrameError`], also for every later call; `out` then holds nothing of this
    /// chunk.
    pub fn feed(
        &mut self,
        chunk: &[u8],
        judge: Judge<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let before = out.len();
        self.run(chunk, judge, out).map_err(|fault| {
            out.truncate(before);
            *self.failed.insert(FrameError { fault, at: self.offset })
        })?;
        self.offset = self.offset.saturating_add(chunk.len() as u64);
        Ok(())
    }

    /// The list's own metadata; `None` until it is known.
    pub fn meta(&self) -> Option<&ListMeta> {
        self.meta.as_ref()
    }

    /// The items judged so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Memory for held bytes, in bytes.
    pub fn held(&self) -> usize {
        self.held.capacity()
    }

    /// Ends the body: appends the rest and returns the metadata. Fails with [`FrameError`] if it
    /// ended in the middle, or was no list.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Result<ListMeta, FrameError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let fail = |fault| FrameError { fault, at: self.offset };
        if self.offset == 0 || !self.walker.is_between() {
            return Err(fail(Fault::Truncated));
        }
        let has_null = self.facts.has_no_items();
        if self.place == Place::Head && !has_null {
            return Err(fail(Fault::NotAList));
        }
        out.append(&mut self.held);
        Ok(self.meta.unwrap_or_else(|| self.facts.take_list()))
    }

    fn run(&mut self, mut rest: &[u8], judge: Judge<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        loop {
            let (step, piece) = self.walker.step(&mut rest, &mut self.facts)?;
            match step {
                Step::More => return self.pause(piece, out),
                Step::End(_) => self.pass(piece, out)?,
                Step::Known(_) => {
                    self.pass(piece, out)?;
                    self.meta.get_or_insert_with(|| self.facts.take_list());
                }
                Step::Mark(mark, _) => self.mark(mark, piece, judge, out)?,
            }
        }
    }

    /// Appends bytes outside of the items, or holds them if nothing may be sent yet.
    fn pass(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.place == Place::Outside {
            out.append(&mut self.held);
            out.extend_from_slice(piece);
            return Ok(());
        }
        self.hold(piece)
    }

    fn hold(&mut self, piece: &[u8]) -> Result<(), Fault> {
        self.check_length(piece)?;
        self.held.extend_from_slice(piece);
        Ok(())
    }

    fn check_length(&self, piece: &[u8]) -> Result<(), Fault> {
        let limit = if self.place == Place::Head { MAX_HEAD } else { MAX_ITEM };
        match self.held.len().saturating_add(piece.len()) > limit {
            true => Err(Fault::TooLarge),
            false => Ok(()),
        }
    }

    /// Ends the chunk: an incomplete token is held.
    fn pause(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.place != Place::Outside {
            return self.hold(piece);
        }
        let pending = self.walker.pending();
        out.append(&mut self.held);
        let (leaves, stays) = piece
            .len()
            .checked_sub(pending)
            .and_then(|at| piece.split_at_checked(at))
            .unwrap_or((&[], piece));
        out.extend_from_slice(leaves);
        // A token longer than the piece began in the held bytes, which were just appended.
        let began = pending.saturating_sub(piece.len());
        let from = out.len().saturating_sub(began);
        self.held = out.split_off(from);
        self.held.extend_from_slice(stays);
        Ok(())
    }

    fn mark(
        &mut self,
        mark: Mark,
        piece: &[u8],
        judge: Judge<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        match mark {
            Mark::Open { token } => {
                self.place = Place::Outside;
                self.replace(piece, token, self.brackets().0, out);
                self.has_left = false;
                self.place = Place::Inside { head: 0 };
                Ok(())
            }
            Mark::Tag { token: 1 } => {
                self.replace(piece, 1, &[], out);
                self.held.push(ITEM_TAG);
                self.place = Place::Inside { head: 0 };
                Ok(())
            }
            Mark::Tag { .. } => Err(Fault::Tag),
            Mark::Body => {
                self.hold(piece)?;
                self.place = Place::Inside { head: self.held.len() };
                Ok(())
            }
            Mark::Item => self.item(piece, judge, out),
            Mark::Close { token } => {
                self.place = Place::Outside;
                self.replace(piece, token, self.brackets().1, out);
                Ok(())
            }
            Mark::Remaining { token } => self.remaining(piece, token, out),
            // Only writes have these.
            Mark::Value { .. } => Err(Fault::Unexpected),
        }
    }

    /// Appends everything, but `by` in place of the last `token` bytes.
    fn replace(&mut self, piece: &[u8], token: usize, by: &[u8], out: &mut Vec<u8>) {
        out.append(&mut self.held);
        out.extend_from_slice(piece);
        out.truncate(out.len().saturating_sub(token));
        out.extend_from_slice(by);
    }

    fn remaining(&mut self, piece: &[u8], token: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
        let by: &[u8] = match self.encoding {
            Encoding::Protobuf if token == 1 => &[UNKNOWN_NUMBER],
            Encoding::Protobuf => return Err(Fault::Tag),
            Encoding::Cbor => &[CBOR_NULL],
            _ => b"null",
        };
        if self.place == Place::Outside {
            self.replace(piece, token, by, out);
            return Ok(());
        }
        self.hold(piece)?;
        self.held.truncate(self.held.len().saturating_sub(token));
        self.hold(by)
    }

    /// The bytes that open and close the items.
    const fn brackets(&self) -> (&'static [u8], &'static [u8]) {
        match self.encoding {
            Encoding::Cbor => (&[CBOR_ARRAY], &[CBOR_BREAK]),
            _ => (b"[", b"]"),
        }
    }

    /// Judges a complete item: keeps or drops it. Its bytes in this chunk are not held first.
    fn item(&mut self, piece: &[u8], judge: Judge<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let verdict = self.facts.object().map_or(Verdict::Unknown, |object| judge(&object));
        self.check_length(piece)?;
        match verdict {
            Verdict::Unknown => return Err(Fault::Item),
            Verdict::Keep => {
                self.counts.kept += 1;
                self.keep(piece, out);
            }
            Verdict::Drop => {
                self.counts.dropped += 1;
                self.drop_item(piece, out);
            }
        }
        self.held.clear();
        self.held.shrink_to(KEPT_CAPACITY);
        if self.encoding == Encoding::Protobuf {
            self.place = Place::Outside;
        }
        Ok(())
    }

    fn keep(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let (mut held, mut piece) = (self.held.as_slice(), piece);
        if self.encoding == Encoding::Json && !self.has_left {
            if !held.trim_ascii_start().is_empty() {
                held = without_comma(held);
            } else if let Some(item) = behind_comma(piece) {
                // White space that was held is in front of the comma, too.
                (held, piece) = (&[], item);
            }
        }
        self.has_left = true;
        out.extend_from_slice(held);
        out.extend_from_slice(piece);
    }

    fn drop_item(&self, piece: &[u8], out: &mut Vec<u8>) {
        let (Encoding::Protobuf, Place::Inside { head }) = (self.encoding, self.place) else {
            return;
        };
        out.push(UNKNOWN_BYTES);
        out.extend_from_slice(self.held.get(1..head).unwrap_or_default());
        let length = self.held.len().saturating_add(piece.len()).saturating_sub(head);
        out.resize(out.len().saturating_add(length), 0);
    }
}

/// The item without a comma in front of it, and without the white space before that.
fn without_comma(item: &[u8]) -> &[u8] {
    behind_comma(item).unwrap_or(item)
}

fn behind_comma(item: &[u8]) -> Option<&[u8]> {
    item.trim_ascii_start().strip_prefix(b",")
}
