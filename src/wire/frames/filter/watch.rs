//! Filters watches.

use super::{
    super::{
        bookmark::Bookmark,
        limits::{KEPT_CAPACITY, MAX_ITEM},
        watch::WatchScanner,
    },
    judge::{Judge, Verdict},
    table::Tables,
};
use crate::{
    media::Encoding,
    object::{
        Object, Wanted,
        walk::{Event, EventKind, Fault, FrameError},
    },
};

/// Removes events from the body of a watch while it passes, fed in chunks that are cut anywhere.
///
/// An object is judged by its namespace, name and uid, which never change while it lives, so an
/// event is judged by itself and no object is remembered. Labels, which can change, are judged by
/// the API server.
#[derive(Debug)]
pub struct WatchFilter {
    encoding: Encoding,
    scanner: WatchScanner,
    tables: Tables,
    /// Whether events are judged by their objects.
    judges: bool,
    hides_bookmarks: bool,
    /// The incomplete event.
    held: Vec<u8>,
    /// The stream's position, if events were dropped since the client last received one.
    unseen: Option<Bookmark>,
}

/// A judged event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JudgedEvent {
    /// Offset in the fed chunk behind the event's last byte.
    pub at: usize,
    /// The event's facts.
    pub event: Event,
    /// Whether it was kept.
    pub is_kept: bool,
}

impl WatchFilter {
    /// A filter for this encoding; `None` for YAML, which is not streamed.
    pub fn new(encoding: Encoding) -> Option<Self> {
        Self::wanting(encoding, Wanted::default())
    }

    /// A filter whose judge is also shown the wanted facts of each object.
    pub fn wanting(encoding: Encoding, wanted: Wanted) -> Option<Self> {
        Some(Self {
            encoding,
            scanner: WatchScanner::wanting(encoding, wanted)?,
            tables: Tables::new(wanted),
            judges: true,
            hides_bookmarks: false,
            held: Vec::new(),
            unseen: None,
        })
    }

    /// A filter that leaves out bookmarks alone, for a client that asked for none: whatever else there
    /// is passes, and no judge is asked.
    pub fn of_bookmarks(encoding: Encoding) -> Option<Self> {
        Some(Self { judges: false, ..Self::new(encoding)?.without_bookmarks() })
    }

    /// The same without bookmarks.
    #[must_use]
    pub fn without_bookmarks(self) -> Self {
        Self { hides_bookmarks: true, ..self }
    }

    /// Takes the next event that ends in `chunk`, and appends it to `out` if it is kept. Feed the
    /// bytes behind [`JudgedEvent::at`] next. `None` if no event ends in the chunk, which is then
    /// taken whole. Fails with [`FrameError`], also for every later call.
    pub fn next(
        &mut self,
        chunk: &[u8],
        judge: Judge<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<JudgedEvent>, FrameError> {
        let Some((at, event)) = self.scanner.next(chunk)? else {
            self.hold(chunk)?;
            return Ok(None);
        };
        let piece = chunk.get(..at).unwrap_or(chunk);
        let is_kept = if self.held.is_empty() {
            // The event is whole in this chunk and need not be held.
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
        Ok(Some(JudgedEvent { at, event, is_kept }))
    }

    /// The object of the event that was taken last; of a Table not its rows, which only the judge
    /// sees. `None` if its facts are missing or ambiguous.
    pub fn object(&self) -> Option<Object<'_>> {
        self.scanner.object()
    }

    /// A bookmark at the stream's position, if events were dropped since the client last received a
    /// position: without one an informer would fall behind its own writes, and resume from a
    /// position that has long expired.
    pub fn take_bookmark(&mut self) -> Option<Vec<u8>> {
        self.unseen.take().map(|bookmark| bookmark.event(self.encoding))
    }

    /// Whether there is such a bookmark.
    pub fn has_bookmark(&self) -> bool {
        self.unseen.is_some()
    }

    /// Whether all bytes so far are whole events.
    pub fn is_between(&self) -> bool {
        self.scanner.is_between()
    }

    /// Memory for held bytes, in bytes.
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

    /// Judges the event: appends it to `out` and returns `true` if it is kept.
    fn judge(
        &mut self,
        event: Event,
        whole: &[u8],
        judge: Judge<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        if event.kind == EventKind::Bookmark && self.hides_bookmarks {
            return Ok(false);
        }
        // A late newline belongs to the event before, which was sent with one.
        let whole = match self.encoding {
            Encoding::Json => whole.trim_ascii_start(),
            _ => whole,
        };
        if !self.judges {
            out.extend_from_slice(whole);
            self.end_line(out);
            return Ok(true);
        }
        // An unknown type may say anything of its object, so it cannot be judged.
        if event.kind == EventKind::Unknown {
            return Err(Fault::Event);
        }
        let object = self.scanner.object();
        // Other groups may have a kind of this name, too.
        let is_table = object.is_some_and(|object| {
            object.kind == "Table" && object.api_version.starts_with("meta.k8s.io/")
        });
        let is_change =
            matches!(event.kind, EventKind::Added | EventKind::Modified | EventKind::Deleted);
        let is_kept = match object {
            _ if is_table && self.encoding == Encoding::Json => {
                self.tables.event(whole, is_change, judge, out)?
            }
            // A Table in another encoding cannot be filtered, so it does not pass.
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
        self.end_line(out);
        Ok(true)
    }

    /// Ends an event that was sent: some clients read lines.
    fn end_line(&self, out: &mut Vec<u8>) {
        if self.encoding == Encoding::Json && !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}
