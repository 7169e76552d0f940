//! The ShardingConfigs, checked, as data: a snapshot of those that the API server has, or of a file's.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

use super::workload::of_deployment;
use ctrlmesh_api::{ShardingConfigSpec, ShardingConfigStatus, keys};
use ctrlmesh_policy::{
    Checked, Draft, Kind, NamespaceLabels, NamespacesUnknown, ObjectRef, RootDraft, Scope,
    ShardingDraft, choose, draft, object_of,
    ownership::{self, OwnsInWords},
    ring::DesiredScope,
    roots::Partition,
    shard_of,
};

/// ShardingConfigs by namespace and name. Cheap to clone for their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configs(BTreeMap<String, Arc<ConfigFacts>>);

/// The facts of a ShardingConfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigFacts {
    pub(super) checked: Checked,
    /// Whether its pods need the labels of namespaces.
    pub(super) needs_namespaces: bool,
    /// The wish of its shard, if it needs no labels of namespaces. `None` if it is in no ring.
    wanted: Option<DesiredScope<Arc<Scope>>>,
    /// Its objects in a few words, if it needs no labels of namespaces. `None` if it is no shard.
    owns: Option<OwnsInWords>,
    /// The status that it has. Empty if it has none, or one that cannot be read.
    pub(super) status: ShardingConfigStatus,
    /// Whether it is being deleted.
    pub(super) is_going: bool,
    /// Whether it has the finalizer of KusionStack's manager.
    pub(super) is_protected: bool,
    /// The facts of a child of a root. `None` if it is none.
    pub(super) child: Option<Box<ChildFacts>>,
    /// The facts of the translation of a config of Kridge. `None` if it is none.
    pub(super) translation: Option<Box<TranslationFacts>>,
}

/// The facts of the translation of a config of Kridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TranslationFacts {
    /// The uid of the config of Kridge.
    pub(super) of: String,
    /// Its spec. `None` if it cannot be read.
    pub(super) spec: Option<ShardingConfigSpec>,
}

impl TranslationFacts {
    fn of(config: &DynamicObject) -> Option<Box<Self>> {
        let owner = controller(config).filter(|owner| is(owner, Kind::KridgeShardingConfig))?;
        Some(Box::new(Self { of: owner.uid.clone(), spec: spec(config) }))
    }
}

/// The owner that controls a config.
fn controller(config: &DynamicObject) -> Option<&OwnerReference> {
    config.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether an owner is of this kind.
fn is(owner: &OwnerReference, kind: Kind) -> bool {
    Kind::of(&owner.api_version, &owner.kind) == Some(kind)
}

/// The spec of a config. `None` if it cannot be read.
fn spec(config: &DynamicObject) -> Option<ShardingConfigSpec> {
    ShardingConfigSpec::deserialize(config.data.get("spec")?).ok()
}

/// The facts of a child of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChildFacts {
    pub(super) root: RootOf,
    /// Its spec. `None` if it cannot be read.
    pub(super) spec: Option<ShardingConfigSpec>,
    /// The partition that it says it has. `None` if it does not say, or that cannot be read.
    pub(super) partition: Option<Partition>,
}

/// The root of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RootOf {
    /// The one with this uid owns it.
    Owner(String),
    /// The one with this name, by KusionStack's label: no one owns it.
    Named(String),
}

impl ChildFacts {
    fn of(config: &DynamicObject) -> Option<Box<Self>> {
        let meta = &config.metadata;
        let root = match controller(config) {
            Some(owner) if is(owner, Kind::ShardingConfig) => RootOf::Owner(owner.uid.clone()),
            Some(_) => return None,
            None => RootOf::Named(meta.labels.as_ref()?.get(keys::ROOT)?.clone()),
        };
        let partition = meta.annotations.as_ref().and_then(|all| all.get(keys::LOT));
        let partition = partition.and_then(|text| Partition::read(text));
        Some(Box::new(Self { root, spec: spec(config), partition }))
    }

    /// Whether it is a child of this root.
    pub(super) fn is_of(&self, root: &ObjectRef) -> bool {
        match &self.root {
            RootOf::Owner(uid) => root.uid.as_deref() == Some(uid),
            RootOf::Named(name) => *root.name == **name,
        }
    }
}

fn owns(draft: &ShardingDraft, known: Option<&NamespaceLabels>) -> Option<OwnsInWords> {
    let policy = draft.resolve(known).ok()?;
    Some(ownership::said(&policy.sharding.area()))
}

impl ConfigFacts {
    pub(super) fn of(config: &DynamicObject) -> Self {
        let checked = draft(Kind::of_config(config), config);
        let draft = shard_of(&checked);
        let needs_namespaces = draft.is_some_and(ShardingDraft::needs_namespaces);
        let wanted = draft.and_then(|draft| DesiredScope::of(draft, None).ok()?);
        let owns = draft.and_then(|draft| owns(draft, None));
        let status = config.data.get("status").map(ShardingConfigStatus::deserialize);
        let status = status.and_then(Result::ok).unwrap_or_default();
        let meta = &config.metadata;
        let mut finalizers = meta.finalizers.iter().flatten();
        Self {
            needs_namespaces,
            wanted,
            owns,
            status,
            is_going: meta.deletion_timestamp.is_some(),
            is_protected: finalizers.any(|finalizer| finalizer == keys::PROTECTED),
            child: ChildFacts::of(config),
            translation: TranslationFacts::of(config),
            checked,
        }
    }
}

