//! A boundary that moves between the shards of a ring, while a proxy does not hear of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, Boundary, Installed, NAMESPACE, Widget, until};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::install::{
    audit,
    first::leases,
    scene::{LIMIT, TEAMS, begin, widget},
};

/// A process that stands still until this is dropped.
struct Frozen(Pid);

impl Frozen {
    fn proxy_of(scene: &Installed, pod: &str) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(scene.process(pod, "ctrlmesh-proxy")?)?);
        kill(pid, Signal::SIGSTOP)?;
        Ok(Self(pid))
    }
}

impl Frozen {
    /// The process has been ended.
    fn ends(self) {
        std::mem::forget(self);
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// The Widgets of a team.
fn of_team(scene: &Installed, team: &str) -> Result<Vec<Widget>> {
    let widgets = scene.shards().widgets()?;
    Ok(widgets.into_iter().filter(|widget| widget.team == team).collect())
}

/// Waits until the Widgets of a team are handled by these pods alone.
fn are_handled(scene: &Installed, team: &str, by: [&str; 2]) -> Result<()> {
    until("the Widgets of a team are handled by another shard", LIMIT, || {
        let all = of_team(scene, team)?;
        let is_handled = |widget: &Widget| by.contains(&widget.handled_by.as_str());
        Ok((!all.is_empty() && all.iter().all(is_handled)).then_some(()))
    })
}

/// The name of a pod's Lease.
fn name_of(leases: &BTreeMap<String, Value>, pod: &str) -> Result<String> {
    let lease = leases.get(pod).context("a Lease")?;
    Ok(lease["metadata"]["name"].as_str().context("a name")?.to_owned())
}

/// The rings as `ctrlmesh handover` prints them.
fn rings(scene: &Installed) -> Result<Value> {
    Ok(serde_json::from_str(&scene.handover(&["--output=json"])?)?)
}

fn of_pod<'r>(rings: &'r Value, pod: &str) -> Result<&'r Value> {
    let shards = rings[0]["shards"].as_array().context("shards")?;
    let mut pods = shards.iter().filter_map(|shard| shard["pods"].as_array()).flatten();
    pods.find(|state| state["pod"] == *pod).with_context(|| format!("no {pod} in {rings}"))
}

/// Waits until a config says this of itself.
pub(crate) fn has_condition(
    scene: &Installed,
    shard: &str,
    kind: &str,
    status: &str,
    reason: &str,
) -> Result<()> {
    let path = format!(
        "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{NAMESPACE}/shardingconfigs/{shard}"
    );
    let mut last = Value::Null;
    let said = until("a condition", LIMIT, || {
        let mut config = scene.node().api().client().get(&path)?.json()?;
        last = config["status"]["conditions"].take();
        let mut all = last.as_array().into_iter().flatten();
        let is_so = |one: &Value| {
            (&one["type"], &one["status"], &one["reason"])
                == (&json!(kind), &json!(status), &json!(reason))
        };
        Ok(all.any(is_so).then_some(()))
    });
    said.with_context(|| format!("{shard}: {kind}={status} {reason} is not in {last}"))
}

/// Waits until an Event of this reason is about a config.
fn has_event(scene: &Installed, shard: &str, reason: &str) -> Result<()> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/events");
    until("an Event", LIMIT, || {
        let events = scene.node().api().client().get(&path)?.json()?;
        let mut all = events["items"].as_array().into_iter().flatten();
        let is_so = |event: &Value| {
            let about = &event["involvedObject"];
            about["kind"] == "ShardingConfig" && about["name"] == shard && event["reason"] == reason
        };
        Ok(all.any(is_so).then_some(()))
    })
    .with_context(|| format!("{shard}: {reason}"))
}

/// Two shards of two pods, each with its team's Widgets.
fn two_shards() -> Result<Installed> {
    let scene = Installed::start(Binaries::from_env()?, &[])?;
    scene.label()?;
    scene.draw("ants", &["0", "1"], Boundary::Teams(&["ant"]))?;
    scene.draw("bees", &["2", "3"], Boundary::Teams(&["bee"]))?;
    for pod in Installed::PODS {
        scene.wait_ready(pod, LIMIT)?;
    }
    begin(&scene)?;
    Ok(scene)
}

