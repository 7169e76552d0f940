//! The webhook server of this pod's controller, as one data thread reaches it.
//!
//! Hides its connections: which there are, and that one that waited too long is gone. Does not know the content
//! of requests. Words: a line is a connection that is ready for requests.

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use http::{Request, Response, request};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client};

use super::head::{self, Hop};
use crate::{
    shared::Tasks,
    upstream::{Broken, ClientBody, Line, RequestBody, UpstreamBody, Whole, h1_requests, http2},
};
use ctrlmesh_net::{
    pair::{ForeignCertificate, OperatorTls},
    socket,
    tls::{H2, HTTP_11, tls_error},
};

/// Timeout of TCP and TLS, together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time after which a line is not used again: less than any server keeps one.
const IDLE: Duration = Duration::from_secs(15);
/// The most lines of one data thread.
const MOST: usize = 1024;

/// The webhook server.
pub(super) struct WebhookClient {
    tls: OperatorTls,
    tasks: Tasks,
    /// The connections that carry no request, or may carry several.
    lines: RefCell<Vec<KeptConnection>>,
    open: Rc<Cell<usize>>,
}

/// A line, and when it was last used.
struct KeptConnection {
    line: Rc<Line>,
    /// Whether it was offered HTTP/2.
    is_offered_h2: bool,
    at: SocketAddr,
    used: Instant,
}

/// An open connection, counted for as long as this lives.
struct Open(Rc<Cell<usize>>);

/// The way to the server of one client.
#[derive(Clone, Debug)]
pub(super) struct WebhookTarget {
    pub(super) at: SocketAddr,
    /// The name in the client's SNI.
    pub(super) name: Option<ServerName<'static>>,
    /// Whether the client offers HTTP/2: the server is offered the same.
    pub(super) offers_h2: bool,
}

