//! A policy in a file of one or more YAML documents.

use kube_core::DynamicObject;
use serde::Deserialize;

use super::{
    draft,
    draft::{Checked, Draft, ShardingDraft},
    problem::Invalid,
};
use crate::object::{Kind, ObjectRef};

/// Errors of reading a policy from YAML.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadDocument {
    #[error("document {0}")]
    Document(usize, #[source] serde_yaml::Error),
    #[error("no ShardingConfig is named {0:?}, there is {1}")]
    Absent(String, String),
    #[error("two ShardingConfigs are named {0:?}, a name must be unique")]
    Twice(String),
    #[error("{0} is a root, which has no pods: name the config of a shard")]
    Root(Box<ObjectRef>),
    #[error(transparent)]
    Invalid(Box<Invalid>),
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
    let mut found = None;
    let mut others = Vec::new();
    for object in objects(bytes) {
        let (of, object) = object?;
        match object.metadata.name.clone() {
            Some(name) if name == shard => {
                if found.replace((of, object)).is_some() {
                    return Err(BadDocument::Twice(name));
                }
            }
            name => others.push(name.unwrap_or_default()),
        }
    }
    let Some((of, mut object)) = found else {
        let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        return Err(BadDocument::Absent(shard.to_owned(), others));
    };
    if let Some(namespace) = namespace {
        object.metadata.namespace = Some(namespace.to_owned());
    }
    match draft(of, &object).map_err(|invalid| BadDocument::Invalid(invalid.into()))? {
        Draft::Sharding(draft) => Ok(draft),
        Draft::Root(draft) => Err(BadDocument::Root(draft.root.object.into())),
    }
}

/// Checks all ShardingConfigs of the file that are in the namespace of the one named `shard`. They
/// are checked for pods of `namespace`, by default that same namespace.
pub fn all_of(
    bytes: &[u8],
    shard: &str,
    namespace: Option<&str>,
) -> Result<Vec<Checked>, BadDocument> {
    let objects = objects(bytes).collect::<Result<Vec<_>, _>>()?;
    let own = objects.iter().find(|(_, object)| object.metadata.name.as_deref() == Some(shard));
    let own = own.and_then(|(_, object)| object.metadata.namespace.clone());
    let beside = objects.into_iter().filter(|(_, object)| object.metadata.namespace == own);
    let checked = beside.map(|(kind, mut object)| {
        if let Some(namespace) = namespace {
            object.metadata.namespace = Some(namespace.to_owned());
        }
        draft(kind, &object)
    });
    Ok(checked.collect())
}

/// The namespace, if given, and the name of each ShardingConfig.
pub fn names(bytes: &[u8]) -> Result<Vec<(Option<String>, String)>, BadDocument> {
    let name = |(_, object): (Kind, DynamicObject)| {
        (object.metadata.namespace, object.metadata.name.unwrap_or_default())
    };
    objects(bytes).map(|object| object.map(name)).collect()
}

/// The configs, in the order of the documents.
fn objects(bytes: &[u8]) -> impl Iterator<Item = Result<(Kind, DynamicObject), BadDocument>> {
    let documents = serde_yaml::Deserializer::from_slice(bytes).enumerate();
    documents.filter_map(move |(at, document)| {
        serde_yaml::Value::deserialize(document)
            .and_then(object)
            .map_err(|error| BadDocument::Document(at + 1, error))
            .transpose()
    })
}

/// The document as a config, or `None` if it is another object.
fn object(value: serde_yaml::Value) -> Result<Option<(Kind, DynamicObject)>, serde_yaml::Error> {
    if value.is_null() {
        return Ok(None);
    }
    let head = TypeMeta::deserialize(&value)?;
    let (Some(api_version), Some(kind)) = (head.api_version, head.kind) else { return Ok(None) };
    let Some(kind) = Kind::of(&api_version, &kind) else { return Ok(None) };
    DynamicObject::deserialize(value).map(|object| Some((kind, object)))
}
