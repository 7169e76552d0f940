//! The end of a request: the upstream's response, or the reason why there is none.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use hyper::upgrade::OnUpgrade;

use crate::{
    collection::Collection,
    streams::{JudgedList, Prelude, Treatment},
    upstream::{Broken, UpstreamBody},
};
use ctrlmesh_policy::{Refusal, Refused};
use ctrlmesh_wire::{media::Encoding, name::BodyKind};

/// The reason why a request ends without the upstream's response.
#[derive(derive_more::From)]
pub(super) enum Stop {
    Refused(Refused),
    /// The API server's answer to a request of our own, which is the client's answer too.
    Answered(Box<Answer>),
    Broken(Broken),
}

/// The upstream's response and the treatment of its body.
pub(super) struct Answer {
    pub(super) reply: Response<()>,
    pub(super) follow: Follow,
}

/// The treatment of a response's body.
pub(super) enum Follow {
    Pass(UpstreamBody),
    Whole(Bytes),
    Splice(OnUpgrade),
    List(UpstreamBody, Collection, Option<Encoding>),
    JudgedList(Box<JudgedList>),
    Watch(UpstreamBody, Collection, Encoding, Treatment, Option<Prelude>),
}

/// The refusal of a path or query that cannot be the target of a request.
pub(super) fn bad_target(error: http::Error) -> Stop {
    Refusal::BadRequestLine.because(error).into()
}

/// The kind of a request's body, or `None` if the API server accepts no object in it.
pub(super) fn body_kind(headers: &HeaderMap) -> Option<BodyKind> {
    match headers.get(header::CONTENT_TYPE).map(HeaderValue::to_str) {
        None => BodyKind::of_content_type(None),
        Some(kind) => kind.ok().and_then(|kind| BodyKind::of_content_type(Some(kind))),
    }
}

impl From<Response<UpstreamBody>> for Answer {
    fn from(reply: Response<UpstreamBody>) -> Self {
        let (head, body) = reply.into_parts();
        Self { reply: Response::from_parts(head, ()), follow: Follow::Pass(body) }
    }
}

impl From<Answer> for Stop {
    fn from(answer: Answer) -> Self {
        Self::Answered(Box::new(answer))
    }
}
