//! The main job on a real node, shown as it happens: see `scripts/demo --help`.

use std::{
    collections::BTreeMap,
    io::{Write, stdout},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use ctrlmesh_e2e::{
    Binaries, Boundary, Families, Installed, NAMESPACE, Run, Webhooks, Widget, until,
};
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

const TEAMS: [&str; 4] = ["ant", "bee", "cat", "dog"];
const WIDGETS_A_TEAM: usize = 5;
/// Namespaces without labels; the hashes of the first three are below the cut.
const TREES: [&str; 6] = ["maple", "oak", "willow", "ash", "cedar", "elm"];
const CUT: &str = "0xb000000000000000";
const HANDLED_WITHIN: Duration = Duration::from_secs(60);
/// The shards, and the indexes of their pods in the StatefulSet.
const BLUE: (&str, [&str; 2]) = ("blue", ["0", "1"]);
const GREEN: (&str, [&str; 2]) = ("green", ["2", "3"]);

/// Installs the chart on a real Kubernetes node and labels one unmodified operator. It then runs
/// the operator in two shards, moves the boundary between them, and tries a canary of it on one
/// namespace
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
    tale.say(
        "a Kubernetes node with an operator's CRD and rights, and on it: helm install ctrlmesh",
    )?;
    let scene = Webhooks::start(Binaries::from_env()?, Families::Ipv4)?;
    let installed = scene.installed();
    show(&tale, installed)?;
    show_without_labels(&tale, installed)?;
    show_a_root(&tale, installed)?;
    show_a_canary(&tale, &scene)?;
    if cli.keep {
        tale.say(&format!(
            "the node runs until Ctrl-C; try\n\n  {} -n {NAMESPACE} get widgets,pods,leases,shardingconfigs\n",
            installed.node().api().kubectl_client().shown()
        ))?;
        ends.wait().context("waiting for a signal")?;
    }
    tale.say("cleaning up")?;
    drop(scene);
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

fn draw(installed: &Installed, shard: (&str, [&str; 2]), boundary: Boundary<'_>) -> Result<()> {
    installed.draw(shard.0, &shard.1, boundary)
}

fn show(tale: &Tale, installed: &Installed) -> Result<()> {
    tale.say("two ShardingConfigs: blue owns the teams ant, bee, cat; green owns dog")?;
    draw(installed, BLUE, Boundary::Teams(&["ant", "bee", "cat"]))?;
    draw(installed, GREEN, Boundary::Teams(&["dog"]))?;
    tale.say("the operator's own manifest as a StatefulSet of four, and one label more")?;
    installed.label()?;
    for pod in Installed::PODS {
        installed.wait_ready(pod, HANDLED_WITHIN)?;
        tale.say(&format!("    {pod} is ready"))?;
    }
    installed.shards().create_widgets(&TEAMS, WIDGETS_A_TEAM)?;
    let owners = [("ant", BLUE), ("bee", BLUE), ("cat", BLUE), ("dog", GREEN)];
    wait_until_handled(installed, &owners)?;
    tell_who(tale, installed)?;
    tell_leases(tale, installed)?;

    tale.say("moving the boundary: green wants cat, which blue has, and is refused")?;
    let wider = Boundary::Teams(&["cat", "dog"]);
    tell_refusal(tale, draw(installed, GREEN, wider))?;
    tale.say("let in by a label, it waits")?;
    installed.draw_over(GREEN.0, &GREEN.1, wider)?;
    tell_handover(tale, installed, "overlaps")?;
    tale.say("blue gives it up")?;
    let moved = Instant::now();
    draw(installed, BLUE, Boundary::Teams(&["ant", "bee"]))?;
    let owners = [("ant", BLUE), ("bee", BLUE), ("cat", GREEN), ("dog", GREEN)];
    wait_until_handled(installed, &owners)?;
    tale.say(&format!(
        "all of cat's Widgets changed hands within {:.1} s",
        moved.elapsed().as_secs_f64()
    ))?;
    tell_who(tale, installed)?;
    tell_handover(tale, installed, "settled")?;
    for pod in installed.shards().pods()? {
        tale.say(&format!("{}: {} restarts", pod.name, pod.restarts))?;
        if pod.restarts != 0 {
            bail!("{} was restarted", pod.name);
        }
        for line in told(&installed.page(&pod.name, "/metrics")?) {
            tale.say(&format!("    {line}"))?;
        }
    }
    Ok(())
}

/// Prints why a config was refused.
fn tell_refusal(tale: &Tale, drawn: Result<()>) -> Result<()> {
    let error = drawn.err().context("a config came in that owns what another owns")?;
    let text = format!("{error:#}");
    let (_, reason) = text.split_once("denied the request: ").context(text.clone())?;
    tale.say(&format!("    {}", reason.lines().next().unwrap_or_default()))
}

/// The third act: a boundary that no label expresses is judged in the proxy.
fn show_without_labels(tale: &Tale, installed: &Installed) -> Result<()> {
    tale.say(&format!(
        "six namespaces without labels, cut in two by the hash of their names: {CUT}"
    ))?;
    // Teams and hashes overlap, until the other is drawn by hashes, too.
    installed.draw_over(BLUE.0, &BLUE.1, Boundary::Namespaces("0x0000000000000000", CUT))?;
    draw(installed, GREEN, Boundary::Namespaces(CUT, ""))?;
    installed.shards().create_tenants(&TREES)?;
    let owner = |tree: &str| if TREES[..3].contains(&tree) { BLUE } else { GREEN };
    let mut seen = Vec::new();
    until("every tree's Widget is handled by its shard", HANDLED_WITHIN, || {
        seen = installed.shards().widgets()?;
        seen.retain(|widget| TREES.contains(&widget.namespace.as_str()));
        let is_right = |widget: &Widget| is_handled_by(widget, owner(&widget.namespace));
        Ok((seen.len() == TREES.len() && seen.iter().all(is_right)).then_some(()))
    })?;
    for Widget { namespace, handled_by, .. } in seen {
        tale.say(&format!("    the Widget of {namespace} is handled by {handled_by}"))?;
    }
    for pod in installed.shards().pods()? {
        tale.say(&format!("{}: {} restarts", pod.name, pod.restarts))?;
        for line in installed.page(&pod.name, "/metrics")?.lines() {
            if line.starts_with("ctrlmesh_filtered_items_total") {
                tale.say(&format!("    {line}"))?;
            }
        }
    }
    Ok(())
}

/// The fourth act: one root draws the shards of a Deployment, and scaling it makes one more.
fn show_a_root(tale: &Tale, installed: &Installed) -> Result<()> {
    tale.say(
        "one root in place of configs by hand, and the operator as a Deployment: a shard for each replica, \
         by the names of namespaces",
    )?;
    let node = installed.node();
    let in_demo = |args: &[&str]| node.kubectl(&[args, &["--namespace", NAMESPACE]].concat());
    in_demo(&["delete", "statefulset", "demo-operator", "--cascade=foreground"])?;
    in_demo(&["delete", "shardingconfig", BLUE.0, GREEN.0])?;
    installed.deploy_bare(1)?;
    let ctrlmesh = |verb: &str, more: &[&str]| -> Result<()> {
        let args = [&[verb, "deployment/demo-operator", "--namespace", NAMESPACE], more].concat();
        tale.say(&format!("ctrlmesh {}", args.join(" ")))?;
        for line in installed.ctrlmesh(&args)?.lines() {
            tale.say(&format!("    {line}"))?;
        }
        Ok(())
    };
    ctrlmesh("shard", &["--shards", "2", "--apply"])?;
    tale.say("kubectl scale deployment/demo-operator --replicas=3")?;
    let scaled = Instant::now();
    in_demo(&["scale", "deployment/demo-operator", "--replicas=3"])?;
    in_demo(&["rollout", "status", "deployment/demo-operator", "--timeout=60s"])?;
    installed.wait_drawn("demo-operator", 3, HANDLED_WITHIN)?;
    let time = scaled.elapsed().as_secs_f64();
    tale.say(&format!(
        "3 shards within {time:.1} s, with the start of a pod; a new shard waits for 10 s"
    ))?;
    for (shard, pod) in shards(installed)? {
        tale.say(&format!("    {shard}: {pod}"))?;
    }
    let (own, others) = tell_trees(tale, installed)?;
    tell_foreign_write(tale, installed, &own, &others)?;
    ctrlmesh("unshard", &[])?;
    in_demo(&["delete", "deployment", "demo-operator", "--cascade=foreground"]).map(drop)
}

/// The pods of the Deployment, by their shards.
fn shards(installed: &Installed) -> Result<BTreeMap<String, String>> {
    let pod = "{.metadata.labels.ctrlmesh\\.kusionstack\\.io/shard} {.metadata.name}";
    let output = format!("jsonpath={{range .items[*]}}{pod}{{\"\\n\"}}{{end}}");
    let said =
        installed.node().kubectl(&["get", "pods", "--namespace", NAMESPACE, "-o", &output])?;
    let pods = said.lines().filter_map(|line| line.split_once(' '));
    Ok(pods.map(|(shard, pod)| (shard.to_owned(), pod.to_owned())).collect())
}

/// Prints what becomes of a write into a namespace of another shard, whatever the resource.
fn tell_foreign_write(
    tale: &Tale,
    installed: &Installed,
    pod: &str,
    namespace: &str,
) -> Result<()> {
    tale.say(&format!("{pod} deletes a Secret of {namespace}: no limit names Secrets"))?;
    let path = format!("/api/v1/namespaces/{namespace}/secrets/any");
    let status = installed.request_of(pod, "DELETE", &path)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    tale.say(&format!(
        "    {} {}: {}",
        status["code"],
        text(&status["reason"]),
        text(&status["message"])
    ))?;
    if (&status["code"], &status["reason"]) != (&json!(403), &json!("NotInShard")) {
        bail!("it was not refused: {status}");
    }
    let path = format!(
        "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{NAMESPACE}/shardingconfigs/demo-operator-1-normal"
    );
    let told = until("the shard's condition tells it", HANDLED_WITHIN, || {
        let config: Value = installed.node().api().client().get(&path)?.json()?;
        let mut all = config["status"]["conditions"].as_array().into_iter().flatten();
        let refused = all.find(|one| one["type"] == "WritesRefused" && one["status"] == "True");
        Ok(refused.map(|refused| text(&refused["message"])))
    })?;
    tale.say(&format!("the condition WritesRefused of demo-operator-1-normal: {told}"))
}

/// Prints the handlers of the trees' Widgets, once each of the three shards has some. Returns the pod of the
/// first shard, and a namespace that is not of it.
fn tell_trees(tale: &Tale, installed: &Installed) -> Result<(String, String)> {
    let shards = shards(installed)?;
    let seen = until("each shard handles some", HANDLED_WITHIN, || {
        let mut seen = installed.shards().widgets()?;
        seen.retain(|widget| TREES.contains(&widget.namespace.as_str()));
        let is_busy = |pod: &&String| seen.iter().any(|widget| widget.handled_by == **pod);
        Ok((shards.values().filter(is_busy).count() == 3).then_some(seen))
    })?;
    let own = shards.get("demo-operator-1-normal").context("a pod of the first shard")?;
    let mut others = None;
    for Widget { namespace, handled_by, .. } in seen {
        tale.say(&format!("    the Widget of {namespace} is handled by {handled_by}"))?;
        if handled_by != *own {
            others.get_or_insert(namespace);
        }
    }
    Ok((own.clone(), others.context("the first shard handles all")?))
}

/// The fifth act: the operator's webhooks are sharded as its controllers are, so that a canary's are
/// tried on one namespace alone.
fn show_a_canary(tale: &Tale, scene: &Webhooks) -> Result<()> {
    tale.say(&format!(
        "a canary with webhooks: {} is its namespace alone, all others are those of stable",
        TREES[0]
    ))?;
    let shards = [("canary", &TREES[..1], "Exclude"), ("stable", &TREES[1..], "Include")];
    for (shard, trees, cluster_scoped) in shards {
        let limit = json!({
            "namespaces": { "names": trees },
            "clusterScoped": cluster_scoped,
            "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
        });
        scene.draw(shard, &limit, &json!({}))?;
        scene.run(shard, Run::default())?;
    }
    for shard in ["canary", "stable"] {
        scene.wait_for(shard, HANDLED_WITHIN)?;
    }
    tale.say("one Service, one webhook configuration, as before: the API server asks any pod")?;
    let label = format!("{}=yes", Webhooks::REVIEWED);
    scene.node().kubectl(&[&["label", "namespace"][..], &TREES, &[&*label]].concat())?;
    scene.register()?;
    for (at, tree) in TREES.iter().enumerate() {
        let pod = until("a new ConfigMap is reviewed", HANDLED_WITHIN, || reviewed(scene, tree))?;
        tale.say(&format!("    a new ConfigMap of {tree} was reviewed by {pod}"))?;
        let shard = if at == 0 { "canary" } else { "stable" };
        if !pod.starts_with(&format!("demo-operator-{shard}-")) {
            bail!("{tree} is a namespace of {shard}");
        }
    }
    for pod in scene.installed().shards().pods()? {
        let metrics = scene.installed().page(&pod.name, "/metrics")?;
        let is_told = |line: &&str| {
            line.starts_with("ctrlmesh_webhook_reviews_total") && !line.ends_with(" 0")
        };
        for line in metrics.lines().filter(is_told) {
            tale.say(&format!("{}: {line}", pod.name))?;
        }
    }
    Ok(())
}

/// The pod that reviewed a ConfigMap which is made now. `None` if no one was asked, as at first.
fn reviewed(scene: &Webhooks, namespace: &str) -> Result<Option<String>> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?dryRun=All");
    let map = json!({ "metadata": { "generateName": "new-" } });
    let made: Value = scene.node().api().client().post(&path, &map)?.json()?;
    let pod = &made["metadata"]["annotations"]["demo.example.com/created-by"];
    Ok(pod.as_str().map(str::to_owned))
}

