//! Two shards of the operator by a hash of each object's uid. The API server can shard by itself:
//! one shard lets it, the other does not.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, NAMESPACE, Node, Shards, until};

use super::{WITHIN, has_judged, reads, unlabelled::hash, wait_until_handled_by_owners_alone};

const WIDGETS: usize = 60;
const CUT: u64 = 1 << 63;

/// The Widgets are there before the operators: without one, nothing proves that the API server goes
/// by their hashes.
fn shards() -> Result<Shards> {
    let node = Node::builder().feature_gate("ShardedListAndWatch", true);
    let shards = Shards::start_on(Binaries::from_env()?, node)?;
    let cut = format!("{CUT:#018x}");
    shards.draw_by_uid("blue", "0x0000000000000000", &cut)?;
    shards.draw_by_uid("green", &cut, "")?;
    let tenants: Vec<String> = (0..WIDGETS).map(|at| format!("tenant-{at}")).collect();
    shards.create_tenants(&tenants.iter().map(String::as_str).collect::<Vec<_>>())?;
    for shard in ["blue", "green"] {
        shards.run_operator(shard)?;
    }
    let off = ["deployment/demo-operator-green", "-c", "ctrlmesh-proxy", "CTRLMESH_PUSHDOWN=off"];
    let in_namespace = ["--namespace", NAMESPACE];
    shards.node().kubectl(&[&in_namespace[..], &["set", "env"], &off].concat())?;
    let rollout = ["rollout", "status", off[0], "--timeout=60s"];
    shards.node().kubectl(&[&in_namespace[..], &rollout].concat())?;
    until("the pod of before is gone", WITHIN, || Ok((shards.pods()?.len() == 2).then_some(())))?;
    Ok(shards)
}

#[test]
fn t48_t49_each_uid_has_one_owner_with_pushdown_and_without() -> Result<()> {
    let shards = shards()?;
    let path = "/apis/demo.example.com/v1alpha1/widgets";
    let list = shards.node().api().client().get(path)?.json()?;
    let mut owners = std::collections::BTreeMap::new();
    for item in list["items"].as_array().context("items")? {
        let uid = item["metadata"]["uid"].as_str().context("a uid")?;
        let namespace = item["metadata"]["namespace"].as_str().context("a namespace")?.to_owned();
        let owner = if hash(uid) < CUT { "blue" } else { "green" };
        owners.insert(namespace, owner);
    }
    wait_until_handled_by_owners_alone(&shards, WIDGETS, |widget| {
        owners.get(&widget.namespace).copied()
    })?;

    let mut read = BTreeSet::new();
    for pod in shards.pods()? {
        ensure!(pod.restarts == 0, "{} was restarted", pod.name);
        for record in reads(&shards, &pod)? {
            if !record["gvk"].to_string().contains("Widget") {
                continue;
            }
            let uid = record["uid"].as_str().context("a uid")?;
            let owner = if hash(uid) < CUT { "blue" } else { "green" };
            ensure!(owner == pod.shard, "{} read {record}", pod.name);
            read.insert(uid.to_owned());
        }
        let metrics = shards.metrics(&pod.name)?;
        let has = |series: &str| metrics.lines().any(|line| line.starts_with(series));
        let (how, not) = if pod.shard == "blue" { ("hash", "none") } else { ("none", "hash") };
        let pushed = |how| format!("ctrlmesh_pushdown_total{{how=\"{how}\"}}");
        ensure!(has(&pushed(how)) && !has(&pushed(not)), "{}:\n{metrics}", pod.name);
        ensure!(
            has_judged(&metrics) == (pod.shard == "green"),
            "{}: who judged?\n{metrics}",
            pod.name
        );
    }
    println!("{} Widgets read, each by its own shard alone", read.len());
    ensure!(read.len() == WIDGETS, "{} Widgets were read", read.len());
    Ok(())
}
