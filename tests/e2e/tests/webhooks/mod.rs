//! The webhooks of an operator in four shards on a real node: who answers, and that no one else
//! notices the mesh.
//!
//! `WRITES` says how many writes are drawn, `SEED` which, `ROTATIONS` how often the certificate is
//! replaced, `MOVES` how often the boundaries move under load, `ROLLOUTS` how often a shard is rolled
//! out, `FAMILIES=ipv6` has the node prefer IPv6.

mod conversion;
mod example;
mod judge;
mod load;
mod moves;
mod owner;
mod probes;
mod references;
mod rollout;
mod rotation;
mod world;
mod writes;

use std::{str::FromStr, time::Instant};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, Families, Run, Webhooks};
use fastrand::Rng;
use serde_json::json;

use self::{
    judge::{Judge, LIMIT, redraw},
    owner::{KINDS, Kind, Partition},
    world::World,
};

/// The kinds that are drawn once more when the API server chooses the pod itself.
const AGAIN: [Kind; 3] = [Kind::Labels, Kind::NamespaceHash, Kind::UidHash];

#[test]
fn i13_each_review_is_answered_by_a_pod_of_its_owner() -> Result<()> {
    let seed = number("SEED", fastrand::u64(..))?;
    println!("SEED={seed}");
    let families = match std::env::var("FAMILIES").as_deref() {
        Ok("ipv6") => Families::Ipv6First,
        _ => Families::Ipv4,
    };
    let scene = Webhooks::start(Binaries::from_env()?, families)?;
    let mut world = World::start(&scene, Rng::with_seed(seed))?;
    let names = world.names();
    let by_team = Partition::draw(Kind::Labels, &names);
    let mut judge = Judge::new(&scene)?;

    step("an operator in four shards starts", || start(&scene, &by_team))?;
    let count = number("WRITES", 0)? / KINDS.len();
    let last = step("each review is answered by a pod of its owner", || {
        write_by(&mut world, &mut judge, &KINDS, None, count)
    })?;
    let last = step("the same where the API server chooses the pod", || {
        scene.node().api().stop()?;
        scene.node().api().start_again_with(&["--enable-aggregator-routing=true"])?;
        write_by(&mut world, &mut judge, &AGAIN, Some(last), count)
    })?;
    redraw(&mut world, &by_team, Some(&last), &json!({}))?;
    step("a webhook that looks up a reference is right for every object", || {
        references::are_right_for_every_object(&mut world, &by_team)
    })?;
    step("a conversion is answered by any pod", || conversion::is_answered_by_any_pod(&scene))?;
    step("a certificate that is replaced fails no write", || {
        rotation::under_load_fails_no_write(&world)
    })?;
    step("boundaries that move fail no write, and send no review twice", || {
        moves::under_load_fail_no_write(&mut world, &by_team)
    })?;
    step("probes are as without the mesh", || probes::are_as_without_the_mesh(&scene))?;
    step("KusionStack's example routes", || example::routes(&mut world, &mut judge))?;
    step("a rollout of a one-pod shard fails no write", || {
        rollout::of_a_one_pod_shard_fails_no_write(&world)
    })?;
    step("the end of a shard is said by name", || {
        rollout::of_a_shard_for_good_is_said_by_name(&world)
    })
}

/// The configs first, as the pods need them.
fn start(scene: &Webhooks, by_team: &Partition) -> Result<()> {
    for (shard, limit) in by_team.limits() {
        scene.draw(shard, &limit, &json!({}))?;
        scene.run(shard, Run::default())?;
    }
    for shard in Webhooks::SHARDS {
        scene.wait_for(shard, LIMIT)?;
    }
    scene.register()
}

/// Draws boundaries of each kind, and writes within each. Returns the last.
fn write_by(
    world: &mut World<'_>,
    judge: &mut Judge,
    kinds: &[Kind],
    mut before: Option<Partition>,
    count: usize,
) -> Result<Partition> {
    let names = world.names();
    for &kind in kinds {
        let began = Instant::now();
        let partition = Partition::draw(kind, &names);
        redraw(world, &partition, before.as_ref(), &json!({}))?;
        let drawn = began.elapsed();
        world.write(count).with_context(|| format!("{kind:?}"))?;
        let expected = std::mem::take(&mut world.expected);
        let sure = judge.check(&partition, &expected).with_context(|| format!("{kind:?}"))?;
        println!(
            "{kind:?}: drawn after {drawn:.1?}, {} reviews, {sure} of one shard alone, {:.1?}",
            expected.len(),
            began.elapsed()
        );
        ensure!(sure >= Webhooks::SHARDS.len(), "{kind:?}: {sure} reviews say something");
        before = Some(partition);
    }
    before.context("no kind of boundary")
}

fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    let done = work().with_context(|| name.to_owned());
    println!("{name}: {:.1} s", began.elapsed().as_secs_f64());
    done
}

/// A number from the environment.
pub(crate) fn number<T: FromStr>(name: &str, otherwise: T) -> Result<T> {
    match std::env::var(name) {
        Err(_) => Ok(otherwise),
        Ok(text) => text.parse().ok().with_context(|| format!("{name}={text} is no number")),
    }
}
