//! Start and end of a replica: everything is checked and bound before anything is served.

use std::{io, net::SocketAddr, sync::Arc, time::UNIX_EPOCH};

use futures_util::{FutureExt, future::BoxFuture};
use http::StatusCode;
use kube::Client;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use tokio::{
    net::TcpListener,
    time::{Instant, timeout_at},
};

use super::{
    config::Config,
    follow::{self, AUTHORITIES, CERTIFICATE, CONFIGS},
    metrics::Metrics,
    reconcile,
    server::{self, routes::Routes},
    serving::{NotServing, Serving},
    shared::Shared,
};
use ctrlmesh_base::{
    cluster::OwnAccess,
    process::{
        admin::{self, Asked, Page},
        supervisor::{Lost, SupervisedTasks, Supervisor},
    },
};
use ctrlmesh_net::{
    drain::{self, Draining},
    socket,
};

/// A replica that is bound and has not served yet.
pub struct Manager {
    shared: Arc<Shared>,
    registry: Registry,
    client: Client,
    tls: ServerConfig,
    listener: TcpListener,
    admin: TcpListener,
}

/// Reasons why the manager does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("how the API server is reached")]
    Cluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the key of the manager's own ports")]
    Key(#[from] rcgen::Error),
    #[error("TLS")]
    Tls(#[from] rustls::Error),
    #[error("{0} {1}")]
    Listen(&'static str, SocketAddr, #[source] io::Error),
}

impl StartError {
    /// The exit code, as sysexits names it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Cluster(_) => 64,
            Self::Listen(.., error) if error.kind() == io::ErrorKind::PermissionDenied => 77,
            Self::Listen(..) => 69,
            Self::Key(_) | Self::Tls(_) => 70,
        }
    }
}

impl Manager {
    /// Binds the ports. Fails with [`StartError`]; nothing was served.
    pub async fn build(config: Config) -> Result<Self, StartError> {
        let client = OwnAccess::Environment.client().await;
        let client = client.map_err(|error| StartError::Cluster(error.into()))?;
        let listen = |flag, addr| {
            socket::listen_on_all(addr).map_err(move |error| StartError::Listen(flag, addr, error))
        };
        let listener = listen("--listen", config.listen)?;
        let admin = listen("--admin", config.admin)?;
        let (metrics, registry) = Metrics::new();
        let shared = Arc::new(Shared::new(config, metrics, Serving::new()?));
        let tls = server::tls_config(&shared, &shared.config.clock)?;
        Ok(Self { shared, registry, client, tls, listener, admin })
    }

    /// Serves until the drain has ended. The loss of a supervised task starts a drain too. Fails with
    /// [`Lost`].
    pub async fn run(self, mut draining: Draining) -> Result<(), Lost> {
        let Self { shared, registry, client, tls, listener, admin } = self;
        let addr = |socket: &TcpListener| socket.local_addr().ok().map(tracing::field::display);
        let replica = &shared.config.objects.replica;
        tracing::info!(addr = addr(&listener), admin = addr(&admin), replica, "listening");
        let (drain, inner) = drain::channel();
        let supervisor = Supervisor::new(shared.metrics.panics.clone(), inner.clone());
        // What serves and what leads end by themselves once a drain has begun; the others never do.
        let (mut ending, mut endless) = (SupervisedTasks::default(), SupervisedTasks::default());
        let supervise = |tasks: &mut SupervisedTasks, name, task: BoxFuture<'static, ()>| {
            supervisor.spawn(tasks, name, task);
        };
        let routes = Routes::new(Arc::clone(&shared), client.clone());
        let serving = server::serve(listener, tls, Arc::clone(&shared), routes, inner.clone());
        supervise(&mut ending, "admission and enrolment", serving.boxed());
        let following = follow::follow(Arc::clone(&shared), client.clone());
        supervise(&mut endless, "objects of our own", following.boxed());
        let leading = reconcile::lead(Arc::clone(&shared), client, inner);
        supervise(&mut ending, "duties of the leader", leading.boxed());
        let pages = Arc::clone(&shared);
        let answer = move |asked: Asked<'_>| page(asked, &pages, &registry);
        let accept_backoff = Arc::clone(&shared.accept_backoff);
        supervise(&mut endless, "admin port", admin::serve(admin, accept_backoff, answer).boxed());

