//! The body of a list.

use crate::wire::{
    media::Encoding,
    object::walk::{Facts, Fault, FrameError, ListMeta, Node, Step, Walker},
};

/// Scans the body of a list until its own metadata is known, wherever it stands: before the items
/// in JSON and protobuf, behind them in CBOR. Tables and PartialObjectMetadataLists are lists, too.
/// If the metadata is repeated, the first counts.
#[derive(Debug)]
pub struct ListScanner {
    walker: Walker,
    facts: Facts,
    offset: u64,
    outcome: Option<Result<ListMeta, FrameError>>,
}

impl ListScanner {
    /// `None` for YAML, which would have to be held as a whole.
    pub fn new(encoding: Encoding) -> Option<Self> {
        let walker = Walker::new(encoding, Node::List)?;
        Some(Self { walker, facts: Facts::default(), offset: 0, outcome: None })
    }

    /// Scans the next chunk. `Some` if the metadata is known: nothing more needs to be fed, and
    /// further chunks cost nothing.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<Option<&ListMeta>, FrameError> {
        if self.outcome.is_none() {
            self.outcome = self.walk(chunk);
            self.offset = self.offset.saturating_add(chunk.len() as u64);
        }
        match &self.outcome {
            None => Ok(None),
            Some(Ok(meta)) => Ok(Some(meta)),
            Some(Err(error)) => Err(*error),
        }
    }

    /// The outcome; `None` if it is not known yet.
    fn walk(&mut self, mut rest: &[u8]) -> Option<Result<ListMeta, FrameError>> {
        loop {
            match self.walker.walk(rest, &mut self.facts) {
                Ok(Step::More) => return None,
                Ok(Step::Mark(_, at)) => rest = rest.get(at..)?,
                Ok(Step::Known(_) | Step::End(_)) => return Some(Ok(self.facts.take_list())),
                Err(fault) => return Some(Err(FrameError { fault, at: self.offset })),
            }
        }
    }

    /// The metadata at the end of the body.
    pub fn finish(mut self) -> Result<ListMeta, FrameError> {
        match self.outcome.take() {
            Some(outcome) => outcome,
            // A protobuf list ends with its body, and may have no metadata.
            None if self.offset > 0 && self.walker.at_boundary() => Ok(self.facts.take_list()),
            None => Err(FrameError { fault: Fault::Truncated, at: self.offset }),
        }
    }
}
