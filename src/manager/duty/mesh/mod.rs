//! The namespaces of the mesh: where a ShardingConfig is, or a pod that asks for injection.
//!
//! Each gets the bundle, before its first pod if its ShardingConfig is there first, and a RoleBinding
//! for the accounts of its pods. Both have fixed names, so that RBAC can name them, and are written by
//! server-side apply. What is not wanted any more stays: pods may still mount it.

mod apply;

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

pub(super) use self::apply::Apply;
use super::{
    conditions::{self, OfShard, Rings, SelectedPods},
    found::{self, ChosenPod, FoundBundle, FoundRights, PodFacts, key, namespace},
    hooks,
    kridge::{Kridges, Translation},
    leases::{Leases, Removal},
    left_out::LeftOut,
    roots::{self, Counts, Release, Roots, Targets},
    subject::Subject,
    waiting::Lacking,
};
use crate::{
    configs::{ConfigFacts, Configs, name},
    shared::{OwnObjects, Shared},
    trust::{Known, Trusted},
};
use ctrlmesh_api::keys;
use ctrlmesh_base::cluster::{OwnAccess, Reflector, Update, describe};
use ctrlmesh_inject::companions::{self, BUNDLE_MAP, Bundle};
use ctrlmesh_net::ca::certificate_pem;
use ctrlmesh_policy::{Choices, NamespaceLabels, ShardingDraft, object_of, shard_of};

/// The time in which every kubelet has written a changed ConfigMap to its pods, and clients have
/// read it: kubelets look once a minute, client-go every five (its `CARotation`).
const SPREAD: Duration = Duration::from_secs(5 * 60);

/// The subject of problems of the cluster's CA.
const CLUSTER_CA: &str = "cluster CA";

/// The objects of the mesh as the API server has them.
pub(super) struct Mesh {
    shared: Arc<Shared>,
    pods: [Reflector<Pod, PodFacts>; 2],
    /// The ShardingConfigs, which both replicas follow. `None` until they were listed once.
    configs: Option<Arc<Configs>>,
    next_configs: watch::Receiver<Option<Arc<Configs>>>,
    bundles: Reflector<ConfigMap, FoundBundle>,
    rights: Reflector<RoleBinding, FoundRights>,
    cluster_rights: Reflector<ClusterRoleBinding, FoundRights>,
    leases: Leases,
    counts: Counts,
    targets: Targets,
    left_out: LeftOut,
    kridges: Kridges,
    /// The labels of all namespaces, which both replicas follow. `None` until they were listed once.
    namespaces: Option<Arc<NamespaceLabels>>,
    next_namespaces: watch::Receiver<Option<Arc<NamespaceLabels>>>,
    /// The certificates of the cluster's CA, as PEM.
    cluster_ca: Option<String>,
}

