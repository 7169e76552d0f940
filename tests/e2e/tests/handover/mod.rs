//! Boundaries move between the shards of a ring, by real proxies of two API servers on one etcd.
//! Meanwhile the proxies are stopped, killed, cut off and left behind.
//!
//! What each shard shows is recorded by an unmodified informer of client-go. `HANDOVERS=300` makes that
//! many, `SEED=n` the same ones again.

mod disturb;
mod ends;
mod moves;
mod records;
mod rolls;
mod scene;
mod times;
mod writes;

use std::{env, time::Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;

use self::{
    disturb::{Disturbances, disturb},
    moves::{Move, Split},
    records::Records,
    scene::{Scene, Servers, Waits},
};

/// The number of handovers.
fn count(default: usize) -> Result<usize> {
    match env::var("HANDOVERS") {
        Ok(count) => Ok(count.parse().context("HANDOVERS")?),
        Err(_) => Ok(default),
    }
}

/// The value below which this share of sorted ones is.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at).or_else(|| sorted.last()).copied().unwrap_or_default()
}

fn rng() -> Rng {
    let seed = env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("SEED={seed}");
    Rng::with_seed(seed)
}

/// Moves boundaries under disturbances. Returns everything that the informers were told.
fn run(waits: Waits, disturbances: Disturbances, count: usize) -> Result<Records> {
    let mut rng = rng();
    let mut last = Split::first();
    let mut scene = Scene::start(Servers::Own, &last, waits, 1)?;
    scene.settle(&last)?;
    let mut relists = 0;
    for number in 0..count {
        let next = Move::random(&mut rng, &last);
        let began = Instant::now();
        let mut disturbed = Vec::new();
        for (at, step) in next.steps(&mut rng).into_iter().enumerate() {
            if at > 0 {
                disturbed.push(disturb(&mut scene, disturbances, &mut rng)?);
            }
            scene.take(&step)?;
        }
        disturbed.push(disturb(&mut scene, disturbances, &mut rng)?);
        let what = disturbed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        scene.settle(&next.to).with_context(|| format!("handover {number}: {next}, {what}"))?;
        let took = began.elapsed().as_millis();
        let listed = std::mem::replace(&mut relists, scene.records()?.relists());
        println!("handover {number}: {next}, {what}: {took} ms, {} lists", relists - listed);
        last = next.to;
    }
    let records = scene.records()?;
    println!("longest time in two shards: {:?}", records.longest_twice());
    Ok(records)
}

#[test]
fn i14_no_object_is_in_two_shards_while_boundaries_move() -> Result<()> {
    let twice = run(Waits::ForOthers, Disturbances::All, count(40)?)?.twice();
    ensure!(twice.is_empty(), "objects were in two shards: {twice:#?}");
    Ok(())
}

#[test]
fn i14_without_the_ring_the_same_finds_objects_in_two_shards() -> Result<()> {
    let twice = run(Waits::ForNobody, Disturbances::All, count(24)?.min(100))?.twice();
    ensure!(!twice.is_empty(), "the moves do not show what the ring is for");
    Ok(())
}

/// What stands still or is behind ends no watch.
#[test]
fn i14_live_watches_stay_open_while_boundaries_move() -> Result<()> {
    let records = run(Waits::ForOthers, Disturbances::WithoutCuts, count(20)?)?;
    let (relists, twice) = (records.relists(), records.twice());
    ensure!(relists == 0, "informers listed again {relists} times");
    ensure!(twice.is_empty(), "objects were in two shards: {twice:#?}");
    Ok(())
}
