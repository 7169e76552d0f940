//! Watches.

use super::{
    super::{
        Bookmark, Fault, FrameError,
        facts::EventKind,
        watch::{Event, WatchScanner},
    },
    Judge, KEPT_CAPACITY, MAX_ITEM, Verdict,
    table::Tables,
};
use crate::wire::media::Encoding;

/// Takes events out of the body of a watch while it passes, fed in chunks that are cut anywhere.
///
/// What an object is judged by never changes while it lives (its namespace, its name, its uid), so
/// an event is judged by itself and nothing is remembered of an object. What can change, its labels,
/// the API server judges.
#[derive(Debug)]
pub struct WatchFilter {
    encoding: Encoding,
    scanner: WatchScanner,
    tables: Tables,
    /// The event that is not whole yet.
    held: Vec<u8>,
    /// Where the stream is, if events were dropped since the client was last told.
    unseen: Option<Bookmark>,
}

/// An event that was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// Offset in the fed chunk behind the event's last byte.
    pub at: usize,
    /// What it was.
    pub event: Event,
    /// Whether it left.
    pub is_kept: bool,
}

impl WatchFilter {
    /// `None` for YAML, in which there are no streams.
    #[must_use]
    pub fn new(encoding: Encoding) -> Option<Self> {
        Some(Self {
            encoding,
            scanner: WatchScanner::new(encoding)?,
            tables: Tables::default(),
            held: Vec::new(),
            unseen: None,
        })
    }

    /// Takes the next event that ends in `chunk`, and appends it to `out` if it is kept. `None`
    /// when none ends there: all of the chunk is taken then, else what follows [`Passed::at`] is to
    /// be fed next.
    ///
    /// # Errors
    /// [`FrameError`], also for every later call.
    pub fn next(
        &mut self,
        chunk: &[u8],
        judge: Judge<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Passed>, FrameError> {
        let Some((at, event)) = self.scanner.next(chunk)? else {
            self.hold(chunk)?;
            return Ok(None);
        };
        let piece = chunk.get(..at).unwrap_or(chunk);
        let is_kept = if self.held.is_empty() {
            // Whole in this chunk: it need not be held.
            self.check_length(piece)?;
            self.judge(event, piece, judge, out)
        } else {
            self.hold(piece)?;
            let mut held = std::mem::take(&mut self.held);
            let is_kept = self.judge(event, &held, judge, out);
            held.clear();
            held.shrink_to(KEPT_CAPACITY);
            self.held = held;
            is_kept
        };
        let is_kept = is_kept.map_err(|fault| self.scanner.fail(fault))?;
        Ok(Some(Passed { at, event, is_kept }))
    }

    /// A bookmark for where the stream is, if events were dropped since the client was last told a
    /// position: an informer that is told nothing would fall behind its own writes, and come back
    /// with a position that is long gone.
    pub fn take_bookmark(&mut self) -> Option<Vec<u8>> {
        self.unseen.take().map(|bookmark| bookmark.event(self.encoding))
    }

    /// Whether there is one.
    #[must_use]
    pub fn has_bookmark(&self) -> bool {
        self.unseen.is_some()
    }

    /// Whether all bytes so far are whole events.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        self.scanner.at_boundary()
    }

    /// Bytes that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.capacity()
    }

    fn hold(&mut self, piece: &[u8]) -> Result<(), FrameError> {
        self.check_length(piece)?;
        self.held.extend_from_slice(piece);
        Ok(())
    }

    fn check_length(&mut self, piece: &[u8]) -> Result<(), FrameError> {
        if self.held.len().saturating_add(piece.len()) > MAX_ITEM {
            return Err(self.scanner.fail(Fault::TooLarge));
        }
        Ok(())
    }

    /// Whether the event leaves; it is appended to `out` then.
    fn judge(
        &mut self,
        event: Event,
        whole: &[u8],
        judge: Judge<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        // What it says of an object, and so whether that may be seen, nobody knows.
        if event.kind == EventKind::Unknown {
            return Err(Fault::Event);
        }
        let object = self.scanner.object();
        // Others may call a kind of theirs so too.
        let is_table = object.is_some_and(|object| {
            object.kind == "Table" && object.api_version.starts_with("meta.k8s.io/")
        });
        let is_change =
            matches!(event.kind, EventKind::Added | EventKind::Modified | EventKind::Deleted);
        // A newline that came late belongs to the event before, which has left with one.
        let whole = match self.encoding {
            Encoding::Json => whole.trim_ascii_start(),
            _ => whole,
        };
        let is_kept = match object {
            _ if is_table && self.encoding == Encoding::Json => {
                self.tables.event(whole, is_change, judge, out)?
            }
            // What a filter cannot read it does not let pass.
            _ if is_table => return Err(Fault::Item),
            object if is_change => match object.map_or(Verdict::Unknown, |object| judge(&object)) {
                Verdict::Unknown => return Err(Fault::Item),
                verdict => verdict == Verdict::Keep,
            },
            // A bookmark or an error.
            _ => true,
        };
        if !is_kept {
            self.unseen = self.scanner.object().filter(|_| !is_table).and_then(|object| {
                Bookmark::new(object.api_version, object.kind, event.resource_version)
            });
            return Ok(false);
        }
        if !is_table {
            out.extend_from_slice(whole);
        }
        if event.kind != EventKind::Error {
            self.unseen = None;
        }
        if self.encoding == Encoding::Json && !out.ends_with(b"\n") {
            out.push(b'\n');
        }
        Ok(true)
    }
}
