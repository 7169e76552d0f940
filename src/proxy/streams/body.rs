//! The bodies that pass through, in one type a direction.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{JudgedList, ListBody, WatchBody, stall::Follower};
use crate::{
    proxy::outcome::{Access, Ended},
    wire::frames::FrameError,
};

/// A request's body on its way upstream.
#[derive(Debug)]
pub(in crate::proxy) enum RequestBody {
    /// As it comes.
    Streamed(Incoming),
    /// Read and perhaps changed.
    Whole(Option<Bytes>),
}

/// A response's body on its way to the client, and the record of the request, which is complete
/// when the body is.
#[derive(Debug)]
pub(in crate::proxy) struct ReplyBody {
    kind: Kind,
    access: Option<Access>,
    follower: Option<Follower>,
}

#[derive(Debug)]
enum Kind {
    Whole(Option<Bytes>),
    Passed(Incoming),
    List(Box<ListBody>),
    JudgedList(Box<JudgedList>),
    Watch(Box<WatchBody>),
}

/// Why a response breaks off: the client's stream is reset, so that no part is taken for a whole.
#[derive(Debug, thiserror::Error)]
pub(in crate::proxy) enum BodyError {
    /// The upstream broke off.
    #[error("the upstream broke off")]
    Upstream(#[from] hyper::Error),
    /// The body is not what its content type says.
    #[error("the response cannot be followed")]
    Unreadable(#[from] FrameError),
    /// A compressed body does not decompress.
    #[error("the response cannot be decompressed")]
    Compression,
    /// An event stayed incomplete when the watch had to end.
    #[error("the upstream stopped in the middle of an event")]
    Stalled,
}

impl ReplyBody {
    pub(in crate::proxy) fn empty() -> Self {
        Self { kind: Kind::Whole(None), access: None, follower: None }
    }

    pub(in crate::proxy) fn whole(body: Bytes, access: Access) -> Self {
        Self::new(Kind::Whole(Some(body)), access)
    }

    pub(in crate::proxy) fn passed(body: Incoming, access: Access) -> Self {
        Self::new(Kind::Passed(body), access)
    }

    pub(in crate::proxy) fn list(body: ListBody, access: Access) -> Self {
        Self::new(Kind::List(Box::new(body)), access)
    }

    pub(in crate::proxy) fn judged_list(body: Box<JudgedList>, access: Access) -> Self {
        Self::new(Kind::JudgedList(body), access)
    }

    pub(in crate::proxy) fn watch(body: WatchBody, access: Access) -> Self {
        Self::new(Kind::Watch(Box::new(body)), access)
    }

    /// Whether the client reads is looked at from now on.
    pub(in crate::proxy) fn followed_by(mut self, follower: Follower) -> Self {
        self.follower = Some(follower);
        self
    }

    fn new(kind: Kind, access: Access) -> Self {
        let mut body = Self { kind, access: Some(access), follower: None };
        // A body without bytes may never be asked for one.
        if body.is_end_stream() {
            body.end(Ended::Complete);
        }
        body
    }

    fn end(&mut self, how: Ended) {
        if let Some(mut access) = self.access.take() {
            access.ended = how;
        }
    }

    fn count(&mut self, frame: &Frame<Bytes>) {
        if let (Some(access), Some(data)) = (&mut self.access, frame.data_ref()) {
            access.bytes_out += u64::try_from(data.len()).unwrap_or(u64::MAX);
        }
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
        let frame = match &mut self.kind {
            Kind::Whole(body) => body.take().map(|body| Ok(Frame::data(body))),
            Kind::Passed(body) => {
                ready!(Pin::new(body).poll_frame(cx)).map(|frame| frame.map_err(BodyError::from))
            }
            Kind::List(body) => ready!(body.poll_frame(cx)),
            Kind::JudgedList(body) => ready!(body.poll_frame(cx)),
            Kind::Watch(body) => ready!(body.poll_frame(cx)),
        };
        match &frame {
            Some(Ok(frame)) => {
                self.count(frame);
                if let Some(follower) = &mut self.follower {
                    follower.gave();
                }
                if self.is_end_stream() {
                    self.end(Ended::Complete);
                }
            }
            Some(Err(BodyError::Upstream(_))) => self.end(Ended::UpstreamBroken),
            Some(Err(_)) => self.end(Ended::Reset),
            None => {
                let how = match &self.kind {
                    Kind::Watch(body) => body.ended(),
                    _ => Ended::Complete,
                };
                self.end(how);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(body) => body.is_none(),
            Kind::Passed(body) => body.is_end_stream(),
            // The end is an event of its own: the position becomes one to resume from.
            Kind::List(body) => body.is_complete(),
            Kind::JudgedList(body) => body.is_complete(),
            Kind::Watch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(body) => SizeHint::with_exact(length(body.as_ref())),
            Kind::Passed(body) => body.size_hint(),
            Kind::List(body) => body.size_hint(),
            Kind::JudgedList(_) | Kind::Watch(_) => SizeHint::default(),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Streamed(body) => Pin::new(body).poll_frame(cx),
            Self::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Streamed(body) => body.is_end_stream(),
            Self::Whole(body) => body.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Streamed(body) => body.size_hint(),
            Self::Whole(body) => SizeHint::with_exact(length(body.as_ref())),
        }
    }
}

fn length(body: Option<&Bytes>) -> u64 {
    body.map_or(0, |body| u64::try_from(body.len()).unwrap_or(u64::MAX))
}
