//! The pods of a namespace: whether those that should be injected are, and by which config.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU16,
};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::core::{Selector, SelectorExt};

use super::words::named;
use crate::doctor::{
    facts::{ManagerFacts, NamespaceFacts},
    finding::{Check, Findings},
};
use ctrlmesh_api::keys;
use ctrlmesh_inject::{CaptureMode, webhook_port};
use ctrlmesh_policy::{Checked, Invalid, Kind, NotChosen, ShardingDraft, choose, draft};

/// The label of the Pod Security level that a namespace enforces.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// The levels that admit no redirect rules.
const WITHOUT_RULES: [&str; 2] = ["baseline", "restricted"];

/// The pods of a namespace that have not ended, and its configs.
pub(super) struct Pods<'f> {
    pods: Vec<PodOf<'f>>,
    wanted: Option<&'f str>,
    configs: Vec<Checked>,
}

/// A pod whose reviews come to its proxy.
pub(super) struct Reviewed<'f> {
    pub(super) name: &'f str,
    pub(super) pod: &'f Pod,
    pub(super) account: &'f str,
    /// The port that the API server and other pods call. The rules that lead it to the proxy are the
    /// pod's own: no NetworkPolicy knows of them.
    pub(super) port: u16,
    /// The config that selects it.
    pub(super) config: Option<ShardingDraft>,
}

impl Reviewed<'_> {
    /// Whether one may send reviews on to the other.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        let configs = self.config.as_ref().zip(other.config.as_ref());
        self.name != other.name && configs.is_some_and(|(one, other)| one.is_beside(other))
    }
}

/// A pod in the parts that matter.
struct PodOf<'f> {
    pod: &'f Pod,
    name: &'f str,
    labels: BTreeMap<String, String>,
    asks: bool,
    mode: Option<&'f str>,
}

/// The level below privileged that a namespace enforces.
pub(super) fn level(facts: &NamespaceFacts) -> Option<&str> {
    let level = labels(facts)?.get(ENFORCE)?;
    WITHOUT_RULES.contains(&level.as_str()).then_some(level)
}

fn labels(facts: &NamespaceFacts) -> Option<&BTreeMap<String, String>> {
    let namespace: Option<&Namespace> = facts.namespace.as_ref().ok()?.as_ref();
    namespace?.metadata.labels.as_ref()
}

impl<'f> PodOf<'f> {
    fn new(pod: &'f Pod) -> Option<Self> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let annotations = pod.metadata.annotations.as_ref();
        Some(Self {
            pod,
            name: pod.metadata.name.as_deref().unwrap_or_default(),
            asks: keys::find(&labels, keys::ENABLE_PROXY).is_some_and(|(_, value)| value == "true"),
            labels,
            mode: annotations.and_then(|all| all.get(keys::INJECTED)).map(String::as_str),
        })
    }

    fn account(&self) -> &'f str {
        let account = self.pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
        account.unwrap_or("default")
    }

    /// The port of the webhook whose reviews come to its proxy.
    fn webhook_port(&self) -> Option<u16> {
        webhook_port(self.pod.spec.as_ref()?).map(NonZeroU16::get)
    }

    /// Whether it insists on redirect rules.
    fn wants_rules(&self) -> bool {
        let annotations = self.pod.metadata.annotations.as_ref();
        let wanted = annotations.and_then(|all| keys::find(all, keys::ENABLE_IPTABLES));
        let wanted = wanted.or_else(|| keys::find(&self.labels, keys::ENABLE_IPTABLES));
        wanted.is_some_and(|(_, value)| value == "true")
    }
}

impl<'f> Pods<'f> {
    pub(super) fn new(facts: &'f NamespaceFacts, wanted: Option<&'f str>) -> Self {
        let configs = facts.configs.iter().flatten();
        Self {
            pods: facts.pods.iter().flatten().filter_map(PodOf::new).collect(),
            wanted,
            configs: configs.map(|config| draft(Kind::ShardingConfig, config)).collect(),
        }
    }

    pub(super) fn has_configs(&self) -> bool {
        !self.configs.is_empty()
    }

    pub(super) fn malformed(&self) -> impl Iterator<Item = &Invalid> {
        self.configs.iter().filter_map(|config| config.as_ref().err())
    }

    /// The names of pods that ask for injection.
    pub(super) fn asking(&self) -> impl Iterator<Item = &str> {
        self.pods.iter().filter(|pod| pod.asks).map(|pod| pod.name)
    }

