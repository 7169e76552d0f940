//! One request to the manager: a certificate for a key of ours, by the token of our pod.
//!
//! Token and CAs are read for each request: the kubelet replaces the one, the manager the others.

use std::{
    fs::File,
    io::{self, Read},
    iter,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use serde::Deserialize;
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use ctrlmesh_net::{
    Clock, ManagerAddr,
    leaf::{BadLeaf, enrolment::LeafRequest},
    socket,
    tls::{BadRoots, HTTP_11, UpstreamTls, read_roots},
};

/// The path of the request.
const PATH: &str = "/v1/leaf";
/// The type of its body.
const PKCS10: &str = "application/pkcs10";
/// Timeout of the TCP connection to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a request, its connection included.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum length of a response's body, in bytes: dozens of certificates.
const MAX_ANSWER: usize = 64 << 10;
/// Maximum length of the token's file, in bytes. The API server's have about one KiB.
const MAX_TOKEN: u64 = 64 << 10;
/// Maximum length of a message of the manager, in characters: it becomes one line.
const MAX_MESSAGE: usize = 512;

/// The manager, and the files that a request to it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// The manager's address.
    pub addr: ManagerAddr,
    /// The file of the CAs of its certificate.
    pub ca: PathBuf,
    /// The file of the token.
    pub token: PathBuf,
}

