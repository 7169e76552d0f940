//! The cluster as the leader observes it: the objects of the mesh's namespaces, where a ShardingConfig is or a
//! pod asks for injection.
//!
//! Hides how each is watched. Does not know which objects are written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Pod},
        rbac::v1::{ClusterRoleBinding, RoleBinding},
    },
    jiff::Timestamp,
};
use kube::Client;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use tokio::{sync::watch, time::Instant};

use super::{
    conditions::Rings,
    kridges::Kridges,
    leases::Leases,
    not_injected::NotInjected,
    observed::{self, ChosenPod, FoundBundle, FoundRights, PodFacts, key, namespace},
    problem::Problem,
    roots::{self, Counts, Roots, Targets},
};
use crate::{
    configs::{Configs, name},
    shared::{OwnObjects, Shared},
    trust::{Known, Trusted},
};
use ctrlmesh_api::keys;
use ctrlmesh_base::cluster::{OwnAccess, Reflector, Update, describe};
use ctrlmesh_inject::companions::{self, BUNDLE_MAP};
use ctrlmesh_net::ca::certificate_pem;
use ctrlmesh_policy::{Choices, NamespaceLabels, ShardingDraft, shard_of};

/// The time in which every kubelet has written a changed ConfigMap to its pods, and clients have
/// read it: kubelets look once a minute, client-go every five (its `CARotation`).
const SPREAD: Duration = Duration::from_secs(5 * 60);

/// The subject of problems of the cluster's CA.
const CLUSTER_CA: &str = "cluster CA";

/// The objects of the mesh as the API server has them.
pub(super) struct ClusterView {
    shared: Arc<Shared>,
    pods: [Reflector<Pod, PodFacts>; 2],
    /// The ShardingConfigs, which both replicas follow. `None` until they were listed once.
    pub(super) configs: Option<Arc<Configs>>,
    next_configs: watch::Receiver<Option<Arc<Configs>>>,
    pub(super) bundles: Reflector<ConfigMap, FoundBundle>,
    pub(super) rights: Reflector<RoleBinding, FoundRights>,
    pub(super) cluster_rights: Reflector<ClusterRoleBinding, FoundRights>,
    pub(super) leases: Leases,
    counts: Counts,
    targets: Targets,
    pub(super) not_injected: NotInjected,
    pub(super) kridges: Kridges,
    /// The labels of all namespaces, which both replicas follow. `None` until they were listed once.
    pub(super) namespaces: Option<Arc<NamespaceLabels>>,
    next_namespaces: watch::Receiver<Option<Arc<NamespaceLabels>>>,
    /// The certificates of the cluster's CA, as PEM.
    pub(super) cluster_ca: Option<String>,
}

impl ClusterView {
    pub(super) fn follow(client: &Client, shared: &Arc<Shared>) -> Self {
        let access = OwnAccess::Client(client.clone());
        let pods = [keys::PREFIX, keys::KRIDGE_PREFIX]
            .map(|prefix| observed::pods(access.clone(), prefix));
        let mut next_configs = shared.configs.subscribe();
        let configs = next_configs.borrow_and_update().clone();
        let mut next_namespaces = shared.namespaces.subscribe();
        let namespaces = next_namespaces.borrow_and_update().clone();
        Self {
            shared: Arc::clone(shared),
            pods,
            configs,
            next_configs,
            bundles: observed::bundles(access.clone()),
            rights: observed::rights(access.clone()),
            cluster_rights: observed::cluster_rights(access.clone()),
            leases: Leases::follow(access.clone()),
            targets: Targets::new(access.clone()),
            kridges: Kridges::follow(access),
            counts: Counts::new(client.clone(), Arc::clone(shared)),
            not_injected: NotInjected::new(client.clone()),
            namespaces,
            next_namespaces,
            cluster_ca: None,
        }
    }

    /// Waits until something has changed.
    pub(super) async fn changed(&mut self) {
        loop {
            let [ours, kridges] = &mut self.pods;
            let (update, plural, is_urgent) = tokio::select! {
                update = ours.next() => (update, "pods", true),
                update = kridges.next() => (update, "pods of Kridge", true),
                Ok(()) = self.next_configs.changed() => {
                    self.configs = self.next_configs.borrow_and_update().clone();
                    return;
                }
                update = self.bundles.next() => (update, "configmaps", true),
                update = self.rights.next() => (update, "rolebindings", true),
                update = self.cluster_rights.next() => (update, "clusterrolebindings", true),
                // Each is renewed every ten seconds.
                update = self.leases.next() => (update, "leases", false),
                () = self.counts.changed() => return,
                () = self.targets.changed() => return,
                () = self.not_injected.changed(self.configs.as_deref()) => return,
                update = self.kridges.next() => match update {
                    // A cluster without their definition has none.
                    Update::Failed(error) if error.is_unknown() => continue,
                    update => (update, "shardingconfigs of Kridge", true),
                },
                Ok(()) = self.next_namespaces.changed() => {
                    self.namespaces = self.next_namespaces.borrow_and_update().clone();
                    return;
                }
            };
            match update {
                Update::Whole { is_other } => {
                    self.shared.note(plural, None);
                    if is_other && is_urgent {
                        return;
                    }
                }
                Update::Listing => {}
                Update::Failed(error) => {
                    self.shared.note(plural, Some(describe(&error, plural, "")));
                }
            }
        }
    }

