//! The head of a request, as each HTTP version has it.

use http::{
    HeaderMap, HeaderValue, Version, header, request,
    uri::{Authority, PathAndQuery, Scheme},
};

use crate::upstream::strip_hop_by_hop;

/// The header by which a peer says: answer this review, whatever your own policy says. Its value is
/// the ALPN identifier of the best protocol that the API server offers the peer, `h2` or `http/1.1`.
const HOP: &str = "ctrlmesh-hop";
const H2: HeaderValue = HeaderValue::from_static("h2");
const HTTP_11: HeaderValue = HeaderValue::from_static("http/1.1");

/// The mark of a request that was sent on.
pub(super) struct Hop {
    /// Whether the API server offers the peer HTTP/2. An unknown protocol is none: each webhook server
    /// takes HTTP/1.1, the only one that the API server offers a Service.
    pub(super) offers_h2: bool,
}

impl Hop {
    /// Takes the mark off a request.
    pub(super) fn take(headers: &mut HeaderMap) -> Option<Self> {
        headers.remove(HOP).map(|protocol| Self { offers_h2: protocol == H2 })
    }

    /// Marks a request.
    pub(super) fn put(&self, headers: &mut HeaderMap) {
        headers.insert(HOP, if self.offers_h2 { H2 } else { HTTP_11 });
    }
}

/// Fits a head to a connection of HTTP/2 or HTTP/1.1: the host is the `:authority` there, and `Host`
/// here. Nothing else of it changes but what belongs to one connection.
pub(super) fn fit(head: &mut request::Parts, is_h2: bool) {
    strip_hop_by_hop(&mut head.headers, false);
    let path = head.uri.path_and_query().cloned();
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    let given = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let given = given.and_then(|host| host.parse::<Authority>().ok());
    let authority = head.uri.authority().cloned().or(given);
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(path);
    if is_h2 {
        head.headers.remove(header::HOST);
        head.version = Version::HTTP_2;
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority =
            Some(authority.unwrap_or_else(|| Authority::from_static("webhook.invalid")));
    } else {
        head.version = Version::HTTP_11;
        let host = authority.as_ref().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        if let Some(host) = host {
            head.headers.entry(header::HOST).or_insert(host);
        }
    }
    // Its parts were those of a valid one.
    if let Ok(uri) = parts.try_into() {
        head.uri = uri;
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn fitted(request: request::Builder, is_h2: bool) -> request::Parts {
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        fit(&mut head, is_h2);
        head
    }

    #[test]
    fn the_host_goes_from_one_version_to_the_other() {
        let h1 = || Request::post("/validate?timeout=10s").header("host", "op.ns.svc:443");
        let head = fitted(h1().header("connection", "close"), true);
        assert_eq!(head.uri, "https://op.ns.svc:443/validate?timeout=10s");
        assert!(head.headers.is_empty(), "{head:?}");
        let h2 = || Request::post("https://op.ns.svc:443/validate?timeout=10s");
        let head = fitted(h2(), false);
        assert_eq!(
            (head.uri.to_string(), head.version),
            ("/validate?timeout=10s".into(), Version::HTTP_11)
        );
        assert_eq!(head.headers["host"], "op.ns.svc:443");
        assert_eq!(fitted(h2(), true).uri, "https://op.ns.svc:443/validate?timeout=10s");
        let head = fitted(h1(), false);
        assert_eq!(
            (head.uri.to_string(), head.headers["host"].as_bytes()),
            ("/validate?timeout=10s".into(), &b"op.ns.svc:443"[..])
        );
    }
}
