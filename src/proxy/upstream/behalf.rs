//! Requests of our own on a client's behalf.
//!
//! Hides which parts of the client's request are copied: its identity and preferences, nothing of its connection
//! or its body. Does not know what a request asks for, or for what purpose.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header, uri::PathAndQuery,
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use tokio::time::timeout;

use super::{
    body::RequestBody,
    connection::{Broken, Upstream, UpstreamBody},
    hop_by_hop::strip_hop_by_hop,
};
use crate::outcome::{OwnRequest, Why};

/// Headers of a body, or of a response that we do not read.
const NOT_OURS: [HeaderName; 3] =
    [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::ACCEPT_ENCODING];

/// An `Accept` for lists of metadata in JSON, or of whole objects if a server has no such form.
pub(crate) const METADATA: HeaderValue = HeaderValue::from_static(
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
);

/// Bytes of a response at most that is read whole: a list of one object, discovery, a Status. The
/// core group's discovery has 10,000.
const MAX_ANSWER: usize = 4 << 20;

/// Headers that a later GET needs: the host, the client's identity, the encoding, and the ids for
/// audit and traces.
const KEPT: [HeaderName; 7] = [
    header::HOST,
    header::AUTHORIZATION,
    header::ACCEPT,
    header::USER_AGENT,
    HeaderName::from_static("audit-id"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];
/// The prefixes of further headers: `Impersonate-User` and its kin, and those that an authenticating proxy sets
/// (`--requestheader-extra-headers-prefix`).
const KEPT_PREFIXES: [&str; 2] = ["impersonate-", "x-remote-"];
/// Most bytes that are kept of one request: twice what a long token with many groups has.
const MOST_KEPT: usize = 16 << 10;

/// The parts of a client's request that others in its name are made of.
#[derive(Clone, Copy)]
pub(crate) struct ClientContext<'a> {
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
}

impl ClientContext<'_> {
    /// A request with this path and query, and this JSON. Without an `accept` it has the client's.
    /// Fails when `target` is no path and query.
    pub(crate) fn request(
        self,
        upstream: &Upstream,
        method: Method,
        target: &str,
        accept: Option<HeaderValue>,
        json: Option<Bytes>,
    ) -> Result<Request<RequestBody>, http::Error> {
        let has_body = json.is_some();
        let mut request = Request::new(RequestBody::Right(json.map(Full::new).unwrap_or_default()));
        *request.method_mut() = method;
        *request.uri_mut() = with_target(self.uri.clone(), target)?;
        *request.version_mut() = upstream.version();
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

    /// Whether the request lacks credentials.
    pub(crate) fn is_anonymous(self) -> bool {
        !self.headers.contains_key(header::AUTHORIZATION)
    }

    /// Sends one of these requests and waits for the head of the response. Each is counted and
    /// logged, even if it is dropped before.
    pub(crate) async fn send(
        self,
        upstream: &Upstream,
        why: Why,
        request: Request<RequestBody>,
    ) -> Result<Response<UpstreamBody>, Broken> {
        let Upstream { metrics, connection, .. } = upstream;
        let mut record = OwnRequest::begin(metrics, *connection, why, &request);
        let reply = upstream.send(request).await?;
        record.code = Some(reply.status());
        Ok(reply)
    }

    /// The whole response to a GET, for which a client's request waits: in HTTP/2 no longer than
    /// `limit`. HTTP/1.1 has no limit: a cancelled request closes the connection, on which the
    /// client's own comes next.
    pub(crate) async fn get(
        self,
        upstream: &Upstream,
        why: Why,
        target: &str,
        accept: HeaderValue,
        limit: Duration,
    ) -> Result<Response<Bytes>, NoAnswer> {
        let request = self.request(upstream, Method::GET, target, Some(accept), None);
        let request = request.map_err(|_| NoAnswer::Ever)?;
        let answer = async {
            whole(self.send(upstream, why, request).await.map_err(|_| NoAnswer::Now)?).await
        };
        match upstream.is_h2() {
            true => timeout(limit, answer).await.unwrap_or(Err(NoAnswer::Now)),
            false => answer.await,
        }
    }
}

/// The reason why a request of our own has no answer.
pub(crate) enum NoAnswer {
    /// Every such request would end like this one.
    Ever,
    /// The API server is busy, away, or does not know this client: a later request may succeed.
    Now,
}

