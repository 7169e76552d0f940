//! Splits a list into its items.
//!
//! Hides where in each encoding an item begins and ends. Memory is that of one item, which the
//! caller interprets.

use super::limits::{KEPT_CAPACITY, MAX_ITEM};
use crate::{
    media::Encoding,
    object::{
        Object, Wanted,
        walk::{Facts, Fault, FrameError, ListMeta, Mark, Node, Step, Walker},
    },
};

/// Reads the items from the body of a list, fed in chunks that are cut anywhere.
#[derive(Debug)]
pub struct ListItems {
    encoding: Encoding,
    walker: Walker,
    facts: Facts,
    meta: Option<ListMeta>,
    /// The incomplete item.
    item: Vec<u8>,
    /// Whether the next bytes are an item's.
    is_inside: bool,
    offset: u64,
    failed: Option<FrameError>,
}

/// One item of a list.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    /// The object's own facts.
    pub object: Object<'a>,
    /// Whether another object owns it.
    pub has_owner: bool,
    /// The item's bytes, as in the list.
    pub bytes: &'a [u8],
}

/// The facts of a list itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListHead {
    /// `apiVersion`; empty if absent.
    pub api_version: String,
    /// `kind`; empty if absent.
    pub kind: String,
    /// The list's metadata.
    pub meta: ListMeta,
}

impl ListItems {
    /// A reader for this encoding; `None` for YAML, which would have to be held as a whole.
    pub fn new(encoding: Encoding) -> Option<Self> {
        Self::wanting(encoding, Wanted::default())
    }

    /// A reader that also reads the wanted facts of each item.
    pub fn wanting(encoding: Encoding, wanted: Wanted) -> Option<Self> {
        Some(Self {
            encoding,
            walker: Walker::new(encoding, Node::ItemList)?,
            facts: Facts::new(wanted),
            meta: None,
            item: Vec::new(),
            is_inside: false,
            offset: 0,
            failed: None,
        })
    }

    /// Feeds the next chunk and passes each item that ends in it to `each`. Fails with
    /// [`FrameError`], also for every later call.
    pub fn feed(&mut self, chunk: &[u8], each: &mut dyn FnMut(Item<'_>)) -> Result<(), FrameError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        self.run(chunk, each)
            .map_err(|fault| *self.failed.insert(FrameError { fault, at: self.offset }))?;
        self.offset = self.offset.saturating_add(chunk.len() as u64);
        Ok(())
    }

    /// Ends the body and returns the list's own facts. Fails with [`FrameError`] if it ended in the
    /// middle, or was no list.
    pub fn finish(mut self) -> Result<ListHead, FrameError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if self.offset == 0 || !self.walker.is_between() {
            return Err(FrameError { fault: Fault::Truncated, at: self.offset });
        }
        let (api_version, kind) = self.facts.list_type();
        let (api_version, kind) = (api_version.to_owned(), kind.to_owned());
        let meta = self.meta.unwrap_or_else(|| self.facts.take_list());
        Ok(ListHead { api_version, kind, meta })
    }

    fn run(&mut self, mut rest: &[u8], each: &mut dyn FnMut(Item<'_>)) -> Result<(), Fault> {
        loop {
            let (step, piece) = self.walker.step(&mut rest, &mut self.facts)?;
            if self.is_inside && !matches!(step, Step::Mark(Mark::Close { .. }, _)) {
                self.hold(piece)?;
            }
            match step {
                Step::More => return Ok(()),
                Step::Known(_) => {
                    self.meta.get_or_insert_with(|| self.facts.take_list());
                }
                Step::Mark(Mark::Open { .. } | Mark::Body, _) => {
                    self.is_inside = true;
                    self.item.clear();
                }
                Step::Mark(Mark::Item, _) => self.give(each)?,
                Step::Mark(Mark::Close { .. }, _) => self.is_inside = false,
                Step::Mark(..) | Step::End(_) => {}
            }
        }
    }

    fn hold(&mut self, piece: &[u8]) -> Result<(), Fault> {
        if self.item.len().saturating_add(piece.len()) > MAX_ITEM {
            return Err(Fault::TooLarge);
        }
        self.item.extend_from_slice(piece);
        Ok(())
    }

    fn give(&mut self, each: &mut dyn FnMut(Item<'_>)) -> Result<(), Fault> {
        let object = self.facts.object().ok_or(Fault::Item)?;
        let held = &mut self.item;
        let bytes = match self.encoding {
            // The comma in front of an item is not part of it.
            Encoding::Json => {
                let item = held.trim_ascii();
                item.strip_prefix(b",").map_or(item, <[u8]>::trim_ascii_start)
            }
            _ => held,
        };
        each(Item { object, has_owner: self.facts.has_owner(), bytes });
        held.clear();
        held.shrink_to(KEPT_CAPACITY);
        // Protobuf items are fields, each behind its own tag.
        self.is_inside = self.encoding != Encoding::Protobuf;
        Ok(())
    }
}