impl Mesh {
    pub(super) fn follow(client: &Client, shared: &Arc<Shared>) -> Self {
        let access = OwnAccess::Client(client.clone());
        let pods =
            [keys::PREFIX, keys::KRIDGE_PREFIX].map(|prefix| found::pods(access.clone(), prefix));
        let mut next_configs = shared.configs.subscribe();
        let configs = next_configs.borrow_and_update().clone();
        let mut next_namespaces = shared.namespaces.subscribe();
        let namespaces = next_namespaces.borrow_and_update().clone();
        Self {
            shared: Arc::clone(shared),
            pods,
            configs,
            next_configs,
            bundles: found::bundles(access.clone()),
            rights: found::rights(access.clone()),
            cluster_rights: found::cluster_rights(access.clone()),
            leases: Leases::follow(access.clone()),
            targets: Targets::new(access.clone()),
            kridges: Kridges::follow(access),
            counts: Counts::new(client.clone(), Arc::clone(shared)),
            left_out: LeftOut::new(client.clone()),
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
                () = self.left_out.changed(self.configs.as_deref()) => return,
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

    /// Reads the cluster's CA, counts the pods, and has the objects of roots counted.
    pub(super) fn look(&mut self, shared: &Shared) {
        let configs = || self.configs.as_deref().into_iter();
        self.counts.want(configs().flat_map(roots::all));
        self.targets.want(&configs().flat_map(roots::all).collect::<Vec<_>>());
        self.left_out.want(configs().flat_map(Configs::namespaces));
        let left_out = i64::try_from(self.left_out.count()).unwrap_or(i64::MAX);
        shared.metrics.pods_left_out.set(left_out);
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

    /// Hears the Leases, and returns those of pods that are gone.
    pub(super) fn leases_due(&mut self, now: Instant) -> Vec<(Subject, Removal)> {
        let known = self.pods.iter().filter_map(Reflector::known).flatten();
        let uids: BTreeSet<&str> = known.map(|(_, pod)| pod.uid.as_str()).collect();
        self.leases.due(|uid| uids.contains(uid), now)
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
    pub(super) fn torn<'m>(&'m self, rings: &Rings<'m>) -> Vec<Lacking<'m>> {
        let torn = self.drafts().flat_map(|(at, draft)| rings.lacking(at, draft));
        torn.chain(self.left_out.lacking()).collect()
    }

    /// The conditions of ShardingConfigs to write.
    pub(super) fn conditions_due(
        &self,
        chosen: &[ChosenPod<'_>],
        rings: &Rings<'_>,
        roots: &Roots<'_>,
    ) -> Vec<(Subject, Apply)> {
        let Some(configs) = &self.configs else { return Vec::new() };
        let mut selected: BTreeMap<String, SelectedPods<'_>> = BTreeMap::new();
        for ChosenPod { key: at, pod, config } in chosen {
            if let Ok(config) = config {
                let object = &config.config.object;
                let generation = self.leases.generation(namespace(at), pod, object);
                let of = key(namespace(at), &object.name);
                selected.entry(of).or_default().add(name(at), pod, config, generation);
            }
        }
        let none = SelectedPods::default();
        let due = |(at, config)| {
            let pods = selected.get(at);
            let injected = self.left_out.verdict(at, pods.is_some());
            let pods = pods.unwrap_or(&none);
            let shard = OfShard { pods, injected, namespaces: self.namespaces.as_deref() };
            let object = conditions::due(at, config, shard, rings, roots, self.now())?;
            Some((Subject::Condition(at.to_owned()), Apply { object, foreign: None }))
        };
        configs.all().filter_map(due).collect()
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

    /// The translations of configs of Kridge to write.
    pub(super) fn translations_due(&self) -> Vec<(Subject, Translation)> {
        self.configs.as_deref().map(|configs| self.kridges.due(configs)).unwrap_or_default()
    }

    /// The conditions of configs of Kridge to write.
    pub(super) fn kridge_conditions_due(&mut self) -> Vec<(Subject, Apply)> {
        let now = self.now();
        let Some(configs) = self.configs.as_deref() else { return Vec::new() };
        let due = self.kridges.conditions_due(configs, now).into_iter();
        due.map(|(at, object)| (at, Apply { object, foreign: None })).collect()
    }

    /// The finalizers to take off.
    pub(super) fn releases_due(&self) -> Vec<(Subject, Release)> {
        let all = self.configs.iter().flat_map(|configs| configs.all());
        let protected = all.filter(|(_, config)| config.is_protected);
        let release = |(at, config): (&str, &ConfigFacts)| {
            (Subject::Finalizer(at.to_owned()), Release(object_of(&config.checked).clone()))
        };
        protected.map(release).collect()
    }

    /// The namespaces that get a bundle. A ConfigMap of ours is kept up to date wherever it is.
    fn accounts(&self) -> BTreeMap<&str, Vec<&str>> {
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

    /// The objects to apply.
    pub(super) fn due(&self, trusted: &Trusted) -> Vec<(Subject, Apply)> {
        let Some(cluster_ca) = &self.cluster_ca else { return Vec::new() };
        let bundle = Bundle {
            cluster_ca: cluster_ca.clone(),
            mesh_cas: trusted.trust.root().published().map(certificate_pem).collect(),
            manager_cas: hooks::bundle(&trusted.trust),
        };
        let mut due = Vec::new();
        for (namespace, accounts) in self.accounts() {
            due.extend(self.bundle_due(namespace, &bundle));
            if !accounts.is_empty() {
                due.extend(self.rights_due(namespace, &accounts));
            }
        }
        due.extend(self.cluster_rights_due());
        due
    }

    fn bundle_due(&self, namespace: &str, bundle: &Bundle) -> Option<(Subject, Apply)> {
        let found = self.bundles.known()?.get(&key(namespace, BUNDLE_MAP));
        if found.is_some_and(|found| found.is_ours && found.data == bundle.data()) {
            return None;
        }
        let since = found.and_then(|found| found.since_of(bundle)).unwrap_or_else(|| self.now());
        let foreign = found.filter(|found| !found.is_ours).map(|_| {
            format!(
                "ConfigMap {namespace}/{BUNDLE_MAP} is somebody else's: it has no label {}; delete \
                 it, or give it that label",
                companions::OURS
            )
        });
        let object = bundle.config_map(namespace, &since.to_string());
        Some((Subject::Bundle(namespace.to_owned()), Apply { object, foreign }))
    }

    fn rights_due(&self, namespace: &str, accounts: &[&str]) -> Option<(Subject, Apply)> {
        let found = self.rights.known()?.get(&key(namespace, companions::ROLE));
        if found.is_some_and(|found| found.is_ours && found.accounts == accounts) {
            return None;
        }
        let foreign = found.filter(|found| !found.is_ours).map(|_| {
            format!(
                "RoleBinding {namespace}/{} is somebody else's: it binds another role, or has no \
                 label {}; delete it",
                companions::ROLE,
                companions::OURS
            )
        });
        let object = companions::rights(namespace, accounts);
        Some((Subject::Rights(namespace.to_owned()), Apply { object, foreign }))
    }

    /// The right to the labels of namespaces, for the pods of configs that need them: all namespaces
    /// or none, and so not for others.
    fn cluster_rights_due(&self) -> Option<(Subject, Apply)> {
        let in_need: BTreeSet<_> =
            self.configs.iter().flat_map(|configs| configs.in_need()).collect();
        let mut all = self.accounts();
        all.retain(|namespace, _| in_need.contains(namespace));
        let accounts: Vec<_> = all
            .iter()
            .flat_map(|(namespace, names)| names.iter().map(move |name| (*namespace, *name)))
            .collect();
        let found = self.cluster_rights.known()?.get(&key("", companions::NAMESPACES_ROLE));
        let wanted: Vec<_> = accounts.iter().map(|(at, name)| key(at, name)).collect();
        let is_as_wanted = |found: &FoundRights| found.is_ours && found.accounts == wanted;
        match found {
            None if accounts.is_empty() => return None,
            Some(found) if is_as_wanted(found) => return None,
            _ => {}
        }
        let foreign = found.filter(|found| !found.is_ours).map(|_| {
            format!(
                "ClusterRoleBinding {} is somebody else's: it binds another role, or has no label \
                 {}; delete it",
                companions::NAMESPACES_ROLE,
                companions::OURS
            )
        });
        let object = companions::cluster_rights(&accounts);
        Some((Subject::ClusterRights, Apply { object, foreign }))
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
