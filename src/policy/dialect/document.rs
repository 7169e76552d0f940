//! A policy in a file of one or more YAML documents.

use kube::api::DynamicObject;
use serde::Deserialize;

use super::{
    draft,
    draft::{Checked, Draft, ShardingDraft},
    problem::Invalid,
};
use crate::policy::object::{Kind, ObjectRef};

/// Errors of reading a policy from YAML.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadDocument {
    #[error("document {0}")]
    Document(usize, #[source] serde_yaml::Error),
    #[error("no {0} is named {1:?}, there is {2}")]
    Absent(Kind, String, String),
    #[error("two {0}s are named {1:?}, a name must be unique")]
    Twice(Kind, String),
    #[error("{0} is a root, which has no pods: name the config of a shard")]
    Root(ObjectRef),
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    api_version: Option<String>,
    kind: Option<String>,
}

/// Checks the ShardingConfig named `shard` for a pod of `namespace`, by default the config's own
/// namespace. Documents of other kinds are skipped.
pub fn from_documents(
    bytes: &[u8],
    shard: &str,
    namespace: Option<&str>,
) -> Result<ShardingDraft, BadDocument> {
    let kind = Kind::ShardingConfig;
    let mut found = None;
    let mut others = Vec::new();
    for object in objects(bytes, kind) {
        let object = object?;
        match object.metadata.name.clone() {
            Some(name) if name == shard => {
                if found.replace(object).is_some() {
                    return Err(BadDocument::Twice(kind, name));
                }
            }
            name => others.push(name.unwrap_or_default()),
        }
    }
    let Some(mut object) = found else {
        let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        return Err(BadDocument::Absent(kind, shard.to_owned(), others));
    };
    if let Some(namespace) = namespace {
        object.metadata.namespace = Some(namespace.to_owned());
    }
    match draft(kind, &object)? {
        Draft::Sharding(draft) => Ok(draft),
        Draft::Root(draft) => Err(BadDocument::Root(draft.root.object)),
    }
}

/// Checks all ShardingConfigs of the namespace that the one named `shard` has in the file, for pods
/// of `namespace`, by default that one.
pub fn all_of(
    bytes: &[u8],
    shard: &str,
    namespace: Option<&str>,
) -> Result<Vec<Checked>, BadDocument> {
    let kind = Kind::ShardingConfig;
    let objects = objects(bytes, kind).collect::<Result<Vec<_>, _>>()?;
    let own = objects.iter().find(|object| object.metadata.name.as_deref() == Some(shard));
    let own = own.and_then(|object| object.metadata.namespace.clone());
    let beside = objects.into_iter().filter(|object| object.metadata.namespace == own);
    let checked = beside.map(|mut object| {
        if let Some(namespace) = namespace {
            object.metadata.namespace = Some(namespace.to_owned());
        }
        draft(kind, &object)
    });
    Ok(checked.collect())
}

/// The namespace, if given, and the name of each ShardingConfig.
pub fn names(bytes: &[u8]) -> Result<Vec<(Option<String>, String)>, BadDocument> {
    let name = |object: DynamicObject| {
        (object.metadata.namespace, object.metadata.name.unwrap_or_default())
    };
    objects(bytes, Kind::ShardingConfig).map(|object| object.map(name)).collect()
}

/// The objects of this kind, in the order of the documents.
fn objects(bytes: &[u8], kind: Kind) -> impl Iterator<Item = Result<DynamicObject, BadDocument>> {
    let documents = serde_yaml::Deserializer::from_slice(bytes).enumerate();
    documents.filter_map(move |(at, document)| {
        serde_yaml::Value::deserialize(document)
            .and_then(|value| object(value, kind))
            .map_err(|error| BadDocument::Document(at + 1, error))
            .transpose()
    })
}

/// The document as an object of this kind, or `None` if it is another object.
fn object(
    value: serde_yaml::Value,
    kind: Kind,
) -> Result<Option<DynamicObject>, serde_yaml::Error> {
    if value.is_null() {
        return Ok(None);
    }
    let head = TypeMeta::deserialize(&value)?;
    let wanted = kind.api_resource();
    let is_wanted = head.api_version == Some(wanted.api_version) && head.kind == Some(wanted.kind);
    if is_wanted { DynamicObject::deserialize(value).map(Some) } else { Ok(None) }
}
