//! The end of a shard's only pod: replaced, and gone for good.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ctrlmesh_e2e::{NAMESPACE, Run, Webhooks, until};
use serde_json::{Value, json};

use crate::webhooks::{
    judge::LIMIT,
    load::{Written, during, none_failed, write},
    number,
    world::World,
};

const SHARD: &str = "dog";
/// How long a review waits for an owner that was here a moment ago.
const WAIT: Duration = Duration::from_secs(5);
/// An answer that was not waited for.
const AT_ONCE: Duration = Duration::from_secs(1);

/// As often as `ROLLOUTS` says, both ways.
pub(crate) fn of_a_one_pod_shard_fails_no_write(world: &World<'_>) -> Result<()> {
    (0..number("ROLLOUTS", 1)?).try_for_each(|_| both_ways(world))
}

/// Rolls out twice. First the new pod is ready before the old one ends, and reads its certificate
/// as root alone can. Then both are replaced at once.
fn both_ways(world: &World<'_>) -> Result<()> {
    let surging = json!({ "maxUnavailable": 0, "maxSurge": 1 });
    let (_, all) = rolled_out(world, Run { mode: 0o400, rolling: Some(&surging) })?;
    none_failed("a rollout that surges", &all)?;

    let at_once = json!({ "maxUnavailable": 1, "maxSurge": 1 });
    let (without, all) = rolled_out(world, Run { mode: 0o444, rolling: Some(&at_once) })?;
    println!("{SHARD} was without a ready pod for {without:.1?}");
    if without < WAIT {
        return none_failed("a rollout without a pod for a moment", &all);
    }
    // The promise for that case: who waited is notified, and no one else notices.
    let is_told =
        |write: &&Written| write.shard == SHARD && write.took >= WAIT && write.text.contains(SHARD);
    let (told, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|write| write.status != 201 && is_told(&write));
    println!("{} waited in vain", told.len());
    none_failed("a rollout on a slow machine", &others)
}

/// Replaces the shard's pod under load. Returns how long none was ready, and the writes.
fn rolled_out(world: &World<'_>, run: Run<'_>) -> Result<(Duration, Vec<Written>)> {
    let scene = world.scene;
    let former = pods(scene)?.iter().find(|pod| is_ready(pod)).and_then(uid);
    during(scene, &world.namespaces[0].0, || {
        scene.run(SHARD, run)?;
        replaced(scene, former.as_deref())
    })
}

/// Waits until another pod has the place of the shard's former one, and returns how long none was
/// ready. The former one may be gone before the first look.
fn replaced(scene: &Webhooks, former: Option<&str>) -> Result<Duration> {
    let mut lost: Option<Instant> = None;
    let mut without = Duration::ZERO;
    until("the pod is replaced", LIMIT, || {
        let pods = pods(scene)?;
        let Some(ready) = pods.iter().rfind(|pod| is_ready(pod)) else {
            lost.get_or_insert_with(Instant::now);
            return Ok(None);
        };
        without = without.max(lost.take().map_or(Duration::ZERO, |since| since.elapsed()));
        let is_other = uid(ready).as_deref() != former;
        Ok((is_other && pods.len() == 1).then_some(without))
    })
}

/// The pods of the shard.
fn pods(scene: &Webhooks) -> Result<Vec<Value>> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=shard={SHARD}");
    let mut list = scene.node().api().client().get(&path)?.json()?;
    match list["items"].take() {
        Value::Array(pods) => Ok(pods),
        other => bail!("items: {other}"),
    }
}

fn uid(pod: &Value) -> Option<String> {
    pod["metadata"]["uid"].as_str().map(str::to_owned)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    let is_ready = ready.any(|condition| condition["status"] == "True");
    is_ready && pod["metadata"]["deletionTimestamp"].is_null()
}

/// Who writes what was its own is notified at once by whom no one answers; the others notice nothing.
pub(crate) fn of_a_shard_for_good_is_said_by_name(world: &World<'_>) -> Result<()> {
    let scene = world.scene;
    let namespace = &world.namespaces[0].0;
    let deployment = format!("deployment/demo-operator-{SHARD}");
    scene.node().kubectl(&["delete", &deployment, "--namespace", NAMESPACE])?;
    let mut others = Vec::new();
    let refused = until("it is told at once that the shard is gone", LIMIT, || {
        for shard in Webhooks::SHARDS.into_iter().filter(|shard| *shard != SHARD) {
            others.push(write(scene, namespace, shard)?);
        }
        let refused = write(scene, namespace, SHARD)?;
        Ok((refused.status != 201 && refused.took < AT_ONCE).then_some(refused))
    })?;
    let status: Value = serde_json::from_str(&refused.text)?;
    let message = status["message"].as_str().context("a message")?;
    println!("{message}");
    let is_ours = message.contains("failed calling webhook") && message.contains(SHARD);
    ensure!(refused.status == 500 && is_ours, "{}: {message}", refused.status);
    none_failed("the other shards", &others)
}