/// Readiness, state and conditions show that both pods of bees wait for the frozen one of ants.
/// They also show that the promise is in force.
fn all_see_who_waits(scene: &Installed, bees: [&str; 2], lease: &str) -> Result<()> {
    let says = format!("other pods have what this shard gains, by their Leases: {lease} of ants");
    for pod in bees {
        until("it says whom it waits for", LIMIT, || {
            Ok(scene.page(pod, "/readyz")?.contains(&says).then_some(()))
        })?;
    }
    let rings = rings(scene)?;
    for pod in bees {
        let state = of_pod(&rings, pod)?;
        ensure!(state["state"] == "waits", "{state}");
        ensure!(state["waitsFor"][0]["pod"] == "demo-operator-0", "{state}");
        let resources = json!(["configmaps", "widgets.demo.example.com"]);
        ensure!(state["waitsFor"][0]["resources"] == resources, "{state}");
    }
    let shard = format!("--shard={NAMESPACE}/bees");
    let explained = scene.ctrlmesh(&["explain", &shard, "GET", "/api/v1/configmaps"])?;
    let waits = "handover  demo-operator-2 waits for demo-operator-0 of shard ants: configmaps, ";
    ensure!(explained.contains(waits), "{explained}");
    let pod = format!("--observe={NAMESPACE}/demo-operator-1");
    let observed = scene.ctrlmesh(&["explain", &pod])?;
    let row = observed.lines().find(|line| line.starts_with("widgets.demo.example.com "));
    ensure!(row.is_some_and(|row| row.contains("yes") && row.contains("watch")), "{observed}");
    let frozen = format!("--observe={NAMESPACE}/demo-operator-0");
    let error = format!("{:#}", scene.ctrlmesh(&["explain", &frozen]).err().context("an answer")?);
    ensure!(error.contains("the proxy did not answer within 10s"), "{error}");
    ensure!(of_pod(&rings, "demo-operator-0")?["state"] == "givesUp", "{rings}");
    ensure!(of_pod(&rings, "demo-operator-1")?["state"] == "settled", "{rings}");
    for shard in ["ants", "bees"] {
        has_condition(scene, shard, "HandoverActive", "True", "Claimed")?;
        has_condition(scene, shard, "NoOverlap", "True", "Proven")?;
        has_condition(scene, shard, "LocksRenamed", "True", "Held")?;
    }
    Ok(())
}

/// The status shows each config, and the objects that both shards own or none does. It also shows a
/// pod that is not injected.
fn status_names_what_is_wrong(scene: &Installed) -> Result<()> {
    // The manager injects no pod next to itself.
    let bare = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "bare",
            "namespace": Installed::NAMESPACE,
            "labels": { "ctrlmesh.kusionstack.io/enable-proxy": "true" },
        },
        "spec": { "containers": [{ "name": "app", "image": "localhost/not-there:1" }] },
    });
    scene.node().apply(&bare.to_string())?;
    let said = scene.ctrlmesh(&["status"])?;
    let widgets = "configmaps, widgets.demo.example.com";
    let ring = format!("  ring {NAMESPACE}/demo-operator: ");
    for part in [
        format!("{ring}ants and bees own some of the same {widgets}, such as one in namespace "),
        format!("{ring}no shard has configmaps, such as one in namespace "),
        format!("  pod {}/bare: asks for injection and is not injected", Installed::NAMESPACE),
        format!("{NAMESPACE}       ants   demo-operator  2     2      "),
    ] {
        ensure!(said.contains(&part), "{part:?} is not in\n{said}");
    }
    let json: Value = serde_json::from_str(&scene.ctrlmesh(&["status", "--output=json"])?)?;
    ensure!(json["configs"].as_array().is_some_and(|all| all.len() == 2), "{json}");
    let delete = ["delete", "pod", "bare", "--now", "--namespace", Installed::NAMESPACE];
    scene.node().kubectl(&delete)?;

    let owner =
        scene.ctrlmesh(&["status", &format!("widgets.demo.example.com/{NAMESPACE}/bee-late")])?;
    ensure!(owner.lines().nth(1).is_some_and(|line| line.ends_with("  bees")), "{owner}");
    let owners = scene.ctrlmesh(&["status", NAMESPACE])?;
    ensure!(
        owners.contains("ants (team in (ant,cat)), bees (team in (ant,bee)), no one has"),
        "{owners}"
    );
    Ok(())
}

