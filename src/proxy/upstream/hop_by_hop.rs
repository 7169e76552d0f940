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

/// Removes them from a head that goes on, except from one of an upgrade.
pub(in crate::proxy) fn strip_hop_by_hop(headers: &mut HeaderMap, is_upgrade: bool) {
    if is_upgrade {
        return;
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    if headers.get(header::TE).is_some_and(|te| te != "trailers") {
        headers.remove(header::TE);
    }
}
