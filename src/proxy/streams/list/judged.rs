//! A list on its way to the client, without the items of other shards.

use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::{grant, gunzip::Gunzip, note};
use crate::{
    collection::Collection,
    shared::Pair,
    streams::{error::BodyError, passing::Held},
    upstream::UpstreamBody,
};
use ctrlmesh_wire::{frames::ListFilter, media::Encoding, object::Object};

/// Bytes of output that are gathered before they are sent.
const PIECE: usize = 64 << 10;

pub(crate) struct JudgedList {
    upstream: UpstreamBody,
    /// The filter. `None` once the body has ended.
    filter: Option<ListFilter>,
    /// The decompressor, if it is needed. The client is on this machine and gets plain bytes.
    gunzip: Option<Gunzip>,
    /// Bytes that arrived and were not taken yet.
    rest: Bytes,
    /// Bytes that may be sent and were not yet.
    out: Vec<u8>,
    collection: Collection,
    pair: Rc<Pair>,
    is_position_noted: bool,
    held: Held,
}

impl JudgedList {
    /// A judged list. `None` for an encoding that cannot be filtered.
    pub(crate) fn new(
        pair: &Rc<Pair>,
        upstream: UpstreamBody,
        collection: Collection,
        encoding: Encoding,
        is_gzip: bool,
    ) -> Option<Self> {
        Some(Self {
            upstream,
            filter: Some(ListFilter::new(encoding)?),
            gunzip: is_gzip.then(Gunzip::default),
            rest: Bytes::new(),
            out: Vec::new(),
            collection,
            pair: Rc::clone(pair),
            is_position_noted: false,
            held: Held::new(&pair.worker.shared.unfinished),
        })
    }

    /// Waits until some bytes may be sent. A list that cannot be parsed is thus refused before its head is sent.
    pub(crate) async fn begun(mut self) -> Result<Self, BodyError> {
        poll_fn(|cx| self.fill(cx)).await?;
        Ok(self)
    }

    pub(in crate::streams) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Err(error) = ready!(self.fill(cx)) {
            return Poll::Ready(Some(Err(error)));
        }
        if self.out.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(mem::take(&mut self.out).into()))))
    }

    pub(in crate::streams) fn is_complete(&self) -> bool {
        self.filter.is_none() && self.out.is_empty()
    }

    /// Reads from the upstream until some bytes may be sent, or it has ended. It takes enough of the arrived
    /// bytes for a piece.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        while self.out.len() < PIECE && self.filter.is_some() {
            if !self.rest.is_empty() {
                self.take()?;
                continue;
            }
            let frame = match Pin::new(&mut self.upstream).poll_frame(cx) {
                Poll::Pending if self.out.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(frame) => frame,
            };
            match frame {
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                None => self.finish()?,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Judges the bytes that arrived, of compressed ones a piece.
    fn take(&mut self) -> Result<(), BodyError> {
        let plain = match &mut self.gunzip {
            None => mem::take(&mut self.rest),
            Some(gunzip) => gunzip.feed(&mut self.rest)?.into(),
        };
        self.judge(&plain)
    }

    fn judge(&mut self, plain: &[u8]) -> Result<(), BodyError> {
        let Some(filter) = &mut self.filter else { return Ok(()) };
        let share = &self.collection.filter;
        let mut judge = |object: &Object<'_>| share.judge(object);
        filter.feed(plain, &mut judge, &mut self.out)?;
        // Recorded before the client can see it.
        if let (false, Some(meta)) = (self.is_position_noted, filter.meta()) {
            note(&self.collection, meta);
            self.is_position_noted = true;
        }
        self.held.set(filter.held())
    }

    /// Ends the list: the client has all of it and may resume from here.
    fn finish(&mut self) -> Result<(), BodyError> {
        if let Some(gunzip) = self.gunzip.take() {
            self.judge(&gunzip.finish()?)?;
        }
        let Some(filter) = self.filter.take() else { return Ok(()) };
        let counts = filter.counts();
        let metrics = &self.pair.worker.shared.metrics;
        metrics.filtered(&self.collection.subject.resource, counts.kept, counts.dropped);
        let meta = filter.finish(&mut self.out)?;
        note(&self.collection, &meta);
        grant(&self.collection, &self.pair, &meta);
        self.held.set(0)
    }
}
