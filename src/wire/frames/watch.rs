//! The body of a watch.

use crate::{
    media::Encoding,
    object::{
        Object, Wanted,
        walk::{Event, Facts, Fault, FrameError, Node, Step, Walker},
    },
};

/// Scans the body of a watch: JSON objects one after the other, protobuf messages with their length
/// in front, or a CBOR sequence. Tables and PartialObjectMetadata are events like any other.
#[derive(Debug)]
pub struct WatchScanner {
    walker: Walker,
    facts: Facts,
    offset: u64,
    failed: Option<FrameError>,
}

/// A complete event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventEnd {
    /// Offset in the fed chunk behind the event's last byte; a newline that follows a JSON event
    /// belongs to it.
    pub at: usize,
    /// The event's facts.
    pub event: Event,
}

impl WatchScanner {
    /// A scanner for this encoding; `None` for YAML, which is not streamed.
    pub fn new(encoding: Encoding) -> Option<Self> {
        Self::wanting(encoding, Wanted::default())
    }

    /// A scanner that also reads the wanted facts of each object.
    pub fn wanting(encoding: Encoding, wanted: Wanted) -> Option<Self> {
        let walker = Walker::new(encoding, Node::Event)?;
        Some(Self { walker, facts: Facts::new(wanted), offset: 0, failed: None })
    }

    /// Scans the next chunk of the body, and yields each event that ends in it. Dropping the
    /// iterator loses its remaining events, but the whole chunk is scanned either way. After an
    /// error every further call yields that error.
    #[must_use = "the events of a chunk are yielded once"]
    pub fn feed<'a>(&'a mut self, chunk: &'a [u8]) -> Events<'a> {
        Events { scanner: self, chunk, at: 0 }
    }

    /// Whether all bytes so far are whole events: only here may an event be inserted or a stream
    /// end.
    pub fn is_between(&self) -> bool {
        self.failed.is_none() && self.walker.is_between()
    }

    /// The bytes between those so far and an inserted event: a newline if the last event of a JSON
    /// stream has none of its own yet, because some clients read lines.
    pub fn separator(&self) -> &'static [u8] {
        match &self.walker {
            Walker::Json(json) if json.lacks_newline() => b"\n",
            _ => b"",
        }
    }

    /// The object of the event that ended last.
    pub(super) fn object(&self) -> Option<Object<'_>> {
        self.facts.object()
    }

    /// Ends the scan: every further call returns this fault.
    pub(super) fn fail(&mut self, fault: Fault) -> FrameError {
        *self.failed.insert(FrameError { fault, at: self.offset })
    }

    /// The next event that ends in `chunk`, and the offset behind it.
    pub(super) fn next(&mut self, chunk: &[u8]) -> Result<Option<(usize, Event)>, FrameError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if self.walker.is_between() {
            self.facts.forget_object();
        }
        match self.walker.walk(chunk, &mut self.facts) {
            Err(fault) => Err(self.fail(fault)),
            Ok(Step::End(end)) => {
                self.offset = self.offset.saturating_add(end as u64);
                Ok(Some((end, self.facts.take_event())))
            }
            Ok(Step::More) => {
                self.offset = self.offset.saturating_add(chunk.len() as u64);
                Ok(None)
            }
            // Only lists have these steps.
            Ok(Step::Known(_) | Step::Mark(..)) => Err(self.fail(Fault::Unexpected)),
        }
    }
}

/// The events that end in one chunk.
#[derive(Debug)]
pub struct Events<'a> {
    scanner: &'a mut WatchScanner,
    chunk: &'a [u8],
    at: usize,
}

impl Events<'_> {
    /// The object of the event that was yielded last; of a Table not its rows. `None` if what it
    /// says cannot be read in one way.
    pub fn object(&self) -> Option<Object<'_>> {
        self.scanner.object()
    }
}

impl Iterator for Events<'_> {
    type Item = Result<EventEnd, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        // The end of the chunk is tried once more: a protobuf frame may be empty.
        let rest = self.chunk.get(self.at..)?;
        let found = self.scanner.next(rest).transpose();
        self.at = match found {
            Some(Ok((length, _))) => self.at.saturating_add(length),
            Some(Err(_)) | None => usize::MAX,
        };
        found.map(|found| found.map(|(_, event)| EventEnd { at: self.at, event }))
    }
}

/// Scans the rest of the chunk, because the scanner must see every byte.
impl Drop for Events<'_> {
    fn drop(&mut self) {
        while self.next().is_some() {}
    }
}
