//! The writes of `ctrlmesh unshard`, in an order in which each may be the last.
//!
//! The root goes last: it remembers what the workload was.

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    apply,
    args::WorkloadName,
    before::{self, Before},
    error::{Said, ShardError},
    facts::{Workload, is_injected},
    gather, progress,
};
use crate::doctor::collect::Asked;
use ctrlmesh_api::{RootTarget, TargetKind, lease};
use ctrlmesh_policy::Kind;

/// Gives the workload its fields back, and deletes its root.
pub(super) async fn undo(
    asked: &Asked,
    namespace: &str,
    named: &WorkloadName,
    said: &mut Said,
) -> Result<(), ShardError> {
    let target = RootTarget { kind: named.kind, name: named.name.clone() };
    let configs = gather::configs(asked, namespace).await?;
    let root = configs.iter().find(|config| before::is_ours(config, &target));
    let workload = match gather::workload(asked, namespace, named).await {
        Ok(workload) => Some(workload),
        // Its root may be left.
        Err(ShardError::NoWorkload { .. }) if root.is_some() => None,
        Err(error) => return Err(error),
    };
    let Some(config) = root else { return without_root(workload.as_ref(), &configs, said) };
    let before = before::read(config);
    if let Some((workload, before)) = workload.as_ref().zip(before.as_ref()) {
        give_back(asked, workload, before, said).await?;
    }
    delete_root(asked, (namespace, &named.name), said).await?;
    delete_locks(asked, (namespace, &named.name), said).await?;
    match workload.zip(before) {
        Some((workload, before)) => ready(asked, &workload, &before, said).await,
        None => Ok(said.line("the workload is gone: nothing is left to give back")?),
    }
}

/// Says that there is nothing to take back, or that something else has the pods.
fn without_root(
    workload: Option<&Workload>,
    configs: &[DynamicObject],
    said: &Said,
) -> Result<(), ShardError> {
    let Some(workload) = workload else { return Ok(()) };
    if !workload.pod_labels().contains_key(&*before::label()) {
        return Ok(said.line(&format!("{} is not sharded", workload.named()))?);
    }
    let names: Vec<_> =
        configs.iter().filter_map(|config| config.metadata.name.as_deref()).collect();
    let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Err(ShardError::NotOurs(format!(
        "{} was not sharded by `ctrlmesh shard`: no ShardingConfig of namespace {} says what it was before (it \
         has {has}). Take the label {} off its pod template, and delete its configs",
        workload.named(),
        workload.namespace,
        before::label()
    )))
}

async fn give_back(
    asked: &Asked,
    workload: &Workload,
    before: &Before,
    said: &Said,
) -> Result<(), ShardError> {
    let (patch, kept) = patch(workload, before);
    for field in kept {
        said.line(&format!("{field} was changed since, and stays as it is"))?;
    }
    let pods = gather::pods(asked, workload).await?;
    let may_come = workload.replicas() > 0 && workload.asks_for_proxy();
    if may_come || pods.iter().any(is_injected) {
        apply::stop(asked, workload, said, "its pods are shards").await?;
    }
    apply::patch(asked, workload, &Patch::Merge(&patch), false).await?;
    said.line(&format!("{} has the fields that it had before", workload.named()))?;
    Ok(())
}

/// The patch that gives a workload its fields back, and the fields that someone else has changed since.
fn patch(workload: &Workload, before: &Before) -> (Value, Vec<&'static str>) {
    let mut kept = Vec::new();
    let mut spec = json!({"template": {"metadata": {"labels": {before::label(): before.label}}}});
    if let Some(replicas) = before.replicas {
        spec["replicas"] = replicas.into();
    }
    let now = workload.object["spec"].get("strategy").cloned().unwrap_or_default();
    if workload.target.kind == TargetKind::Deployment {
        match &before.strategy {
            Some(strategy) if now == before::strategy() => {
                spec["strategy"] = difference(&now, strategy);
            }
            strategy if strategy.as_ref() == Some(&now) => {}
            _ => kept.push("spec.strategy"),
        }
    }
    (json!({"spec": spec}), kept)
}

