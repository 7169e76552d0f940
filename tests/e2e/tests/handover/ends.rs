//! What ends or is away in the middle of a handover. `ENDS=20` makes that many, `AWAY=60` has API
//! servers away for that many seconds.

use std::{env, time::Duration};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;

use crate::handover::{
    disturb::pass,
    moves::{Move, SHARDS, Split},
    rng,
    scene::{Scene, Servers, Waits},
};

fn number(name: &str, default: u64) -> Result<u64> {
    env::var(name).map_or(Ok(default), |text| text.parse().with_context(|| name.to_owned()))
}

#[test]
fn i14_api_servers_that_are_away_take_no_object_from_an_informer() -> Result<()> {
    let mut rng = rng();
    let split = Split::first();
    let scene = Scene::start(Servers::Own, &split, Waits::ForOthers, 1)?;
    scene.settle(&split)?;
    let away = Duration::from_secs(number("AWAY", 20)?);
    for api in scene.apis.iter() {
        api.pause()?;
    }
    pass(away);
    for api in scene.apis.iter() {
        api.resume()?;
    }
    for api in scene.apis.iter() {
        api.kill()?;
    }
    pass(away);
    for api in scene.apis.iter() {
        api.start_again()?;
    }
    scene.settle(&split)?;
    for (pod, shard) in scene.pods.iter().zip(SHARDS) {
        ensure!(pod.losses() == 0, "an informer of {shard} lost {} objects", pod.losses());
    }
    let next = Move::redraw(&mut rng, &split);
    for step in next.steps(&mut rng) {
        scene.take(&step)?;
    }
    scene.settle(&next.to)
}

/// Moves boundaries; `end` ends something after the first of the writes, and has it begin again.
fn ends(servers: Servers, mut end: impl FnMut(&mut Scene, &mut Rng) -> Result<()>) -> Result<()> {
    let mut rng = rng();
    let mut last = Split::first();
    let mut scene = Scene::start(servers, &last, Waits::ForOthers, 2)?;
    scene.settle(&last)?;
    for _ in 0..number("ENDS", 1)? {
        let next = Move::redraw(&mut rng, &last);
        for (at, step) in next.steps(&mut rng).into_iter().enumerate() {
            scene.take(&step)?;
            if at == 0 {
                pass(Duration::from_millis(rng.u64(..200)));
                end(&mut scene, &mut rng)?;
            }
        }
        scene.settle(&next.to)?;
        last = next.to;
    }
    let twice = scene.records()?.twice();
    ensure!(twice.is_empty(), "objects were in two shards: {twice:#?}");
    Ok(())
}

#[test]
fn i14_an_api_server_that_ends_in_a_handover_leaves_nobody_stuck() -> Result<()> {
    ends(Servers::Own, |scene, rng| {
        // The configs are written to the first.
        let api = &scene.apis[1];
        api.kill()?;
        pass(Duration::from_millis(rng.u64(..2000)));
        api.start_again()
    })
}

#[test]
fn i14_proxies_that_end_in_a_handover_leave_nobody_stuck() -> Result<()> {
    ends(Servers::Shared("ended"), |scene, rng| {
        let shard = rng.usize(..SHARDS.len());
        for pod in scene.pods.iter_mut().filter(|pod| pod.shard == shard) {
            pod.proxy.kill()?;
        }
        pass(Duration::from_millis(rng.u64(..2000)));
        for pod in scene.pods.iter_mut().filter(|pod| pod.shard == shard) {
            pod.proxy.start_again()?;
        }
        Ok(())
    })
}
