//! Metrics and health for everybody, debug pages for loopback peers.

use std::{
    cmp::Reverse,
    collections::VecDeque,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::json;
use tokio::{
    net::TcpListener,
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use super::shared::Shared;
use crate::net::{addr::canonical, socket};

/// A scrape takes milliseconds; a peer still connected after this is considered gone.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// A request is one packet; a peer that has not sent its head by then has nothing to ask.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections at once. Kubelet and scraper need two.
const MAX_CONNECTIONS: usize = 32;

/// The connections that are served, the oldest first.
#[derive(Default)]
struct Guests {
    tasks: JoinSet<()>,
    places: VecDeque<(IpAddr, AbortHandle)>,
}

impl Guests {
    /// Serves one more connection. If all places are taken, a connection of the address that has
    /// most of them is closed, so that no peer keeps probes or scrapes out.
    fn serve(&mut self, peer: IpAddr, connection: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.places.retain(|(_, task)| !task.is_finished());
        if self.places.len() >= MAX_CONNECTIONS
            && let Some((_, task)) = self.one_of_the_most().and_then(|at| self.places.remove(at))
        {
            task.abort();
        }
        self.places.push_back((peer, self.tasks.spawn(connection)));
    }

    /// The oldest connection of the address that has most.
    fn one_of_the_most(&self) -> Option<usize> {
        let has = |at: &usize| {
            let peer = self.places.get(*at).map(|(peer, _)| peer);
            self.places.iter().filter(|(other, _)| Some(other) == peer).count()
        };
        (0..self.places.len()).max_by_key(|at| (has(at), Reverse(*at)))
    }
}

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>, registry: Registry) {
    let registry = Arc::new(registry);
    let mut guests = Guests::default();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if socket::is_of_one_connection(&error) => continue,
            Err(error) => {
                shared.outages.sit_out(&error).await;
                continue;
            }
        };
        let _ = socket::keep_alive(&stream);
        let (shared, registry) = (Arc::clone(&shared), Arc::clone(&registry));
        guests.serve(canonical(peer).ip(), async move {
            let service = service_fn(move |request| {
                let reply = answer(&request, peer, &shared, &registry);
                async move { Ok::<_, Infallible>(reply) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let _ = timeout(CONNECTION_TIMEOUT, connection).await;
        });
    }
}

fn answer(
    request: &Request<Incoming>,
    peer: SocketAddr,
    shared: &Shared,
    registry: &Registry,
) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n".into());
    }
    let is_local = canonical(peer).ip().is_loopback();
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "ok\n".into()),
        "/readyz" => ready(shared),
        "/metrics" => metrics(shared, registry),
        path if path.starts_with("/debug/") && !is_local => {
            text(StatusCode::FORBIDDEN, "/debug answers loopback peers only\n".into())
        }
        "/debug/config" => json(&config(shared)),
        "/debug/streams" => json(&json!({ "streams": shared.streams.list() })),
        _ => text(
            StatusCode::NOT_FOUND,
            "there is /metrics, /healthz, /readyz, /debug/config, /debug/streams\n".into(),
        ),
    }
}

/// Readiness: there is a policy and a certificate. A policy input that was refused later is
/// reported and does not make the pod unready: the last good one is in force.
fn ready(shared: &Shared) -> Response<Full<Bytes>> {
    let in_force = shared.feed.in_force();
    let present = in_force.map(|it| format!("{} epoch {}", it.sharding.shard(), it.epoch.get()));
    let policy = match (present, shared.feed.problem()) {
        (Some(present), None) => Ok(present),
        (Some(present), Some(problem)) => Ok(format!("{present} stays in force: {problem}")),
        (None, problem) => Err(problem.unwrap_or_else(|| "none yet".into())),
    };
    let leaf = certificate(shared);
    let is_ready = policy.is_ok() && leaf.is_ok();
    let line = |name: &str, state: Result<String, String>| match state {
        Ok(what) => format!("[+]{name} ok: {what}\n"),
        Err(what) => format!("[-]{name} failed: {what}\n"),
    };
    let body = line("policy", policy) + &line("certificate", leaf);
    text(if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, body)
}

