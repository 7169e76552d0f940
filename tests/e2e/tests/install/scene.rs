//! Widgets of two teams, and what becomes of them and of the pods that handle them.

use std::time::Duration;

use anyhow::{Context, Result};
use ctrlmesh_e2e::{Installed, NAMESPACE, until};
use serde_json::{Value, json};

/// Longer than anything takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
pub(crate) const TEAMS: [(&str, [&str; 2]); 2] = [
    ("ant", ["demo-operator-0", "demo-operator-1"]),
    ("bee", ["demo-operator-2", "demo-operator-3"]),
];

pub(crate) fn widget(scene: &Installed, team: &str, name: &str) -> Result<()> {
    let widget = json!({
        "apiVersion": "demo.example.com/v1alpha1",
        "kind": "Widget",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "team": team } },
        "spec": { "size": 1 },
    });
    scene.node().apply(&widget.to_string()).map(drop)
}

/// Waits until each Widget was handled by a pod of its shard.
pub(crate) fn settle(scene: &Installed) -> Result<()> {
    let mut last = String::new();
    let settled = until("each shard handles its own", LIMIT, || {
        let widgets = scene.shards().widgets()?;
        last = format!("{widgets:?}");
        let is_right = |widget: &ctrlmesh_e2e::Widget| {
            TEAMS.iter().any(|(team, pods)| {
                widget.team == *team && pods.contains(&widget.handled_by.as_str())
            })
        };
        Ok(widgets.iter().all(is_right).then_some(()))
    });
    settled.with_context(|| last)
}

pub(crate) fn items(scene: &Installed, plural: &str) -> Result<Vec<Value>> {
    let mut list = scene.node().api().client().get(&format!("/api/v1/{plural}"))?.json()?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        other => anyhow::bail!("{plural}: {other}"),
    }
}

/// Makes Widgets of both teams, and waits until each is handled.
pub(crate) fn begin(scene: &Installed) -> Result<()> {
    for (team, _) in TEAMS {
        for number in 0..5 {
            widget(scene, team, &format!("{team}-{number}"))?;
        }
    }
    settle(scene)
}

/// Restarts of a container of a pod.
pub(crate) fn restarts(scene: &Installed, pod: &str, container: &str) -> Result<u64> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}");
    let pod = scene.node().api().client().get(&path)?.json()?;
    let lists = ["initContainerStatuses", "containerStatuses"];
    let mut all = lists.iter().filter_map(|list| pod["status"][list].as_array()).flatten();
    let status = all.find(|status| status["name"] == container).context("a status")?;
    status["restartCount"].as_u64().context("a count")
}
