//! `ctrlmesh crds`: the custom resource definitions, generated from the types.

use kube::CustomResourceExt;

use ctrlmesh_api::{KridgeShardingConfig, ShardingConfig};

/// The definitions as YAML documents, ready for `kubectl apply -f -`. Fails if a definition cannot
/// be written as YAML.
pub fn yaml() -> Result<String, serde_yaml::Error> {
    let all = [ShardingConfig::crd(), KridgeShardingConfig::crd()];
    let documents = all.iter().map(|crd| Ok(format!("---\n{}", serde_yaml::to_string(crd)?)));
    documents.collect()
}
