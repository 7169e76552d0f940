//! A response of our own in place of the upstream's.

use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;

use super::body::{Backing, ReplyBody};
use crate::outcome::{Decided, RequestRecord};
use ctrlmesh_policy::{Refusal, Refused};
use ctrlmesh_wire::{Verb, media::Encoding};

/// Our own response. A watch with an expired position gets its 410 inside the stream, as from the
/// API server: some clients repeat a watch for ever that gets 410 by HTTP.
pub(crate) fn refuse(
    refused: &Refused,
    accept: Option<&HeaderValue>,
    mut access: RequestRecord,
) -> Response<ReplyBody> {
    access.decided = Decided::Refused(refused.refusal);
    let encoding = Encoding::negotiate(accept.and_then(|accept| accept.to_str().ok()));
    let status = &refused.status;
    let in_stream = refused.refusal == Refusal::Expired && access.verb == Verb::Watch.as_str();
    let (code, kind, body) = if in_stream {
        (StatusCode::OK, encoding.stream_content_type(), status.error_event(encoding))
    } else {
        let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_REQUEST);
        (code, encoding.content_type(), status.encode(encoding))
    };
    access.answered(code);
    let body = Backing::Whole(Full::new(body));
    let mut reply = Response::new(ReplyBody::new(body, access));
    *reply.status_mut() = code;
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if let Some(seconds) = refused.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if refused.refusal == Refusal::WebSocketHandshake {
        // The version that is accepted (RFC 6455 section 4.2.2).
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    }
    reply
}
