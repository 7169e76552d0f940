//! A webhook that looks up in its informer what an object refers to.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{NAMESPACE, Webhooks, until};
use serde_json::{Value, json};

use crate::webhooks::{
    judge::{LIMIT, pods, redraw, shard_of},
    owner::Partition,
    world::{Resource, World},
};

const NEEDS: &str = "demo.example.com/needs";
/// Objects of each team.
const COUNT: usize = 8;

/// It is right for every object, and without routing it is not: the check is real.
pub(crate) fn are_right_for_every_object(world: &mut World<'_>, by_team: &Partition) -> Result<()> {
    needed(world)?;
    let denied = check(world)?;
    ensure!(denied.is_empty(), "{} were denied, the first: {}", denied.len(), denied[0]);
    absent(world)?;

    for (shard, limit) in by_team.limits() {
        world.scene.draw(shard, &limit, &json!({ "route": "Any" }))?;
    }
    let denied = until("without routing the same check fails", LIMIT, || {
        let denied = check(world)?;
        Ok((!denied.is_empty()).then_some(denied))
    })?;
    println!("without routing {} of {} are denied", denied.len(), 2 * COUNT * 4);
    ensure!(denied.iter().all(|text| text.contains("does not know")), "{denied:#?}");
    redraw(world, by_team, None, &json!({}))
}

/// Makes what objects of each team refer to, and waits until the operator of the team's shard has it.
fn needed(world: &mut World<'_>) -> Result<()> {
    let (namespace, _) = world.namespaces[0].clone();
    for team in Webhooks::SHARDS {
        let map =
            json!({ "metadata": { "name": format!("{team}-needed"), "labels": { "team": team } } });
        world.post(&Resource::ConfigMap.path(&namespace, ""), &map)?;
    }
    let scene = world.scene;
    until("each operator has read what is its own", LIMIT, || {
        for pod in pods(scene)? {
            let needed = format!("\"{}-needed\"", shard_of(&pod.name)?);
            if !scene.node().logs(NAMESPACE, &pod.name, "operator")?.contains(&needed) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

/// Creates and changes objects that need what exists; returns the reasons of those denied.
fn check(world: &mut World<'_>) -> Result<Vec<String>> {
    let (namespace, _) = world.namespaces[0].clone();
    let mut denied = Vec::new();
    for number in 0..COUNT {
        for team in Webhooks::SHARDS {
            let name = format!("{team}-{number}-{}", world.writes);
            let path = Resource::ConfigMap.path(&namespace, "");
            let mut answers =
                vec![world.send("POST", &path, "application/json", &needing(&name, team, team))?];
            if answers[0].status == 201 {
                let path = Resource::ConfigMap.path(&namespace, &name);
                let change = json!({ "data": { "changed": "yes" } });
                let kind = "application/merge-patch+json";
                answers.push(world.send("PATCH", &path, kind, &change)?);
            }
            for answer in answers {
                match answer.status {
                    200 | 201 => {}
                    403 => denied.push(answer.text),
                    other => anyhow::bail!("{name}: {other}: {}", answer.text),
                }
            }
        }
    }
    Ok(denied)
}

/// What needs another team's object, which its own operator does not see, or none's, is denied.
fn absent(world: &mut World<'_>) -> Result<()> {
    let (namespace, _) = world.namespaces[0].clone();
    for (team, of) in [("ant", "nobody"), ("bee", "cat"), ("cat", "bee"), ("dog", "ant")] {
        let path = Resource::ConfigMap.path(&namespace, "");
        let body = needing(&format!("{team}-without"), team, of);
        let answer = world.send("POST", &path, "application/json", &body)?;
        let reason: Value = serde_json::from_str(&answer.text)?;
        let reason = reason["message"].as_str().context("a message")?;
        let by = format!("demo-operator-{team}-");
        let is_right =
            answer.status == 403 && reason.contains("does not know") && reason.contains(&by);
        ensure!(is_right, "{team} needs {of}: {}: {reason}", answer.status);
    }
    Ok(())
}

fn needing(name: &str, team: &str, of: &str) -> Value {
    let annotations = json!({ NEEDS: format!("{of}-needed") });
    json!({ "metadata": { "name": name, "labels": { "team": team }, "annotations": annotations } })
}
