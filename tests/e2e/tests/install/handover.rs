//! A boundary that moves between the shards of a ring, while a proxy does not hear of it.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, Boundary, Installed, NAMESPACE, Widget, until};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
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

#[test]
fn i14_a_shard_takes_what_another_had_once_that_has_given_it_up() -> Result<()> {
    let scene = Installed::start(Binaries::from_env()?, &[])?;
    scene.label()?;
    scene.draw("ants", &["0", "1"], Boundary::Teams(&["ant"]))?;
    scene.draw("bees", &["2", "3"], Boundary::Teams(&["bee"]))?;
    for pod in Installed::PODS {
        scene.wait_ready(pod, LIMIT)?;
    }
    begin(&scene)?;
    let [(_, ants), (_, bees)] = TEAMS;

    // One pod of the shard that gives up has not heard of it.
    let frozen = Frozen::proxy_of(&scene, "demo-operator-0")?;
    let lease = leases(&scene)?.remove("demo-operator-0").context("a Lease")?;
    let lease = lease["metadata"]["name"].as_str().context("a name")?.to_owned();
    scene.draw("ants", &["0", "1"], Boundary::Teams(&["cat"]))?;
    scene.draw("bees", &["2", "3"], Boundary::Teams(&["ant", "bee"]))?;
    widget(&scene, "ant", "ant-late")?;
    for pod in bees {
        let says =
            format!("other pods have what this shard gains, by their Leases: {lease} of ants");
        until("it says whom it waits for", LIMIT, || {
            Ok(scene.page(pod, "/readyz")?.contains(&says).then_some(()))
        })?;
    }
    for widget in of_team(&scene, "ant")? {
        ensure!(!bees.contains(&&*widget.handled_by), "{widget:?} is handled twice");
    }
    // What nobody gains or loses goes on.
    widget(&scene, "bee", "bee-late")?;
    are_handled(&scene, "bee", bees)?;
    drop(frozen);
    are_handled(&scene, "ant", bees)?;

    // Without the ring it is taken at once.
    let now = r#"{"spec":{"handover":{"mode":"Immediate"}}}"#;
    for shard in ["ants", "bees"] {
        let patch = ["patch", "shardingconfig", shard, "--type=merge", "--patch", now];
        scene.node().kubectl(&[&patch[..], &["--namespace", NAMESPACE]].concat())?;
    }
    until("the Leases are given up", LIMIT, || Ok(leases(&scene)?.is_empty().then_some(())))?;
    let frozen = Frozen::proxy_of(&scene, "demo-operator-2")?;
    scene.draw("bees", &["2", "3"], Boundary::Teams(&["bee"]))?;
    scene.draw("ants", &["0", "1"], Boundary::Teams(&["ant", "cat"]))?;
    are_handled(&scene, "ant", ants)?;
    drop(frozen);
    audit::none_refused(&scene)
}