/// The merge patch that makes one value another (RFC 7396).
fn difference(now: &Value, then: &Value) -> Value {
    let (Value::Object(now), Value::Object(then)) = (now, then) else { return then.clone() };
    let gone = now.keys().filter(|key| !then.contains_key(*key));
    let mut patch: serde_json::Map<_, _> = gone.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in then {
        let value = now.get(key).map_or_else(|| value.clone(), |now| difference(now, value));
        patch.insert(key.clone(), value);
    }
    Value::Object(patch)
}

/// Deletes the root, and waits until it and its children are gone.
async fn delete_root(
    asked: &Asked,
    (namespace, name): (&str, &str),
    said: &Said,
) -> Result<(), ShardError> {
    let kind = Kind::ShardingConfig.api_resource();
    let api: Api<DynamicObject> = Api::namespaced_with(asked.client.clone(), namespace, &kind);
    let deleted = api.delete(name, &DeleteParams::default()).await.map(drop);
    let refused = apply::refused(format!("the deletion of ShardingConfig {namespace}/{name}"));
    match deleted {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        deleted => deleted.map_err(refused)?,
    }
    loop {
        let configs = gather::configs(asked, namespace).await?;
        let is_there = configs.iter().any(|config| config.metadata.name.as_deref() == Some(name));
        let children = progress::children(name, &configs).len();
        if !is_there && children == 0 {
            return Ok(
                said.line(&format!("ShardingConfig {namespace}/{name} and its children are gone"))?
            );
        }
        let waits =
            format!("ShardingConfig {name} or {children} children of it are not deleted yet");
        said.in_time(&waits, namespace)?;
        sleep(apply::LOOK).await;
    }
}

/// Deletes the Leases that the shards had for locks.
async fn delete_locks(
    asked: &Asked,
    (namespace, prefix): (&str, &str),
    said: &Said,
) -> Result<(), ShardError> {
    let api: Api<Lease> = Api::namespaced(asked.client.clone(), namespace);
    let leases: Vec<Lease> = asked.list(api.clone(), ListParams::default()).await?;
    let names = leases.into_iter().filter_map(|lease| {
        let labels = lease.metadata.labels.unwrap_or_default();
        let name = lease.metadata.name?;
        (is_lock(&name, prefix) && !labels.contains_key(lease::RING)).then_some(name)
    });
    let mut count = 0;
    for name in names {
        match api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            deleted => {
                let refused = apply::refused(format!("the deletion of Lease {namespace}/{name}"));
                deleted.map_err(refused)?;
                count += 1;
            }
        }
    }
    if count > 0 {
        said.line(&format!("{count} Leases of its shards are deleted"))?;
    }
    Ok(())
}

