//! Clients like those of controllers, and some that differ from all of them.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use ctrlmesh::net::tls::{self, H2, HTTP_11, roots_from_pem};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    PATIENCE, TOKEN,
    proxy::Proxy,
    soon,
    upstream::{Stream, scripted},
};

pub type AnyBody = BoxBody<Bytes, io::Error>;

/// A client on one connection.
pub struct Client {
    sender: Sender,
    tasks: JoinSet<Result<(), hyper::Error>>,
}

enum Sender {
    H1(http1::SendRequest<AnyBody>),
    H2(http2::SendRequest<AnyBody>),
}

/// The HTTP version of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    One,
    Two,
}

impl Http {
    pub const BOTH: [Self; 2] = [Self::One, Self::Two];

    pub fn alpn(self) -> &'static [u8] {
        match self {
            Self::One => HTTP_11,
            Self::Two => H2,
        }
    }
}

/// The TLS configuration of a client that trusts `ca`.
pub fn config(ca: &[u8], alpn: &[&[u8]]) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots_from_pem(ca).unwrap())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// A TLS connection to `addr` that expects `name` there.
pub async fn connect(
    addr: SocketAddr,
    config: ClientConfig,
    name: &str,
) -> io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(addr).await?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    soon("the TLS handshake", TlsConnector::from(Arc::new(config)).connect(name, tcp)).await
}

/// A request with the fixture's token and no body.
pub fn request(method: Method, target: &str) -> Request<AnyBody> {
    request_with(method, target, "")
}

pub fn request_with(method: Method, target: &str, body: impl Into<Bytes>) -> Request<AnyBody> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed();
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = target.parse::<PathAndQuery>().unwrap().into();
    let token = HeaderValue::from_str(&format!("Bearer {TOKEN}")).unwrap();
    request.headers_mut().insert(header::AUTHORIZATION, token);
    request
}

/// The same with a body that the test writes.
pub fn upload(method: Method, target: &str) -> (Request<AnyBody>, Stream) {
    let (stream, script) = scripted();
    let request = request(method, target).map(|_| script.map_err(io::Error::other).boxed());
    (request, stream)
}

impl Client {
    pub async fn new(proxy: &Proxy, http: Http) -> Self {
        Self::to(proxy.addr, &proxy.files.mesh_ca_pem(), http).await
    }

    pub async fn to(addr: SocketAddr, ca: &[u8], http: Http) -> Self {
        let tls = connect(addr, config(ca, &[http.alpn()]), "kubernetes").await.unwrap();
        Self::over(tls, http, 64 << 10).await
    }

    /// A client on `tls`, in HTTP/2 with a stream window of `window` bytes.
    pub async fn over(tls: TlsStream<TcpStream>, http: Http, window: u32) -> Self {
        let mut tasks = JoinSet::new();
        let io = TokioIo::new(tls);
        let sender = match http {
            Http::One => {
                let builder = &mut http1::Builder::new();
                let (sender, connection) =
                    builder.max_headers(4096).max_buf_size(4 << 20).handshake(io).await.unwrap();
                tasks.spawn(connection.with_upgrades());
                Sender::H1(sender)
            }
            Http::Two => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(window)
                    .initial_connection_window_size(64 << 20)
                    .max_header_list_size(4 << 20)
                    .handshake(io)
                    .await
                    .unwrap();
                tasks.spawn(connection);
                Sender::H2(sender)
            }
        };
        Self { sender, tasks }
    }

    /// Starts a request; the future resolves to the response's head.
    pub fn send(
        &mut self,
        request: Request<AnyBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, hyper::Error>> + use<> {
        self.send_within(PATIENCE, request)
    }

    /// The same, for a head that may take so long.
    pub fn send_within(
        &mut self,
        limit: Duration,
        mut request: Request<AnyBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, hyper::Error>> + use<> {
        let sending: std::pin::Pin<Box<dyn Future<Output = _> + Send>> = match &mut self.sender {
            Sender::H1(sender) => {
                request.headers_mut().insert(header::HOST, HeaderValue::from_static("kubernetes"));
                Box::pin(sender.send_request(request))
            }
            Sender::H2(sender) => {
                let mut parts = std::mem::take(request.uri_mut()).into_parts();
                parts.scheme = Some("https".parse().unwrap());
                parts.authority = Some("kubernetes".parse().unwrap());
                *request.uri_mut() = Uri::from_parts(parts).unwrap();
                Box::pin(sender.send_request(request))
            }
        };
        async move { timeout(limit, sending).await.expect("the head of an answer came in time") }
    }

    /// Starts an HTTP/2 request without the pseudo-header `:authority`.
    pub fn send_without_authority(
        &mut self,
        request: Request<AnyBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, hyper::Error>> + use<> {
        let Sender::H2(sender) = &mut self.sender else { panic!("this is about HTTP/2") };
        // This is the form of a forwarded HTTP/1.1 request.
        let sending = sender.send_request(request);
        async { soon("the head of an answer", sending).await }
    }

    pub async fn get(&mut self, target: &str) -> Response<Incoming> {
        self.send(request(Method::GET, target)).await.unwrap()
    }

    /// Closes the connection in an orderly way and waits for its end. A dropped client vanishes
    /// without close, with all that it has not read.
    pub async fn close(self) {
        let Self { sender, mut tasks } = self;
        drop(sender);
        let _ = soon("the end of the connection", tasks.join_next()).await;
    }

    /// Waits until the connection has ended, with or without an error.
    pub async fn ended(&mut self) -> Result<(), hyper::Error> {
        soon("the end of the connection", self.tasks.join_next()).await.unwrap().unwrap()
    }

    /// Waits until the connection takes a request.
    pub async fn ready(&mut self) -> Result<(), hyper::Error> {
        match &mut self.sender {
            Sender::H1(sender) => soon("the connection", sender.ready()).await,
            Sender::H2(sender) => soon("the connection", sender.ready()).await,
        }
    }

    /// Whether the connection takes no more requests.
    pub fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::H1(sender) => sender.is_closed(),
            Sender::H2(sender) => sender.is_closed(),
        }
    }
}

/// The whole body, or the error that ended it.
pub async fn whole(response: Response<Incoming>) -> Result<(StatusCode, Bytes), hyper::Error> {
    let (head, body) = response.into_parts();
    let body = soon("the answer's body", body.collect()).await?;
    Ok((head.status, body.to_bytes()))
}

pub async fn text(response: Response<Incoming>) -> (u16, String) {
    let (code, body) = whole(response).await.unwrap();
    (code.as_u16(), String::from_utf8_lossy(&body).into_owned())
}

/// The next bytes of a body. `None` at its orderly end.
pub async fn chunk(response: &mut Response<Incoming>) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        let frame = soon("more of the answer's body", response.body_mut().frame()).await?;
        let chunk = frame.map(|frame| frame.into_data().unwrap_or_default());
        if !chunk.as_ref().is_ok_and(Bytes::is_empty) {
            return Some(chunk);
        }
    }
}

/// Reads `count` bytes or more.
pub async fn bytes(response: &mut Response<Incoming>, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(chunk(response).await.expect("the body goes on").expect("it is whole"));
    }
    all
}
