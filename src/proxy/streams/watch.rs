//! A watch on its way to the client, from its first event to its last.
//!
//! An order ends it between two events, or brings it over to another policy if possible.

use std::{
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::Frame;

use super::{
    change::{Changed, Changing, Progress},
    difference::Prelude,
    error::BodyError,
    passing::{Passing, Portion, Treatment},
    shown::Shown,
};
use crate::{
    collection::Collection,
    live::{Input, Output, Subject},
    outcome::Ended,
    shared::Pair,
    upstream::UpstreamBody,
};
use ctrlmesh_wire::media::Encoding;

pub(crate) struct WatchBody {
    /// The events that come first, for a client that came back with objects of another scope.
    prelude: Option<Prelude>,
    stage: Stage,
    pub(super) shown: Shown,
}

/// The source of the bytes for the client.
enum Stage {
    Upstream(Box<Passing>),
    Change(Changing),
    None,
}

impl WatchBody {
    pub(crate) fn new(
        pair: &Rc<Pair>,
        upstream: UpstreamBody,
        collection: Collection,
        encoding: Encoding,
        events: Treatment,
        prelude: Option<Prelude>,
    ) -> Self {
        let shown = Shown::new(pair, collection, encoding);
        if prelude.is_none() {
            shown.came_back();
        }
        let stage = Stage::Upstream(Box::new(Passing::new(pair, upstream, events)));
        Self { prelude, stage, shown }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(prelude) = &mut self.prelude {
            match prelude.next() {
                Some(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                None => {
                    self.prelude = None;
                    self.shown.came_back();
                }
            }
        }
        loop {
            let bytes = match &mut self.stage {
                Stage::None => return Poll::Ready(None),
                Stage::Change(changing) => match ready!(changing.poll(cx)) {
                    Progress::Bytes(bytes) => Some(bytes),
                    Progress::Done(changed) => self.changed(changed),
                },
                Stage::Upstream(passing) => {
                    let is_last = self.shown.stream.has_order();
                    if is_last && passing.is_between_events() {
                        self.step(Input::BetweenEvents)
                    } else {
                        self.shown.stream.wake_by(cx.waker());
                        match ready!(passing.poll(&mut self.shown, is_last, cx)) {
                            Ok(Portion::Trailers(trailers)) => {
                                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                            }
                            Ok(portion) => self.pass(portion),
                            Err(error) => {
                                self.end();
                                return Poll::Ready(Some(Err(error)));
                            }
                        }
                    }
                }
            };
            if let Some(bytes) = bytes {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }

    /// The bytes for the client in a portion of the upstream's watch.
    fn pass(&mut self, portion: Portion) -> Option<Bytes> {
        match portion {
            Portion::Bytes(bytes) => Some(bytes),
            Portion::Last(bytes) => {
                let mut whole = BytesMut::from(&bytes[..]);
                whole.extend(self.step(Input::BetweenEvents).unwrap_or_default());
                Some(whole.freeze())
            }
            Portion::Unreadable(mut bytes, error) => {
                self.end();
                let why = format!("an event cannot be judged, {error}: list again");
                bytes.extend_from_slice(&self.shown.expire(&why));
                Some(bytes.into())
            }
            Portion::Trailers(_) | Portion::End => {
                self.end();
                None
            }
        }
    }

    /// Carries out the effect of an input; returns the bytes to send for it, if any.
    fn step(&mut self, input: Input<'_, Subject>) -> Option<Bytes> {
        let separator = match &self.stage {
            Stage::Upstream(passing) => passing.separator(),
            _ => b"",
        };
        match self.shown.stream.step(input) {
            Output::Change(goal) => {
                let Some(transfer) = self.shown.transfer(goal) else {
                    return self.step(Input::Failed);
                };
                self.stage = Stage::None;
                self.stage = Stage::Change(Changing::begin(transfer));
                (!separator.is_empty()).then(|| Bytes::from_static(separator))
            }
            Output::Expire { .. } => {
                self.stage = Stage::None;
                let why = "the objects that this shard sees have changed: list again";
                Some([separator, &self.shown.expire(why)].concat().into())
            }
            Output::Drain => {
                self.stage = Stage::None;
                self.shown.ended = Ended::Drained;
                None
            }
            Output::Nothing
            | Output::CarriedOver
            | Output::Ordered
            | Output::OrderedToExpire
            | Output::Late => None,
        }
    }

    /// Continues the watch after a change, or expires it if the change failed.
    fn changed(&mut self, changed: Option<Changed>) -> Option<Bytes> {
        let Shown { encoding, hides_bookmarks, .. } = self.shown;
        let events = changed
            .as_ref()
            .and_then(|changed| Treatment::new(encoding, &changed.filter, hides_bookmarks));
        match (changed, events) {
            (Some(Changed { to, upstream, .. }), Some(events)) => {
                self.shown.carried_over(&to);
                let passing = Passing::new(&self.shown.pair, upstream, events);
                self.stage = Stage::Upstream(Box::new(passing));
                self.step(Input::Changed)
            }
            _ => self.step(Input::Failed),
        }
    }

    fn end(&mut self) {
        self.stage = Stage::None;
        self.shown.stream.step(Input::Ended);
    }
}