/// The state of the certificate for clients.
fn certificate(shared: &Shared) -> Result<String, String> {
    let leaf = &shared.tls.leaf;
    let problem = leaf.problem();
    let Some(end) = leaf.not_after() else {
        return Err(problem.unwrap_or_else(|| "none yet".into()));
    };
    let because = problem.map(|problem| format!(": {problem}")).unwrap_or_default();
    let at = Timestamp::try_from(end).map_or_else(|_| "?".into(), |end| end.to_string());
    match (end > shared.clock.now(), because.is_empty()) {
        (true, true) => Ok("valid".into()),
        (true, false) => Ok(format!("valid until {at}, and not renewed{because}")),
        (false, _) => Err(format!("expired at {at}{because}")),
    }
}

fn metrics(shared: &Shared, registry: &Registry) -> Response<Full<Bytes>> {
    shared.feed.set_age();
    let not_after = shared.tls.leaf.not_after().unwrap_or(UNIX_EPOCH);
    let since_1970 = not_after.duration_since(UNIX_EPOCH).unwrap_or_default();
    shared.metrics.leaf_not_after.set(since_1970.as_secs_f64());
    let mut body = String::new();
    if encode(&mut body, registry).is_err() {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "metrics cannot be written\n".into());
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    reply(StatusCode::OK, kind, body)
}

fn config(shared: &Shared) -> serde_json::Value {
    let policy = shared.feed.in_force().map(|in_force| {
        let scopes: serde_json::Map<_, _> = in_force
            .sharding
            .rules()
            .map(|(rule, scope)| (rule.to_string(), scope.to_string().into()))
            .collect();
        let namespaces: serde_json::Map<_, _> = in_force
            .sharding
            .selected_namespaces()
            .map(|selected| (selected.selector().to_string(), json!(selected.names())))
            .collect();
        json!({
            "shard": in_force.sharding.shard(),
            "epoch": in_force.epoch.get(),
            "lock": in_force.sharding.lock().map(|lock| lock.renamed()),
            "limits": scopes,
            "namespaces": namespaces,
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "policy": policy,
        "problem": shared.feed.problem(),
    })
}

fn text(code: StatusCode, body: String) -> Response<Full<Bytes>> {
    reply(code, "text/plain; charset=utf-8", body)
}

fn json(value: &serde_json::Value) -> Response<Full<Bytes>> {
    reply(StatusCode::OK, "application/json", format!("{value:#}\n"))
}

fn reply(code: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = code;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn peer(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[tokio::test]
    async fn a_newcomer_takes_a_place_from_the_address_that_has_most() {
        let mut guests = Guests::default();
        guests.serve(peer(1), pending());
        for _ in 1..MAX_CONNECTIONS {
            guests.serve(peer(2), pending());
        }
        for last in 3..=4 {
            guests.serve(peer(last), pending());
        }
        let has = |last| guests.places.iter().filter(|(ip, _)| *ip == peer(last)).count();
        assert_eq!([1, 2, 3, 4].map(has), [1, MAX_CONNECTIONS - 3, 1, 1]);
        let ended = [guests.tasks.join_next().await, guests.tasks.join_next().await];
        assert!(ended.into_iter().all(|task| task.unwrap().unwrap_err().is_cancelled()));
    }

    #[tokio::test]
    async fn of_addresses_with_one_connection_each_the_oldest_gives_way() {
        let mut guests = Guests::default();
        for last in 0..=MAX_CONNECTIONS {
            guests.serve(peer(u8::try_from(last).unwrap()), pending());
        }
        assert_eq!(guests.places.len(), MAX_CONNECTIONS);
        assert_eq!(guests.places[0].0, peer(1));
    }
}