impl ConfigFacts {
    /// The wish of its shard, with these labels of namespaces. `None` if it is in no ring, or invalid.
    pub(super) fn wanted(
        &self,
        known: Option<&NamespaceLabels>,
    ) -> Result<Option<DesiredScope<Arc<Scope>>>, NamespacesUnknown> {
        match &self.checked {
            Ok(Draft::Sharding(draft)) if self.needs_namespaces => DesiredScope::of(draft, known),
            _ => Ok(self.wanted.clone()),
        }
    }

    /// The objects of its shard in a few words, with these labels of namespaces. `None` if they are
    /// needed and not known, or it is no shard.
    pub(super) fn owns(&self, known: Option<&NamespaceLabels>) -> Option<OwnsInWords> {
        match &self.checked {
            Ok(Draft::Sharding(draft)) if self.needs_namespaces => owns(draft, known),
            _ => self.owns.clone(),
        }
    }
}

/// The key of an object among those of its kind.
pub(super) fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The namespace in a key.
pub(super) fn namespace(key: &str) -> &str {
    key.split_once('/').map_or(key, |(namespace, _)| namespace)
}

/// The name in a key.
pub(super) fn name(key: &str) -> &str {
    key.split_once('/').map_or("", |(_, name)| name)
}

impl Configs {
    pub(super) fn new(configs: BTreeMap<String, Arc<ConfigFacts>>) -> Self {
        Self(configs)
    }

    /// Adds a config, as the API server would hold it.
    pub fn add(&mut self, config: &DynamicObject) {
        let facts = ConfigFacts::of(config);
        let object = object_of(&facts.checked);
        self.0.insert(key(&object.namespace, &object.name), Arc::new(facts));
    }

    /// Adds a config as the API server holds it. Shares its facts with those that are known, where they
    /// are the same.
    pub(super) fn add_beside(&mut self, config: &DynamicObject, known: &Self) {
        let facts = ConfigFacts::of(config);
        let object = object_of(&facts.checked);
        let key = key(&object.namespace, &object.name);
        let same = known.0.get(&key).filter(|known| ***known == facts).cloned();
        self.0.insert(key, same.unwrap_or_else(|| Arc::new(facts)));
    }

    /// The one config that selects a pod of the namespace, or its template. `None` also if several do,
    /// or a label of the pod is no text. A pod of a Deployment that has no shard yet follows what the shards
    /// of its root have in common.
    pub fn of_pod(&self, namespace: &str, pod: &Value) -> Option<&ShardingDraft> {
        let labels = pod.pointer("/metadata/labels")?.as_object()?.iter();
        let labels = labels.map(|(key, text)| Some((key.clone(), text.as_str()?.to_owned())));
        let labels = labels.collect::<Option<BTreeMap<_, _>>>()?;
        let chosen = choose(self.of_namespace(namespace), &labels, namespace, None).ok();
        let of_root = || self.root_of(namespace, &labels, of_deployment(pod)?);
        chosen.or_else(|| of_root().map(|draft| &*draft.whole))
    }

    /// The root of a Deployment, if it selects a pod of that with these labels.
    pub(super) fn root_of(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        deployment: &str,
    ) -> Option<&RootDraft> {
        let mut roots = self.of_namespace(namespace).filter_map(|config| match config {
            Ok(Draft::Root(draft)) if draft.root.is_of_deployment(deployment) => Some(draft),
            _ => None,
        });
        roots.find(|draft| draft.selects(|key| labels.get(key).map(String::as_str)))
    }

    /// The checked configs of a namespace.
    pub(super) fn of_namespace(&self, of: &str) -> impl Iterator<Item = &Checked> {
        self.facts_of(of).map(|config| &config.checked)
    }

    /// The configs of a namespace.
    pub(super) fn facts_of(&self, of: &str) -> impl Iterator<Item = &ConfigFacts> {
        let all = self.0.range(key(of, "")..);
        all.take_while(move |(at, _)| namespace(at) == of).map(|(_, config)| &**config)
    }

    /// The config at a key.
    pub(super) fn at(&self, key: &str) -> Option<&ConfigFacts> {
        self.0.get(key).map(|config| &**config)
    }

    /// All configs, by their keys.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &ConfigFacts)> {
        self.0.iter().map(|(at, config)| (&**at, &**config))
    }

    /// The namespaces with configs.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|at| namespace(at))
    }

    /// The namespaces whose pods need the labels of namespaces.
    pub(super) fn in_need(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, config)| config.needs_namespaces).map(|(at, _)| namespace(at))
    }
}