/// The reason why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotEnrolled {
    #[error("the request could not be made")]
    Request(#[from] rcgen::Error),
    #[error("--manager-token {}", .0.display())]
    Token(PathBuf, #[source] BadToken),
    #[error("--manager-ca")]
    Ca(#[from] BadRoots),
    #[error("TLS")]
    Tls(#[from] rustls::Error),
    #[error("its name cannot be looked up")]
    Lookup(#[source] io::Error),
    #[error("its name has no address")]
    NoAddress,
    #[error("cannot be reached at {0}")]
    Dial(SocketAddr, #[source] io::Error),
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
    #[error("the request or its response was cut off")]
    Http(#[from] hyper::Error),
    #[error("no response within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("the response has more than {MAX_ANSWER} bytes")]
    TooLong,
    #[error("the response is {0}")]
    Refused(Denial),
    #[error("the response")]
    Certificate(#[source] BadLeaf),
}

/// A response without a certificate.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{code}{}", message.as_deref().map(|it| format!(": {it}")).unwrap_or_default())]
pub(crate) struct Denial {
    pub(super) code: u16,
    /// The message of its Status. `None` if it has none, as those of other programs.
    pub(super) message: Option<String>,
    pub(super) retry_after: Option<Duration>,
}

/// The reason why a file holds no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadToken {
    #[error("cannot be read")]
    Unreadable(#[source] io::Error),
    #[error("holds no token: one line is needed, as the kubelet writes it")]
    NoToken,
}

/// The members of a Status that are shown.
#[derive(Deserialize)]
struct Said {
    message: String,
}

impl NotEnrolled {
    /// The value of the metric's label.
    pub(super) fn result(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Certificate(_) | Self::TooLong => "bad_certificate",
            _ => "unreachable",
        }
    }
}

impl Manager {
    /// Asks for a certificate; returns the body of the response, which no one has looked at.
    pub(super) async fn ask(&self, key: &LeafRequest, clock: &Clock) -> Result<Bytes, NotEnrolled> {
        let request = self.request(key)?;
        let tls = UpstreamTls::new(read_roots(&self.ca)?, clock)?.offering(iter::once(HTTP_11));
        let answered = Box::pin(async { exchange(self.connect(tls).await?, request).await });
        timeout(TIMEOUT, answered).await.unwrap_or(Err(NotEnrolled::Timeout))
    }

    fn request(&self, key: &LeafRequest) -> Result<Request<Full<Bytes>>, NotEnrolled> {
        let bad = |why| NotEnrolled::Token(self.token.clone(), why);
        let credential = credential(&self.token).map_err(bad)?;
        let host = HeaderValue::try_from(self.addr.to_string());
        let mut request = Request::new(Full::new(Bytes::copy_from_slice(key.der())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = http::Uri::from_static(PATH);
        let headers = request.headers_mut();
        headers.extend(host.ok().map(|host| (header::HOST, host)));
        headers.insert(header::AUTHORIZATION, credential);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PKCS10));
        let agent = concat!("ctrlmesh/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        Ok(request)
    }

    /// Connects to the first of the addresses that answers, and verifies who does.
    async fn connect(&self, tls: ClientConfig) -> Result<TlsStream<TcpStream>, NotEnrolled> {
        let host = self.addr.host().to_str().into_owned();
        let found = lookup_host((host, self.addr.port())).await.map_err(NotEnrolled::Lookup)?;
        let tcp = dial(found).await?;
        let connecting = TlsConnector::from(Arc::new(tls)).connect(self.addr.host().clone(), tcp);
        connecting.await.map_err(NotEnrolled::Handshake)
    }
}

/// Dials one address after the other, until one answers.
async fn dial(addrs: impl Iterator<Item = SocketAddr>) -> Result<TcpStream, NotEnrolled> {
    let mut failed = NotEnrolled::NoAddress;
    for addr in addrs {
        let dialled = timeout(CONNECT_TIMEOUT, socket::dial(addr)).await;
        match dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(tcp) => return Ok(tcp),
            Err(error) => failed = NotEnrolled::Dial(addr, error),
        }
    }
    Err(failed)
}

/// Sends the request and reads the whole response.
async fn exchange(
    stream: TlsStream<TcpStream>,
    request: Request<Full<Bytes>>,
) -> Result<Bytes, NotEnrolled> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answered = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        match body {
            Ok(body) => Ok((head, body.to_bytes())),
            Err(error) => Err(match error.downcast::<hyper::Error>() {
                Ok(error) => (*error).into(),
                Err(_) => NotEnrolled::TooLong,
            }),
        }
    };
    tokio::pin!(answered);
    let (head, body) = tokio::select! {
        answered = &mut answered => answered?,
        // The response may be there already; if it is not, this fails with the connection's error.
        _ = connection => answered.await?,
    };
    match head.status {
        StatusCode::OK => Ok(body),
        status => Err(NotEnrolled::Refused(Denial {
            code: status.as_u16(),
            message: message(&body),
            retry_after: retry_after(&head.headers),
        })),
    }
}

/// The `Authorization` of the token in a file.
fn credential(path: &Path) -> Result<HeaderValue, BadToken> {
    let mut token = String::new();
    let file = File::open(path).map_err(BadToken::Unreadable)?;
    file.take(MAX_TOKEN).read_to_string(&mut token).map_err(BadToken::Unreadable)?;
    let token = token.trim();
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let bearer = HeaderValue::try_from(format!("Bearer {token}"));
    let mut bearer = bearer.ok().filter(|_| is_token).ok_or(BadToken::NoToken)?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

/// The message of a Status, as one line.
fn message(body: &[u8]) -> Option<String> {
    let Said { message } = serde_json::from_slice(body).ok()?;
    let words = message.split(|c: char| c.is_whitespace() || c.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    Some(line.chars().take(MAX_MESSAGE).collect())
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn all_addresses_of_a_name_are_tried_in_turn() {
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let alive = alive.local_addr().map(|addr| (alive, addr)).unwrap();
        let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let tcp = dial([dead, alive.1].into_iter()).await.unwrap();
        assert_eq!(tcp.peer_addr().unwrap(), alive.1);
        let failed = dial([dead].into_iter()).await.unwrap_err().to_string();
        assert_eq!(failed, format!("cannot be reached at {dead}"));
        let failed = dial([].into_iter()).await.unwrap_err();
        assert!(matches!(failed, NotEnrolled::NoAddress));
    }

    #[test]
    fn a_token_is_one_word_and_is_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            credential(&path)
        };
        let bearer = read("header.body.signature\n").unwrap();
        assert_eq!(bearer.to_str().unwrap(), "Bearer header.body.signature");
        assert!(!format!("{bearer:?}").contains("body"));
        for text in ["", " \n", "two words", "two\nlines", "\u{7f}", "ü"] {
            assert!(matches!(read(text), Err(BadToken::NoToken)), "{text:?}");
        }
        assert!(matches!(credential(dir.path()), Err(BadToken::Unreadable(_))));
    }

    #[test]
    fn a_message_is_one_line_of_bounded_length_or_none() {
        let said = |text: &str| message(text.as_bytes());
        let status = |text: &str| format!("{{\"kind\":\"Status\",\"message\":\"{text}\"}}");
        assert_eq!(said(&status("no\\n\\tproof\\u0000!")).unwrap(), "no proof !");
        assert_eq!(said(&status(&"long".repeat(1000))).unwrap().len(), MAX_MESSAGE);
        for none in ["", "<html>", "[]", "{\"code\":500}", "{\"message\":5}"] {
            assert_eq!(said(none), None, "{none}");
        }
    }

    #[test]
    fn a_retry_is_asked_for_in_seconds() {
        let of = |text: &'static str| {
            retry_after(&HeaderMap::from_iter([(
                header::RETRY_AFTER,
                HeaderValue::from_static(text),
            )]))
        };
        assert_eq!(of("30"), Some(Duration::from_secs(30)));
        for none in ["", "-1", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT", "99999999999999999999"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
