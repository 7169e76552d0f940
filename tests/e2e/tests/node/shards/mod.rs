//! The main job on a real node: one unmodified operator in two shards, and a boundary that moves.

mod labels;
mod uids;
mod unlabelled;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ctrlmesh_e2e::{NAMESPACE, OperatorPod, Shards, Widget, until};
use serde_json::Value;

use crate::node::scene::{Owners, Turn};

const TEAMS: [&str; 3] = ["ant", "bee", "cat"];
const WIDGETS: usize = 4 * TEAMS.len();
const WITHIN: Duration = Duration::from_secs(60);
const HANDLED: &str = "every Widget is handled by its shard";
const OPERATOR: &str = "system:serviceaccount:demo:demo-operator";

#[test]
fn two_shards_of_an_unmodified_operator_share_the_objects_and_a_boundary_moves() -> Result<()> {
    let shards = Turn::wait()?;
    shards.draw("blue", &["ant", "bee"])?;
    shards.draw("green", &["cat"])?;
    for shard in ["blue", "green"] {
        shards.run_operator(shard)?;
    }
    shards.create_widgets(&TEAMS, WIDGETS / TEAMS.len())?;
    let before = Owners::from([("ant", "blue"), ("bee", "blue"), ("cat", "green")]);
    wait_until_handled(&shards, WIDGETS, |widget| owner(&before, widget))?;
    the_operator_is_unchanged(&shards)?;
    t72_each_shard_holds_its_own_lock(&shards)?;
    nobody_read_what_is_not_theirs(&shards, &before)?;

    let moved = Instant::now();
    shards.draw("blue", &["ant"])?;
    shards.draw("green", &["bee", "cat"])?;
    let after = Owners::from([("ant", "blue"), ("bee", "green"), ("cat", "green")]);
    wait_until_handled(&shards, WIDGETS, |widget| owner(&after, widget))?;
    println!("the boundary moved: handled by the new owner after {:?}", moved.elapsed());
    for pod in shards.pods()? {
        ensure!(pod.restarts == 0, "{} was restarted", pod.name);
    }
    t63_every_request_is_the_operators_own(&shards)
}

/// Waits until there are this many Widgets, each handled last by a pod of the shard that owns it.
fn wait_until_handled<'a>(
    shards: &Shards,
    count: usize,
    owner: impl Fn(&Widget) -> Option<&'a str>,
) -> Result<Vec<Widget>> {
    until(HANDLED, WITHIN, || {
        let widgets = shards.widgets()?;
        let is_right = |widget| owner(widget).is_some_and(|shard| widget.is_handled_by(shard));
        Ok((widgets.len() == count && widgets.iter().all(is_right)).then_some(widgets))
    })
}

/// Waits until this many Widgets are handled, and sees that none is by a pod of another shard.
fn wait_until_handled_by_owners_alone<'a>(
    shards: &Shards,
    count: usize,
    owner: impl Fn(&Widget) -> Option<&'a str>,
) -> Result<()> {
    until(HANDLED, WITHIN, || {
        let widgets = shards.widgets()?;
        let is_right =
            |widget: &&Widget| owner(widget).is_some_and(|own| widget.is_handled_by(own));
        let handled = widgets.iter().filter(is_right).count();
        let others = widgets.iter().filter(|w| !w.handled_by.is_empty()).count() - handled;
        ensure!(others == 0, "{others} Widgets were handled by the other shard");
        Ok((handled == count).then_some(()))
    })
}

/// What the operator in this pod says it has read, in its order.
fn reads(shards: &Shards, pod: &OperatorPod) -> Result<Vec<Value>> {
    let logs = shards.node().logs(NAMESPACE, &pod.name, "operator")?;
    let lines = logs.lines().filter(|line| line.starts_with("{\"record\":\"read\""));
    lines.map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Whether the proxy left objects out by itself.
fn has_judged(metrics: &str) -> bool {
    metrics.lines().any(|line| {
        line.starts_with("ctrlmesh_filtered_items_total{") && line.contains("kept=\"false\"")
    })
}

fn owner(owners: &Owners, widget: &Widget) -> Option<&'static str> {
    owners.get(widget.team.as_str()).copied()
}

/// Same image, same arguments, same variables as in the operator's own manifest.
fn the_operator_is_unchanged(shards: &Shards) -> Result<()> {
    // The API server adds defaults inside of a variable, so their names are compared.
    let variables = |container: &Value| -> Vec<Value> {
        let all = container["env"].as_array().into_iter().flatten();
        all.map(|variable| variable["name"].clone()).collect()
    };
    let own = shards.operator_container("demo-operator")?;
    for pod in shards.pods()? {
        let running = shards.operator_container(&pod.name)?;
        for field in ["image", "command", "args"] {
            ensure!(running[field] == own[field], "{}: {field} differs", pod.name);
        }
        ensure!(variables(&running) == variables(&own), "{}: env differs", pod.name);
    }
    Ok(())
}

fn t72_each_shard_holds_its_own_lock(shards: &Shards) -> Result<()> {
    let leases = shards.leases()?;
    for shard in ["blue", "green"] {
        let holder = leases.get(&format!("demo-operator---{shard}")).context("its lease")?;
        ensure!(holder.starts_with(&format!("demo-operator-{shard}-")), "{holder}");
    }
    ensure!(!leases.contains_key("demo-operator"), "no one holds the lock by its short name");
    Ok(())
}

/// From the operator's own records: each version of a labelled object was read by pods of its
/// owner alone, and the last version of every Widget was read.
fn nobody_read_what_is_not_theirs(shards: &Shards, owners: &Owners) -> Result<()> {
    let mut read = BTreeSet::new();
    for pod in shards.pods()? {
        for record in reads(shards, &pod)? {
            let Some(team) = record["labels"]["team"].as_str() else {
                bail!("{} read an object without a team: {record}", pod.name);
            };
            ensure!(owners.get(team) == Some(&&*pod.shard), "{} read {record}", pod.name);
            read.insert((record["uid"].to_string(), record["rv"].to_string()));
        }
    }
    let last = shards.items("widgets")?;
    let missing = last.iter().filter(|widget| {
        let meta = &widget["metadata"];
        !read.contains(&(meta["uid"].to_string(), meta["resourceVersion"].to_string()))
    });
    // The last status update may be on its way into the cache still.
    println!("{} versions read, {} of the last on their way", read.len(), missing.count());
    ensure!(!read.is_empty(), "the operator records what it reads");
    Ok(())
}

/// The audit log knows the operator's ServiceAccount as the user of all that the pods asked for.
pub(crate) fn t63_every_request_is_the_operators_own(shards: &Turn) -> Result<()> {
    let mut requests: BTreeMap<String, usize> = BTreeMap::new();
    for entry in shards.entries()? {
        let agent = entry.user_agent.unwrap_or_default();
        if agent.starts_with("demo-operator") || agent.starts_with("ctrlmesh/") {
            ensure!(entry.user.username == OPERATOR, "{agent} as {}", entry.user.username);
            let agent = agent.split('/').next().unwrap_or_default().to_owned();
            *requests.entry(agent).or_default() += 1;
        }
    }
    println!("requests as {OPERATOR}: {requests:?}");
    ensure!(requests.contains_key("demo-operator"), "the operator was seen");
    Ok(())
}
