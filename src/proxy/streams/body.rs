//! A response's body on its way to the client, whatever is done to it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::{
    error::BodyError,
    list::{ListBody, judged::JudgedList},
    watch::WatchBody,
};
use crate::{
    outcome::{Ended, RequestRecord},
    peers::PeerBody,
    stall::Follower,
    upstream::{Cut, UpstreamBody},
};

/// Bytes of one frame to the client: with its head (RFC 9113 section 4.1) it fills one TLS record
/// (RFC 8446 section 5.1), and no record holds the rest of another's.
const FRAME: usize = (16 << 10) - 9;

/// A response's body on its way to the client, and the record of the request. The record is complete when the
/// body is.
pub(crate) struct ReplyBody {
    backing: Backing,
    /// The step after the frame that was given last.
    next: Option<Polled>,
    access: Option<RequestRecord>,
    follower: Option<Follower>,
}

/// The source of a response's body.
pub(crate) enum Backing {
    Whole(Full<Bytes>),
    Passed(UpstreamBody),
    /// The body of another pod's response.
    Peer(PeerBody),
    List(Box<ListBody>),
    JudgedList(Box<JudgedList>),
    Watch(Box<WatchBody>),
}

/// A frame, an error, or the end.
type Polled = Option<Result<Frame<Bytes>, BodyError>>;

impl ReplyBody {
    pub(crate) fn empty() -> Self {
        Self { backing: Backing::Whole(Full::default()), next: None, access: None, follower: None }
    }

    /// Observes from now on whether the client reads.
    pub(crate) fn followed_by(mut self, follower: Follower) -> Self {
        self.follower = Some(follower);
        self
    }

    pub(crate) fn new(backing: Backing, access: RequestRecord) -> Self {
        let mut body = Self { backing, next: None, access: Some(access), follower: None };
        // A body without bytes may never be polled.
        if body.is_end_stream() {
            body.end(Ended::Complete);
        }
        body
    }

    /// The record of the request, for another response in place of this one.
    pub(crate) fn take_access(&mut self) -> Option<RequestRecord> {
        self.access.take()
    }

    /// Records that the body is sent in another protocol.
    pub(crate) fn switched(&mut self) {
        if let Some(access) = &mut self.access {
            access.answered(StatusCode::SWITCHING_PROTOCOLS);
        }
    }

    fn end(&mut self, how: Ended) {
        if let Some(mut access) = self.access.take() {
            access.ended = how;
        }
    }

    /// Gathers the bytes that have arrived in one frame, without waiting for more. The API server
    /// sends lists and bursts of events in many small ones, and each costs both ends the same.
    fn gather(&mut self, first: Frame<Bytes>, cx: &mut Context<'_>) -> Frame<Bytes> {
        let mut bytes = match first.into_data() {
            Ok(bytes) => bytes,
            Err(trailers) => return trailers,
        };
        let mut gathered = Gathered::default();
        loop {
            let part = bytes.split_to(bytes.len().min(FRAME - gathered.len()));
            gathered.push(part);
            if !bytes.is_empty() {
                self.next = Some(Some(Ok(Frame::data(bytes))));
                break;
            }
            if gathered.len() == FRAME || self.backing.is_end_stream() {
                break;
            }
            let Poll::Ready(step) = self.backing.poll_frame(cx) else { break };
            let other = match step {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(more) => {
                        bytes = more;
                        continue;
                    }
                    Err(trailers) => Some(Ok(trailers)),
                },
                other => other,
            };
            self.next = Some(other);
            break;
        }
        Frame::data(gathered.into_bytes())
    }

    fn count(&mut self, frame: &Frame<Bytes>) {
        if let (Some(access), Some(data)) = (&mut self.access, frame.data_ref()) {
            access.bytes_out += u64::try_from(data.len()).unwrap_or(u64::MAX);
        }
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        if self.follower.as_ref().is_some_and(Follower::is_reset) {
            self.end(Ended::Reset);
        }
    }
}

/// Small frames on their way into a large one. A single frame, as in most bodies, is not copied.
#[derive(Default)]
struct Gathered {
    one: Bytes,
    many: BytesMut,
}

impl Gathered {
    fn len(&self) -> usize {
        self.one.len() + self.many.len()
    }

    fn push(&mut self, more: Bytes) {
        if self.len() == 0 {
            self.one = more;
            return;
        }
        if self.many.is_empty() {
            self.many.reserve(FRAME);
            self.many.extend_from_slice(&std::mem::take(&mut self.one));
        }
        self.many.extend_from_slice(&more);
    }

    fn into_bytes(self) -> Bytes {
        if self.many.is_empty() { self.one } else { self.many.freeze() }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(follower) = &self.follower {
            follower.asked();
        }
        let step = match self.next.take() {
            Some(next) => next,
            None => ready!(self.backing.poll_frame(cx)),
        };
        let frame = match step {
            Some(Ok(frame)) => Some(Ok(self.gather(frame, cx))),
            other => other,
        };
        match &frame {
            Some(Ok(frame)) => {
                self.count(frame);
                if self.is_end_stream() {
                    self.end(Ended::Complete);
                } else if let Some(follower) = &mut self.follower {
                    follower.gave();
                }
            }
            Some(Err(BodyError::Upstream(_))) => self.end(Ended::UpstreamBroken),
            Some(Err(_)) => self.end(Ended::Reset),
            None => {
                let how = match &self.backing {
                    Backing::Watch(body) => body.shown.ended,
                    _ => Ended::Complete,
                };
                self.end(how);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none() && self.backing.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.next {
            None => self.backing.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}

impl Backing {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Polled> {
        match self {
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Passed(body) => Pin::new(body).poll_frame(cx).map_err(BodyError::from),
            Self::Peer(body) => {
                Pin::new(body).poll_frame(cx).map_err(|cut| BodyError::from(Cut::from(cut)))
            }
            Self::List(body) => body.poll_frame(cx),
            Self::JudgedList(body) => body.poll_frame(cx),
            Self::Watch(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Passed(body) => body.is_end_stream(),
            Self::Peer(body) => body.is_end_stream(),
            // The end is an event of its own: from now on the client may resume from the position.
            Self::List(body) => body.is_complete,
            Self::JudgedList(body) => body.is_complete(),
            Self::Watch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Passed(body) => body.size_hint(),
            Self::Peer(body) => body.size_hint(),
            Self::List(body) => body.upstream.size_hint(),
            Self::JudgedList(_) | Self::Watch(_) => SizeHint::default(),
        }
    }
}
