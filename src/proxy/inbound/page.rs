//! What people and probes read of the leg.

use std::{collections::BTreeMap, num::NonZeroU16, time::SystemTime};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    operator::NotSent,
    state::{Problems, Webhook},
};
use crate::shared::Shared;
use ctrlmesh_base::{cluster::chain, sidecar::Mode};

impl Webhook {
    /// Keeps the reason why the operator did not take a request.
    pub(super) fn report_operator(&self, why: &NotSent) {
        let why = chain(why);
        let mut problems = self.problems.lock();
        if problems.operator.as_ref() != Some(&why) {
            tracing::warn!(problem = why, "the webhook server");
            problems.operator = Some(why);
        }
    }
}

/// The state of the leg, for `/readyz`: an error if reviews cannot be answered here although the
/// operator may listen. `None` where no webhook is asked for.
pub(crate) fn ready(shared: &Shared, webhook: Option<&Webhook>) -> Option<Result<String, String>> {
    let asked = shared.policy_store.siblings().borrow().as_ref().map(|it| it.webhook().port);
    match (webhook, asked) {
        (None, None) => None,
        (None, Some(port)) => {
            let why = match shared.mode {
                Mode::Iptables => {
                    "the pod was created before its config had spec.webhook: create the pod again"
                }
                Mode::Direct => {
                    "nothing is redirected in env mode (--mode direct), so the pod that gets them \
                     answers"
                }
            };
            Some(Ok(format!("reviews at port {port} do not pass the proxy: {why}")))
        }
        (Some(webhook), asked) => Some(webhook.ready(asked)),
    }
}

impl Webhook {
    /// The end of the operator's certificate. `None` if there is none.
    pub(crate) fn certificate_not_after(&self) -> Option<SystemTime> {
        self.pair.validity().map(|validity| validity.to)
    }

    fn ready(&self, asked: Option<NonZeroU16>) -> Result<String, String> {
        let Problems { certificate, held, roots, table, listener, operator } =
            self.problems.lock().clone();
        let port = self.config.port;
        if self.pair.current().is_none() {
            return Err(certificate.unwrap_or_else(|| "no certificate was read yet".into()));
        }
        if let Some(problem) = listener.or(table) {
            return Err(problem);
        }
        let mut state = match (asked, *self.is_open.borrow()) {
            (Some(asked), _) if asked != port => format!(
                "the pod's rules lead port {port} here, and spec.webhook.port is {asked}: create \
                 the pod again"
            ),
            (_, false) => format!("waits: the controller does not listen on port {port}"),
            (None, true) => format!("port {port}: the config has no spec.webhook any more"),
            (Some(_), true) => format!("port {port}"),
        };
        let notes = [
            certificate.map(|problem| format!("the last good certificate stays: {problem}")),
            held,
            operator.map(|problem| format!("the controller's server {problem}")),
            roots,
            self.peers.problem(),
            self.tls.is_none().then(|| {
                "other pods cannot be called: this pod's identity is not known".to_owned()
            }),
        ];
        for note in notes.into_iter().flatten() {
            state.push_str("; ");
            state.push_str(&note);
        }
        Ok(state)
    }
}

/// The pods of the controller's shards, for `/debug/peers`.
pub(crate) fn peers(webhook: Option<&Webhook>) -> Value {
    let Some(webhook) = webhook else { return json!({"webhook": null}) };
    let siblings = webhook.siblings();
    let broken = siblings
        .as_ref()
        .map(|siblings| siblings.unreadable().iter().map(|it| it.why.as_str()).collect::<Vec<_>>());
    let now = Instant::now();
    let table = webhook.peers.table();
    let pods = table.peers().map(|peer| {
        let addrs = peer.addrs.iter().map(ToString::to_string).collect::<Vec<_>>();
        json!({
            "pod": peer.identity.name(),
            "shard": &*peer.shard,
            "addresses": addrs,
            "reviews": peer.open(),
            "avoided": peer.is_avoided(now),
        })
    });
    json!({
        "port": webhook.config.port,
        "count": table.peers().count(),
        "listening": *webhook.is_open.borrow(),
        "shards": table.shards().collect::<BTreeMap<_, _>>(),
        "unreadable": broken,
        "peers": pods.collect::<Vec<_>>(),
        "problem": webhook.peers.problem(),
    })
}
