//! The identity of an object that users write.

use std::fmt;

use kube::api::{ApiResource, ObjectMeta};

use crate::api::ShardingConfig;

/// A kind of objects that compile to a part of the policy, in one API group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// KusionStack's `ShardingConfig`.
    ShardingConfig,
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
    /// The kind's place in the API.
    pub fn api_resource(self) -> ApiResource {
        match self {
            Self::ShardingConfig => ApiResource::erase::<ShardingConfig>(&()),
        }
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
