//! The times of handovers in a healthy ring of eight pods. `HANDOVERS=n` makes that many, `SLOW=1`
//! gives them the time that an optimised proxy has on an idle machine.

use std::env;

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;

use crate::handover::{
    count,
    moves::{Move, Split},
    quantile, rng,
    scene::{Scene, Servers, Waits},
};

const PODS_A_SHARD: usize = 2;
/// The longest times in seconds, by the half and by all but a hundredth of the moves.
const OPENED: [f64; 2] = [0.3, 0.8];
const UNOWNED: f64 = 0.5;

/// How many times as long it may take: a test shares two cores with what it tests, built without
/// optimisation.
fn slowness() -> Result<f64> {
    match env::var("SLOW") {
        Ok(times) => Ok(times.parse().context("SLOW")?),
        Err(_) => Ok(3.0),
    }
}

#[test]
fn i14_a_healthy_ring_hands_over_in_time() -> Result<()> {
    let mut rng = rng();
    let mut last = Split::first();
    let scene = Scene::start(Servers::Own, &last, Waits::ForOthers, PODS_A_SHARD)?;
    scene.settle(&last)?;
    let [mut opened, mut unowned] = [Vec::new(), Vec::new()];
    for _ in 0..count(20)? {
        let next = Move::redraw(&mut rng, &last);
        let steps = next.steps(&mut rng);
        let edit = Timestamp::now();
        for step in steps {
            scene.take(&step)?;
        }
        scene.settle(&next.to)?;
        let [of_move, gaps] = scene.records()?.moves_since(edit);
        opened.extend(of_move);
        unowned.extend(gaps);
        last = next.to;
    }
    let relists = scene.records()?.relists();
    ensure!(relists == 0, "informers listed again {relists} times");
    for times in [&mut opened, &mut unowned] {
        times.sort_by(f64::total_cmp);
    }
    let [half, most] = [0.5, 0.99].map(|share| quantile(&opened, share));
    let gap = quantile(&unowned, 0.99);
    println!(
        "{} gains of objects: edit to open p50 {half:.3} s, p99 {most:.3} s; {} objects in no shard: \
         p50 {:.3} s, p99 {gap:.3} s",
        opened.len(),
        unowned.len(),
        quantile(&unowned, 0.5)
    );
    let slow = slowness()?;
    let is_in_time = half <= slow * OPENED[0] && most <= slow * OPENED[1] && gap <= slow * UNOWNED;
    ensure!(is_in_time, "wanted: {OPENED:?}, {UNOWNED} s, and at most {slow} times as long here");
    Ok(())
}
