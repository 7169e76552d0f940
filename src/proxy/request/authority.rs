//! The host that a request is for.

use http::{
    HeaderValue, Request, header,
    uri::{Authority, Scheme},
};

use ctrlmesh_policy::{Refusal, Refused};

/// Completes the `:authority` of HTTP/2. A request that was converted from HTTP/1.1 may have `Host`
/// alone, or neither (RFC 9113 section 8.3.1); towards the upstream there has to be one. Fails when
/// `Host` is not an authority.
pub(super) fn complete<B>(request: &mut Request<B>, upstream: &str) -> Result<(), Refused> {
    if request.uri().authority().is_some() {
        return Ok(());
    }
    let host = request.headers_mut().remove(header::HOST);
    let host = host.as_ref().map_or(upstream.as_bytes(), HeaderValue::as_bytes);
    let authority = Authority::try_from(host)
        .map_err(|_| Refusal::BadRequestLine.because("Host is not HOST or HOST:PORT"))?;
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(authority);
    *request.uri_mut() = parts
        .try_into()
        .map_err(|error: http::uri::InvalidUriParts| Refusal::BadRequestLine.because(error))?;
    Ok(())
}
