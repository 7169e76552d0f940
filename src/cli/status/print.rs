//! The state of the mesh as text for people, and as JSON for programs.

use std::fmt::Write as _;

use super::{
    super::table,
    owner::OwnerState,
    state::{ConfigState, Status},
};

/// The heads of the columns; the last is as wide as it needs.
const HEADS: [&str; 7] = ["NAMESPACE", "SHARD", "RING", "PODS", "READY", "IN FORCE", "OWNS"];
/// The heads of the columns of owners.
const OWNERS: [&str; 3] = ["RING", "RESOURCE", "OWNER"];

/// The state as text.
pub fn text(status: &Status) -> String {
    let mut text = String::new();
    if status.configs.is_empty() {
        text.push_str("there is no ShardingConfig that can be used\n");
    } else {
        let mut rows = vec![HEADS.map(str::to_owned)];
        rows.extend(status.configs.iter().flat_map(rows_of));
        table::write(&mut text, "", &rows);
    }
    for shard in &status.configs {
        if shard.proxies.len() > 1 {
            let of = |(image, pods): (&String, &usize)| format!("{pods} of {image}");
            let proxies = shard.proxies.iter().map(of).collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "proxies of {}/{}: {proxies}", shard.namespace, shard.shard);
        }
        if shard.generations.len() > 1 {
            let of =
                |(generation, pods): (&i64, &usize)| format!("{pods} of generation {generation}");
            let pods = shard.generations.iter().map(of).collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "pods of {}/{}: {pods}", shard.namespace, shard.shard);
        }
    }
    if !status.problems.is_empty() {
        text.push_str("\nnot as it should be:\n");
    }
    for problem in &status.problems {
        let _ = writeln!(text, "  {}: {}", problem.of, problem.says);
    }
    text
}

/// The owners as text.
pub fn owners(owners: &[OwnerState]) -> String {
    if owners.is_empty() {
        return "no ring limits it: all shards have it\n".to_owned();
    }
    let mut rows = vec![OWNERS.map(str::to_owned)];
    rows.extend(owners.iter().map(|owner| {
        let ring = format!("{}/{}", owner.namespace, owner.ring);
        [ring, owner.resource.clone(), owner.says.clone()]
    }));
    let mut text = String::new();
    table::write(&mut text, "", &rows);
    text
}

/// A row for each resource that a config limits, the first with what else is known of it.
fn rows_of(config: &ConfigState) -> Vec<[String; 7]> {
    let ConfigState { namespace, shard, ring, pods, ready, in_force, owns, .. } = config;
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let in_force = or_none(in_force.map(|count| count.to_string()));
    let [pods, ready] = [pods, ready].map(ToString::to_string);
    let mut owns = owns.iter().map(|(rule, scope)| format!("{rule}: {scope}"));
    let first = owns.next().unwrap_or_else(|| "everything".to_owned());
    let ring = or_none(ring.clone());
    let head = [namespace.clone(), shard.clone(), ring, pods, ready, in_force, first];
    let more = owns.map(|own| {
        let mut row = [const { String::new() }; 7];
        row[6] = own;
        row
    });
    [head].into_iter().chain(more).collect()
}
