//! Configs of one ring next to each other: what the API server refuses, and what their conditions say.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Manager, until};
use serde_json::{Value, json};

use crate::manager::scene::{IGNORE, OPERATORS, SOON, cluster, create, get, let_in, manager};

/// The delay of everything that etcd says to the manager's API server.
const BEHIND: Duration = Duration::from_millis(500);
const WEBHOOK: &str = "shardingconfigs.ctrlmesh.kusionstack.io";

/// A shard of the ring that has the pods of these namespaces.
fn shard(name: &str, namespaces: &[&str]) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": name, "namespace": OPERATORS },
        "spec": {
            "selector": { "matchLabels": { "shard": name } },
            "ring": "op",
            "limits": [{
                "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
                "namespaces": { "names": namespaces },
                "clusterScoped": "Exclude",
            }],
        },
    })
}

/// The error of a creation that is refused.
fn refused(api: &ApiServer, config: &Value) -> Result<String> {
    let error = create(api, config, &[]).err().context("it came in")?;
    Ok(format!("{error:#}"))
}

/// Waits until a condition of a config has a status, and returns its message.
fn said(api: &ApiServer, name: &str, kind: &str, status: &str) -> Result<String> {
    let path = format!(
        "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{OPERATORS}/shardingconfigs/{name}"
    );
    let mut last = Value::Null;
    let found = until("the condition", SOON, || {
        let config = get(api, &path)?.context("the config")?;
        last = config["status"]["conditions"].clone();
        let all = last.as_array().into_iter().flatten();
        let mut is = all.filter(|one| one["type"] == kind && one["status"] == status);
        Ok(is.next().map(|one| one["message"].as_str().unwrap_or_default().to_owned()))
    });
    found.with_context(|| format!("{name} {kind}={status}: {last}"))
}

#[test]
fn bad_i15_a_config_that_overlaps_is_refused_by_the_api_server_and_one_let_in_is_found()
-> Result<()> {
    let api = cluster()?;
    let manager = manager(&api, &[])?;
    create(&api, &shard("blue", &["ant", "bee"]), &[])?;
    let green = shard("green", &["cow", "bee"]);
    until("the manager has heard of blue", SOON, || {
        Ok(create(&api, &green, &["--dry-run=server"]).is_err().then_some(()))
    })?;
    let said_to_user = refused(&api, &green)?;
    for part in [WEBHOOK, "ShardingConfig operators/blue", "one in namespace bee", IGNORE] {
        ensure!(said_to_user.contains(part), "{part}: {said_to_user}");
    }
    create(&api, &shard("green", &["cow"]), &[])?;
    // It cannot be widened either, but by who says so.
    let wider = |config: &Value| api.apply(&serde_json::to_string(config)?);
    ensure!(wider(&green).is_err(), "an update came in");
    wider(&let_in(green))?;
    for (name, other) in [("blue", "green"), ("green", "blue")] {
        let message = said(&api, name, "NoOverlap", "False")?;
        let wanted = format!(
            "ShardingConfig {other} wants some of the same pods, such as one in namespace bee; select \
             each object in one config alone"
        );
        ensure!(message == wanted, "{message}");
    }
    until("both are counted", SOON, || {
        let count = manager.metric("ctrlmesh_manager_overlapping_configs")?;
        Ok(((count - 2.0).abs() < 0.5).then_some(()))
    })?;
    wider(&shard("green", &["cow"]))?;
    said(&api, "blue", "NoOverlap", "True")?;

    // The pods of all other namespaces are no one's.
    let orphan = "no shard of the ring has pods, such as one in namespace ctrlmesh-system (and in \
                  other namespaces); give them to one";
    let message = said(&api, "green", "NoGaps", "False")?;
    ensure!(message == orphan, "{message}");
    until("an Event says so", SOON, || {
        let args = ["get", "events", "-n", OPERATORS, "-o", "jsonpath={.items[*].reason}"];
        Ok(api.kubectl(&args)?.contains("Gap").then_some(()))
    })?;
    let namespaces =
        api.kubectl(&["get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}"])?;
    let rest: Vec<&str> = namespaces.split_whitespace().collect();
    create(&api, &shard("rest", &rest), &[])?;
    said(&api, "green", "NoGaps", "True")?;
    // One more namespace, and it is an orphan.
    api.kubectl(&["create", "namespace", "new"])?;
    let message = said(&api, "green", "NoGaps", "False")?;
    ensure!(message.contains("one in namespace new;"), "{message}");
    ensure!(manager.metric("ctrlmesh_manager_uncovered_rings")? > 0.5);
    Ok(())
}

#[test]
fn i15_a_replica_that_is_behind_refuses_nobody_by_what_was() -> Result<()> {
    let api = cluster()?;
    let slow = api.beside()?;
    let manager = Manager::start_at(&api, &slow.url(), "manager-0", &[])?;
    manager.receive_reviews(&api)?;
    manager.wait_ready()?;
    let red = shard("red", &["dog"]);
    until("configs are reviewed", SOON, || {
        Ok(create(&api, &red, &["--dry-run=server"]).is_ok().then_some(()))
    })?;
    slow.fall_behind(BEHIND)?;
    create(&api, &shard("blue", &["ant", "bee"]), &[])?;
    until("it has heard of blue", SOON, || {
        let green = create(&api, &shard("green", &["bee"]), &["--dry-run=server"]);
        Ok(green.is_err().then_some(()))
    })?;
    // It hears of neither before it is asked for the next.
    for (blue, green) in [(["ant"], ["bee"]), (["cow"], ["ant"]), (["bee"], ["cow"])] {
        let give = api.apply(&serde_json::to_string(&shard("green", &["eel"]))?);
        give.and_then(|_| api.apply(&serde_json::to_string(&shard("blue", &blue))?))
            .and_then(|_| api.apply(&serde_json::to_string(&shard("green", &green))?))
            .with_context(|| format!("blue {blue:?}, green {green:?}"))?;
    }
    // What it has heard of it refuses.
    until("what green has is refused", SOON, || {
        let red = create(&api, &shard("red", &["cow"]), &["--dry-run=server"]);
        let error = red.err().map(|error| format!("{error:#}")).unwrap_or_default();
        Ok(error.contains("one in namespace cow").then_some(()))
    })
}

#[test]
fn bad_i15_while_the_manager_is_away_a_label_lets_configs_in_and_the_schema_refuses() -> Result<()>
{
    let api = cluster()?;
    let mut manager = manager(&api, &[])?;
    create(&api, &shard("blue", &["ant"]), &[])?;
    manager.kill()?;
    let error = refused(&api, &shard("green", &["bee"]))?;
    ensure!(error.contains("failed calling webhook") && error.contains(WEBHOOK), "{error}");
    create(&api, &let_in(shard("green", &["bee"])), &[])?;
    let mut bad = let_in(shard("red", &["cow"]));
    bad["spec"]["limits"][0].as_object_mut().context("a limit")?.remove("clusterScoped");
    let error = refused(&api, &bad)?;
    ensure!(
        error.contains("must say whether the shard has objects that are in no namespace"),
        "{error}"
    );
    // Who deletes one needs no one.
    api.kubectl(&["delete", "shardingconfig", "blue", "-n", OPERATORS])?;
    Ok(())
}
