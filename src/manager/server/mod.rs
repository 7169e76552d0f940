//! The port of admission and enrolment: HTTPS with the manager's own certificate.
//!
//! Hides connections, their bounds and their protocols. [`routes`] chooses the answers.

mod bodies;
mod leaves;
pub(super) mod routes;
mod unsent;

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use hyper::{
    rt::Executor,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep_until, timeout, timeout_at},
};
use tokio_rustls::TlsAcceptor;

pub use self::routes::{INJECT, INJECT_BASELINE, LEAF, VALIDATE};
use self::{routes::Routes, unsent::Unsent};
use super::shared::Shared;
use ctrlmesh_base::process::connection_limit::ConnectionLimit;
use ctrlmesh_net::{Clock, addr::canonical, drain::Draining, socket, tls};

/// Connections at once. A proxy needs one for a moment; beyond it someone with many gives way.
const MAX_CONNECTIONS: usize = 128;
/// The time of a handshake, and of a request's head over HTTP/1.1.
const HANDSHAKE: Duration = Duration::from_secs(5);
const HEAD: Duration = Duration::from_secs(5);
/// The interval of pings over HTTP/2, and the time of their answers.
const PING: Duration = Duration::from_secs(20);
/// Requests of a connection at once. The API server has one connection for each of its processes.
const MAX_STREAMS: u32 = 128;
/// The bytes of a connection that wait unread, next to the bodies that have room: of one request, and
/// of all requests over HTTP/2.
const WINDOW: u32 = 64 << 10;
const WINDOW_OF_ALL: u32 = 256 << 10;

/// The configuration of TLS with the certificate of our own ports.
pub(super) fn tls_config(shared: &Shared, clock: &Clock) -> Result<ServerConfig, rustls::Error> {
    let resolver = Arc::new(shared.serving.clone());
    let mut config = ServerConfig::builder_with_details(tls::provider(), clock.provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    config.alpn_protocols = vec![tls::H2.to_vec(), tls::HTTP_11.to_vec()];
    Ok(config)
}

/// Serves until a drain has ended.
pub(super) async fn serve(
    listener: TcpListener,
    tls: ServerConfig,
    shared: Arc<Shared>,
    routes: Routes,
    mut draining: Draining,
) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let routes = Arc::new(routes);
    let mut connections = ConnectionLimit::new(MAX_CONNECTIONS);
    let deadline = loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            deadline = draining.begun() => break deadline,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = Connection {
                    acceptor: acceptor.clone(),
                    routes: Arc::clone(&routes),
                    shared: Arc::clone(&shared),
                    draining: draining.clone(),
                };
                connections.serve(canonical(peer).ip(), connection.serve(stream));
            }
            Err(error) if socket::is_of_one_connection(&error) => {}
            Err(error) => shared.accept_backoff.wait(&error).await,
        }
    };
    tokio::select! {
        () = connections.all_ended() => {}
        () = sleep_until(deadline) => {}
    }
    connections.shutdown().await;
}

struct Connection {
    acceptor: TlsAcceptor,
    routes: Arc<Routes>,
    shared: Arc<Shared>,
    draining: Draining,
}

impl Connection {
    async fn serve(mut self, stream: TcpStream) {
        let _open = Open::new(&self.shared.metrics.connections);
        self.serve_to_its_end(stream).await;
    }

    async fn serve_to_its_end(&mut self, stream: TcpStream) {
        let _ = socket::keep_alive(&stream);
        let _ = stream.set_nodelay(true);
        let Ok(Ok(stream)) = timeout(HANDSHAKE, self.acceptor.accept(stream)).await else {
            return;
        };
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(tls::H2);
        let routes = Arc::clone(&self.routes);
        let unsent = Unsent::default();
        let of_responses = unsent.clone();
        let service = service_fn(move |request| {
            let (routes, unsent) = (Arc::clone(&routes), of_responses.clone());
            async move { Ok::<_, Infallible>(routes.answer(request, &unsent).await) }
        });
        let io = TokioIo::new(stream);
        let draining = &mut self.draining;
        let ended = if is_h2 {
            let connection = http2::Builder::new(Tasks::default())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING)
                .keep_alive_timeout(PING)
                .max_concurrent_streams(MAX_STREAMS)
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW_OF_ALL)
                .serve_connection(io, service);
            let connection = drive(connection, http2::Connection::graceful_shutdown, draining);
            unless_stuck(connection, &unsent).await
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .max_buf_size(WINDOW as usize)
                .writev(true)
                .serve_connection(io, service);
            let connection = drive(connection, http1::Connection::graceful_shutdown, draining);
            unless_stuck(connection, &unsent).await
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke");
        }
    }
}

/// Runs a connection to its end, or until its client has left a response unread for too long.
async fn unless_stuck(
    connection: impl Future<Output = hyper::Result<()>>,
    unsent: &Unsent,
) -> hyper::Result<()> {
    tokio::select! {
        ended = connection => ended,
        () = unsent.stuck() => Ok(()),
    }
}

/// Counts a connection while it is open, however it ends.
struct Open(Gauge);

impl Open {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The tasks of one connection, which end with it.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// Runs a connection to its end. `finish` asks it to take no further requests once a drain has begun,
/// whose deadline ends it.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    finish: impl Fn(Pin<&mut C>),
    draining: &mut Draining,
) -> hyper::Result<()> {
    let mut connection = pin!(connection);
    let deadline = tokio::select! {
        ended = &mut connection => return ended,
        deadline = draining.begun() => deadline,
    };
    finish(connection.as_mut());
    timeout_at(deadline, connection).await.unwrap_or(Ok(()))
}
