//! Pods that are replaced: by those of another mesh, and where configs want the same.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use ctrlmesh_e2e::until;

use crate::handover::{
    moves::{Move, SHARDS, Split, Step, TEAMS},
    rng,
    scene::{By, LIMIT, Scene, Servers, Speaks, Waits},
};

/// Pods without Leases are those of a mesh that had none.
#[test]
fn i14_an_upgrade_is_never_stuck() -> Result<()> {
    let mut rng = rng();
    let mut last = Split::first();
    let mut scene =
        Scene::of(Servers::Shared("upgrade"), &last, Waits::ForOthers, 1, Speaks::No, By::Label)?;
    scene.settle(&last)?;
    for number in 0..SHARDS.len() {
        let next = Move::redraw(&mut rng, &last);
        let steps = next.steps(&mut rng);
        for (at, step) in steps.iter().enumerate() {
            scene.take(step)?;
            if at == 0 {
                scene.roll(number, Speaks::Yes)?;
            }
        }
        scene.settle(&next.to)?;
        last = next.to;
    }
    // All have Leases now: from here on nothing is in two shards.
    let before = scene.records()?.twice().len();
    for _ in 0..3 {
        let next = Move::redraw(&mut rng, &last);
        for step in next.steps(&mut rng) {
            scene.take(&step)?;
        }
        scene.settle(&next.to)?;
        last = next.to;
    }
    let twice = scene.records()?.twice();
    ensure!(twice.len() == before, "objects were in two shards: {:#?}", &twice[before..]);
    Ok(())
}

#[test]
fn i14_what_two_configs_want_has_one_owner_however_pods_are_rolled() -> Result<()> {
    let mut split = Split::first();
    let mut scene = Scene::start(Servers::Shared("rolled"), &split, Waits::ForOthers, 1)?;
    scene.settle(&split)?;
    // The second and the third want all that the first has, too.
    for shard in [1, 2] {
        let more = split.0[0].clone();
        split.0[shard].extend(more);
        scene.take(&Step::Draw(shard, split.0[shard].clone()))?;
    }
    for number in 0..SHARDS.len() {
        scene.roll(number, Speaks::Yes)?;
        until("each object has one owner", LIMIT, || {
            let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
            for pod in &scene.pods {
                pod.has().into_iter().for_each(|team| *owners.entry(team).or_default() += 1);
            }
            let is_one = |team: &&str| owners.get(*team) == Some(&1);
            Ok(TEAMS.iter().all(is_one).then_some(()))
        })?;
    }
    let twice = scene.records()?.twice();
    ensure!(twice.is_empty(), "objects were in two shards: {twice:#?}");
    Ok(())
}