/// Reasons why a request was not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotSent {
    #[error("does not accept connections")]
    Unreachable(#[source] io::Error),
    #[error("does not answer within {DIAL_TIMEOUT:?}")]
    Silent,
    #[error("shows a certificate that certDir does not hold")]
    Stranger,
    #[error("asks for a client certificate, which the proxy has not: leave spec.webhook out")]
    AsksForCertificate,
    #[error("does not speak TLS as we do")]
    Tls(#[source] io::Error),
    #[error("has {MOST} requests under way")]
    Full,
    #[error("closed the connection before it took the request")]
    Closed,
}

/// A request, and its body once more if all of it was held.
pub(super) struct Outgoing {
    pub(super) head: request::Parts,
    pub(super) body: ClientBody,
    pub(super) again: Option<Whole>,
    /// Whether a webhook server may get it twice. Reviews are made to be: the API server itself asks
    /// again when a write meets another one (`GuaranteedUpdate`), or a later webhook changes the object.
    pub(super) is_repeatable: bool,
}

/// The end of a request that was not answered.
pub(super) enum Failed {
    /// With the request, if nothing of it was sent.
    NotSent(NotSent, Option<Box<Outgoing>>),
    Broken(Broken),
}

impl WebhookTarget {
    /// The way of a request that a peer has sent on: as the API server came to that pod. The name in
    /// its SNI is that of the URL.
    pub(super) fn of_received<B>(&self, hop: &Hop, request: &Request<B>) -> Self {
        let host = request.uri().host().map(str::to_owned);
        let name = host.and_then(|host| ServerName::try_from(host).ok());
        Self { at: self.at, name, offers_h2: hop.offers_h2 }
    }
}

impl Outgoing {
    pub(super) fn of(request: Request<ClientBody>) -> Self {
        let (head, body) = request.into_parts();
        let (again, is_repeatable) = (body.held_whole(), head.method.is_idempotent());
        Self { head, body, again, is_repeatable }
    }

    pub(super) fn of_review(request: Request<ClientBody>) -> Self {
        Self { is_repeatable: true, ..Self::of(request) }
    }

    /// The request once more, if all of its body was held.
    pub(super) fn copy(&self) -> Option<Self> {
        let whole = self.again.clone()?;
        let body = ClientBody::of_whole(whole.clone());
        Some(Self {
            head: self.head.clone(),
            body,
            again: Some(whole),
            is_repeatable: self.is_repeatable,
        })
    }

    /// The request in the form of HTTP/2 or of HTTP/1.1.
    pub(super) fn into_request(self, is_h2: bool) -> Request<RequestBody> {
        let Self { mut head, body, .. } = self;
        head::fit(&mut head, is_h2);
        Request::from_parts(head, RequestBody::Left(body))
    }
}

impl WebhookClient {
    pub(super) fn new(tls: OperatorTls, tasks: Tasks) -> Self {
        Self { tls, tasks, lines: RefCell::default(), open: Rc::default() }
    }

    /// Whether the server speaks HTTP/2 to a client that offers this. Dials it if no line is free.
    pub(super) async fn is_h2(&self, target: &WebhookTarget) -> Result<bool, NotSent> {
        let line = self.take(target).await?;
        let is_h2 = line.is_h2();
        self.keep(target, line);
        Ok(is_h2)
    }

    /// Sends a request, once more if the server closed the line before it took the first, or may have.
    pub(super) async fn send(
        &self,
        target: &WebhookTarget,
        outgoing: Outgoing,
    ) -> Result<Response<UpstreamBody>, Failed> {
        let mut line = match self.take(target).await {
            Ok(line) => line,
            Err(why) => return Err(Failed::NotSent(why, Some(Box::new(outgoing)))),
        };
        let (again, is_repeatable) = (outgoing.copy(), outgoing.is_repeatable);
        let mut sent = line.send(outgoing.into_request(line.is_h2())).await;
        let is_to_repeat = match &sent {
            Ok(_) | Err(Broken::Upstream(_)) => false,
            Err(Broken::Unprocessed(_)) => true,
            Err(Broken::Closed(_)) => is_repeatable,
        };
        if let (true, Some(again)) = (is_to_repeat, again) {
            line = match self.dial(target).await {
                Ok(line) => line,
                Err(why) => return Err(Failed::NotSent(why, Some(Box::new(again)))),
            };
            sent = line.send(again.into_request(line.is_h2())).await;
        }
        let reply = sent.map_err(failed)?;
        self.keep(target, line);
        Ok(reply)
    }

    /// A line that is free, or a new one. One of HTTP/1.1 is the caller's alone until it is kept.
    async fn take(&self, target: &WebhookTarget) -> Result<Rc<Line>, NotSent> {
        if let Some(line) = self.free(target) {
            return Ok(line);
        }
        self.dial(target).await
    }

    fn free(&self, target: &WebhookTarget) -> Option<Rc<Line>> {
        let now = Instant::now();
        let mut lines = self.lines.borrow_mut();
        lines.retain(|kept| !kept.line.is_over() && now.duration_since(kept.used) <= IDLE);
        let is_free = |kept: &KeptConnection| {
            kept.at == target.at && kept.is_offered_h2 == target.offers_h2 && kept.line.is_free()
        };
        let at = lines.iter().rposition(is_free)?;
        if lines[at].line.is_h2() {
            lines[at].used = now;
            return Some(Rc::clone(&lines[at].line));
        }
        Some(lines.remove(at).line)
    }

    fn keep(&self, target: &WebhookTarget, line: Rc<Line>) {
        let mut lines = self.lines.borrow_mut();
        if lines.iter().any(|kept| Rc::ptr_eq(&kept.line, &line)) {
            return;
        }
        let used = Instant::now();
        lines.push(KeptConnection { line, is_offered_h2: target.offers_h2, at: target.at, used });
    }

    async fn dial(&self, target: &WebhookTarget) -> Result<Rc<Line>, NotSent> {
        if self.open.get() >= MOST {
            return Err(NotSent::Full);
        }
        // Boxed, as it is rare and large: a request's future is copied when its task starts.
        let line = timeout(DIAL_TIMEOUT, Box::pin(self.connect(target))).await;
        line.unwrap_or(Err(NotSent::Silent)).map(Rc::new)
    }

    async fn connect(&self, target: &WebhookTarget) -> Result<Line, NotSent> {
        let tcp = socket::dial(target.at).await.map_err(NotSent::Unreachable)?;
        let protocols: &[&[u8]] = if target.offers_h2 { &[H2, HTTP_11] } else { &[HTTP_11] };
        let config = Arc::new(self.tls.offering(protocols.iter().copied()));
        let name = target.name.clone().unwrap_or_else(|| ServerName::from(target.at.ip()));
        let stream: client::TlsStream<TcpStream> =
            TlsConnector::from(config).connect(name, tcp).await.map_err(not_trusted)?;
        if stream.get_ref().1.alpn_protocol() == Some(H2) {
            let (sender, connection) =
                http2::connect(stream, http2::OF_API_SERVER).await.map_err(|_| NotSent::Closed)?;
            self.run(connection.run());
            return Ok(Line::H2(sender));
        }
        let (sender, connection) =
            h1_requests().handshake(TokioIo::new(stream)).await.map_err(|_| NotSent::Closed)?;
        self.run(async move {
            // The requests on it have the error.
            let _ = connection.await;
        });
        Ok(Line::H1(RefCell::new(sender)))
    }

    fn run(&self, connection: impl Future<Output = ()> + 'static) {
        let open = Open::one_of(&self.open);
        self.tasks.spawn(async move {
            connection.await;
            drop(open);
        });
    }
}

impl Open {
    fn one_of(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn failed(broken: Broken) -> Failed {
    match broken {
        Broken::Unprocessed(_) => Failed::NotSent(NotSent::Closed, None),
        broken if asks_for_certificate(&broken) => {
            Failed::NotSent(NotSent::AsksForCertificate, None)
        }
        broken => Failed::Broken(broken),
    }
}

/// In TLS 1.3 a server refuses a client without a certificate after the handshake.
fn asks_for_certificate(broken: &Broken) -> bool {
    let mut causes =
        std::iter::successors(Some(broken as &dyn std::error::Error), |error| (*error).source());
    causes.any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.and_then(tls_error).is_some_and(is_certificate_asked_for)
    })
}

fn is_certificate_asked_for(error: &rustls::Error) -> bool {
    use rustls::AlertDescription::CertificateRequired;
    matches!(error, rustls::Error::AlertReceived(CertificateRequired))
}

fn not_trusted(error: io::Error) -> NotSent {
    match tls_error(&error) {
        Some(why) if ForeignCertificate::is_reason_of(why) => NotSent::Stranger,
        Some(why) if is_certificate_asked_for(why) => NotSent::AsksForCertificate,
        _ => NotSent::Tls(error),
    }
}
