//! The identity of an object that users write.

use std::fmt;

use kube_core::{ApiResource, DynamicObject, ObjectMeta};

use ctrlmesh_api::{KridgeShardingConfig, ShardingConfig};

/// A kind of objects that compile to a part of the policy, in one API group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// KusionStack's `ShardingConfig`.
    ShardingConfig,
    /// Kridge's `ShardingConfig`.
    KridgeShardingConfig,
}

/// The identity of an object that users write. Messages name it as `ShardingConfig ns/name`.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{kind} {namespace}/{name}")]
pub struct ObjectRef {
    /// The object's kind.
    pub kind: Kind,
    /// The object's namespace.
    pub namespace: Box<str>,
    /// The object's name.
    pub name: Box<str>,
    /// The object's uid; `None` outside an API server.
    pub uid: Option<Box<str>>,
    /// The number of the object's spec; `None` outside an API server.
    pub generation: Option<i64>,
}

impl Kind {
    /// The kinds of configs.
    const ALL: [Self; 2] = [Self::ShardingConfig, Self::KridgeShardingConfig];

    /// The kind of an object with this type. `None` if it is another.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| {
            let resource = one.api_resource();
            resource.api_version == api_version && resource.kind == kind
        })
    }

    /// The kind's place in the API.
    pub fn api_resource(self) -> ApiResource {
        match self {
            Self::ShardingConfig => ApiResource::erase::<ShardingConfig>(&()),
            Self::KridgeShardingConfig => ApiResource::erase::<KridgeShardingConfig>(&()),
        }
    }
}

impl Kind {
    /// The kind of a config. One that does not say, as an item of a list, is ours.
    pub fn of_config(config: &DynamicObject) -> Self {
        let types = config.types.as_ref();
        let kind = types.and_then(|types| Self::of(&types.api_version, &types.kind));
        kind.unwrap_or(Self::ShardingConfig)
    }
}

impl ObjectRef {
    /// The identity of the object of this kind and metadata.
    pub fn new(kind: Kind, meta: &ObjectMeta) -> Self {
        Self {
            kind,
            namespace: meta.namespace.as_deref().unwrap_or("default").into(),
            name: meta.name.as_deref().unwrap_or_default().into(),
            uid: meta.uid.as_deref().map(Into::into),
            generation: meta.generation,
        }
    }

    /// Whether both name the same object, perhaps at another time.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.kind, &self.namespace, &self.name) == (other.kind, &other.namespace, &other.name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.api_resource().kind)
    }
}
