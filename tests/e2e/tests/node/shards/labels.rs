//! Two shards of the operator by the labels of namespaces.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Result, ensure};
use ctrlmesh_e2e::{Shards, Widget};

use super::{t63_every_request_is_the_operators_own, wait_until_handled};
use crate::node::scene::Turn;

/// Each namespace with its tier, and so its shard.
type Tiers = BTreeMap<&'static str, &'static str>;

fn shard_of(tier: &str) -> &'static str {
    if tier == "gold" { "blue" } else { "green" }
}

fn label(shards: &Shards, namespace: &str, tier: &str) -> Result<()> {
    let args = ["label", "namespace", namespace, &format!("tier={tier}"), "--overwrite"];
    shards.node().kubectl(&args).map(drop)
}

/// Waits until each Widget was handled last by a pod of its namespace's shard.
fn settle(shards: &Shards, tiers: &Tiers) -> Result<Vec<Widget>> {
    let owner = |widget: &Widget| tiers.get(widget.namespace.as_str()).map(|tier| shard_of(tier));
    wait_until_handled(shards, tiers.len(), owner)
}

#[test]
fn a_relabelled_namespace_changes_hands_without_a_restart() -> Result<()> {
    let shards = Turn::wait()?;
    shards.draw_by_tier("blue", "gold")?;
    shards.draw_by_tier("green", "tin")?;
    let mut tiers = Tiers::from([("ant", "gold"), ("bee", "gold"), ("cat", "tin")]);
    let names: Vec<&str> = tiers.keys().copied().collect();
    shards.create_tenants(&names)?;
    for (namespace, tier) in &tiers {
        label(&shards, namespace, tier)?;
    }
    for shard in ["blue", "green"] {
        let manifest = shards.mesh().inject(&shards.deployment(shard)?, &["--namespace-labels"])?;
        shards.run_manifest(shard, &manifest)?;
    }
    let before = settle(&shards, &tiers)?;

    let moved = Instant::now();
    label(&shards, "bee", "tin")?;
    tiers.insert("bee", "tin");
    let after = settle(&shards, &tiers)?;
    println!("the namespace was relabelled: handled by its new owner after {:?}", moved.elapsed());
    for namespace in ["ant", "cat"] {
        let handled = |widgets: &[Widget]| {
            widgets.iter().find(|w| w.namespace == namespace).map(|w| w.handled_by.clone())
        };
        ensure!(handled(&before) == handled(&after), "{namespace} stays where it is");
    }
    // A namespace that comes with its label has an owner too.
    shards.create_tenants(&["dog"])?;
    label(&shards, "dog", "gold")?;
    tiers.insert("dog", "gold");
    settle(&shards, &tiers)?;
    for pod in shards.pods()? {
        ensure!(pod.restarts == 0, "{} was restarted", pod.name);
    }
    t63_every_request_is_the_operators_own(&shards)
}
