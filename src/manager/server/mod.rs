//! The port of admission and enrolment: HTTPS with the manager's own certificate.
//!
//! Hides connections, their bounds and their protocols. [`routes`] says what is answered.

mod bodies;
mod leaves;
pub(super) mod routes;

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
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep_until, timeout, timeout_at},
};
use tokio_rustls::TlsAcceptor;

use self::routes::Routes;
pub use self::routes::{INJECT, INJECT_BASELINE, LEAF};
use super::shared::Shared;
use crate::net::{Clock, drain::Draining, socket, tls};

/// Connections at once; more wait in the kernel. A proxy needs one for a moment.
const MAX_CONNECTIONS: usize = 256;
/// The time of a handshake, and of a request's head over HTTP/1.1.
const HANDSHAKE: Duration = Duration::from_secs(5);
const HEAD: Duration = Duration::from_secs(5);
/// The interval of pings over HTTP/2, and the time of their answers.
const PING: Duration = Duration::from_secs(20);
/// Requests of a connection at once. The API server has one connection for each of its processes.
const MAX_STREAMS: u32 = 128;

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
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let deadline = loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            deadline = draining.begun() => break deadline,
        };
        while connections.try_join_next().is_some() {}
        match (place, accepted) {
            (Ok(place), Ok((stream, _))) => {
                let connection = Connection {
                    acceptor: acceptor.clone(),
                    routes: Arc::clone(&routes),
                    shared: Arc::clone(&shared),
                    draining: draining.clone(),
                    _place: place,
                };
                connections.spawn(connection.serve(stream));
            }
            (_, Err(error)) if socket::is_of_one_connection(&error) => {}
            (_, Err(error)) => shared.outages.sit_out(&error).await,
            // The semaphore is never closed.
            (Err(_), Ok(_)) => {}
        }
    };
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        () = sleep_until(deadline) => {}
    }
    connections.shutdown().await;
}

struct Connection {
    acceptor: TlsAcceptor,
    routes: Arc<Routes>,
    shared: Arc<Shared>,
    draining: Draining,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve(mut self, stream: TcpStream) {
        let gauge = self.shared.metrics.connections.clone();
        gauge.inc();
        self.serve_to_its_end(stream).await;
        gauge.dec();
    }

    async fn serve_to_its_end(&mut self, stream: TcpStream) {
        let _ = socket::keep_alive(&stream);
        let _ = stream.set_nodelay(true);
        let Ok(Ok(stream)) = timeout(HANDSHAKE, self.acceptor.accept(stream)).await else {
            return;
        };
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(tls::H2);
        let routes = Arc::clone(&self.routes);
        let service = service_fn(move |request| {
            let routes = Arc::clone(&routes);
            async move { Ok::<_, Infallible>(routes.answer(request).await) }
        });
        let io = TokioIo::new(stream);
        let ended = if is_h2 {
            let connection = http2::Builder::new(Tasks::default())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING)
                .keep_alive_timeout(PING)
                .max_concurrent_streams(MAX_STREAMS)
                .serve_connection(io, service);
            drive(connection, http2::Connection::graceful_shutdown, &mut self.draining).await
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .serve_connection(io, service);
            drive(connection, http1::Connection::graceful_shutdown, &mut self.draining).await
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke");
        }
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