    /// Whether all of it was listed once.
    pub(super) fn is_known(&self) -> bool {
        self.pods.iter().all(|pods| pods.known().is_some())
            && self.configs.is_some()
            && self.bundles.known().is_some()
            && self.rights.known().is_some()
            && self.cluster_rights.known().is_some()
    }

    /// Reads the cluster's CA, counts the pods, hears the Leases, and has the objects of roots counted.
    pub(super) fn look(&mut self, shared: &Shared, now: Instant) {
        let known = self.pods.iter().filter_map(Reflector::known).flatten();
        let uids: BTreeSet<&str> = known.map(|(_, pod)| pod.uid.as_str()).collect();
        self.leases.hear(|uid| uids.contains(uid), now);
        let configs = || self.configs.as_deref().into_iter();
        self.counts.want(configs().flat_map(roots::all));
        self.targets.want(&configs().flat_map(roots::all).collect::<Vec<_>>());
        self.not_injected.want(configs().flat_map(Configs::namespaces));
        let not_injected = i64::try_from(self.not_injected.count()).unwrap_or(i64::MAX);
        shared.metrics.pods_left_out.set(not_injected);
        match read_certificates(shared) {
            Ok(certificates) => {
                self.cluster_ca = Some(certificates);
                shared.note(CLUSTER_CA, None);
            }
            Err(problem) => shared.note(CLUSTER_CA, Some(problem)),
        }
        let injected = self.pods().filter(|(_, pod)| pod.is_injected && !pod.has_ended).count();
        shared.metrics.injected_pods.set(i64::try_from(injected).unwrap_or(i64::MAX));
    }

    /// The pods, with their namespaces.
    fn pods(&self) -> impl Iterator<Item = (&str, &PodFacts)> {
        self.pods
            .iter()
            .filter_map(Reflector::known)
            .flatten()
            .map(|(at, pod)| (namespace(at), pod))
    }