    /// The accounts of injected pods.
    pub(super) fn accounts(&self) -> Vec<&'f str> {
        let injected = self.pods.iter().filter(|pod| pod.mode.is_some());
        injected.map(PodOf::account).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The accounts of injected pods that keep a Lease.
    pub(super) fn accounts_of_rings(&self, namespace: &str) -> BTreeSet<&'f str> {
        let keeps = |pod: &&PodOf<'f>| {
            let config = choose(&self.configs, &pod.labels, namespace, None);
            config.is_ok_and(|config| config.ring.is_some() && config.waits)
        };
        let injected = self.pods.iter().filter(|pod| pod.mode.is_some());
        injected.filter(keeps).map(PodOf::account).collect()
    }

    /// The Leases that are the locks of injected pods, by the pods' accounts.
    pub(super) fn locks(&self, namespace: &str) -> BTreeMap<&'f str, BTreeSet<String>> {
        let mut locks: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| pod.mode.is_some()) {
            if let Ok(config) = choose(&self.configs, &pod.labels, namespace, None) {
                let of = config.own_locks().filter_map(|lock| Some(lock.split_once('/')?.1.into()));
                locks.entry(pod.account()).or_default().extend(of);
            }
        }
        locks.retain(|_, of| !of.is_empty());
        locks
    }

    /// The pods whose reviews come to their proxies.
    pub(super) fn reviewed<'p>(
        &'p self,
        namespace: &'p str,
    ) -> impl Iterator<Item = Reviewed<'f>> + use<'p, 'f> {
        let injected = self.pods.iter().filter(|pod| pod.mode.is_some());
        injected.filter_map(move |pod| {
            Some(Reviewed {
                name: pod.name,
                pod: pod.pod,
                account: pod.account(),
                port: pod.webhook_port()?,
                config: choose(&self.configs, &pod.labels, namespace, None).ok().cloned(),
            })
        })
    }

    /// The pods to judge one by one.
    fn judged(&self) -> impl Iterator<Item = &PodOf<'f>> {
        self.pods.iter().filter(|pod| self.wanted.is_none_or(|wanted| pod.name == wanted))
    }

    pub(super) fn judge(
        &self,
        facts: &NamespaceFacts,
        manager: &ManagerFacts,
        found: &mut Findings,
    ) {
        let subject = format!("pods of {}", facts.name);
        if found.seen(Check::NotInjected, &subject, &facts.pods).is_none() {
            return;
        }
        self.not_injected(facts, manager, &subject, found);
        if facts.configs.is_ok() {
            self.not_labelled(&facts.name, &subject, found);
            self.choice(&facts.name, &subject, found);
        }
        self.security(level(facts), &subject, found);
    }

    fn not_injected(
        &self,
        facts: &NamespaceFacts,
        manager: &ManagerFacts,
        subject: &str,
        found: &mut Findings,
    ) {
        let (injected, not): (Vec<_>, Vec<_>) =
            self.judged().filter(|pod| pod.asks).partition(|pod| pod.mode.is_some());
        if not.is_empty() {
            if !injected.is_empty() {
                let says = format!("all with the label are injected: {}", count(injected.len()));
                found.ok(Check::NotInjected, subject, says);
            }
            return;
        }
        let restart = "restart their workload, with the label on its pod template: kubectl rollout \
                       restart";
        let webhooks = manager.webhooks.as_ref().ok().and_then(Option::as_ref);
        let since = webhooks.and_then(|all| all.metadata.creation_timestamp.as_ref());
        let is_older = |pod: &&PodOf<'_>| {
            let created = pod.pod.metadata.creation_timestamp.as_ref();
            created.zip(since).is_some_and(|(created, since)| created.0 < since.0)
        };
        let mut report = |pods: Vec<&PodOf<'_>>, why: &str, fix: &str| {
            let names: Vec<_> = pods.iter().map(|pod| pod.name).collect();
            if !names.is_empty() {
                let says = format!("not injected: {}, {why}", named("pod", &names));
                found.error(Check::NotInjected, subject, says, fix);
            }
        };
        if is_left_out(facts, manager) {
            let fix = "move the pods to another namespace, or take this one out of the chart's \
                       webhook.excludedNamespaces, and restart them";
            report(not, "in a namespace that the webhooks leave out", fix);
            return;
        }
        let (older, younger): (Vec<_>, Vec<_>) = not.into_iter().partition(is_older);
        report(older, "older than the webhooks", restart);
        report(younger, "labelled after they were created, or created past the webhooks", restart);
    }

    fn not_labelled(&self, namespace: &str, subject: &str, found: &mut Findings) {
        let is_selected = |pod: &&PodOf<'_>| {
            let chosen = choose(&self.configs, &pod.labels, namespace, None);
            matches!(chosen, Ok(_) | Err(NotChosen::Several(_)))
        };
        let plain = self.judged().filter(|pod| !pod.asks && pod.mode.is_none());
        let names: Vec<_> = plain.filter(is_selected).map(|pod| pod.name).collect();
        if names.is_empty() {
            if self.has_configs() {
                found.ok(Check::NotLabelled, subject, "none is selected without the label");
            }
            return;
        }
        found.error(
            Check::NotLabelled,
            subject,
            format!("selected but not injected: {} without the label", named("pod", &names)),
            "put the label ctrlmesh.kusionstack.io/enable-proxy: \"true\" on their pod template, or \
             narrow the selector of the ShardingConfig",
        );
    }

    fn choice(&self, namespace: &str, subject: &str, found: &mut Findings) {
        let mut problems: BTreeMap<String, (&str, Vec<&str>)> = BTreeMap::new();
        let mut chosen = 0;
        for pod in self.judged().filter(|pod| pod.mode.is_some()) {
            match choose(&self.configs, &pod.labels, namespace, None) {
                Ok(_) => chosen += 1,
                Err(why) => {
                    let fix = why.remedy();
                    let (_, names) = problems.entry(why.to_string()).or_insert((fix, Vec::new()));
                    names.push(pod.name);
                }
            }
        }
        if problems.is_empty() && chosen > 0 {
            let says = format!("{} injected, each selected by one ShardingConfig", count(chosen));
            found.ok(Check::Choice, subject, says);
        }
        for (why, (fix, names)) in problems {
            let says = format!("{}: {why}", named("pod", &names));
            found.error(Check::Choice, subject, says, fix);
        }
    }

    fn security(&self, level: Option<&str>, subject: &str, found: &mut Findings) {
        let check = Check::PodSecurity;
        let Some(level) = level else { return };
        let rules: &str = CaptureMode::Iptables.into();
        let asking = || self.judged().filter(|pod| pod.asks || pod.mode.is_some());
        let insist: Vec<_> = asking().filter(|pod| pod.wants_rules()).map(|pod| pod.name).collect();
        let with_rules = |pod: &&PodOf<'_>| pod.mode == Some(rules) && !pod.wants_rules();
        let with_rules: Vec<_> = asking().filter(with_rules).map(|pod| pod.name).collect();
        if insist.is_empty() && with_rules.is_empty() {
            let says = format!("the namespace enforces {level}: pods are injected in env mode");
            found.ok(check, subject, says);
        }
        if !insist.is_empty() {
            found.error(
                check,
                subject,
                format!(
                    "the namespace enforces {level}, and {} would be refused if created again, for \
                     redirect rules are asked for",
                    named("pod", &insist)
                ),
                "take enable-iptables: \"true\" from the pod template, or have the level changed to \
                 privileged",
            );
        }
        if !with_rules.is_empty() {
            found.warning(
                check,
                subject,
                format!(
                    "the namespace enforces {level}, and {} with redirect rules would be in env \
                     mode if created again",
                    named("pod", &with_rules)
                ),
                "see that the containers take the API server's address from their environment, or \
                 have the level changed to privileged",
            );
        }
    }
}

fn count(pods: usize) -> String {
    if pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") }
}

/// Whether no webhook is for this namespace.
fn is_left_out(facts: &NamespaceFacts, manager: &ManagerFacts) -> bool {
    let webhooks = manager.webhooks.as_ref().ok().and_then(Option::as_ref);
    let hooks = webhooks.and_then(|all| all.webhooks.as_deref()).unwrap_or_default();
    let Some(labels) = labels(facts) else { return false };
    let takes = |selector: Option<_>| match selector.map(Selector::try_from) {
        Some(Ok(selector)) => selector.matches(labels),
        Some(Err(_)) | None => true,
    };
    !hooks.is_empty() && !hooks.iter().any(|hook| takes(hook.namespace_selector.clone()))
}
