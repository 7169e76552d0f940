//! The writes of `ctrlmesh shard --apply`, in an order in which each may be the last.
//!
//! The root comes first: it remembers what the workload was. Then pods without a proxy end, before the first
//! with one starts: else both would lead.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    args::{By, WorkloadName},
    before,
    error::{Said, ShardError},
    facts::{Facts, Workload, is_injected},
    gather,
    judge::{Judgement, Wanted},
    progress::Progress,
    root,
};
use crate::{cluster::Cluster, doctor::collect::Asked, handover::found::Found, status};
use ctrlmesh_api::{RootTarget, TargetKind};
use ctrlmesh_base::cluster::chain;
use ctrlmesh_policy::Kind;

/// The name under which the API server notes who has written a field.
pub(super) const MANAGER: &str = "ctrlmesh-shard";
/// The time after which each pod has said by which locks it elects: it renews its Lease each quarter of a minute.
const TOLD: Duration = Duration::from_secs(20);
/// The interval of looks.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// Writes the root and the patch, and waits until each shard has what it is to have.
pub(super) async fn apply(
    asked: &Asked,
    facts: &Facts,
    judgement: &Judgement,
    wanted: &Wanted,
    said: &mut Said,
) -> Result<(), ShardError> {
    let workload = &facts.workload;
    let patch = parsed(&root::patch_text(workload, wanted))?;
    let is_new = before::root_of(facts).is_none();
    let config: Option<DynamicObject> = match is_new {
        true => Some(read(parsed(&root::text(workload, judgement, wanted))?)?),
        false => None,
    };
    if let Some(config) = &config {
        create(asked, config, true).await?;
    }
    self::patch(asked, workload, &Patch::Merge(&patch), true).await?;
    said.line("the API server takes the root and the patch, in a dry run")?;
    if let Some(config) = &config {
        create(asked, config, false).await?;
        said.line(&format!(
            "ShardingConfig {}/{} is created",
            workload.namespace, workload.target.name
        ))?;
    }
    let pods = gather::pods(asked, workload).await?;
    // Its controller may create one a moment later.
    let may_come = workload.replicas() > 0 && !workload.asks_for_proxy();
    if may_come || pods.iter().any(|pod| !is_injected(pod)) {
        stop(asked, workload, said, "its pods have no proxy").await?;
    }
    self::patch(asked, workload, &Patch::Merge(&patch), false).await?;
    said.line(&format!("{} is patched: {} replicas", workload.named(), wanted.shards))?;
    wait(asked, workload, wanted, said).await?;
    owners(facts, wanted, said).await
}

fn parsed(text: &str) -> Result<Value, ShardError> {
    serde_yaml::from_str(text).map_err(|error| ShardError::Write {
        what: "what was printed".to_owned(),
        why: error.to_string(),
    })
}

fn read(value: Value) -> Result<DynamicObject, ShardError> {
    let refused = |error: serde_json::Error| ShardError::Write {
        what: "what was printed".to_owned(),
        why: error.to_string(),
    };
    serde_json::from_value(value).map_err(refused)
}

/// The error for a write that failed.
pub(super) fn refused(what: String) -> impl FnOnce(kube::Error) -> ShardError {
    move |error| ShardError::Write {
        what,
        why: match error {
            kube::Error::Api(status) => status.message.clone(),
            error => chain(&error),
        },
    }
}

async fn create(asked: &Asked, config: &DynamicObject, dry_run: bool) -> Result<(), ShardError> {
    let namespace = config.metadata.namespace.as_deref().unwrap_or_default();
    let kind = Kind::ShardingConfig.api_resource();
    let api: Api<DynamicObject> = Api::namespaced_with(asked.client.clone(), namespace, &kind);
    let params = PostParams { dry_run, field_manager: Some(MANAGER.to_owned()) };
    let name = config.metadata.name.as_deref().unwrap_or_default();
    let created = api.create(&params, config).await;
    created.map(drop).map_err(refused(format!("ShardingConfig {namespace}/{name}")))
}

/// Patches the workload.
pub(super) async fn patch(
    asked: &Asked,
    workload: &Workload,
    patch: &Patch<&Value>,
    dry_run: bool,
) -> Result<(), ShardError> {
    let Workload { namespace, target: RootTarget { kind, name }, .. } = workload;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind.as_str()));
    let api: Api<DynamicObject> = Api::namespaced_with(asked.client.clone(), namespace, &resource);
    let params =
        PatchParams { dry_run, field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patched = api.patch(name, &params, patch).await;
    patched.map(drop).map_err(refused(format!("the patch of {}", workload.named())))
}