/// The whole response, whose body has at most 4 MiB.
pub(crate) async fn whole(reply: Response<UpstreamBody>) -> Result<Response<Bytes>, NoAnswer> {
    let (head, body) = reply.into_parts();
    match Limited::new(body, MAX_ANSWER).collect().await {
        Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
        // The length of an error says nothing of later responses.
        Err(error) if error.is::<LengthLimitError>() && head.status.is_success() => {
            Err(NoAnswer::Ever)
        }
        Err(_) => Err(NoAnswer::Now),
    }
}

/// The part of a client's request that is kept for as long as its response lasts.
#[derive(Debug)]
pub(crate) struct SavedRequest {
    pub(crate) uri: Uri,
    headers: HeaderMap,
    pub(crate) since: Instant,
}

impl SavedRequest {
    /// Copies the parts, since a slice of a connection's buffer keeps the whole. `None` if they are
    /// more than may be kept.
    pub(crate) fn of(uri: &Uri, headers: &HeaderMap) -> Option<Self> {
        let is_kept = |name: &HeaderName| {
            KEPT.contains(name) || KEPT_PREFIXES.iter().any(|kept| name.as_str().starts_with(kept))
        };
        let uri = uri.to_string();
        let mut left = MOST_KEPT.checked_sub(uri.len())?;
        let mut kept = HeaderMap::new();
        for (name, value) in headers.iter().filter(|(name, _)| is_kept(name)) {
            left = left.checked_sub(name.as_str().len() + value.len())?;
            let name = HeaderName::from_bytes(name.as_str().as_bytes()).ok()?;
            let mut copy = HeaderValue::from_bytes(value.as_bytes()).ok()?;
            copy.set_sensitive(value.is_sensitive());
            kept.append(name, copy);
        }
        Some(Self { uri: uri.parse().ok()?, headers: kept, since: Instant::now() })
    }

    pub(crate) fn client_context(&self) -> ClientContext<'_> {
        ClientContext { uri: &self.uri, headers: &self.headers }
    }
}

/// The client's URI with another path and query. Scheme and authority stay: HTTP/2 carries them in
/// the URI. Fails when `target` is no path and query.
pub(crate) fn with_target(uri: Uri, target: &str) -> Result<Uri, http::Error> {
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(target)?);
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head as a connection reads it: slices of one buffer.
    fn head(lines: &[(&'static str, String)]) -> (Bytes, HeaderMap) {
        let whole: String = lines.iter().map(|(_, value)| value.as_str()).collect();
        let whole = Bytes::from(whole);
        let mut headers = HeaderMap::new();
        let mut at = 0;
        for (name, value) in lines {
            let part = whole.slice(at..at + value.len());
            at += value.len();
            headers.append(*name, HeaderValue::from_maybe_shared(part).unwrap());
        }
        (whole, headers)
    }

    #[test]
    fn what_is_kept_is_what_a_get_needs_and_nothing_of_the_buffer() {
        let names = [
            "host",
            "authorization",
            "accept",
            "user-agent",
            "audit-id",
            "traceparent",
            "tracestate",
            "impersonate-user",
            "impersonate-group",
            "impersonate-group",
            "impersonate-extra-scopes",
            "x-remote-user",
        ];
        let mut lines: Vec<_> = names.iter().map(|name| (*name, format!("of {name}"))).collect();
        lines.push(("content-type", "x".repeat(100)));
        lines.push(("x-padding", "x".repeat(800_000)));
        let (whole, headers) = head(&lines);
        let uri = Uri::from_maybe_shared(Bytes::from("/api/v1/pods?watch=1")).unwrap();
        let kept = SavedRequest::of(&uri, &headers).expect("it is short");
        assert_eq!(kept.uri, uri);
        let own = kept.client_context();
        assert_eq!(own.headers.len(), names.len());
        for name in names {
            let values =
                |headers: &HeaderMap| headers.get_all(name).iter().cloned().collect::<Vec<_>>();
            assert_eq!(values(own.headers), values(&headers), "{name}");
        }
        drop((headers, uri));
        assert!(whole.is_unique(), "what is kept is a part of it");
    }

    #[test]
    fn what_is_too_long_is_not_kept() {
        let uri = |length: usize| format!("/{}", "x".repeat(length)).parse::<Uri>().unwrap();
        let (_, headers) = head(&[("authorization", "x".repeat(16_000))]);
        assert!(SavedRequest::of(&uri(300), &headers).is_some());
        assert!(SavedRequest::of(&uri(400), &headers).is_none());
        assert!(SavedRequest::of(&uri(20_000), &HeaderMap::new()).is_none());
    }
}