#[test]
fn i14_a_shard_takes_what_another_had_once_that_has_given_it_up() -> Result<()> {
    let scene = two_shards()?;
    let [(_, ants), (_, bees)] = TEAMS;

    // One pod of the shard that gives up has not heard of it.
    let frozen = Frozen::proxy_of(&scene, "demo-operator-0")?;
    let lease = name_of(&leases(&scene)?, "demo-operator-0")?;
    scene.draw("ants", &["0", "1"], Boundary::Teams(&["cat"]))?;
    scene.draw("bees", &["2", "3"], Boundary::Teams(&["ant", "bee"]))?;
    widget(&scene, "ant", "ant-late")?;
    all_see_who_waits(&scene, bees, &lease)?;
    for widget in of_team(&scene, "ant")? {
        ensure!(!bees.contains(&&*widget.handled_by), "{widget:?} is handled twice");
    }
    // What no one gains or loses goes on.
    widget(&scene, "bee", "bee-late")?;
    are_handled(&scene, "bee", bees)?;
    has_condition(&scene, "ants", "LeasesRenewed", "False", "NotRenewed")?;
    has_event(&scene, "ants", "NotRenewed")?;
    drop(frozen);
    are_handled(&scene, "ant", bees)?;
    has_condition(&scene, "ants", "LeasesRenewed", "True", "Renewed")?;

    // Two that want the same say so, both.
    let over = scene.draw("ants", &["0", "1"], Boundary::Teams(&["ant", "cat"]));
    let refused = format!("{:#}", over.err().context("it came in")?);
    ensure!(
        refused.contains("owns some of the same configmaps, such as one in namespace"),
        "{refused}"
    );
    scene.draw_over("ants", &["0", "1"], Boundary::Teams(&["ant", "cat"]))?;
    for shard in ["ants", "bees"] {
        has_condition(&scene, shard, "NoOverlap", "False", "Overlap")?;
        has_event(&scene, shard, "Overlap")?;
    }
    status_names_what_is_wrong(&scene)?;
    scene.draw("ants", &["0", "1"], Boundary::Teams(&["cat"]))?;

    // Without the ring it is taken at once.
    let now = r#"{"spec":{"handover":{"mode":"Immediate"}}}"#;
    for shard in ["ants", "bees"] {
        let patch = ["patch", "shardingconfig", shard, "--type=merge", "--patch", now];
        scene.node().kubectl(&[&patch[..], &["--namespace", NAMESPACE]].concat())?;
    }
    has_condition(&scene, "ants", "HandoverActive", "False", "Immediate")?;
    until("the Leases are given up", LIMIT, || Ok(leases(&scene)?.is_empty().then_some(())))?;
    let frozen = Frozen::proxy_of(&scene, "demo-operator-2")?;
    scene.draw("bees", &["2", "3"], Boundary::Teams(&["bee"]))?;
    scene.draw("ants", &["0", "1"], Boundary::Teams(&["ant", "cat"]))?;
    are_handled(&scene, "ant", ants)?;
    drop(frozen);
    audit::none_refused(&scene)
}

#[test]
fn i14_a_pod_that_stands_still_for_good_is_deleted_and_its_shard_is_taken() -> Result<()> {
    let scene = two_shards()?;
    let [(_, ants), _] = TEAMS;
    let frozen = Frozen::proxy_of(&scene, "demo-operator-2")?;
    let lease = name_of(&leases(&scene)?, "demo-operator-2")?;
    scene.draw("bees", &["2", "3"], Boundary::Teams(&["cat"]))?;
    scene.draw("ants", &["0", "1"], Boundary::Teams(&["ant", "bee"]))?;
    let said = scene.handover(&["--delete-silent"])?;
    let deleted = format!("pod {NAMESPACE}/demo-operator-2 is deleted: the manager deletes Lease");
    ensure!(said.lines().count() == 2 && said.contains(&deleted), "{said}");
    frozen.ends();
    // The manager would do it in two minutes.
    scene.node().kubectl(&["delete", "lease", &lease, "--namespace", NAMESPACE])?;
    are_handled(&scene, "bee", ants)?;
    scene.wait_ready("demo-operator-2", LIMIT)?;
    audit::none_refused(&scene)
}
