//! The end of a shard's only pod: replaced, and gone for good.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{NAMESPACE, Run, Webhooks, until};
use serde_json::{Value, json};

use crate::{
    judge::LIMIT,
    load::{Written, during, none_failed, write},
    world::World,
};

const SHARD: &str = "dog";
/// How long a review waits for an owner that was here a moment ago.
const WAIT: Duration = Duration::from_secs(5);
/// An answer that was not waited for.
const AT_ONCE: Duration = Duration::from_secs(1);

/// First the new pod is ready before the old one ends; then both at once, and the new one reads its
/// certificate as root alone can.
pub(crate) fn of_a_one_pod_shard_fails_no_write(world: &World<'_>) -> Result<()> {
    let scene = world.scene;
    let namespace = &world.namespaces[0].0;
    let deployment = format!("deployment/demo-operator-{SHARD}");
    let ((), all) = during(scene, namespace, || {
        let restart = ["rollout", "restart", &deployment, "--namespace", NAMESPACE];
        scene.node().kubectl(&restart)?;
        replaced(scene).map(drop)
    })?;
    none_failed("a rollout that surges", &all)?;

    let rolling = json!({ "maxUnavailable": 1, "maxSurge": 1 });
    let (without, all) = during(scene, namespace, || {
        scene.run(SHARD, Run { mode: 0o400, rolling: Some(&rolling) })?;
        replaced(scene)
    })?;
    println!("{SHARD} was without a ready pod for {without:.1?}");
    if without < WAIT {
        return none_failed("a rollout without a pod for a moment", &all);
    }
    // What is promised then: who waited is told, and nobody else notices.
    let is_told =
        |write: &&Written| write.shard == SHARD && write.took >= WAIT && write.text.contains(SHARD);
    let (told, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|write| write.status != 201 && is_told(&write));
    println!("{} waited in vain", told.len());
    none_failed("a rollout on a slow machine", &others)
}

/// Waits until another pod has the place of the shard's, and returns how long none was ready.
fn replaced(scene: &Webhooks) -> Result<Duration> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=shard={SHARD}");
    let of = |field: &str, pod: &Value| pod["metadata"][field].as_str().map(str::to_owned);
    let client = scene.node().api().client();
    let mut first: Option<String> = None;
    let mut lost: Option<Instant> = None;
    let mut without = Duration::ZERO;
    until("the pod is replaced", LIMIT, || {
        let list = client.get(&path)?.json()?;
        let pods = list["items"].as_array().context("items")?;
        let mut ready = pods.iter().filter(|pod| is_ready(pod));
        if let Some(pod) = ready.next_back() {
            without = without.max(lost.take().map_or(Duration::ZERO, |since| since.elapsed()));
            let uid = of("uid", pod);
            let is_other = first.as_ref().is_some_and(|first| Some(first) != uid.as_ref());
            first = first.take().or(uid);
            return Ok((is_other && pods.len() == 1).then_some(without));
        }
        lost.get_or_insert_with(Instant::now);
        Ok(None)
    })
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    let is_ready = ready.any(|condition| condition["status"] == "True");
    is_ready && pod["metadata"]["deletionTimestamp"].is_null()
}

/// Who writes what was its own is told at once by whom nobody answers; the others notice nothing.
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
