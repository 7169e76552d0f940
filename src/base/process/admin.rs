//! The port for people, probes and scrapers: a page a path, over HTTP/1.1 without TLS.
//!
//! Hides connections and their bounds, and how pages are written. Does not know which pages there
//! are.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{net::TcpListener, time::timeout};

use super::{accept_backoff::AcceptBackoff, connection_limit::ConnectionLimit};
use ctrlmesh_net::{addr::canonical, socket};

/// A scrape takes milliseconds; a peer still connected after this is considered gone.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// A request is one packet; a peer that has not sent its head by then has nothing to ask.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections at once. Kubelet and scraper need two.
const MAX_CONNECTIONS: usize = 32;

/// A page.
pub type Page = Response<Full<Bytes>>;

/// A request for a page.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The path.
    pub path: &'a str,
    /// Whether the peer has a loopback address.
    pub is_local: bool,
}

/// Serves the pages that `answer` returns, until it is dropped.
pub async fn serve<A>(listener: TcpListener, accept_backoff: Arc<AcceptBackoff>, answer: A)
where
    A: Fn(Asked<'_>) -> Page + Send + Sync + 'static,
{
    let answer = Arc::new(answer);
    let mut connections = ConnectionLimit::new(MAX_CONNECTIONS);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if socket::is_of_one_connection(&error) => continue,
            Err(error) => {
                accept_backoff.wait(&error).await;
                continue;
            }
        };
        let _ = socket::keep_alive(&stream);
        let answer = Arc::clone(&answer);
        connections.serve(canonical(peer).ip(), async move {
            let service = service_fn(move |request| {
                let page = page(&request, peer, &*answer);
                async move { Ok::<_, Infallible>(page) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let _ = timeout(CONNECTION_TIMEOUT, connection).await;
        });
    }
}

fn page(request: &Request<Incoming>, peer: SocketAddr, answer: &dyn Fn(Asked<'_>) -> Page) -> Page {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n".into());
    }
    let is_local = canonical(peer).ip().is_loopback();
    answer(Asked { path: request.uri().path(), is_local })
}

/// The page `/readyz`: a line for each check, good or bad; ready if all are good.
pub fn ready(checks: impl IntoIterator<Item = (&'static str, Result<String, String>)>) -> Page {
    let (mut body, mut code) = (String::new(), StatusCode::OK);
    for (name, state) in checks {
        match state {
            Ok(what) => body.push_str(&format!("[+]{name} ok: {what}\n")),
            Err(what) => {
                code = StatusCode::SERVICE_UNAVAILABLE;
                body.push_str(&format!("[-]{name} failed: {what}\n"));
            }
        }
    }
    text(code, body)
}

/// The page `/metrics`.
pub fn metrics(registry: &Registry) -> Page {
    let mut body = String::new();
    if encode(&mut body, registry).is_err() {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "metrics cannot be written\n".into());
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    reply(StatusCode::OK, kind, body)
}

/// A page of text.
pub fn text(code: StatusCode, body: String) -> Page {
    reply(code, "text/plain; charset=utf-8", body)
}

/// A page of JSON.
pub fn json(value: &serde_json::Value) -> Page {
    reply(StatusCode::OK, "application/json", format!("{value:#}\n"))
}

fn reply(code: StatusCode, kind: &'static str, body: String) -> Page {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = code;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}
