//! Two shards of the operator in a cluster in which nothing has a label.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, Families, Shards, Widget};

use super::{has_judged, reads, wait_until_handled_by_owners_alone};

const NAMESPACES: usize = 500;

/// FNV-1a with 64 bits, written down once more: what the proxy says of itself proves nothing.
pub(super) fn hash(text: &str) -> u64 {
    let mut hash = 14_695_981_039_346_656_037_u64;
    for byte in text.bytes() {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(1_099_511_628_211);
    }
    hash
}

#[test]
fn t51_t52_each_of_500_namespaces_without_a_label_has_one_owner() -> Result<()> {
    let names: Vec<String> = (0..NAMESPACES).map(|at| format!("tenant-{at:03}")).collect();
    let mut hashes: Vec<u64> = names.iter().map(|name| hash(name)).collect();
    hashes.sort_unstable();
    let cut = hashes[NAMESPACES / 2];
    let owner = |namespace: &str| if hash(namespace) < cut { "blue" } else { "green" };

    let shards = Shards::start(Binaries::from_env()?, Families::Ipv4)?;
    shards.draw_by_namespace("blue", "0x0000000000000000", &format!("{cut:#018x}"))?;
    shards.draw_by_namespace("green", &format!("{cut:#018x}"), "")?;
    for shard in ["blue", "green"] {
        shards.run_operator(shard)?;
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    shards.create_tenants(&names)?;
    let owner_of = |widget: &Widget| Some(owner(&widget.namespace));
    wait_until_handled_by_owners_alone(&shards, NAMESPACES, owner_of)?;

    let mut read = BTreeSet::new();
    for pod in shards.pods()? {
        ensure!(pod.restarts == 0, "{} was restarted", pod.name);
        for record in reads(&shards, &pod)? {
            let namespace = record["ns"].as_str().context("ns")?;
            ensure!(owner(namespace) == pod.shard, "{} read {record}", pod.name);
            read.insert((record["gvk"].to_string(), namespace.to_owned()));
        }
        let metrics = shards.metrics(&pod.name)?;
        ensure!(has_judged(&metrics), "{}: the proxy judged, not the API server", pod.name);
    }
    let widgets = read.iter().filter(|(kind, _)| kind.contains("Widget")).count();
    println!("{NAMESPACES} namespaces: {widgets} Widgets read, each by its own shard alone");
    ensure!(widgets == NAMESPACES, "{widgets} Widgets were read");
    Ok(())
}
