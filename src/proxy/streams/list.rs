//! A list on its way to the client: its bytes pass untouched, its position is recorded.
//!
//! A list that cannot be parsed is broken off if the shard sees only a part of it; else it passes
//! untouched, at an unknown position.

mod gunzip;
pub(super) mod judged;

use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderValue;
use http_body::{Body, Frame};

use self::gunzip::Gunzip;
use super::error::BodyError;
use crate::{
    collection::{Collection, token_key, token_position},
    positions::Resume,
    shared::Pair,
    upstream::UpstreamBody,
};
use ctrlmesh_wire::{
    frames::{Continue, ListMeta, ListScanner},
    media::Encoding,
};

pub(crate) struct ListBody {
    pub(super) upstream: UpstreamBody,
    scan: Scan,
    collection: Collection,
    pair: Rc<Pair>,
    pub(super) is_complete: bool,
}

/// The scan of the body, until the position is known. It is decompressed aside if it must be.
enum Scan {
    Reading(Box<ListScanner>, Option<Gunzip>),
    Known(ListMeta),
    Unparsed,
    Ended,
}

impl ListBody {
    pub(crate) fn new(
        pair: &Rc<Pair>,
        upstream: UpstreamBody,
        collection: Collection,
        encoding: Option<Encoding>,
        compression: Option<&HeaderValue>,
    ) -> Self {
        let scanner = encoding.and_then(ListScanner::new).map(Box::new);
        let is = |name| compression.is_some_and(|own| own.as_bytes().eq_ignore_ascii_case(name));
        let scan = match scanner {
            Some(scanner) if is(b"gzip") => Scan::Reading(scanner, Some(Gunzip::default())),
            Some(scanner) if compression.is_none() || is(b"identity") => {
                Scan::Reading(scanner, None)
            }
            _ => Scan::Unparsed,
        };
        Self { upstream, scan, collection, pair: Rc::clone(pair), is_complete: false }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = match ready!(Pin::new(&mut self.upstream).poll_frame(cx)) {
            None => return Poll::Ready(self.finish().err().map(Err)),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => frame,
        };
        if let Some(chunk) = frame.data_ref()
            && let Err(error) = self.look_at(chunk)
        {
            return Poll::Ready(Some(Err(error)));
        }
        // HTTP/1.1 does not poll a body of known length for its end.
        if self.upstream.is_end_stream()
            && let Err(error) = self.finish()
        {
            return Poll::Ready(Some(Err(error)));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    /// Records the position before the client can see it.
    fn look_at(&mut self, chunk: &Bytes) -> Result<(), BodyError> {
        match self.scan.feed(chunk) {
            Ok(None) => {}
            Ok(Some(meta)) => {
                note(&self.collection, &meta);
                self.scan = Scan::Known(meta);
            }
            Err(error) => self.give_up(error)?,
        }
        if matches!(self.scan, Scan::Unparsed) {
            note_unknown(&self.collection);
        }
        Ok(())
    }

    /// Ends the scan: the client has all of the list and may resume from here.
    fn finish(&mut self) -> Result<(), BodyError> {
        self.is_complete = true;
        match std::mem::replace(&mut self.scan, Scan::Ended).finish() {
            Ok(Some(meta)) => {
                grant(&self.collection, &self.pair, &meta);
                note(&self.collection, &meta);
            }
            Ok(None) => {}
            Err(error) => {
                self.give_up(error)?;
                note_unknown(&self.collection);
            }
        }
        Ok(())
    }

    fn give_up(&mut self, error: BodyError) -> Result<(), BodyError> {
        if self.collection.is_limited() {
            return Err(error);
        }
        self.scan = Scan::Unparsed;
        Ok(())
    }
}

impl Scan {
    /// The list's own metadata, once it has arrived.
    fn feed(&mut self, chunk: &Bytes) -> Result<Option<ListMeta>, BodyError> {
        match self {
            Self::Known(_) | Self::Unparsed | Self::Ended => Ok(None),
            Self::Reading(scanner, None) => Ok(scanner.feed(chunk)?.cloned()),
            Self::Reading(scanner, Some(gunzip)) => {
                let (mut chunk, mut meta) = (chunk.clone(), None);
                while meta.is_none() && !chunk.is_empty() {
                    meta = scanner.feed(&gunzip.feed(&mut chunk)?)?.cloned();
                }
                Ok(meta)
            }
        }
    }

    fn finish(self) -> Result<Option<ListMeta>, BodyError> {
        match self {
            Self::Unparsed | Self::Ended => Ok(None),
            Self::Known(meta) => Ok(Some(meta)),
            Self::Reading(mut scanner, gunzip) => {
                if let Some(gunzip) = gunzip {
                    scanner.feed(&gunzip.finish()?)?;
                }
                Ok(Some(scanner.finish()?))
            }
        }
    }
}

/// Records a list's position before the client can see it.
pub(super) fn note(collection: &Collection, meta: &ListMeta) {
    if let Some(at) = Resume::at(meta.resource_version) {
        collection.position.show(at, collection.active.epoch);
    }
}

/// Records that the client is shown a position that we did not parse.
fn note_unknown(collection: &Collection) {
    collection.position.show_unread(collection.active.epoch);
}

/// Lets the client resume from the list's position, or from its token: it was given all of it.
pub(super) fn grant(collection: &Collection, pair: &Pair, meta: &ListMeta) {
    if meta.continue_token == Continue::None {
        pair.worker.shared.policy_store.was_listed(collection.key, collection.active.epoch);
    }
    let given = match &meta.continue_token {
        Continue::None => Resume::at(meta.resource_version).map(|at| (collection.key, at)),
        Continue::Token(token) => token_position(token).map(|at| (token_key(token), at)),
        Continue::Unreadable => None,
    };
    if let Some((key, at)) = given {
        let Collection { active, position, .. } = collection;
        pair.grants.borrow_mut().give(key, at, active.epoch, position);
    }
}
