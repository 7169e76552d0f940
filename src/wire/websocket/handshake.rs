//! The handshake of a client (RFC 6455 section 4).

use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, header};
use sha1::{Digest, Sha1};

/// The subprotocol that carries a token, for browsers, which cannot set `Authorization`
/// (`apiserver/pkg/authentication/request/websocket`).
const BEARER: &str = "base64url.bearer.authorization.k8s.io.";
/// The text that is hashed behind the key (RFC 6455 section 1.3).
const ACCEPT_SALT: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The headers that are part of a handshake alone.
const HANDSHAKE: [HeaderName; 6] = [
    header::UPGRADE,
    header::ORIGIN,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_EXTENSIONS,
];

/// A handshake that can be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    key: HeaderValue,
    protocol: Option<HeaderValue>,
}

/// Errors of a handshake, each answered as by the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadHandshake {
    #[error("the WebSocket handshake has no Sec-WebSocket-Key: send one")]
    NoKey,
    #[error("the WebSocket handshake is not of version 13: send Sec-WebSocket-Version: 13")]
    Version,
    #[error("the WebSocket handshake offers several subprotocols: offer one at most")]
    Protocols,
    #[error(
        "the WebSocket handshake has no Origin that is a URL: send one, such as https://kubernetes"
    )]
    Origin,
    #[error(
        "the WebSocket handshake has a token subprotocol that cannot be used: send exactly one, in base64url, and one other subprotocol"
    )]
    Token,
}

impl Offer {
    /// Whether the head of a request asks for WebSocket.
    pub fn is_made(headers: &HeaderMap) -> bool {
        let first = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let upgrade = first(header::UPGRADE).unwrap_or_default();
        let connection = first(header::CONNECTION).unwrap_or_default();
        let is_named = |name: &str| name.trim().eq_ignore_ascii_case("upgrade");
        upgrade.eq_ignore_ascii_case("websocket") && connection.split(',').any(is_named)
    }

    /// Takes the handshake out of the head of a request, which is a plain one without it. A token
    /// among the subprotocols becomes its `Authorization`.
    pub fn take(headers: &mut HeaderMap) -> Result<Self, BadHandshake> {
        let token = token(headers)?;
        let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| !key.is_empty());
        let key = key.ok_or(BadHandshake::NoKey)?.clone();
        if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(BadHandshake::Version);
        }
        if !headers.get(header::ORIGIN).is_some_and(is_url) {
            return Err(BadHandshake::Origin);
        }
        let protocol = match &token {
            Some(token) => one(token.others.iter().map(|other| &**other))?,
            // Other lines of the header are not read.
            None => one(subprotocols(headers).next().into_iter().flat_map(names))?,
        };
        let protocol = protocol.map(HeaderValue::from_str).transpose();
        let protocol = protocol.map_err(|_| BadHandshake::Protocols)?;
        for name in &HANDSHAKE {
            headers.remove(name);
        }
        if let Some(token) = token {
            headers.insert(header::AUTHORIZATION, token.authorization);
        }
        Ok(Self { key, protocol })
    }

    /// The head of the answer that begins WebSocket.
    pub fn accept(&self) -> Response<()> {
        let digest = Sha1::new().chain_update(&self.key).chain_update(ACCEPT_SALT).finalize();
        let mut reply = Response::new(());
        *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = reply.headers_mut();
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        if let Ok(accept) = HeaderValue::from_str(&BASE64_STANDARD.encode(digest)) {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        if let Some(protocol) = &self.protocol {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol.clone());
        }
        reply
    }
}

/// A token in a subprotocol, and the other subprotocols.
struct Token {
    authorization: HeaderValue,
    others: Vec<Box<str>>,
}

/// The token among the subprotocols; `None` if there is none, or `Authorization` has one.
fn token(headers: &HeaderMap) -> Result<Option<Token>, BadHandshake> {
    if headers.contains_key(header::AUTHORIZATION) {
        return Ok(None);
    }
    let (tokens, others): (Vec<_>, Vec<_>) =
        subprotocols(headers).flat_map(names).partition(|name| name.starts_with(BEARER));
    let [token] = tokens[..] else {
        return if tokens.is_empty() { Ok(None) } else { Err(BadHandshake::Token) };
    };
    let token = token.strip_prefix(BEARER).unwrap_or_default();
    let token = BASE64_URL_SAFE_NO_PAD.decode(token).map_err(|_| BadHandshake::Token)?;
    let token = str::from_utf8(&token).ok().filter(|token| !token.is_empty());
    let bearer = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
    match bearer {
        Some(Ok(mut authorization)) if !others.is_empty() => {
            authorization.set_sensitive(true);
            let others = others.into_iter().map(Into::into).collect();
            Ok(Some(Token { authorization, others }))
        }
        _ => Err(BadHandshake::Token),
    }
}

/// Each line of the subprotocols that the client offers.
fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL);
    lines.into_iter().filter_map(|line| line.to_str().ok())
}

fn names(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// The one subprotocol, which the answer repeats.
fn one<'a>(mut names: impl Iterator<Item = &'a str>) -> Result<Option<&'a str>, BadHandshake> {
    match (names.next(), names.next()) {
        (first, None) => Ok(first),
        _ => Err(BadHandshake::Protocols),
    }
}

/// Whether an `Origin` is a URL, or a path as Go's `url.ParseRequestURI` reads one.
fn is_url(origin: &HeaderValue) -> bool {
    let uri = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    uri.is_some_and(|uri| uri.scheme().is_some() || uri.path().starts_with('/'))
}
