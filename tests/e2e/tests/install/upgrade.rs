//! Pods that are replaced one by one, by images of another release, while boundaries move.
//!
//! `RELEASES=DIR:DIR` names releases from the oldest on: directories with `ctrlmesh`, `ctrlmesh-init`
//! and the chart, `chart`. By default this release is upgraded to itself.

use std::{
    env,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, Boundary, Installed, NAMESPACE, Node, Widget, until};
use serde_json::Value;

use crate::install::{
    first::leases,
    handover::has_condition,
    scene::{LIMIT, TEAMS, begin, widget},
};

/// Longer than the claim of a pod is waited for that has ended within a write: the manager deletes its
/// Lease after two minutes.
const MOVED: Duration = Duration::from_secs(240);

/// The programs and the chart of a release.
struct Release {
    binaries: Binaries,
    chart: PathBuf,
    tag: String,
}

fn releases() -> Result<Vec<Release>> {
    let Some(directories) = env::var_os("RELEASES") else {
        let this = |tag: &str| -> Result<_> {
            let (binaries, chart) = (Binaries::from_env()?, Installed::chart());
            Ok(Release { binaries, chart, tag: tag.to_owned() })
        };
        return Ok(vec![this("this")?, this("again")?]);
    };
    let of = |(number, directory): (usize, PathBuf)| {
        let (binaries, chart) = (Binaries::in_directory(&directory)?, directory.join("chart"));
        Ok(Release { binaries, chart, tag: format!("release-{number}") })
    };
    env::split_paths(&directories).enumerate().map(of).collect()
}

impl Release {
    /// The arguments of helm that name its images.
    fn values(&self) -> Vec<String> {
        let tags = ["manager", "init"].map(|image| format!("{image}.image.tag={}", self.tag));
        tags.into_iter().flat_map(|value| ["--set".to_owned(), value]).collect()
    }

    fn install(&self, scene: &Installed, verb: &str, more: &[&str]) -> Result<()> {
        scene.import(&self.binaries, &self.tag)?;
        let values = self.values();
        let values = values.iter().map(String::as_str).chain(more.iter().copied());
        scene.helm_with(&self.chart, verb, &values.collect::<Vec<_>>())?;
        scene.until_reached()
    }
}

/// Gives the second shard the teams that the first does not get. They change places, so one of the two
/// overlaps for a moment.
fn share(scene: &Installed, ants: &[&str], bees: &[&str]) -> Result<()> {
    scene.draw_over("bees", &["2", "3"], Boundary::Teams(bees))?;
    scene.draw("ants", &["0", "1"], Boundary::Teams(ants))
}

/// Waits until the Widgets of a team, of which one is new, are handled by a shard alone.
fn are_handled(scene: &Installed, team: &str, by: [&str; 2], number: usize) -> Result<()> {
    widget(scene, team, &format!("{team}-late-{number}"))?;
    let mut last = Vec::new();
    let handled = until("the Widgets of a team are handled by their shard", MOVED, || {
        last = scene.shards().widgets()?;
        last.retain(|widget: &Widget| widget.team == team);
        let is_handled = |widget: &Widget| by.contains(&widget.handled_by.as_str());
        Ok(last.iter().all(is_handled).then_some(()))
    });
    handled.with_context(|| {
        let handover = scene.handover(&[]).unwrap_or_else(|error| error.to_string());
        format!("{last:?}\n{handover}")
    })
}

/// Replaces a pod by one of this release, and waits until the next one is ready.
fn replace(scene: &Installed, pod: &str, tag: &str) -> Result<()> {
    scene.node().kubectl(&["delete", "pod", pod, "--namespace", NAMESPACE])?;
    scene.wait_ready(pod, LIMIT)?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}");
    let text = scene.node().api().client().get(&path)?.text;
    let image = format!("localhost/ctrlmesh:{tag}");
    ensure!(text.contains(&image), "{pod} has no {image}");
    Ok(())
}

/// Checks that both configs say whether the promise holds: once each pod of the ring has a Lease.
/// Prints the formats of the Leases.
fn tells_where_it_holds(scene: &Installed) -> Result<()> {
    let leases = leases(scene)?;
    let holds = leases.keys().eq(&Installed::PODS);
    let [status, reason] = if holds { ["True", "Claimed"] } else { ["False", "NoLease"] };
    for shard in ["ants", "bees"] {
        has_condition(scene, shard, "HandoverActive", status, reason)?;
    }
    let speaks = |lease: &Value| {
        lease["metadata"]["annotations"]["ctrlmesh.kusionstack.io/speaks"].to_string()
    };
    println!("formats: {:?}", leases.values().map(speaks).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn i14_images_of_another_release_are_rolled_out_while_boundaries_move() -> Result<()> {
    let releases = releases()?;
    let (first, later) = releases.split_first().context("a release")?;
    let scene = Installed::bare(first.binaries.clone(), Node::builder())?;
    first.install(&scene, "install", &["--create-namespace"])?;
    let [(_, ants), (_, bees)] = TEAMS;
    scene.label()?;
    share(&scene, &["ant", "cat"], &["bee"])?;
    for pod in Installed::PODS {
        scene.wait_ready(pod, LIMIT)?;
    }
    begin(&scene)?;
    let mut number = 0;
    for release in later {
        release.install(&scene, "upgrade", &[])?;
        scene.until_replaced()?;
        for pod in ["demo-operator-2", "demo-operator-0", "demo-operator-3", "demo-operator-1"] {
            number += 1;
            let began = Instant::now();
            // A team moves from one shard to the other while a pod of either is replaced.
            let gains = number % 2 == 1;
            let [of_ants, of_bees]: [&[&str]; 2] =
                if gains { [&["ant"], &["bee", "cat"]] } else { [&["ant", "cat"], &["bee"]] };
            share(&scene, of_ants, of_bees)?;
            replace(&scene, pod, &release.tag)?;
            are_handled(&scene, "cat", if gains { bees } else { ants }, number)?;
            are_handled(&scene, "ant", ants, number)?;
            are_handled(&scene, "bee", bees, number)?;
            println!("{pod} is of {} after {:.1} s", release.tag, began.elapsed().as_secs_f64());
            tells_where_it_holds(&scene)?;
        }
        ensure!(leases(&scene)?.keys().eq(&Installed::PODS), "a pod has no Lease");
    }
    Ok(())
}
