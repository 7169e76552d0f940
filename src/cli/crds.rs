//! `ctrlmesh crds`: the custom resource definitions, generated from the types.

use kube::CustomResourceExt;

use crate::api::ShardingConfig;

/// The definitions as YAML documents, ready for `kubectl apply -f -`. Fails if a definition cannot
/// be written as YAML.
pub fn yaml() -> Result<String, serde_yaml::Error> {
    Ok(format!("---\n{}", serde_yaml::to_string(&ShardingConfig::crd())?))
}
