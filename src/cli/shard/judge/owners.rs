//! Who else writes the fields that are patched: autoscalers, Helm, Argo CD, Flux, and those that apply them.

use serde_json::Value;

use super::judgement::{Judgement, Wanted};
use crate::shard::{
    facts::{Facts, Workload},
    read::release::{Release, Values},
};
use ctrlmesh_api::{TargetKind, keys};

pub(super) fn judge(facts: &Facts, wanted: &Wanted, judgement: &mut Judgement) {
    autoscalers(facts, wanted, judgement);
    let workload = &facts.workload;
    if let Some(name) = workload.marked("meta.helm.sh/release-name") {
        helm(name, facts, wanted, judgement);
    }
    for (key, who, fix) in [
        (
            "argocd.argoproj.io/tracking-id",
            "Argo CD",
            "give these fields in the Application's values, or name them in its ignoreDifferences",
        ),
        (
            "kustomize.toolkit.fluxcd.io/name",
            "Flux",
            "give these fields in the Kustomization's patches",
        ),
        ("helm.toolkit.fluxcd.io/name", "Flux", "give these fields in the HelmRelease's values"),
    ] {
        if let Some(is) = workload.marked(key) {
            judgement.warn(format!("{who} ({is}) writes it, and will undo the patch"), fix);
        }
    }
    for (manager, fields) in applied(workload) {
        judgement.warn(
            format!(
                "{manager} applies {}: its next apply undoes the patch, or ends in a conflict",
                fields.join(" and ")
            ),
            format!("give these fields where {manager} has them from"),
        );
    }
}

fn autoscalers(facts: &Facts, wanted: &Wanted, judgement: &mut Judgement) {
    let Some(all) = judgement.seen("the autoscalers of the namespace", &facts.autoscalers) else {
        return;
    };
    let target = &facts.workload.target;
    for autoscaler in all {
        let Some(spec) = &autoscaler.spec else { continue };
        let of = &spec.scale_target_ref;
        if of.kind != target.kind.as_str() || of.name != target.name {
            continue;
        }
        let name = autoscaler.metadata.name.as_deref().unwrap_or_default();
        let (min, max) = (spec.min_replicas.unwrap_or(1), spec.max_replicas);
        let shards = i32::try_from(wanted.shards).unwrap_or(i32::MAX);
        let (says, fix) = if (min..=max).contains(&shards) {
            (
                "changes the number of shards",
                "nothing: a number that changes within 10 s moves nothing".to_owned(),
            )
        } else {
            let fix = format!(
                "give it minReplicas and maxReplicas around {shards}, or --shards {min} to {max}"
            );
            ("allows no such number of shards", fix)
        };
        let says = format!("HorizontalPodAutoscaler {name}, with {min} to {max} replicas, {says}");
        judgement.warn(says, fix);
    }
}

/// The Helm values with which an upgrade keeps the patched fields.
fn helm(name: &str, facts: &Facts, wanted: &Wanted, judgement: &mut Judgement) {
    let says = format!("Helm made it (release {name}): an upgrade may undo the patch");
    let release = judgement.seen("the Helm release", &facts.release).and_then(Option::as_ref);
    let Some(release) = release.filter(|release| release.values.labels.is_some()) else {
        let fix = "give the chart the label of the pods with --set-string, its replicas and its strategy, if it \
                   has values for them";
        return judgement.warn(says, fix);
    };
    judgement
        .warn(says, format!("with these values it does not: {}", upgrade(release, facts, wanted)));
}

fn upgrade(release: &Release, facts: &Facts, wanted: &Wanted) -> String {
    let Release { name, chart, values } = release;
    let Values { labels, replicas, strategy } = values;
    let workload = &facts.workload;
    let mut text = format!(
        "helm upgrade {name} {chart} --namespace {} --reuse-values",
        workload.marked("meta.helm.sh/release-namespace").unwrap_or(&workload.namespace)
    );
    if let Some(labels) = labels {
        let key = format!("{}{}", keys::PREFIX, keys::ENABLE_PROXY).replace('.', "\\.");
        text.push_str(&format!(" --set-string '{labels}.{key}=true'"));
    }
    if let Some(replicas) = replicas {
        text.push_str(&format!(" --set {replicas}={}", wanted.shards));
    }
    if let (TargetKind::Deployment, Some(strategy)) = (workload.target.kind, strategy) {
        for value in
            ["type=RollingUpdate", "rollingUpdate.maxUnavailable=0", "rollingUpdate.maxSurge=1"]
        {
            text.push_str(&format!(" --set {strategy}.{value}"));
        }
    }
    text
}

/// Those that apply the fields that are patched, each with their names.
fn applied(workload: &Workload) -> Vec<(&str, Vec<&'static str>)> {
    let entries = workload.object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let mut all = Vec::new();
    for entry in entries.into_iter().flatten().filter(|entry| entry["operation"] == "Apply") {
        let spec = &entry["fieldsV1"]["f:spec"];
        let of = |field: &'static str| spec.get(format!("f:{field}")).map(|_| field);
        let fields: Vec<_> = [of("replicas"), of("strategy")].into_iter().flatten().collect();
        if let Some(manager) = entry["manager"].as_str().filter(|_| !fields.is_empty()) {
            all.push((manager, fields));
        }
    }
    all
}
