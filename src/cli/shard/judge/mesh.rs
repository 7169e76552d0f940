//! The mesh: whether it is there, injects the workload's pods, and has the workload already.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};

use super::judgement::Judgement;
use crate::shard::{before, facts::Facts};
use ctrlmesh_api::{TargetKind, keys};
use ctrlmesh_policy::{Draft, Kind, draft, object_of};

pub(super) fn judge(facts: &Facts, judgement: &mut Judgement) {
    let mesh = &facts.mesh;
    if judgement.seen("the definition of ShardingConfigs", &mesh.has_definition) == Some(&false) {
        judgement
            .refuse("the cluster has no ShardingConfigs", "install the chart of ctrlmesh first");
        return;
    }
    let is_deployment = facts.workload.target.kind == TargetKind::Deployment;
    if is_deployment
        && judgement.seen("the manager's rights to pods", &mesh.has_pods_policy) == Some(&false)
    {
        judgement.refuse(
            "the manager may not give pods of Deployments their shards",
            "upgrade the chart of ctrlmesh with --set deployments=true",
        );
    }
    namespace(facts, judgement);
    sharded(facts, judgement);
}

/// Whether the manager injects pods of the workload's namespace.
fn namespace(facts: &Facts, judgement: &mut Judgement) {
    let selectors = judgement.seen("the injection of pods", &facts.mesh.injected_namespaces);
    let labels = judgement.seen("the labels of the namespace", &facts.namespace);
    let (Some(selectors), Some(labels)) = (selectors, labels) else { return };
    let Some(selectors) = selectors else {
        let fix = "install the chart of ctrlmesh first";
        return judgement.refuse("no webhook injects pods", fix);
    };
    let matches = |selector: &LabelSelector| {
        Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
    };
    if !selectors.iter().any(matches) {
        judgement.refuse(
            format!("the manager injects no pods of namespace {}", facts.workload.namespace),
            "install the operator in another namespace, or take this one out of \
             webhook.excludedNamespaces of the chart of ctrlmesh",
        );
    }
}

/// Whether configs have the workload's pods already.
fn sharded(facts: &Facts, judgement: &mut Judgement) {
    let Some(configs) = judgement.seen("the ShardingConfigs of the namespace", &facts.configs)
    else {
        return;
    };
    let labels = facts.workload.pod_labels();
    let label = |key: &str| labels.get(key).copied();
    for config in configs.iter().filter(|config| !before::is_ours(config, &facts.workload.target)) {
        if config.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(keys::ROOT)) {
            continue;
        }
        let checked = draft(Kind::ShardingConfig, config);
        let name = &object_of(&checked).name;
        let is_its = match &checked {
            Ok(Draft::Root(draft)) => draft.root.target == facts.workload.target,
            Ok(Draft::Sharding(draft)) => draft.config.pods.matches(label),
            Err(_) => false,
        };
        if is_its {
            judgement.refuse(
                format!("ShardingConfig {name} has its pods, and was not written by `ctrlmesh shard`"),
                "change that config, or delete it and take the label enable-proxy from the workload first",
            );
        } else if **name == *facts.workload.target.name {
            judgement.refuse(
                format!("another ShardingConfig has the name {name}"),
                "delete it, or create it with another name",
            );
        }
    }
}
