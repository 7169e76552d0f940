//! The reviews of the controllers' webhooks: whether they reach the pods, and whether proxies may know
//! where to send them on.

mod network;
mod services;

use std::collections::BTreeSet;

use self::network::{End, Policies};
use super::{
    pods::{Pods, Reviewed},
    rights,
    words::named,
};
use crate::doctor::{
    facts::{ClusterFacts, NamespaceFacts},
    finding::{Check, Findings},
};

pub(super) fn judge(
    facts: &NamespaceFacts,
    cluster: &ClusterFacts,
    pods: &Pods<'_>,
    found: &mut Findings,
) {
    let reviewed: Vec<_> = pods.reviewed(&facts.name).collect();
    if reviewed.is_empty() {
        return;
    }
    let subject = format!("NetworkPolicies of {}", facts.name);
    if let Some(all) = found.seen(Check::Network, &subject, &facts.network_policies) {
        let namespace = facts.namespace.as_ref().ok().and_then(Option::as_ref);
        let labels = namespace.and_then(|namespace| namespace.metadata.labels.as_ref());
        network(&reviewed, &Policies::new(all, labels), &subject, found);
    }
    let accounts: BTreeSet<_> = reviewed.iter().map(|pod| pod.account).collect();
    rights::judge(&rights::PODS, &accounts, facts, &cluster.manager, found);
    let subject = format!("webhooks to {}", facts.name);
    let hooks = found.seen(Check::Services, &subject, &cluster.hooks);
    if let Some(hooks) = hooks
        && let Some(services) = found.seen(Check::Services, &subject, &facts.services)
    {
        let here = hooks.iter().filter(|hook| hook.namespace == facts.name);
        let here: Vec<_> = here.cloned().collect();
        services::judge(&reviewed, &here, services, &subject, found);
    }
}

/// A connection that does not come about: the pods, and the policies.
#[derive(Default)]
struct Closed<'f> {
    pods: BTreeSet<&'f str>,
    policies: BTreeSet<&'f str>,
}

impl<'f> Closed<'f> {
    fn add(&mut self, pod: &'f str, policies: Vec<&'f str>) {
        if !policies.is_empty() {
            self.pods.insert(pod);
            self.policies.extend(policies);
        }
    }

    fn pods(&self) -> String {
        named("pod", &self.pods.iter().copied().collect::<Vec<_>>())
    }

    fn policies(&self) -> String {
        let noun = if self.policies.len() == 1 { "NetworkPolicy" } else { "NetworkPolicies" };
        let all: Vec<_> = self.policies.iter().copied().collect();
        format!("{noun} {}", all.join(", "))
    }
}

fn network<'f>(
    reviewed: &[Reviewed<'f>],
    policies: &Policies<'f>,
    subject: &str,
    found: &mut Findings,
) {
    let [mut to_server, mut to_pods, mut from] = <[Closed<'f>; 3]>::default();
    for to in reviewed {
        to_server.add(to.name, policies.closed_to(End::ApiServer, to.pod, to.port));
        for other in reviewed.iter().filter(|other| other.is_beside(to)) {
            to_pods.add(to.name, policies.closed_to(End::Pod(other.pod), to.pod, to.port));
            from.add(other.name, policies.closed_from(other.pod, to.pod, to.port));
        }
    }
    let check = Check::Network;
    if [&to_server, &to_pods, &from].into_iter().all(|closed| closed.pods.is_empty()) {
        found.ok(check, subject, "let the reviews of webhooks pass");
        return;
    }
    let mut report = |closed: &Closed<'_>, what: &str, fix: &str| {
        if !closed.pods.is_empty() {
            let what = what.replace("PODS", &closed.pods());
            found.warning(check, subject, format!("{}: {what}", closed.policies()), fix);
        }
    };
    report(
        &to_server,
        "the API server does not reach the webhook port of PODS",
        "add an ingress rule for the port in spec.webhook.port, without `from` or with an ipBlock that \
         has the API server",
    );
    report(
        &to_pods,
        "other pods do not reach the webhook port of PODS, to send reviews of its shard on",
        "add an ingress rule for the port in spec.webhook.port, from all pods of the controller",
    );
    report(
        &from,
        "PODS cannot send reviews of other shards on",
        "add an egress rule for the port in spec.webhook.port, to all pods of the controller",
    );
}