/// Whether a Lease is the lock of a shard of a root with this prefix.
fn is_lock(name: &str, prefix: &str) -> bool {
    let shard = name.rsplit_once("---").map(|(_, shard)| shard);
    let number = shard
        .and_then(|shard| shard.strip_prefix(prefix)?.strip_prefix('-')?.strip_suffix("-normal"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Waits until the pods that it had before are ready.
async fn ready(
    asked: &Asked,
    workload: &Workload,
    before: &Before,
    said: &Said,
) -> Result<(), ShardError> {
    let Workload { namespace, target: RootTarget { kind, name }, .. } = workload;
    let wanted = before.replicas.unwrap_or(1);
    loop {
        let now = gather::workload(asked, namespace, &apply::named(*kind, name)).await?;
        let ready = now.object.pointer("/status/readyReplicas").and_then(Value::as_u64);
        let ready = u32::try_from(ready.unwrap_or(0)).unwrap_or(u32::MAX);
        let generation = now.object.pointer("/metadata/generation");
        if ready == wanted && now.object.pointer("/status/observedGeneration") == generation {
            let says = format!("{} is as it was before: {ready} ready", workload.named());
            return Ok(said.line(&says)?);
        }
        said.in_time(&format!("{ready} of {wanted} pods are ready"), namespace)?;
        sleep(apply::LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(spec: Value) -> Workload {
        Workload {
            namespace: "ops".to_owned(),
            target: RootTarget { kind: TargetKind::Deployment, name: "op".to_owned() },
            object: json!({"spec": spec}),
        }
    }

    /// What an API server makes of a merge patch, for objects.
    fn merged(now: &Value, patch: &Value) -> Value {
        let (Value::Object(now), Value::Object(patch)) = (now, patch) else { return patch.clone() };
        let mut all = now.clone();
        for (key, value) in patch {
            match value {
                Value::Null => all.remove(key),
                value => {
                    let old = now.get(key).cloned().unwrap_or_default();
                    all.insert(key.clone(), merged(&old, value))
                }
            };
        }
        Value::Object(all)
    }

    #[test]
    fn a_workload_gets_each_field_back() {
        for strategy in [
            json!({"type": "Recreate"}),
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}),
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}),
        ] {
            let original = json!({
                "replicas": 1,
                "strategy": strategy,
                "template": {"metadata": {"labels": {"app": "op"}}},
            });
            let before = Before::of(&deployment(original.clone()));
            let text = serde_json::to_string(&before).unwrap();
            assert_eq!(serde_json::from_str::<Before>(&text).unwrap(), before);
            let mut sharded = original.clone();
            sharded["replicas"] = json!(4);
            sharded["strategy"] = before::strategy();
            sharded["template"]["metadata"]["labels"][before::label()] = json!("true");
            let (patch, kept) = patch(&deployment(sharded.clone()), &before);
            assert_eq!(kept, [""; 0]);
            assert_eq!(merged(&json!({"spec": sharded}), &patch)["spec"], original);
            // It may be interrupted, and done again.
            let (again, kept) = super::patch(&deployment(original.clone()), &before);
            assert_eq!(kept, [""; 0]);
            assert_eq!(merged(&json!({"spec": original}), &again)["spec"], original);
        }
    }

    #[test]
    fn what_somebody_has_changed_since_stays() {
        let before =
            Before::of(&deployment(json!({"replicas": 1, "strategy": {"type": "Recreate"}})));
        let other =
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 2}});
        let (patch, kept) = patch(&deployment(json!({"replicas": 4, "strategy": other})), &before);
        assert_eq!(kept, ["spec.strategy"]);
        assert_eq!(patch["spec"].get("strategy"), None);
    }

    #[test]
    fn a_workload_creates_no_pod_once_its_controller_has_seen_zero() {
        let with = |replicas: u32, seen: i64, pods: u32| {
            let mut workload = deployment(json!({"replicas": replicas}));
            workload.object["metadata"] = json!({"generation": 2});
            workload.object["status"] = json!({"observedGeneration": seen, "replicas": pods});
            workload.has_seen_zero()
        };
        assert!(with(0, 2, 0));
        for (replicas, seen, pods) in [(1, 2, 0), (0, 1, 0), (0, 2, 1)] {
            assert!(!with(replicas, seen, pods), "{replicas} {seen} {pods}");
        }
        let asks = |value: &str| {
            let labels = json!({before::label(): value});
            deployment(json!({"template": {"metadata": {"labels": labels}}})).asks_for_proxy()
        };
        assert!(asks("true") && !asks("false"));
        assert!(!deployment(json!({})).asks_for_proxy());
    }

    #[test]
    fn the_locks_of_its_shards_are_known_by_their_names() {
        for (name, is) in [
            ("cm.kube-system---op-1-normal", true),
            ("op---op-12-normal", true),
            ("op---op-x-normal", false),
            ("op---other-1-normal", false),
            ("op-1-normal", false),
            ("op", false),
        ] {
            assert_eq!(is_lock(name, "op"), is, "{name}");
        }
    }
}
