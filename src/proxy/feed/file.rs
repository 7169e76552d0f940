//! The policy in a file of several YAML documents.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval};

use super::Feed;
use crate::{
    api::ShardingConfig,
    policy::{self, Invalid, Policy},
};

/// A policy file is written by hand or by a tool; one beyond this is a mistake.
const MAX_BYTES: u64 = 1 << 20;
/// How often the file is looked at. A mounted ConfigMap changes by a swap of links, which no
/// file-change notice reports for the file itself.
const LOOK: Duration = Duration::from_millis(500);

/// A file, and which document in it.
#[derive(Clone, Debug)]
pub(in crate::proxy) struct PolicyFile {
    path: PathBuf,
    shard: String,
    namespace: Option<String>,
}

/// Why there is no policy in the file.
#[derive(Debug, thiserror::Error)]
#[error("--policy {}", .path.display())]
pub(in crate::proxy) struct BadPolicyFile {
    path: PathBuf,
    #[source]
    what: Fault,
}

/// What is wrong with a policy file.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("cannot be read")]
    Unreadable(#[source] io::Error),
    #[error("is larger than 1 MiB")]
    TooLarge,
    #[error("document {0} is no ShardingConfig")]
    Document(usize, #[source] serde_yaml::Error),
    #[error("no ShardingConfig is named {0:?}, there is {1}")]
    Absent(String, String),
    #[error("two ShardingConfigs are named {0:?}")]
    Twice(String),
    #[error("ShardingConfig {0:?}")]
    Invalid(String, #[source] Invalid),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: Option<String>,
    kind: Option<String>,
}

impl PolicyFile {
    pub(in crate::proxy) fn new(path: PathBuf, shard: String, namespace: Option<String>) -> Self {
        Self { path, shard, namespace }
    }

    /// Reads the file now.
    pub(in crate::proxy) fn read(&self) -> Result<Policy, BadPolicyFile> {
        self.bytes().and_then(|bytes| self.parse(&bytes)).map_err(|what| self.bad(what))
    }

    /// Puts every change of the file in force.
    pub(in crate::proxy) async fn follow(self, feed: Arc<Feed>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            looks.tick().await;
            let now = self.bytes();
            if let (Ok(now), Some(last)) = (&now, &last)
                && now == last
            {
                continue;
            }
            last = now.as_ref().ok().cloned();
            match now.and_then(|bytes| self.parse(&bytes)) {
                Ok(policy) => feed.install(policy),
                Err(what) => feed.reject(chain(&self.bad(what))),
            }
        }
    }

    fn bad(&self, what: Fault) -> BadPolicyFile {
        BadPolicyFile { path: self.path.clone(), what }
    }

    fn bytes(&self) -> Result<Vec<u8>, Fault> {
        if fs::metadata(&self.path).map_err(Fault::Unreadable)?.len() > MAX_BYTES {
            return Err(Fault::TooLarge);
        }
        fs::read(&self.path).map_err(Fault::Unreadable)
    }

    fn parse(&self, bytes: &[u8]) -> Result<Policy, Fault> {
        let mut found = None;
        let mut others = Vec::new();
        for (at, document) in serde_yaml::Deserializer::from_slice(bytes).enumerate() {
            let bad = |error| Fault::Document(at + 1, error);
            let value = serde_yaml::Value::deserialize(document).map_err(bad)?;
            let Some(config) = sharding_config(value).map_err(bad)? else { continue };
            match config.metadata.name.clone() {
                Some(name) if name == self.shard => {
                    if found.replace(config).is_some() {
                        return Err(Fault::Twice(name));
                    }
                }
                name => others.push(name.unwrap_or_default()),
            }
        }
        let Some(config) = found else {
            let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
            return Err(Fault::Absent(self.shard.clone(), others));
        };
        let namespace = self.namespace.as_deref().or(config.metadata.namespace.as_deref());
        policy::compile(&self.shard, namespace.unwrap_or("default"), &config.spec)
            .map_err(|error| Fault::Invalid(self.shard.clone(), error))
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The document, when it is a ShardingConfig; a file may hold other objects too.
fn sharding_config(value: serde_yaml::Value) -> Result<Option<ShardingConfig>, serde_yaml::Error> {
    use kube::Resource;

    if value.is_null() {
        return Ok(None);
    }
    let head = Head::deserialize(&value)?;
    let is_ours = head.kind.as_deref() == Some(&*ShardingConfig::kind(&()))
        && head.api_version.as_deref() == Some(&*ShardingConfig::api_version(&()));
    if is_ours { ShardingConfig::deserialize(value).map(Some) } else { Ok(None) }
}
