//! The objects in the cluster that a change of policy moves between shards.

use std::fmt::Write as _;

use super::{
    error::ExplainError,
    moves::{Moves, Shown},
};
use crate::cluster::{Cluster, ClusterError};
use ctrlmesh_policy::{GroupResource, Locks, Sharding};

/// The explanation, one paragraph per resource, and the error if it is incomplete.
pub(super) async fn explain(
    cluster: &Cluster,
    old: &Sharding,
    new: &Sharding,
    names_all: bool,
) -> Result<(String, Option<ExplainError>), ClusterError> {
    let served = cluster.resources().await?;
    let mut text = locks(old.locks(), new.locks());
    let [mut leaves, mut comes, mut stays, mut limited_as_before] = [0; 4];
    let mut failures = Vec::new();
    for ((group, plural), kind) in &served {
        let resource = GroupResource::new(group, plural);
        if resource.group() != group {
            // An alias: the resource is listed under its canonical group.
            continue;
        }
        let shown = [old, new].map(|one| Shown::of(one, &resource));
        if !old.limits_otherwise(new, &resource) {
            limited_as_before += usize::from(new.scope(&resource).is_some());
            continue;
        }
        let mut moves = Moves::new(resource.clone(), shown, names_all);
        match cluster.list(kind, |meta| moves.add(&meta)).await {
            Ok(()) => {
                text.push_str(&moves.text());
                leaves += moves.leaves.count;
                comes += moves.comes.count;
                stays += moves.stays.count;
            }
            Err(error) => {
                let _ = writeln!(text, "{resource}\n  cannot be listed");
                failures.push((resource, error));
            }
        }
    }
    let resources = || served.keys().map(|(group, plural)| GroupResource::new(group, plural));
    let mut absent: Vec<_> = [old, new]
        .into_iter()
        .flat_map(Sharding::rules)
        .filter(|(rule, _)| !resources().any(|resource| rule.covers(&resource)))
        .map(|(rule, _)| rule.to_string())
        .collect();
    absent.sort();
    absent.dedup();
    for rule in absent {
        let _ = writeln!(text, "{rule}\n  is not in the cluster");
    }
    let _ = writeln!(
        text,
        "in all\n  leaves   {leaves}\n  comes    {comes}\n  stays    {stays}\n\
         resources limited as before: {limited_as_before}"
    );
    let count = failures.len();
    let missing = failures
        .into_iter()
        .next()
        .map(|(resource, error)| ExplainError::Incomplete(count, resource.to_string(), error));
    Ok((text, missing))
}

fn locks(old: &Locks, new: &Locks) -> String {
    if old == new {
        return String::new();
    }
    let names = |locks: &Locks| match locks.is_empty() {
        true => "none".to_owned(),
        false => locks.own_names().collect::<Vec<_>>().join(", "),
    };
    format!("locks\n  before   {}\n  after    {}\n", names(old), names(new))
}
