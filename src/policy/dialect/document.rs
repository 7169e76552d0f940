//! A policy in a file of one or more YAML documents.

use kube::Resource;
use serde::Deserialize;

use super::{draft::Draft, kusion::compile, problem::Invalid};
use crate::api::ShardingConfig;

/// Errors of reading a policy from YAML.
#[derive(Debug, thiserror::Error)]
pub enum BadDocument {
    /// A document is malformed YAML or a malformed ShardingConfig.
    #[error("document {0} is no ShardingConfig")]
    Document(usize, #[source] serde_yaml::Error),
    /// No ShardingConfig has the name.
    #[error("no ShardingConfig is named {0:?}, there is {1}")]
    Absent(String, String),
    /// Two ShardingConfigs have the name.
    #[error("two ShardingConfigs are named {0:?}")]
    Twice(String),
    /// The ShardingConfig cannot be compiled.
    #[error("ShardingConfig {0:?}")]
    Invalid(String, #[source] Invalid),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: Option<String>,
    kind: Option<String>,
}

/// Compiles the ShardingConfig named `shard` for a pod of `namespace`, by default the config's own
/// namespace. Documents of other kinds are skipped.
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

/// The namespace, if given, and the name of each ShardingConfig.
///
/// # Errors
/// [`BadDocument`] if a document is malformed.
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

/// The document as a ShardingConfig, or `None` if it is another object.
fn sharding_config(value: serde_yaml::Value) -> Result<Option<ShardingConfig>, serde_yaml::Error> {
    if value.is_null() {
        return Ok(None);
    }
    let head = Head::deserialize(&value)?;
    let is_ours = head.kind.as_deref() == Some(&*ShardingConfig::kind(&()))
        && head.api_version.as_deref() == Some(&*ShardingConfig::api_version(&()));
    if is_ours { ShardingConfig::deserialize(value).map(Some) } else { Ok(None) }
}
