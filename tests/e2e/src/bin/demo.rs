//! The main job on a real node, shown as it happens: see `scripts/demo --help`.

use std::{
    collections::BTreeMap,
    io::{Write, stdout},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use ctrlmesh_e2e::{Binaries, Families, NAMESPACE, Shards, Widget, until};
use nix::sys::signal::{SigSet, Signal};

const TEAMS: [&str; 4] = ["ant", "bee", "cat", "dog"];
const WIDGETS_A_TEAM: usize = 5;
/// Namespaces without labels; the hashes of the first three are below the cut.
const TREES: [&str; 6] = ["maple", "oak", "willow", "ash", "cedar", "elm"];
const CUT: &str = "0xb000000000000000";
const HANDLED_WITHIN: Duration = Duration::from_secs(60);

/// Runs one unmodified operator in two shards on a real Kubernetes node, and moves the boundary
/// between them
#[derive(Parser)]
#[command(name = "demo")]
struct Cli {
    /// Leave the node running until Ctrl-C, and print the kubectl line to try
    #[arg(long)]
    keep: bool,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let ends = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    if cli.keep {
        // Before any thread starts: a blocked signal stays pending until `wait`.
        ends.thread_block()?;
    }
    let tale = Tale { started: Instant::now() };
    tale.say("starting a Kubernetes node, its API server and its images")?;
    let shards = Shards::start(Binaries::from_env()?, Families::Ipv4)?;
    show(&tale, &shards)?;
    if cli.keep {
        tale.say(&format!(
            "the node runs until Ctrl-C; try\n\n  {} -n {NAMESPACE} get widgets,pods,leases,shardingconfigs\n",
            shards.node().api().kubectl_client().shown()
        ))?;
        ends.wait().context("waiting for a signal")?;
    }
    tale.say("cleaning up")?;
    drop(shards);
    tale.say("done: nothing is left")
}

/// Prints the progress, with the time since the start.
struct Tale {
    started: Instant,
}

impl Tale {
    fn say(&self, text: &str) -> Result<()> {
        let mut out = stdout().lock();
        writeln!(out, "[{:5.1}s] {text}", self.started.elapsed().as_secs_f64())?;
        Ok(out.flush()?)
    }
}

fn show(tale: &Tale, shards: &Shards) -> Result<()> {
    tale.say("two ShardingConfigs: blue owns the teams ant, bee, cat; green owns dog")?;
    shards.draw("blue", &["ant", "bee", "cat"])?;
    shards.draw("green", &["dog"])?;
    tale.say("two pods of one operator: the same image, the same arguments, injected")?;
    for shard in ["blue", "green"] {
        shards.run_operator(shard)?;
    }
    shards.create_widgets(&TEAMS, WIDGETS_A_TEAM)?;
    let owners = [("ant", "blue"), ("bee", "blue"), ("cat", "blue"), ("dog", "green")];
    wait_until_handled(shards, &owners)?;
    tell_who(tale, shards)?;
    tell_leases(tale, shards)?;

    tale.say("moving the boundary: cat goes from blue to green, first given up, then taken")?;
    let moved = Instant::now();
    shards.draw("blue", &["ant", "bee"])?;
    shards.draw("green", &["cat", "dog"])?;
    let owners = [("ant", "blue"), ("bee", "blue"), ("cat", "green"), ("dog", "green")];
    wait_until_handled(shards, &owners)?;
    tale.say(&format!(
        "all of cat's Widgets changed hands within {:.1} s",
        moved.elapsed().as_secs_f64()
    ))?;
    tell_who(tale, shards)?;
    for pod in shards.pods()? {
        tale.say(&format!("{}: {} restarts", pod.name, pod.restarts))?;
        if pod.restarts != 0 {
            bail!("{} was restarted", pod.name);
        }
        for line in told(&shards.metrics(&pod.name)?) {
            tale.say(&format!("    {line}"))?;
        }
    }
    show_without_labels(tale, shards)
}

/// The third act: a boundary that no label expresses is judged in the proxy.
fn show_without_labels(tale: &Tale, shards: &Shards) -> Result<()> {
    tale.say(&format!(
        "six namespaces without labels, cut in two by the hash of their names: {CUT}"
    ))?;
    shards.draw_by_namespace("blue", "0x0000000000000000", CUT)?;
    shards.draw_by_namespace("green", CUT, "")?;
    shards.create_tenants(&TREES)?;
    let owner = |tree: &str| if TREES[..3].contains(&tree) { "blue" } else { "green" };
    let mut seen = Vec::new();
    until("every tree's Widget is handled by its shard", HANDLED_WITHIN, || {
        seen = shards.widgets()?;
        seen.retain(|widget| TREES.contains(&widget.namespace.as_str()));
        let is_right = |widget: &Widget| widget.is_handled_by(owner(&widget.namespace));
        Ok((seen.len() == TREES.len() && seen.iter().all(is_right)).then_some(()))
    })?;
    for Widget { namespace, handled_by, .. } in seen {
        tale.say(&format!("    the Widget of {namespace} is handled by {handled_by}"))?;
    }
    for pod in shards.pods()? {
        tale.say(&format!("{}: {} restarts", pod.name, pod.restarts))?;
        for line in shards.metrics(&pod.name)?.lines() {
            if line.starts_with("ctrlmesh_filtered_items_total") {
                tale.say(&format!("    {line}"))?;
            }
        }
    }
    Ok(())
}

/// Waits until each Widget was last handled by a pod of its team's shard.
fn wait_until_handled(shards: &Shards, owners: &[(&str, &str)]) -> Result<()> {
    let owners: BTreeMap<_, _> = owners.iter().copied().collect();
    let is_right = |widget: &Widget| {
        owners.get(widget.team.as_str()).is_some_and(|shard| widget.is_handled_by(shard))
    };
    until("every Widget is handled by its shard", HANDLED_WITHIN, || {
        let widgets = shards.widgets()?;
        Ok(widgets.iter().all(is_right).then_some(()))
    })
}

fn tell_who(tale: &Tale, shards: &Shards) -> Result<()> {
    let mut teams: BTreeMap<(String, String), usize> = BTreeMap::new();
    for widget in shards.widgets()? {
        *teams.entry((widget.team, widget.handled_by)).or_default() += 1;
    }
    for ((team, pod), count) in teams {
        tale.say(&format!("    {count} Widgets of {team} are handled by {pod}"))?;
    }
    Ok(())
}

fn tell_leases(tale: &Tale, shards: &Shards) -> Result<()> {
    for (lease, holder) in shards.leases()? {
        tale.say(&format!("    lease {lease} is held by {holder}"))?;
    }
    Ok(())
}

/// The metrics that the demo shows.
fn told(metrics: &str) -> impl Iterator<Item = &str> {
    const STORY: [&str; 4] = [
        "ctrlmesh_policy_epoch",
        "ctrlmesh_stream_changes_total",
        "ctrlmesh_streams",
        "ctrlmesh_requests_total{leg=\"outbound\",verb=\"watch\"",
    ];
    metrics.lines().filter(|line| STORY.iter().any(|name| line.starts_with(name)))
}
