//! The namespaces of the mesh: where a ShardingConfig is, or a pod that asks for injection.
//!
//! Each gets the bundle, before its first pod if its ShardingConfig is there first, and a RoleBinding
//! for the accounts of its pods. Both have fixed names, so that RBAC can name them, and are written by
//! server-side apply. What is not wanted any more stays: pods may still mount it.

use std::{collections::BTreeMap, fs, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Pod},
        rbac::v1::RoleBinding,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    runtime::watcher::{Config, watcher},
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::Value;

use super::{
    hooks,
    subject::{NotWritten, Subject},
};
use crate::{
    api::keys,
    cluster::{Followed, OwnAccess, Update, describe},
    manager::{
        inject::companions::{self, BUNDLE_MAP, Bundle},
        shared::{OwnObjects, Shared},
        trust::{Known, Trusted},
    },
    net::ca::certificate_pem,
    policy::Kind,
};

/// The time in which every kubelet has written a changed ConfigMap to its pods, and clients have
/// read it: kubelets look once a minute, client-go every five (its `CARotation`).
const SPREAD: Duration = Duration::from_secs(5 * 60);

/// The subject of problems of the cluster's CA.
const CLUSTER_CA: &str = "cluster CA";

/// The objects of the mesh as the API server has them.
pub(super) struct Mesh {
    shared: Arc<Shared>,
    pods: [Followed<Pod, PodFacts>; 2],
    configs: Followed<DynamicObject, ()>,
    bundles: Followed<ConfigMap, FoundBundle>,
    rights: Followed<RoleBinding, FoundRights>,
    /// The certificates of the cluster's CA, as PEM.
    cluster_ca: Option<String>,
}

/// The facts of a pod that asks for injection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodFacts {
    account: String,
    is_injected: bool,
    has_ended: bool,
    /// The start of its container that started first.
    started: Option<Timestamp>,
}

/// A ConfigMap with the name of the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundBundle {
    is_ours: bool,
    data: BTreeMap<String, String>,
    /// The time since when it has its roots.
    since: Option<Timestamp>,
}

/// A RoleBinding with our name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundRights {
    is_ours: bool,
    accounts: Vec<String>,
}

/// An object to apply.
pub(super) struct Apply {
    object: Value,
    /// The reason why it must not be written.
    foreign: Option<String>,
}

impl Mesh {
    pub(super) fn follow(client: &Client, shared: &Arc<Shared>) -> Self {
        let access = OwnAccess::Client(client.clone());
        let pods = [keys::PREFIX, keys::KRIDGE_PREFIX].map(|prefix| pods(access.clone(), prefix));
        Self {
            shared: Arc::clone(shared),
            pods,
            configs: configs(access.clone()),
            bundles: bundles(access.clone()),
            rights: rights(access),
            cluster_ca: None,
        }
    }

    /// Waits until something has changed.
    pub(super) async fn changed(&mut self) {
        loop {
            let [ours, kridges] = &mut self.pods;
            let (update, plural) = tokio::select! {
                update = ours.next() => (update, "pods"),
                update = kridges.next() => (update, "pods of Kridge"),
                update = self.configs.next() => (update, "shardingconfigs"),
                update = self.bundles.next() => (update, "configmaps"),
                update = self.rights.next() => (update, "rolebindings"),
            };
            match update {
                Update::Whole { is_other } => {
                    self.shared.note(plural, None);
                    if is_other {
                        return;
                    }
                }
                Update::Listing => {}
                Update::Failed(trouble) => {
                    self.shared.note(plural, Some(describe(&trouble, plural, "")));
                }
            }
        }
    }

    /// Whether all of it was listed once.
    pub(super) fn is_known(&self) -> bool {
        self.pods.iter().all(|pods| pods.known().is_some())
            && self.configs.known().is_some()
            && self.bundles.known().is_some()
            && self.rights.known().is_some()
    }

    /// Reads the cluster's CA, and counts the pods.
    pub(super) fn look(&mut self, shared: &Shared) {
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
        self.pods.iter().filter_map(Followed::known).flatten().map(|(at, pod)| (namespace(at), pod))
    }

