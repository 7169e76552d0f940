//! The pages of the admin port: metrics and health for everybody, debug pages for loopback peers.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use http::StatusCode;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::net::TcpListener;

use super::{
    inbound::{self, Webhook},
    shared::Shared,
};
use ctrlmesh_api::ObservedRequests;
use ctrlmesh_base::process::admin::{self, Asked, Page, json, text};

/// Serves until it is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    webhook: Option<Arc<Webhook>>,
    registry: Registry,
) {
    let accept_backoff = Arc::clone(&shared.accept_backoff);
    admin::serve(listener, accept_backoff, move |asked| {
        answer(asked, &shared, webhook.as_deref(), &registry)
    })
    .await;
}

fn answer(
    asked: Asked<'_>,
    shared: &Shared,
    webhook: Option<&Webhook>,
    registry: &Registry,
) -> Page {
    match asked.path {
        "/healthz" => text(StatusCode::OK, "ok\n".into()),
        "/readyz" => ready(shared, inbound::ready(shared, webhook)),
        "/startupz" => ready(shared, None),
        "/metrics" => metrics(shared, webhook, registry),
        "/observed" => json(&json!(observed(shared))),
        path if path.starts_with("/debug/") && !asked.is_local => {
            text(StatusCode::FORBIDDEN, "/debug answers loopback peers only\n".into())
        }
        "/debug/config" => json(&config(shared)),
        "/debug/peers" => json(&inbound::peers_page(webhook)),
        "/debug/streams" => json(&json!({
            "streams": shared.streams.list(),
            "expiredClients": shared.metrics.expired_clients(),
        })),
        _ => text(
            StatusCode::NOT_FOUND,
            "there is /metrics, /healthz, /readyz, /startupz, /observed, /debug/config, \
             /debug/streams, /debug/peers\n"
                .into(),
        ),
    }
}

/// Readiness: there is a policy and a certificate, and the inbound leg has no problem. The controller starts
/// without that, and may write the certificate for it. A policy input that was refused later is reported and does
/// not make the pod unready: the last good one is in force.
fn ready(shared: &Shared, webhook: Option<Result<String, String>>) -> Page {
    let active = shared.policy_store.active();
    let present = active.map(|it| format!("{} epoch {}", it.sharding.shard(), it.epoch.get()));
    let policy = match (present, shared.policy_store.problem()) {
        (Some(present), None) => Ok(present),
        (Some(present), Some(problem)) => Ok(format!("{present} stays in force: {problem}")),
        (None, problem) => Err(problem.unwrap_or_else(|| "none yet".into())),
    };
    let mut parts = vec![("policy", policy), ("certificate", certificate(shared))];
    let locks = shared.policy_store.active().and_then(|it| {
        let problem = shared.policy_store.controller().elections.problem(it.sharding.locks())?;
        Some(("locks", Ok(problem)))
    });
    parts.extend(locks);
    // In Leases it is notified by the condition; here also for pods that have none.
    let writes = shared.policy_store.controller().foreign_writes.said().problem();
    parts.extend(writes.map(|(_, problem)| ("writes", Ok(problem))));
    parts.extend(
        shared.policy_store.related_said().problem().map(|problem| ("related", Ok(problem))),
    );
    parts.extend(webhook.map(|webhook| ("webhook", webhook)));
    admin::ready(parts)
}

/// What the pod's controller has asked of the API server.
fn observed(shared: &Shared) -> ObservedRequests {
    let active = shared.policy_store.active();
    let sharding = active.as_ref().map(|active| &*active.sharding);
    ObservedRequests {
        resources: shared.policy_store.controller().observed.said(sharding),
        elections: shared.policy_store.elections_said(),
    }
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

fn metrics(shared: &Shared, webhook: Option<&Webhook>, registry: &Registry) -> Page {
    shared.policy_store.set_ages();
    let metrics = &shared.metrics;
    let related = shared.policy_store.related_said().resources.len();
    metrics.related_resources.set(related.try_into().unwrap_or(i64::MAX));
    metrics.leaf_not_after.set(since_1970(shared.tls.leaf.not_after()));
    let of_webhook = webhook.and_then(Webhook::certificate_not_after);
    metrics.webhook_certificate_not_after.set(since_1970(of_webhook));
    admin::metrics(registry)
}

/// The seconds from 1970 to the end of a certificate. 0 if there is none.
fn since_1970(end: Option<SystemTime>) -> f64 {
    let since = end.and_then(|end| end.duration_since(UNIX_EPOCH).ok());
    since.unwrap_or_default().as_secs_f64()
}

fn config(shared: &Shared) -> serde_json::Value {
    let policy = shared.policy_store.active().map(|active| {
        let scopes: serde_json::Map<_, _> = active
            .sharding
            .rules()
            .map(|(rule, scope)| (rule.to_string(), scope.to_string().into()))
            .collect();
        let namespaces: serde_json::Map<_, _> = active
            .sharding
            .selected_namespaces()
            .map(|selected| (selected.selector().to_string(), json!(selected.names())))
            .collect();
        json!({
            "shard": active.sharding.shard(),
            "epoch": active.epoch.get(),
            "locks": active.sharding.locks().own_names().collect::<Vec<_>>(),
            "limits": scopes,
            "fence": shared.policy_store.fence().mode().as_str(),
            "namespaces": namespaces,
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "policy": policy,
        "problem": shared.policy_store.problem(),
    })
}
