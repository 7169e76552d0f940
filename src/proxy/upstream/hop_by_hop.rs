//! The headers that belong to one connection.

use http::{HeaderMap, HeaderName, header};

/// Headers that belong to one connection (RFC 9110 section 7.6.1). The list is fixed: a client that
/// names others in `Connection` cannot strip them, or it could strip `Authorization`.
const HOP_BY_HOP: [HeaderName; 5] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removes them from a head that goes on, unless it `keeps` them: that of an upgrade does, and in
/// HTTP/2 there are none, since they are an error on both legs (RFC 9113 section 8.2.2).
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap, keeps: bool) {
    if keeps {
        return;
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    if headers.get(header::TE).is_some_and(|te| te != "trailers") {
        headers.remove(header::TE);
    }
}
