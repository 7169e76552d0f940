//! Two replicas: one leads, both serve, and the mesh outlives both.

use anyhow::{Result, ensure};
use ctrlmesh_e2e::{ApiServer, Manager, until};
use nix::sys::signal::Signal;

use crate::manager::scene::{
    BUNDLE, OPERATORS, SECRET, SOON, at, authorities, await_review, bundle, cluster, config,
    create, get,
};

fn leads(manager: &Manager) -> Result<bool> {
    Ok(manager.metric("ctrlmesh_manager_leader")? > 0.0)
}

fn two(api: &ApiServer) -> Result<[Manager; 2]> {
    let start = |name| Manager::start(api, name, &[]);
    let replicas = [start("manager-0")?, start("manager-1")?];
    replicas[0].receive_reviews(api)?;
    for replica in &replicas {
        replica.wait_ready()?;
    }
    Ok(replicas)
}

#[test]
fn i12_one_of_two_leads_and_the_other_takes_over_at_once_or_when_the_lease_is_over() -> Result<()> {
    let api = cluster()?;
    let [first, second] = two(&api)?;
    let (mut leader, mut other) = if leads(&first)? { (first, second) } else { (second, first) };
    ensure!(leads(&leader)? && !leads(&other)?, "two lead, or none");
    let before = authorities(&api)?;

    // A replica that is asked to end gives its term back.
    let asked = std::time::Instant::now();
    leader.stop()?;
    until("the other leads", SOON, || Ok(leads(&other)?.then_some(())))?;
    ensure!(asked.elapsed().as_secs() < 10, "{:?}: the Lease was not given back", asked.elapsed());

    // One that is killed does not.
    leader.start_again()?;
    leader.wait_ready()?;
    ensure!(!leads(&leader)?, "it leads next to another");
    other.kill()?;
    until("the first leads again", SOON, || Ok(leads(&leader)?.then_some(())))?;
    create(&api, &config(OPERATORS), &[])?;
    bundle(&api, OPERATORS)?;
    ensure!(authorities(&api)? == before, "other authorities");
    Ok(())
}

/// The leader stops for longer than its Lease lasts, and goes on in the middle of its work.
#[test]
fn bad_i12_one_that_slept_and_thinks_that_it_leads_gives_way() -> Result<()> {
    let api = cluster()?;
    let [first, second] = two(&api)?;
    let (leader, other) = if leads(&first)? { (first, second) } else { (second, first) };
    other.receive_reviews(&api)?;
    await_review(&api)?;
    create(&api, &config(OPERATORS), &[])?;
    let (before, right) = (authorities(&api)?, bundle(&api, OPERATORS)?);
    leader.signal(Signal::SIGSTOP)?;
    until("the other leads", SOON, || Ok(leads(&other)?.then_some(())))?;
    // The stopped replica does not know of these writes yet.
    let namespace = Manager::NAMESPACE;
    api.kubectl(&["delete", "secret", SECRET, "-n", namespace])?;
    api.kubectl(&["delete", "configmap", BUNDLE, "-n", OPERATORS])?;
    until("the other restores both", SOON, || {
        let secret = get(&api, &at(namespace, "secrets", SECRET))?;
        let map = get(&api, &at(OPERATORS, "configmaps", BUNDLE))?;
        Ok((secret.is_some() && map.is_some()).then_some(()))
    })?;
    create(&api, &config("default"), &[])?;
    leader.signal(Signal::SIGCONT)?;
    until("one leads", SOON, || Ok((!leads(&leader)? && leads(&other)?).then_some(())))?;
    ensure!(bundle(&api, "default")? == right, "another bundle");
    until("the first bundle is right", SOON, || {
        Ok((bundle(&api, OPERATORS)? == right).then_some(()))
    })?;
    ensure!(authorities(&api)? == before, "other authorities");
    for replica in [&leader, &other] {
        replica.wait_ready()?;
    }
    ensure!(!leads(&leader)? && leads(&other)?, "two lead, or none");
    Ok(())
}

#[test]
fn bad_i12_both_are_killed_again_and_again_while_they_begin() -> Result<()> {
    let api = cluster()?;
    let mut replicas = two(&api)?;
    let before = authorities(&api)?;
    replicas[0].receive_reviews(&api)?;
    for _ in 0..5 {
        for replica in &mut replicas {
            replica.kill()?;
        }
        for replica in &mut replicas {
            replica.start_again()?;
        }
    }
    for replica in &replicas {
        replica.wait_ready()?;
    }
    ensure!(authorities(&api)? == before, "other authorities");
    Ok(())
}