/// Whether a pod of this shard handled the Widget last.
fn is_handled_by(widget: &Widget, (_, indexes): (&str, [&str; 2])) -> bool {
    let index = widget.handled_by.strip_prefix("demo-operator-");
    index.is_some_and(|index| indexes.contains(&index))
}

/// Waits until each Widget was last handled by a pod of its team's shard.
fn wait_until_handled(installed: &Installed, owners: &[(&str, (&str, [&str; 2]))]) -> Result<()> {
    let owners: BTreeMap<_, _> = owners.iter().copied().collect();
    let is_right = |widget: &Widget| {
        owners.get(widget.team.as_str()).is_some_and(|shard| is_handled_by(widget, *shard))
    };
    until("every Widget is handled by its shard", HANDLED_WITHIN, || {
        let widgets = installed.shards().widgets()?;
        Ok(widgets.iter().all(is_right).then_some(()))
    })
}

fn tell_who(tale: &Tale, installed: &Installed) -> Result<()> {
    let mut teams: BTreeMap<(String, String), usize> = BTreeMap::new();
    for widget in installed.shards().widgets()? {
        *teams.entry((widget.team, widget.handled_by)).or_default() += 1;
    }
    for ((team, pod), count) in teams {
        tale.say(&format!("    {count} Widgets of {team} are handled by {pod}"))?;
    }
    Ok(())
}

/// Shows who has what, once all pods of green are in this state.
fn tell_handover(tale: &Tale, installed: &Installed, state: &str) -> Result<()> {
    until(&format!("green is {state}"), HANDLED_WITHIN, || {
        let rings: Value = serde_json::from_str(&installed.handover(&["--output=json"])?)?;
        let shards = rings[0]["shards"].as_array().into_iter().flatten();
        let mut green = shards.filter(|shard| shard["shard"] == GREEN.0);
        let pods = green.next().and_then(|green| green["pods"].as_array());
        let are_so = |pods: &Vec<Value>| pods.iter().all(|pod| pod["state"] == *state);
        Ok(pods.is_some_and(are_so).then_some(()))
    })?;
    tale.say("ctrlmesh handover demo-operator")?;
    for line in installed.handover(&[])?.lines() {
        tale.say(&format!("    {line}"))?;
    }
    Ok(())
}

fn tell_leases(tale: &Tale, installed: &Installed) -> Result<()> {
    for (lease, holder) in installed.shards().leases()? {
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
