//! Selected pods without a sidecar: their template lacks the label, or no manager was there when they were
//! created.
//!
//! Hides how they are found: by lists of their metadata, in pages, once in a while, in the namespaces
//! with configs. A watch would keep all their pods in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Resource, api::ListParams};
use tokio::time::{Instant, sleep_until};

use super::{
    conditions::INJECTED,
    observed::key,
    problem::{About, Problem},
    verdict::{Missed, Verdict},
};
use crate::{
    admission::{PodMeta, RUNS},
    configs::Configs,
};
use ctrlmesh_api::keys;
use ctrlmesh_base::cluster::{NotListed, chain, pages};
use ctrlmesh_policy::{Choices, object_of};

/// The time from one look to the next.
const LOOK: Duration = Duration::from_secs(30);

/// A pod without a proxy.
#[derive(Debug)]
struct Bare {
    name: String,
    labels: BTreeMap<String, String>,
    /// The Deployment that it is of. `None` if it is of none.
    deployment: Option<String>,
}

/// The pods without a proxy of each namespace that could be listed.
type FoundPods = BTreeMap<String, Vec<Bare>>;

/// The pods that configs select and that have no proxy.
pub(super) struct NotInjected {
    client: Client,
    wanted: BTreeSet<String>,
    looking: Option<BoxFuture<'static, FoundPods>>,
    next: Instant,
    /// The names of the pods, by the keys of the configs. A config is there once its namespace was listed.
    known: BTreeMap<String, (String, BTreeSet<String>)>,
}

impl NotInjected {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            wanted: BTreeSet::new(),
            looking: None,
            next: Instant::now(),
            known: BTreeMap::new(),
        }
    }

    /// Looks into these namespaces from now on: into new ones at once.
    pub(super) fn want<'n>(&mut self, namespaces: impl Iterator<Item = &'n str>) {
        let wanted: BTreeSet<_> = namespaces.map(str::to_owned).collect();
        if !wanted.is_subset(&self.wanted) {
            self.next = Instant::now();
        }
        self.wanted = wanted;
    }

    /// Waits until the namespaces were looked into. Dropping it loses nothing.
    pub(super) async fn changed(&mut self, configs: Option<&Configs>) {
        loop {
            if let Some(looking) = &mut self.looking {
                let found = looking.await;
                self.looking = None;
                self.take(&found, configs);
                return;
            }
            if self.wanted.is_empty() {
                pending::<()>().await;
            }
            sleep_until(self.next).await;
            self.next = Instant::now() + LOOK;
            self.looking = Some(look(self.client.clone(), self.wanted.clone()).boxed());
        }
    }

    fn take(&mut self, found: &FoundPods, configs: Option<&Configs>) {
        let Some(configs) = configs else { return };
        for (namespace, pods) in found {
            for config in configs.facts_of(namespace) {
                let object = object_of(&config.checked);
                let uid = object.uid.as_deref().unwrap_or_default().to_owned();
                self.known.insert(key(namespace, &object.name), (uid, BTreeSet::new()));
            }
            let choices = Choices::of(configs.of_namespace(namespace));
            for pod in pods {
                let chosen = choices.choose(&pod.labels, namespace).ok();
                let of_root = || {
                    let deployment = pod.deployment.as_deref()?;
                    configs.root_of(namespace, &pod.labels, deployment).map(|of| &of.root.object)
                };
                if let Some(object) = chosen.map(|of| &of.config.object).or_else(of_root) {
                    let at = key(namespace, &object.name);
                    let known = self.known.entry(at).or_default();
                    known.1.insert(pod.name.clone());
                }
            }
        }
        self.known.retain(|at, _| configs.at(at).is_some());
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.known.values().map(|(_, pods)| pods.len()).sum()
    }

    /// The verdict about the pods of the config at a key, of which others are injected or not.
    pub(super) fn verdict(&self, key: &str, has_injected: bool) -> Verdict {
        let Some((_, pods)) = self.known.get(key) else { return Verdict::Unknown };
        match said(pods) {
            Some(message) => Verdict::No("NotInjected", message),
            None if has_injected => Verdict::Yes("Injected", String::new()),
            None => Verdict::None,
        }
    }

    /// The configs that select such pods.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem<'_>> {
        self.known.iter().filter_map(|(key, (uid, pods))| {
            let (about, reason) = (About::Config(INJECTED), "NotInjected");
            said(pods).map(|message| Problem { about, key, uid, reason, message })
        })
    }
}

fn said(pods: &BTreeSet<String>) -> Option<String> {
    let mut missed = Missed::default();
    pods.iter().for_each(|pod| missed.add(pod));
    let pods = missed.named("pod")?;
    Some(format!(
        "{pods} is selected and has no proxy, so it sees all objects: give its template the label \
         {}{}: \"true\", and create it again",
        keys::PREFIX,
        keys::ENABLE_PROXY
    ))
}

/// Looks into each namespace. One that cannot be listed is left out.
async fn look(client: Client, namespaces: BTreeSet<String>) -> FoundPods {
    let mut found = FoundPods::new();
    for namespace in namespaces {
        match pods(&client, &namespace).await {
            Ok(pods) => drop(found.insert(namespace, pods)),
            Err(error) => {
                tracing::warn!(namespace, error = chain(&error), "pods cannot be listed");
            }
        }
    }
    found
}

async fn pods(client: &Client, namespace: &str) -> Result<Vec<Bare>, NotListed> {
    let mut bare = Vec::new();
    let add = |pod: PodMeta| bare.extend(Bare::of(pod));
    let params = ListParams::default().fields(RUNS);
    pages(client, Pod::url_path(&(), Some(namespace)), params, add).await?;
    Ok(bare)
}

impl Bare {
    fn of(pod: PodMeta) -> Option<Self> {
        let is_bare = !pod.is_injected() && !pod.is_going();
        let deployment = pod.deployment().map(str::to_owned);
        is_bare.then_some(Self { name: pod.name, labels: pod.labels, deployment })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_pod_of_a_deployment_that_a_root_names_is_missed_without_a_proxy() {
        let root = json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
            "kind": "ShardingConfig",
            "metadata": { "namespace": "ops", "name": "root", "uid": "root" },
            "spec": {
                "controller": { "leaderElectionName": "op" },
                "root": {
                    "prefix": "op",
                    "target": { "kind": "Deployment", "name": "op" },
                    "auto": { "everyShardReplicas": 1, "by": "Namespace" },
                },
            },
        });
        let mut configs = Configs::default();
        configs.add(&serde_json::from_value(root).unwrap());
        let pod = |name: &str, deployment: &str, annotations: serde_json::Value| {
            let meta = json!({
                "name": name,
                "labels": { "pod-template-hash": "a" },
                "annotations": annotations,
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{deployment}-a"),
                    "uid": "set", "controller": true,
                }],
            });
            Bare::of(serde_json::from_value(meta).unwrap())
        };
        let injected = json!({ "ctrlmesh.kusionstack.io/injected": "iptables" });
        let pods = [
            pod("bare", "op", json!({})),
            pod("other", "other", json!({})),
            pod("injected", "op", injected),
        ];
        let found = [("ops".to_owned(), pods.into_iter().flatten().collect())].into();
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap()));
        let mut not_injected = NotInjected::new(client.unwrap());
        not_injected.take(&found, Some(&configs));
        let Verdict::No("NotInjected", message) = not_injected.verdict("ops/root", true) else {
            panic!("it is not missed");
        };
        assert!(message.starts_with("pod bare is selected and has no proxy"), "{message}");
    }
}