    /// The injected pods that go by a config, each with its own.
    pub(super) fn chosen(&self) -> Vec<ChosenPod<'_>> {
        let mut chosen = Vec::new();
        let mut choices: BTreeMap<&str, Choices<'_>> = BTreeMap::new();
        for (key, pod) in self.pods.iter().filter_map(Reflector::known).flatten() {
            let Some(labels) = &pod.labels else { continue };
            let namespace = namespace(key);
            let configs = || self.configs.iter().flat_map(|all| all.of_namespace(namespace));
            let choices = choices.entry(namespace).or_insert_with(|| Choices::of(configs()));
            let config = choices.choose(labels, namespace);
            chosen.push(ChosenPod { key, pod, config });
        }
        chosen
    }

    /// The rings, with the pods that go by their configs, as their Leases were heard last.
    pub(super) fn rings<'m>(&'m self, chosen: &[ChosenPod<'m>], now: Instant) -> Rings<'m> {
        let mut rings = Rings::default();
        let configs = || self.configs.iter().flat_map(|configs| configs.all());
        for (at, config) in configs() {
            rings.add_config(namespace(at), config, self.namespaces.as_deref());
        }
        for (at, _) in configs().filter(|(_, config)| config.checked.is_err()) {
            rings.add_invalid(namespace(at));
        }
        for ChosenPod { key: at, pod, config } in chosen {
            if let Ok(config) = config
                && let Some(is) = self.leases.of_pod(namespace(at), pod, now, self.now())
            {
                let said = self.leases.said(namespace(at), pod);
                rings.add_pod(namespace(at), config, name(at), is, said);
            }
        }
        rings
    }

    /// The labels of all namespaces. `None` until they were listed once.
    pub(super) fn namespaces(&self) -> Option<&Arc<NamespaceLabels>> {
        self.namespaces.as_ref()
    }

    /// The configs that are valid.
    pub(super) fn drafts(&self) -> impl Iterator<Item = (&str, &ShardingDraft)> {
        let all = self.configs.iter().flat_map(|configs| configs.all());
        all.filter_map(|(at, config)| Some((at, shard_of(&config.checked)?)))
    }

    /// The configs about whose rings or pods there is something to report.
    pub(super) fn problems<'m>(&'m self, rings: &Rings<'m>) -> Vec<Problem<'m>> {
        let of_rings = self.drafts().flat_map(|(at, draft)| rings.problems(at, draft));
        of_rings.chain(self.not_injected.problems()).collect()
    }

    /// The roots, with the pods that go by their children.
    pub(super) fn roots<'m>(&'m self, chosen: &[ChosenPod<'m>]) -> Roots<'m> {
        let namespaces = self.namespaces.as_deref();
        let known = (&self.counts, &self.targets);
        let of = |configs| Roots::of(configs, chosen, &self.leases, known, namespaces);
        self.configs.as_deref().map(of).unwrap_or_default()
    }

    /// Notes that children of a root were written.
    pub(super) fn moved(&mut self, root: String) {
        self.counts.moved(root);
    }

    /// The namespaces that get a bundle. A ConfigMap of ours is kept up to date wherever it is.
    pub(super) fn accounts(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut accounts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let found = self.bundles.known().into_iter().flatten();
        let ours = found.filter(|(_, bundle)| bundle.is_ours).map(|(at, _)| namespace(at));
        let configured = self.configs.iter().flat_map(|configs| configs.namespaces());
        for namespace in configured.chain(ours) {
            accounts.entry(namespace).or_default();
        }
        for (namespace, pod) in self.pods().filter(|(_, pod)| !pod.has_ended) {
            accounts.entry(namespace).or_default().push(&pod.account);
        }
        for accounts in accounts.values_mut() {
            accounts.sort_unstable();
            accounts.dedup();
        }
        accounts
    }

    /// The places in which the next authorities are known.
    pub(super) fn knows(&self, trusted: &Trusted, own: &OwnObjects, shared: &Shared) -> Known {
        let trust = &trusted.trust;
        let serving = trust.serving().next().map(|ca| certificate_pem(ca.cert()));
        let root = trust.root().next().map(|ca| certificate_pem(ca.cert()));
        let in_hooks = |pem: &String| {
            let mut hooks = own.hooks.iter().flatten().chain(&own.validating);
            hooks.all(|hook| String::from_utf8_lossy(&hook.ca_bundle).contains(pem))
        };
        let next_serving = serving.is_some_and(|pem| {
            let key = companions::MANAGER_CA_KEY;
            in_hooks(&pem) && self.accounts().keys().all(|at| self.has_long(at, key, &pem))
        });
        let in_the_way = root.as_ref().map_or(0, |pem| {
            let lacks = |(at, pod): &(&str, &PodFacts)| {
                pod.is_injected && !pod.has_ended && !self.trusts(at, pod, pem)
            };
            self.pods().filter(lacks).count()
        });
        shared.metrics.pods_without_next_root.set(i64::try_from(in_the_way).unwrap_or(i64::MAX));
        let has_bundles = root.is_some_and(|pem| {
            self.accounts().keys().all(|at| self.has_long(at, companions::CA_KEY, &pem))
        });
        Known { next_serving, next_root: has_bundles && in_the_way == 0 }
    }

    /// Whether the bundle of a namespace has had a certificate for long enough.
    fn has_long(&self, namespace: &str, key_of_data: &str, pem: &str) -> bool {
        self.spread_at(namespace, key_of_data, pem).is_some_and(|spread| spread <= self.now())
    }

    /// The time at which all who mount the bundle of a namespace have a certificate. `None` if the
    /// bundle lacks it.
    fn spread_at(&self, namespace: &str, key_of_data: &str, pem: &str) -> Option<Timestamp> {
        let found = self.bundles.known()?.get(&key(namespace, BUNDLE_MAP))?;
        let has = found.data.get(key_of_data).is_some_and(|text| text.contains(pem));
        found.since.filter(|_| has)?.checked_add(SPREAD).ok()
    }

    /// Whether all of a pod's containers started with a bundle that has this root.
    fn trusts(&self, namespace: &str, pod: &PodFacts, pem: &str) -> bool {
        let spread = self.spread_at(namespace, companions::CA_KEY, pem);
        let started = pod.started.unwrap_or_else(|| self.now());
        spread.is_some_and(|spread| spread <= started)
    }

    /// The time by our own clock.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::try_from(self.shared.config.clock.now()).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

fn read_certificates(shared: &Shared) -> Result<String, String> {
    let path = &shared.config.cluster_ca;
    let bad = |what: &str| format!("--cluster-ca {} {what}", path.display());
    let pem = fs::read(path).map_err(|error| bad(&format!("cannot be read: {error}")))?;
    let mut text = String::new();
    for cert in CertificateDer::pem_slice_iter(&pem) {
        text.push_str(&certificate_pem(&cert.map_err(|_| bad("has a broken certificate"))?));
    }
    if text.is_empty() { Err(bad("has no PEM certificate")) } else { Ok(text) }
}
