//! A scripted API server: a test answers each request.
//!
//! Each request that arrives becomes a [`Call`]: the test reads it and writes the response, chunk
//! by chunk if needed. The call and its [`Stream`] also report whether the client has given up the
//! request or the response.

use std::{
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use ctrlmesh::{
    net::tls::{H2, HTTP_11},
    wire::Query,
};
use http::{HeaderValue, Request, Response, StatusCode, header, request::Parts};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::{
    client::Http,
    pki::{Ca, Cert},
    soon,
};

/// The server. Dropping it ends every connection.
pub struct Upstream {
    pub addr: SocketAddr,
    pub ca: Ca,
    calls: Option<mpsc::Receiver<Call>>,
    state: Arc<State>,
    tasks: JoinSet<()>,
}

/// A port that refuses connections, and that no one else can take until something listens there.
pub struct Place(TcpSocket);

impl Place {
    pub fn at(addr: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        // The port is kept before its listener has let go of it.
        socket.set_reuseport(true).unwrap();
        socket.bind(addr).unwrap();
        Self(socket)
    }

    pub fn listen(self) -> TcpListener {
        self.0.listen(1024).unwrap()
    }
}

/// The behaviour from the first connection on.
#[derive(Clone, Debug)]
pub struct Behaviour {
    pub alpn: Vec<&'static [u8]>,
    pub cert: Cert,
    /// `SETTINGS_MAX_CONCURRENT_STREAMS`.
    pub max_streams: Option<u32>,
    /// Whether connections wait for [`Upstream::open_gate`] before their first HTTP byte.
    pub gate: bool,
    /// Whether the test answers the proxy's looks at resources that no limit names. Else they show nothing.
    pub has_looks: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        let alpn = vec![H2, HTTP_11];
        Self { alpn, cert: Cert::Good, max_streams: Some(250), gate: false, has_looks: false }
    }
}

struct State {
    behaviour: Behaviour,
    tls: Arc<ServerConfig>,
    gate: watch::Sender<bool>,
    connections: Mutex<Vec<mpsc::Sender<Order>>>,
    accepted: AtomicUsize,
    handshakes: AtomicUsize,
    server_names: Mutex<Vec<Option<String>>>,
    open: watch::Sender<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    GoAway,
    Kill,
}

/// The head of a request that arrived.
#[derive(Clone, Debug)]
pub struct Head {
    pub parts: Parts,
    /// The number of its connection, from 0.
    pub connection: usize,
}

/// One request that arrived.
pub struct Call {
    pub head: Head,
    body: Incoming,
    reply: oneshot::Sender<Option<Response<Script>>>,
    upgrade: Option<OnUpgrade>,
}

/// The sender of a body that the test writes.
pub struct Stream(mpsc::Sender<Result<Bytes, Torn>>);

/// The error that aborts a body.
#[derive(Debug, thiserror::Error)]
#[error("torn by the test")]
pub struct Torn;

/// A body that a test writes, and its sender.
pub fn scripted() -> (Stream, Script) {
    let (tx, rx) = mpsc::channel(1);
    (Stream(tx), Script(rx))
}

/// A body that a test writes.
pub struct Script(mpsc::Receiver<Result<Bytes, Torn>>);

impl Upstream {
    pub async fn start() -> Self {
        Self::with(Behaviour::default()).await
    }

    /// A server of this HTTP version only.
    pub async fn speaking(http: Http) -> Self {
        Self::with(Behaviour { alpn: vec![http.alpn()], ..Behaviour::default() }).await
    }

    pub async fn with(behaviour: Behaviour) -> Self {
        let place = Place::at("127.0.0.1:0".parse().unwrap());
        Self::on(place.listen(), Ca::new("the cluster's CA"), behaviour)
    }

    pub fn on(listener: TcpListener, ca: Ca, behaviour: Behaviour) -> Self {
        let tls = ca.server(behaviour.cert, &behaviour.alpn);
        Self::showing(listener, ca, behaviour, tls)
    }