/// Scales the workload to 0, and waits until its pods are gone.
pub(super) async fn stop(
    asked: &Asked,
    workload: &Workload,
    said: &Said,
    why: &str,
) -> Result<(), ShardError> {
    let zero = json!({"spec": {"replicas": 0}});
    patch(asked, workload, &Patch::Merge(&zero), false).await?;
    said.line(&format!("{} is scaled to 0: {why}", workload.named()))?;
    loop {
        let RootTarget { kind, name } = &workload.target;
        let now = gather::workload(asked, &workload.namespace, &named(*kind, name)).await?;
        let pods: Vec<Pod> = gather::pods(asked, workload).await?;
        if pods.is_empty() && now.has_seen_zero() {
            return Ok(said.line("its pods are gone")?);
        }
        let waits = match pods.first().and_then(|pod| pod.metadata.name.as_deref()) {
            Some(pod) => format!("pod {pod} has not ended"),
            None => format!("the controller of {} has not seen the change", workload.named()),
        };
        said.in_time(&waits, &workload.namespace)?;
        sleep(LOOK).await;
    }
}

async fn wait(
    asked: &Asked,
    workload: &Workload,
    wanted: &Wanted,
    said: &Said,
) -> Result<(), ShardError> {
    let RootTarget { kind, name } = &workload.target;
    let mut last: Option<Progress> = None;
    let mut settled: Option<Instant> = None;
    loop {
        let pods = gather::pods(asked, workload).await?;
        let configs = gather::configs(asked, &workload.namespace).await?;
        let mut now = Progress::of(*kind, name, wanted.shards, &pods, &configs);
        let new = |shard: &&String| last.as_ref().is_none_or(|last| !last.shards.contains(shard));
        let leads = if now.has_locks { "leads and has" } else { "has" };
        for shard in now.shards.iter().filter(new) {
            said.line(&format!("{shard} {leads} its objects"))?;
        }
        if now.waits.is_none() {
            let since = settled.get_or_insert_with(Instant::now);
            if now.has_locks || since.elapsed() >= TOLD {
                return Ok(());
            }
            let seconds = TOLD.as_secs();
            now.waits = Some(format!(
                "the root names no lock: waits for {seconds} s whether a pod elects by one"
            ));
        } else {
            settled = None;
        }
        let waits = now.waits.as_deref().unwrap_or_default();
        if last.as_ref().is_none_or(|last| last.waits != now.waits) {
            said.line(waits)?;
        }
        said.in_time(waits, &workload.namespace)?;
        last = Some(now);
        sleep(LOOK).await;
    }
}

/// Says how many namespaces each shard has. Each object of a namespace has its owner.
async fn owners(facts: &Facts, wanted: &Wanted, said: &Said) -> Result<(), ShardError> {
    let by = match before::root_of(facts) {
        Some(root) if root.data.pointer("/spec/root/auto/by").is_some_and(|by| by == "Uid") => {
            By::Uid
        }
        Some(_) => By::Namespace,
        None => wanted.by,
    };
    if by == By::Uid {
        return Ok(said.line("every object has an owner, by its uid")?);
    }
    let cluster = Cluster::default();
    let namespace = &facts.workload.namespace;
    let known = match cluster.list_namespaces().await {
        Ok(known) => known,
        // The condition NoGaps has told the same.
        Err(_) if cluster.config_objects(Some(namespace)).await.is_ok() => {
            let says =
                "every object has an owner; how many namespaces each shard has you may not see";
            return Ok(said.line(says)?);
        }
        Err(error) => return Err(ShardError::Cluster(chain(&error))),
    };
    let found = Found::of(&cluster, Some(namespace)).await;
    let found = found.map_err(|error| ShardError::Cluster(chain(&error)))?;
    let prefix = format!("{}-", facts.workload.target.name);
    let counts = status::namespaces_by_shard(&found, &known, &prefix);
    if let Some(unowned) = counts.get("") {
        let waits = format!("no shard has the namespaces {}", unowned.join(", "));
        return Err(said.late(&waits, namespace));
    }
    let each: Vec<_> = counts.iter().map(|(shard, all)| format!("{shard} {}", all.len())).collect();
    Ok(said.line(&format!("every namespace has an owner: {}", each.join(", ")))?)
}

/// The kind and name of a workload, as it was given.
pub(super) fn named(kind: TargetKind, name: &str) -> WorkloadName {
    WorkloadName { kind, name: name.to_owned() }
}