        let deadline = tokio::select! {
            deadline = draining.begun() => deadline,
            () = supervisor.loss() => Instant::now() + shared.config.drain_timeout,
        };
        drain.start_until(deadline);
        let _ = timeout_at(deadline, ending.all_ended()).await;
        ending.stop().await;
        endless.stop().await;
        supervisor.lost().map_or(Ok(()), Err)
    }
}

fn page(asked: Asked<'_>, shared: &Shared, registry: &Registry) -> Page {
    match asked.path {
        "/healthz" => admin::text(StatusCode::OK, "ok\n".into()),
        "/readyz" => ready(shared),
        "/metrics" => metrics(shared, registry),
        _ => admin::text(StatusCode::NOT_FOUND, "there is /metrics, /healthz and /readyz\n".into()),
    }
}

/// Readiness: a certificate by which the API server, with the `caBundle` that it has now, accepts
/// this replica; and the ShardingConfigs, by which pods are injected.
fn ready(shared: &Shared) -> Page {
    let authorities = match (shared.trusted.borrow().is_some(), shared.problem(AUTHORITIES)) {
        (true, None) => Ok("in force".to_owned()),
        (true, Some(problem)) => Ok(format!("the last good ones stay in force: {problem}")),
        (false, problem) => Err(problem.unwrap_or_else(|| "none yet".to_owned())),
    };
    let certificate = match (accepted(shared), shared.problem(CERTIFICATE)) {
        (Ok(()), None) => Ok("accepted by the API server".to_owned()),
        (Ok(()), Some(problem)) => Ok(format!("the last good one is shown: {problem}")),
        (Err(why), _) => Err(why.to_string()),
    };
    let configs = match (shared.configs.borrow().is_some(), shared.problem(CONFIGS)) {
        (true, None) => Ok("known".to_owned()),
        (true, Some(problem)) => Ok(format!("those before are known: {problem}")),
        (false, problem) => Err(problem.unwrap_or_else(|| "not listed yet".to_owned())),
    };
    let leads = match shared.metrics.is_leader.get() {
        1 => "leads".to_owned(),
        _ => "another replica leads, or none yet".to_owned(),
    };
    admin::ready([
        ("authorities", authorities),
        ("certificate", certificate),
        ("policies", configs),
        ("leader", Ok(leads)),
    ])
}

fn accepted(shared: &Shared) -> Result<(), NotServing> {
    let own = shared.own.borrow().clone();
    let Some(hooks) = own.as_ref().and_then(|own| own.hooks.as_ref()) else {
        return Err(NotServing::NoHooks(shared.config.objects.webhooks.clone()));
    };
    let verify = |hook: &super::shared::Hook| {
        shared.serving.verify(&hook.name, &hook.ca_bundle, &shared.config.clock)
    };
    hooks.iter().chain(own.iter().flat_map(|own| &own.validating)).try_for_each(verify)
}

fn metrics(shared: &Shared, registry: &Registry) -> Page {
    let ends = |name, end: Option<std::time::SystemTime>| {
        let seconds = end.and_then(|end| end.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let gauge = shared.metrics.not_after.get_or_create_owned(&[("of", name)]);
        gauge.set(seconds.as_secs_f64());
    };
    ends("certificate", shared.serving.not_after());
    let trusted = shared.trusted.borrow().clone();
    let trust = trusted.as_ref().map(|trusted| &trusted.trust);
    ends("serving", trust.map(|trust| trust.serving().signing().validity().to));
    ends("root", trust.map(|trust| trust.root().signing().validity().to));
    ends("issuer", trust.map(|trust| trust.issuer().validity().to));
    admin::metrics(registry)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::configs::Configs;

    #[test]
    fn bad_i13_a_replica_is_not_ready_before_the_configs_were_listed() {
        let shared = Shared::for_tests();
        let line = |shared: &Shared| {
            let page = ready(shared).into_body();
            let body = page.collect().now_or_never().unwrap().unwrap().to_bytes();
            let body = String::from_utf8(body.to_vec()).unwrap();
            body.lines().find(|line| line.contains("policies")).unwrap().to_owned()
        };
        assert_eq!(line(&shared), "[-]policies failed: not listed yet");
        shared.note(CONFIGS, Some("forbidden".to_owned()));
        assert_eq!(line(&shared), "[-]policies failed: forbidden");
        shared.configs.send_replace(Some(Arc::new(Configs::default())));
        assert_eq!(line(&shared), "[+]policies ok: those before are known: forbidden");
        shared.note(CONFIGS, None);
        assert_eq!(line(&shared), "[+]policies ok: known");
    }
}
