//! Boundaries that move while objects are written.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::until;
use serde_json::json;

use crate::webhooks::{
    judge::{LIMIT, pods, redraw},
    load::{during, none_failed},
    number,
    owner::Partition,
    world::World,
};

/// The reviews of all pods so far, by how they were answered.
type Counts = BTreeMap<String, u64>;

/// Has the shards exchange their teams so often (`MOVES`). Either pod may know of a move first. A
/// review is sent on once at most, and is answered. At the end the boundaries are `by_team` again.
pub(crate) fn under_load_fail_no_write(world: &mut World<'_>, by_team: &Partition) -> Result<()> {
    let moves = number("MOVES", 4)?;
    let scene = world.scene;
    let namespace = world.namespaces[0].0.clone();
    let before = counts(world)?;
    let began = Instant::now();
    let ((), written) = during(scene, &namespace, || {
        let mut last = by_team.clone();
        for _ in 0..moves {
            let next = last.exchanged(&mut world.rng);
            redraw(world, &next, Some(&last), &json!({}))?;
            last = next;
        }
        redraw(world, by_team, Some(&last), &json!({}))
    })?;
    let took = began.elapsed().as_secs_f64();
    println!(
        "{moves} moves and one back in {took:.1} s, {:.0} writes/s",
        written.len() as f64 / took
    );
    none_failed("boundaries move", &written)?;
    let mut since = Counts::new();
    let all_arrived = until("who was sent a review has counted it", LIMIT, || {
        since = counts(world)?;
        for (how, count) in &mut since {
            *count -= before.get(how).copied().unwrap_or_default();
        }
        let count = |how: &str| since.get(how).copied().unwrap_or_default();
        // A review that was sent on twice counts as sent by two pods and as received by one.
        Ok((count("forwarded") == count("received") + count("disagreed")).then_some(()))
    });
    println!("reviews: {since:?}");
    all_arrived.with_context(|| format!("some were sent on twice: {since:?}"))?;
    ensure!(since.get("forwarded").is_some_and(|&count| count > 0), "none was sent: {since:?}");
    ensure!(since.get("failed") == Some(&0), "reviews failed: {since:?}");
    Ok(())
}

fn counts(world: &World<'_>) -> Result<Counts> {
    let mut counts = Counts::new();
    for pod in pods(world.scene)? {
        let metrics = world.scene.installed().page(&pod.name, "/metrics")?;
        let series = metrics.lines().filter_map(|line| {
            line.strip_prefix("ctrlmesh_webhook_reviews_total{how=\"")?.split_once("\"} ")
        });
        for (how, count) in series {
            *counts.entry(how.to_owned()).or_default() += count.parse::<u64>()?;
        }
    }
    Ok(counts)
}