    /// The same with this TLS configuration.
    pub fn showing(listener: TcpListener, ca: Ca, behaviour: Behaviour, tls: ServerConfig) -> Self {
        let addr = listener.local_addr().unwrap();
        let tls = Arc::new(tls);
        let (calls_tx, calls) = mpsc::channel(1024);
        let state = Arc::new(State {
            gate: watch::Sender::new(!behaviour.gate),
            behaviour,
            tls,
            connections: Mutex::default(),
            accepted: AtomicUsize::new(0),
            handshakes: AtomicUsize::new(0),
            server_names: Mutex::default(),
            open: watch::Sender::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&state), calls_tx));
        Self { addr, ca, calls: Some(calls), state, tasks }
    }

    /// Stops as a process does, with every connection. [`Self::on`] starts it again in its place.
    pub async fn down(mut self) -> (Place, Ca) {
        let place = Place::at(self.addr);
        self.tasks.shutdown().await;
        (place, self.ca)
    }

    /// The next request.
    pub async fn call(&mut self) -> Call {
        let calls = self.calls.as_mut().expect("the calls are served by a closure");
        soon("a request at the upstream", calls.recv()).await.expect("the upstream is up")
    }

    /// Whether no request waits for the test.
    pub fn is_quiet(&mut self) -> bool {
        self.calls.as_mut().expect("the calls are served by a closure").is_empty()
    }

    /// Answers every request by `answer` from now on.
    pub fn serve(&mut self, mut answer: impl FnMut(Call) + Send + 'static) {
        let mut calls = self.calls.take().expect("served once");
        self.tasks.spawn(async move {
            while let Some(call) = calls.recv().await {
                answer(call);
            }
        });
    }

    /// The number of TCP connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(SeqCst)
    }

    /// The number of completed TLS handshakes; each completes before the first byte of a request.
    pub fn handshakes(&self) -> usize {
        self.state.handshakes.load(SeqCst)
    }

    /// The server name (SNI) of each of these handshakes.
    pub fn server_names(&self) -> Vec<Option<String>> {
        self.state.server_names.lock().unwrap().clone()
    }

    /// Waits until exactly this many connections are open.
    pub async fn open_connections(&self, count: usize) {
        let mut open = self.state.open.subscribe();
        soon("the number of upstream connections", open.wait_for(|open| *open == count))
            .await
            .unwrap();
    }

    pub fn open_gate(&self) {
        self.state.gate.send_replace(true);
    }

    /// Sends GOAWAY, or closes an HTTP/1.1 connection after its current response.
    pub async fn go_away(&self, connection: usize) {
        self.order(connection, Order::GoAway).await;
    }

    /// Cuts the connection: no close_notify, no GOAWAY.
    pub async fn kill(&self, connection: usize) {
        self.order(connection, Order::Kill).await;
    }

    async fn order(&self, connection: usize, order: Order) {
        let tx = self.state.connections.lock().unwrap()[connection].clone();
        tx.send(order).await.unwrap();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>, calls: mpsc::Sender<Call>) {
    let mut connections = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        tcp.set_nodelay(true).unwrap();
        let number = state.accepted.fetch_add(1, SeqCst);
        let (tx, orders) = mpsc::channel(4);
        state.connections.lock().unwrap().push(tx);
        state.open.send_modify(|open| *open += 1);
        let (state, calls) = (Arc::clone(&state), calls.clone());
        connections.spawn(async move {
            connection(tcp, number, &state, calls, orders).await;
            state.open.send_modify(|open| *open -= 1);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(
    tcp: TcpStream,
    number: usize,
    state: &State,
    calls: mpsc::Sender<Call>,
    mut orders: mpsc::Receiver<Order>,
) {
    let Ok(tls) = TlsAcceptor::from(Arc::clone(&state.tls)).accept(tcp).await else { return };
    state.handshakes.fetch_add(1, SeqCst);
    let name = tls.get_ref().1.server_name().map(str::to_owned);
    state.server_names.lock().unwrap().push(name);
    let is_h2 = tls.get_ref().1.alpn_protocol() == Some(H2);
    state.gate.subscribe().wait_for(|open| *open).await.unwrap();
    let has_looks = state.behaviour.has_looks;
    let service = service_fn(move |request| {
        let calls = calls.clone();
        async move {
            match !has_looks && is_look(&request) {
                true => Ok(empty_list()),
                false => take(request, number, calls).await,
            }
        }
    });
    macro_rules! drive {
        ($connection:expr) => {{
            let mut connection = pin!($connection);
            loop {
                tokio::select! {
                    _ = connection.as_mut() => return,
                    order = orders.recv() => match order {
                        Some(Order::GoAway) => connection.as_mut().graceful_shutdown(),
                        Some(Order::Kill) | None => return,
                    }
                }
            }
        }};
    }
    if is_h2 {
        drive!(
            conn::http2::Builder::new(TokioExecutor::new())
                .max_concurrent_streams(state.behaviour.max_streams)
                .max_pending_accept_reset_streams(1000)
                .max_header_list_size(4 << 20)
                // As the API server's.
                .initial_stream_window_size(256 << 10)
                .initial_connection_window_size(64 << 20)
                .serve_connection(TokioIo::new(tls), service)
        )
    } else {
        drive!(
            conn::http1::Builder::new()
                .max_headers(4096)
                .max_buf_size(4 << 20)
                .serve_connection(TokioIo::new(tls), service)
                .with_upgrades()
        )
    }
}

/// Whether this is a look of the proxy's own at a resource that a client begins to watch.
fn is_look(request: &Request<Incoming>) -> bool {
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let is_of_metadata = accept.is_some_and(|accept| accept.contains("PartialObjectMetadataList"));
    is_of_metadata && request.uri().query() == Some("limit=500&timeoutSeconds=5")
}

fn empty_list() -> Response<Script> {
    let (stream, response) = answer(200, &[("content-type", "application/json")]);
    stream
        .0
        .try_send(Ok("{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[]}".into()))
        .unwrap();
    response
}

async fn take(
    mut request: Request<Incoming>,
    connection: usize,
    calls: mpsc::Sender<Call>,
) -> Result<Response<Script>, Torn> {
    let upgrade =
        request.headers().contains_key(header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let (head, body) = request.into_parts();
    let (reply, replied) = oneshot::channel();
    let head = Head { parts: head, connection };
    calls.send(Call { head, body, reply, upgrade }).await.map_err(|_| Torn)?;
    replied.await.ok().flatten().ok_or(Torn)
}

impl Head {
    /// The request target as received.
    pub fn target(&self) -> &str {
        self.parts.uri.path_and_query().map_or("", |target| target.as_str())
    }

    pub fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// The first value of a query parameter, decoded.
    pub fn query(&self, key: &str) -> Option<String> {
        Query::parse(self.parts.uri.query()).unwrap().first(key).map(|value| value.into_owned())
    }

    /// Every value of a header, joined as HTTP joins them.
    pub fn header(&self, name: &str) -> Option<String> {
        let all: Vec<_> =
            self.parts.headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect();
        (!all.is_empty()).then(|| all.join(","))
    }
}

impl std::ops::Deref for Call {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

impl Call {
    /// Reads the body to its end or its error.
    pub async fn body(&mut self) -> Result<Bytes, hyper::Error> {
        soon("the request's body", (&mut self.body).collect()).await.map(|body| body.to_bytes())
    }

    /// Waits for the next bytes of the body.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        let frame = soon("a part of the request's body", self.body.frame()).await?;
        Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
    }

    /// Resolves once the client has given up the request.
    pub async fn given_up(&mut self) {
        soon("the end of the request", self.reply.closed()).await;
    }

    /// Answers with a whole body.
    pub fn reply(self, code: u16, kind: &str, body: impl Into<Bytes>) {
        let body = body.into();
        let length = body.len().to_string();
        let stream =
            self.stream(code, &[("content-type", kind), ("content-length", length.as_str())]);
        stream.0.try_send(Ok(body)).unwrap();
    }

    pub fn json(self, code: u16, body: &str) {
        self.reply(code, "application/json", body.to_owned());
    }

    /// Answers before the request's body has ended. While the test holds the rest, the connection stays
    /// open: a server that closes it over unread bytes may reset it, and the answer with it.
    pub fn json_early(self, code: u16, body: &str) -> Incoming {
        let (stream, response) = answer(code, &[("content-type", "application/json")]);
        stream.0.try_send(Ok(body.to_owned().into())).unwrap();
        let _ = self.reply.send(Some(response));
        self.body
    }

    /// Answers with a head; the test writes the body.
    pub fn stream(self, code: u16, headers: &[(&str, &str)]) -> Stream {
        let (stream, response) = answer(code, headers);
        let _ = self.reply.send(Some(response));
        stream
    }

    /// Answers with a watch that stays open.
    pub fn watch(self) -> Stream {
        self.stream(200, &[("content-type", "application/json")])
    }

    /// Resets the stream, or closes an HTTP/1.1 connection, without an answer.
    pub fn reset(self) {
        let _ = self.reply.send(None);
    }

    /// Switches protocols and hands the connection to the test.
    pub async fn switch(mut self, protocol: &str) -> TokioIo<hyper::upgrade::Upgraded> {
        let upgrade = self.upgrade.take().expect("the request asks for an upgrade");
        drop(self.stream(101, &[("connection", "Upgrade"), ("upgrade", protocol)]));
        TokioIo::new(soon("the upgrade", upgrade).await.unwrap())
    }
}

/// A head, and the sender of its body.
fn answer(code: u16, headers: &[(&str, &str)]) -> (Stream, Response<Script>) {
    let (stream, script) = scripted();
    let mut response = Response::new(script);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    for (name, value) in headers {
        let name = header::HeaderName::from_bytes(name.as_bytes()).unwrap();
        response.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
    }
    (stream, response)
}

impl Stream {
    /// Writes a chunk once the previous one is taken.
    pub async fn send(&self, bytes: impl Into<Bytes>) {
        soon("room in the response", self.0.send(Ok(bytes.into()))).await.expect("someone reads");
    }

    /// Writes a chunk. Returns whether the body is still read.
    pub async fn offer(&self, bytes: impl Into<Bytes>) -> bool {
        self.0.send(Ok(bytes.into())).await.is_ok()
    }

    /// Writes chunks while the body is read, and counts the bytes taken.
    pub async fn flood(self, chunk: Bytes, counter: Arc<AtomicUsize>) {
        while self.0.send(Ok(chunk.clone())).await.is_ok() {
            counter.fetch_add(chunk.len(), SeqCst);
        }
    }

    /// Ends the body in an orderly way.
    pub fn end(self) {}

    /// Aborts the body.
    pub async fn tear(self) {
        let _ = self.0.send(Err(Torn)).await;
    }

    /// Resolves once the body is no longer read, without a time limit.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    pub fn is_given_up(&self) -> bool {
        self.0.is_closed()
    }

    /// Resolves once the body is no longer read.
    pub async fn given_up(&self) {
        soon("the end of the response", self.0.closed()).await;
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = Torn;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Torn>>> {
        self.0.poll_recv(cx).map(|next| next.map(|chunk| chunk.map(Frame::data)))
    }
}

/// Echoes all bytes until the end.
pub async fn echo(io: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin)) {
    let mut buffer = [0; 1024];
    loop {
        match io.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => io.write_all(&buffer[..count]).await.unwrap(),
        }
    }
    let _ = io.shutdown().await;
}
