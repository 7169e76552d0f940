//! Argo Rollouts as its chart installs it, sharded by `ctrlmesh shard` alone.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, Installed, argo_rollouts, go_module, until};
use serde_json::{Value, json};

use super::{
    charts::HASH_OF_ARGO,
    sharded::{LIMIT, Operator, TENANTS, tenant},
};

const NAME: &str = "argo-rollouts";
const SPARE: [&str; 3] = ["spare-26", "spare-87", "spare-91"];
const ROLLOUTS: [&str; 5] = ["one", "two", "three", "four", "five"];

/// Installs the chart as it is, with an image that the node can have.
fn install(scene: &Installed) -> Result<()> {
    scene.node().import_image(&argo_rollouts()?)?;
    let module = go_module("github.com/argoproj/argo-helm", HASH_OF_ARGO)?;
    let mut helm = scene.helm_command()?;
    helm.args(["install", NAME, "--create-namespace", "--namespace", NAME]);
    helm.arg(module.join("charts/argo-rollouts"));
    for value in [
        "controller.image.registry=localhost",
        "controller.image.repository=argo-rollouts",
        "controller.image.tag=e2e",
    ] {
        helm.args(["--set", value]);
    }
    let output = helm.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Rollouts without pods: the controller makes a ReplicaSet for each, and writes both.
fn make_tenant(scene: &Installed, namespace: &str) -> Result<()> {
    for name in ROLLOUTS {
        let labels = json!({ "app": name });
        let containers = json!([{ "name": "app", "image": "localhost/app:1" }]);
        let rollout = json!({
            "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout",
            "metadata": { "name": name, "namespace": namespace },
            "spec": {
                "replicas": 0,
                "selector": { "matchLabels": labels },
                "strategy": { "canary": {} },
                "template": { "metadata": { "labels": labels }, "spec": { "containers": containers } },
            },
        });
        scene.node().apply(&rollout.to_string())?;
    }
    Ok(())
}

/// Waits until each Rollout is healthy, and has one ReplicaSet.
fn wait_rollouts(scene: &Installed) -> Result<()> {
    let count = ROLLOUTS.len() * TENANTS;
    let mut last = (0, 0);
    let client = scene.node().api().client();
    let all = until("all Rollouts are healthy", LIMIT, || {
        let list = client.get("/apis/argoproj.io/v1alpha1/rollouts")?.json()?;
        let healthy = list["items"].as_array().context("items")?.iter();
        let healthy = healthy.filter(|one| one["status"]["phase"] == "Healthy").count();
        let sets = client.get("/apis/apps/v1/replicasets")?.json()?;
        let is_its = |set: &&Value| set["metadata"]["ownerReferences"][0]["kind"] == "Rollout";
        let sets = sets["items"].as_array().context("items")?.iter().filter(is_its).count();
        last = (healthy, sets);
        Ok((last == (count, count)).then_some(()))
    });
    all.with_context(|| format!("{last:?} of {count}"))
}

#[test]
fn argo_rollouts_is_sharded_by_one_command_and_is_as_before_after_another() -> Result<()> {
    let scene = Installed::start(Binaries::from_env()?, &[])?;
    install(&scene)?;
    let operator = Operator { scene: &scene, name: NAME, account: NAME, spare: &SPARE };
    operator.begin()?;
    let before = operator.spec()?;
    operator.ctrlmesh("shard", &["--shards", "2", "--apply"])?;
    operator.all_lead("argo-rollouts-controller-lock", 2)?;
    for at in 0..TENANTS {
        make_tenant(&scene, &tenant(at))?;
    }
    wait_rollouts(&scene)?;
    operator.one_writer_each(&[])?;

    // A third shard takes its part, and gives it back.
    operator.scale(3)?;
    operator.all_lead("argo-rollouts-controller-lock", 3)?;
    wait_rollouts(&scene)?;
    operator.ctrlmesh("shard", &["--shards", "2", "--apply"])?;
    wait_rollouts(&scene)?;
    operator.unshard(&before)?;
    wait_rollouts(&scene)
}
