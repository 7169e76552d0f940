//! The pods of the workload: whether they can have a proxy, how a client of theirs may miss it, and what
//! changes their number.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt};
use serde_json::{Value, json};

use super::judgement::Judgement;
use crate::shard::facts::Facts;
use ctrlmesh_api::{TargetKind, keys};
use ctrlmesh_init::ProxyUid;
use ctrlmesh_inject::{Image, NotInjected, Settings, Sidecar, inject};

pub(super) fn judge(facts: &Facts, judgement: &mut Judgement) {
    injection(facts, judgement);
    clients(facts, judgement);
    rollout(facts, judgement);
    budgets(facts, judgement);
}

/// Whether the manager would inject them.
fn injection(facts: &Facts, judgement: &mut Judgement) {
    let mut pod = facts.workload.template().clone();
    pod["metadata"]["labels"][format!("{}{}", keys::PREFIX, keys::ENABLE_PROXY)] = json!("true");
    let mut injected = || -> Option<Result<(), NotInjected>> {
        let image = || "ctrlmesh".parse::<Image>().ok();
        let settings =
            Settings::new(image()?, image()?, Sidecar::Native, ProxyUid::DEFAULT).ok()?;
        Some(inject(&mut pod, &settings, None).map(drop))
    };
    if let Some(Err(why)) = injected() {
        judgement.refuse(format!("its pods can have no proxy: {why}"), "");
    }
}

/// Clients that may go past the proxy, or that it cannot answer.
fn clients(facts: &Facts, judgement: &mut Judgement) {
    let is_set = |text: &str, flag: &str| {
        let rest = text.trim_start_matches('-').strip_prefix(flag);
        text.starts_with('-') && rest.is_some_and(|rest| rest.is_empty() || rest.len() > 1)
    };
    for container in facts.workload.containers() {
        let name = container["name"].as_str().unwrap_or_default();
        let texts = ["command", "args"].map(|field| container[field].as_array());
        let texts = texts.into_iter().flatten().flatten().filter_map(Value::as_str);
        let texts: Vec<&str> = texts.collect();
        if let Some(flag) = texts.iter().find(|text| is_set(text, "client-certificate")) {
            judgement.refuse(
                format!(
                    "container {name} has {flag}: the proxy cannot show a client's certificate"
                ),
                "let it use the token of its ServiceAccount",
            );
        }
        let variables = container["env"].as_array().into_iter().flatten();
        let mut variables = variables.filter_map(|one| one["name"].as_str());
        let by_flag = texts.iter().find(|text| is_set(text, "kubeconfig")).copied();
        let by_variable = variables.find(|name| *name == "KUBECONFIG");
        if let Some(given) = by_flag.or(by_variable) {
            judgement.warn(
                format!(
                    "container {name} has {given}: the CA in that kubeconfig is not the mesh's, and a client \
                     certificate in it cannot be shown"
                ),
                "let it use its ServiceAccount, or put the mesh CA and a token into that kubeconfig",
            );
        }
    }
}

/// What changes or needs the number of pods.
fn rollout(facts: &Facts, judgement: &mut Judgement) {
    let workload = &facts.workload;
    let spec = &workload.object["spec"];
    if spec["paused"] == true {
        judgement.refuse(
            "the Deployment is paused, so that its pods stay as they are",
            format!(
                "kubectl rollout resume {} --namespace {}",
                workload.argument(),
                workload.namespace
            ),
        );
    }
    let volumes = workload.template().pointer("/spec/volumes").and_then(Value::as_array);
    let mut volumes = volumes.into_iter().flatten();
    let claim = volumes.find_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
    if let (TargetKind::Deployment, Some(claim)) = (workload.target.kind, claim) {
        judgement.warn(
            format!("all pods mount PersistentVolumeClaim {claim}"),
            "see that it can be mounted by several pods, and that they do not write the same files",
        );
    }
}

fn budgets(facts: &Facts, judgement: &mut Judgement) {
    let labels = facts.workload.pod_labels();
    let labels =
        labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let Some(budgets) = judgement.seen("the PodDisruptionBudgets of the namespace", &facts.budgets)
    else {
        return;
    };
    let is_none = |value: &IntOrString, none: i32, text: &str| match value {
        IntOrString::Int(number) => *number == none,
        IntOrString::String(part) => part == text,
    };
    for budget in budgets {
        let Some(spec) = &budget.spec else { continue };
        let selector = spec.selector.clone().map(Selector::try_from);
        let selects = selector.is_some_and(|selector| selector.is_ok_and(|of| of.matches(&labels)));
        let forbids = spec.max_unavailable.as_ref().is_some_and(|max| is_none(max, 0, "0%"))
            || spec.min_available.as_ref().is_some_and(|min| is_none(min, i32::MAX, "100%"));
        if selects && forbids {
            judgement.warn(
                format!(
                    "PodDisruptionBudget {} forbids every eviction: a shard without a pod keeps its objects \
                     while another has too many pods",
                    budget.metadata.name.as_deref().unwrap_or_default()
                ),
                "let maxUnavailable be 1",
            );
        }
    }
}
