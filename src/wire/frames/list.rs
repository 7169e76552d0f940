//! The body of a list.

use crate::{
    media::Encoding,
    object::{
        Object, Wanted,
        walk::{Facts, Fault, FrameError, ListMeta, Mark, Node, Step, Walker},
    },
};

/// The receiver of each object in a list; `None` if its facts are missing or ambiguous.
pub type OnObject<'s> = &'s mut dyn FnMut(Option<Object<'_>>);

/// Scans the body of a list until its own metadata is known, wherever it stands: before the items
/// in JSON and protobuf, behind them in CBOR. Tables and PartialObjectMetadataLists are lists, too.
/// If the metadata is repeated, the first counts.
#[derive(Debug)]
pub struct ListScanner {
    walker: Walker,
    facts: Facts,
    /// Whether the items are shown, and so the whole body is scanned.
    shows_items: bool,
    meta: Option<ListMeta>,
    /// Whether nothing more needs to be fed.
    is_over: bool,
    offset: u64,
    failed: Option<FrameError>,
}

impl ListScanner {
    /// A scanner. `None` for YAML, which would have to be held as a whole.
    pub fn new(encoding: Encoding) -> Option<Self> {
        Self::of(encoding, Node::List, Wanted::default())
    }

    /// A scanner that shows each object with its wanted facts; rows of a Table show theirs. Every
    /// chunk has to be fed.
    pub fn showing(encoding: Encoding, wanted: Wanted) -> Option<Self> {
        Self::of(encoding, Node::ItemList, wanted)
    }

    fn of(encoding: Encoding, root: Node, wanted: Wanted) -> Option<Self> {
        Some(Self {
            walker: Walker::new(encoding, root)?,
            facts: Facts::new(wanted),
            shows_items: root == Node::ItemList,
            meta: None,
            is_over: false,
            offset: 0,
            failed: None,
        })
    }

    /// Scans the next chunk. `Some` if the metadata is known: nothing more needs to be fed, and
    /// further chunks cost nothing.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<Option<&ListMeta>, FrameError> {
        self.feed_each(chunk, &mut |_| {})
    }

    /// Scans the next chunk and shows each object that ends in it. `Some` if the metadata is known.
    pub fn feed_each(
        &mut self,
        chunk: &[u8],
        shown: OnObject<'_>,
    ) -> Result<Option<&ListMeta>, FrameError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if !self.is_over {
            self.walk(chunk, shown)
                .map_err(|fault| *self.failed.insert(FrameError { fault, at: self.offset }))?;
            self.offset = self.offset.saturating_add(chunk.len() as u64);
        }
        Ok(self.meta.as_ref())
    }

    fn walk(&mut self, mut rest: &[u8], shown: OnObject<'_>) -> Result<(), Fault> {
        while !self.is_over {
            let (step, _) = self.walker.step(&mut rest, &mut self.facts)?;
            match step {
                Step::More => break,
                Step::Mark(Mark::Item, _) => shown(self.facts.object()),
                Step::Mark(..) => {}
                Step::Known(_) | Step::End(_) => {
                    self.meta.get_or_insert_with(|| self.facts.take_list());
                    self.is_over = !self.shows_items || matches!(step, Step::End(_));
                }
            }
        }
        Ok(())
    }

    /// The metadata at the end of the body.
    pub fn finish(mut self) -> Result<ListMeta, FrameError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        // A protobuf list ends with its body, and may have no metadata.
        let has_ended = self.is_over || self.offset > 0 && self.walker.is_between();
        match self.meta {
            _ if !has_ended => Err(FrameError { fault: Fault::Truncated, at: self.offset }),
            Some(meta) => Ok(meta),
            None => Ok(self.facts.take_list()),
        }
    }
}
