//! A policy as somebody keeps it in a file: one of several YAML documents.

use kube::Resource;
use serde::Deserialize;

use super::{Draft, Invalid, compile};
use crate::api::ShardingConfig;

/// Why there is no policy in a text.
#[derive(Debug, thiserror::Error)]
pub enum BadDocument {
    /// It is not what it says that it is.
    #[error("document {0} is no ShardingConfig")]
    Document(usize, #[source] serde_yaml::Error),
    /// Nobody has the name.
    #[error("no ShardingConfig is named {0:?}, there is {1}")]
    Absent(String, String),
    /// Two have it.
    #[error("two ShardingConfigs are named {0:?}")]
    Twice(String),
    /// It cannot be used.
    #[error("ShardingConfig {0:?}")]
    Invalid(String, #[source] Invalid),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: Option<String>,
    kind: Option<String>,
}

/// The draft of the ShardingConfig that is named `shard`, for a pod of `namespace`: without one,
/// of the config's own. Documents of other kinds are passed over.
///
/// # Errors
/// [`BadDocument`].
pub fn from_documents(
    bytes: &[u8],
    shard: &str,
    namespace: Option<&str>,
) -> Result<Draft, BadDocument> {
    let mut found = None;
    let mut others = Vec::new();
    for config in sharding_configs(bytes) {
        let config = config?;
        match config.metadata.name.clone() {
            Some(name) if name == shard => {
                if found.replace(config).is_some() {
                    return Err(BadDocument::Twice(name));
                }
            }
            name => others.push(name.unwrap_or_default()),
        }
    }
    let Some(config) = found else {
        let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        return Err(BadDocument::Absent(shard.to_owned(), others));
    };
    let namespace = namespace.or(config.metadata.namespace.as_deref());
    compile(shard, namespace.unwrap_or("default"), &config.spec)
        .map_err(|error| BadDocument::Invalid(shard.to_owned(), error))
}

/// The namespaces, where they are told, and names of all ShardingConfigs.
///
/// # Errors
/// [`BadDocument`], when one is none.
pub fn names(bytes: &[u8]) -> Result<Vec<(Option<String>, String)>, BadDocument> {
    let name = |config: ShardingConfig| {
        (config.metadata.namespace, config.metadata.name.unwrap_or_default())
    };
    sharding_configs(bytes).map(|config| config.map(name)).collect()
}

fn sharding_configs(bytes: &[u8]) -> impl Iterator<Item = Result<ShardingConfig, BadDocument>> {
    let documents = serde_yaml::Deserializer::from_slice(bytes).enumerate();
    documents.filter_map(|(at, document)| {
        serde_yaml::Value::deserialize(document)
            .and_then(sharding_config)
            .map_err(|error| BadDocument::Document(at + 1, error))
            .transpose()
    })
}

/// The document, when it is a ShardingConfig; a file may hold other objects too.
fn sharding_config(value: serde_yaml::Value) -> Result<Option<ShardingConfig>, serde_yaml::Error> {
    if value.is_null() {
        return Ok(None);
    }
    let head = Head::deserialize(&value)?;
    let is_ours = head.kind.as_deref() == Some(&*ShardingConfig::kind(&()))
        && head.api_version.as_deref() == Some(&*ShardingConfig::api_version(&()));
    if is_ours { ShardingConfig::deserialize(value).map(Some) } else { Ok(None) }
}
