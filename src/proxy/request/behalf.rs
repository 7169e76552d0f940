//! Requests of our own on a client's behalf.
//!
//! Hides what of the client's request goes along: who asks and how, nothing of its connection or
//! its body. Does not know what is asked, or what for.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header, uri::PathAndQuery};

use super::strip_hop_by_hop;
use crate::proxy::{pair::Pair, streams::RequestBody};

/// What belongs to a body, or to an answer that is not for us.
const NOT_OURS: [header::HeaderName; 3] =
    [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::ACCEPT_ENCODING];

/// A client's request, as far as others may be made in its name.
#[derive(Clone, Copy)]
pub(in crate::proxy) struct OnBehalf<'a> {
    pub(in crate::proxy) uri: &'a Uri,
    pub(in crate::proxy) headers: &'a HeaderMap,
}

impl OnBehalf<'_> {
    /// A request with this path and query, and this JSON. Without an `accept` it asks for what the
    /// client asked for.
    ///
    /// # Errors
    /// When `target` is no path and query.
    pub(in crate::proxy) fn request(
        self,
        pair: &Pair,
        method: Method,
        target: &str,
        accept: Option<HeaderValue>,
        json: Option<Bytes>,
    ) -> Result<Request<RequestBody>, http::Error> {
        let has_body = json.is_some();
        let mut request = Request::new(RequestBody::Whole(json));
        *request.method_mut() = method;
        *request.uri_mut() = with_target(self.uri.clone(), target)?;
        *request.version_mut() = pair.upstream.version();
        let headers = request.headers_mut();
        headers.clone_from(self.headers);
        strip_hop_by_hop(headers, false);
        for name in NOT_OURS {
            headers.remove(name);
        }
        if let Some(accept) = accept {
            headers.insert(header::ACCEPT, accept);
        }
        if has_body {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Ok(request)
    }
}

/// The client's URI with another path and query. Scheme and authority stay: HTTP/2 carries them in
/// the URI.
///
/// # Errors
/// When `target` is no path and query.
pub(super) fn with_target(uri: Uri, target: &str) -> Result<Uri, http::Error> {
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(target)?);
    Ok(Uri::from_parts(parts)?)
}