    /// The namespaces that get a bundle. A ConfigMap of ours is kept up to date wherever it is.
    fn namespaces(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut accounts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let found = self.bundles.known().into_iter().flatten();
        let ours = found.filter(|(_, bundle)| bundle.is_ours).map(|(at, _)| namespace(at));
        let configured = self.configs.known().into_iter().flatten().map(|(at, ())| namespace(at));
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

    /// What is to be applied.
    pub(super) fn due(&self, trusted: &Trusted) -> Vec<(Subject, Apply)> {
        let Some(cluster_ca) = &self.cluster_ca else { return Vec::new() };
        let bundle = Bundle {
            cluster_ca: cluster_ca.clone(),
            mesh_cas: trusted.trust.root().published().map(certificate_pem).collect(),
            manager_cas: hooks::bundle(&trusted.trust),
        };
        let mut due = Vec::new();
        for (namespace, accounts) in self.namespaces() {
            due.extend(self.bundle_due(namespace, &bundle));
            if !accounts.is_empty() {
                due.extend(self.rights_due(namespace, &accounts));
            }
        }
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

    /// How far the next authorities are known.
    pub(super) fn knows(&self, trusted: &Trusted, own: &OwnObjects, shared: &Shared) -> Known {
        let trust = &trusted.trust;
        let serving = trust.serving().next().map(|ca| certificate_pem(ca.cert()));
        let root = trust.root().next().map(|ca| certificate_pem(ca.cert()));
        let in_hooks = |pem: &String| {
            let mut hooks = own.hooks.iter().flatten();
            hooks.all(|hook| String::from_utf8_lossy(&hook.ca_bundle).contains(pem))
        };
        let next_serving = serving.is_some_and(|pem| {
            let key = companions::MANAGER_CA_KEY;
            in_hooks(&pem) && self.namespaces().keys().all(|at| self.has_long(at, key, &pem))
        });
        let in_the_way = root.as_ref().map_or(0, |pem| {
            let lacks = |(at, pod): &(&str, &PodFacts)| {
                pod.is_injected && !pod.has_ended && !self.trusts(at, pod, pem)
            };
            self.pods().filter(lacks).count()
        });
        shared.metrics.pods_without_next_root.set(i64::try_from(in_the_way).unwrap_or(i64::MAX));
        let has_bundles = root.is_some_and(|pem| {
            self.namespaces().keys().all(|at| self.has_long(at, companions::CA_KEY, &pem))
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

    fn now(&self) -> Timestamp {
        Timestamp::try_from(self.shared.config.clock.now()).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

impl FoundBundle {
    /// The time since when it has the certificates of a bundle, if it has them all. A certificate
    /// that is left out makes nobody wait.
    fn since_of(&self, bundle: &Bundle) -> Option<Timestamp> {
        let has_all = bundle.data().iter().all(|(key, wanted)| {
            let certs = |text: &str| -> Vec<_> {
                CertificateDer::pem_slice_iter(text.as_bytes()).flatten().collect()
            };
            let has = self.data.get(key).map(|text| certs(text)).unwrap_or_default();
            certs(wanted).iter().all(|cert| has.contains(cert))
        });
        self.since.filter(|_| has_all)
    }
}

impl Apply {
    pub(super) async fn send(self, client: &Client) -> Result<(), NotWritten> {
        let Self { object, foreign } = self;
        if let Some(problem) = foreign {
            return Err(NotWritten::Foreign(problem));
        }
        let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        let params = PatchParams::apply("ctrlmesh-manager").force();
        let patch = Patch::Apply(&object);
        match text("/kind") {
            "ConfigMap" => {
                let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
                api.patch(name, &params, &patch).await.map(drop)?;
            }
            _ => {
                let api: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
                api.patch(name, &params, &patch).await.map(drop)?;
            }
        }
        Ok(())
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

/// The key of an object among those of its kind.
fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The namespace in a key.
fn namespace(key: &str) -> &str {
    key.split_once('/').map_or(key, |(namespace, _)| namespace)
}

fn key_of<K: kube::Resource>(object: &K) -> String {
    let meta = object.meta();
    let [namespace, name] = [&meta.namespace, &meta.name].map(|text| text.as_deref());
    key(namespace.unwrap_or_default(), name.unwrap_or_default())
}

fn is_ours<K: kube::Resource>(object: &K) -> bool {
    let (label, value) = companions::OURS_LABEL;
    object.meta().labels.as_ref().is_some_and(|all| all.get(label).is_some_and(|is| is == value))
}

fn pods(access: OwnAccess, prefix: &str) -> Followed<Pod, PodFacts> {
    let config = Config::default().labels(&format!("{prefix}{}=true", keys::ENABLE_PROXY));
    let watch = move |client: Client| watcher(Api::<Pod>::all(client), config.clone());
    Followed::new(access, watch, |pod: Pod| (key_of(&pod), PodFacts::of(pod)))
}

impl PodFacts {
    fn of(pod: Pod) -> Self {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let of_containers = [status.init_container_statuses, status.container_statuses];
        let containers = of_containers.into_iter().flatten().flatten();
        let states = containers.filter_map(|container| container.state?.running?.started_at);
        let account = pod.spec.and_then(|spec| spec.service_account_name);
        Self {
            account: account.unwrap_or_else(|| "default".to_owned()),
            is_injected: annotations.contains_key(keys::INJECTED),
            has_ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            started: states.map(|started| started.0).min(),
        }
    }
}

fn configs(access: OwnAccess) -> Followed<DynamicObject, ()> {
    let watch = |client: Client| {
        let kind = Kind::ShardingConfig.api_resource();
        watcher(Api::<DynamicObject>::all_with(client, &kind), Config::default())
    };
    Followed::new(access, watch, |config: DynamicObject| (key_of(&config), ()))
}

fn bundles(access: OwnAccess) -> Followed<ConfigMap, FoundBundle> {
    let config = Config::default().fields(&format!("metadata.name={BUNDLE_MAP}"));
    let watch = move |client: Client| watcher(Api::<ConfigMap>::all(client), config.clone());
    Followed::new(access, watch, |map: ConfigMap| {
        let since = map.metadata.annotations.as_ref().and_then(|all| all.get(keys::TRUSTED_SINCE));
        let found = FoundBundle {
            is_ours: is_ours(&map),
            since: since.and_then(|text| text.parse().ok()),
            data: map.data.clone().unwrap_or_default(),
        };
        (key_of(&map), found)
    })
}

fn rights(access: OwnAccess) -> Followed<RoleBinding, FoundRights> {
    let config = Config::default().fields(&format!("metadata.name={}", companions::ROLE));
    let watch = move |client: Client| watcher(Api::<RoleBinding>::all(client), config.clone());
    Followed::new(access, watch, |binding: RoleBinding| {
        let role = &binding.role_ref;
        let is_role = role.kind == "ClusterRole" && role.name == companions::ROLE;
        let subjects = binding.subjects.iter().flatten().map(|subject| subject.name.clone());
        let found =
            FoundRights { is_ours: is_role && is_ours(&binding), accounts: subjects.collect() };
        (key_of(&binding), found)
    })
}
