//! The first hour of a platform team: a chart, a label, two ShardingConfigs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use ctrlmesh_e2e::{Binaries, Boundary, Installed, NAMESPACE, until};
use serde_json::{Value, json};

use crate::install::{
    audit,
    scene::{LIMIT, TEAMS, begin, items, restarts, widget},
};

#[test]
fn i12_i15_a_chart_a_label_and_two_configs_make_four_pods_in_two_shards() -> Result<()> {
    let began = Instant::now();
    let scene = Installed::start(Binaries::from_env()?, &[])?;
    println!("installed after {:.1} s", began.elapsed().as_secs_f64());

    // In an order that is not the right one.
    let applied = Instant::now();
    scene.label()?;
    scene.draw("ants", &["0", "1"], Boundary::Teams(&["ant"]))?;
    scene.draw("bees", &["2", "3"], Boundary::Teams(&["bee"]))?;
    for pod in Installed::PODS {
        scene.wait_ready(pod, LIMIT)?;
        println!("{pod} is ready after {:.1} s", applied.elapsed().as_secs_f64());
    }
    begin(&scene)?;
    for pod in Installed::PODS {
        let ready = scene.page(pod, "/readyz")?;
        ensure!(ready.contains("[+]certificate ok"), "{ready}");
        let metrics = scene.page(pod, "/metrics")?;
        ensure!(metrics.contains("ctrlmesh_enrolments_total{result=\"ok\"} 1"), "{metrics}");
    }

    each_pod_says_what_it_has(&scene)?;
    nothing_holds_a_key(&scene)?;
    the_mesh_goes_on_without_its_manager(&scene)?;
    audit::none_refused(&scene)?;
    audit::by_themselves(&scene)
}

/// The Leases of pods, by the pods' names.
pub(crate) fn leases(scene: &Installed) -> Result<BTreeMap<String, Value>> {
    let path = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases?labelSelector=\
         ctrlmesh.kusionstack.io%2Fring%3Ddemo-operator"
    );
    let mut list = scene.node().api().client().get(&path)?.json()?;
    let Value::Array(leases) = list["items"].take() else { bail!("no list: {list}") };
    let holder = |lease: Value| {
        let holder = lease["spec"]["holderIdentity"].as_str().context("a holder")?;
        Ok((holder.to_owned(), lease))
    };
    leases.into_iter().map(holder).collect()
}

/// Each pod of the ring has a Lease with the objects of its shard.
fn each_pod_says_what_it_has(scene: &Installed) -> Result<()> {
    until("each pod has a Lease", LIMIT, || {
        Ok((leases(scene)?.keys().eq(&Installed::PODS)).then_some(()))
    })?;
    for (pod, lease) in leases(scene)? {
        let (team, _) = TEAMS.iter().find(|(_, pods)| pods.contains(&&*pod)).context("a team")?;
        let of = |name: &str| {
            let text = &lease["metadata"]["annotations"][format!("ctrlmesh.kusionstack.io/{name}")];
            text.as_str().unwrap_or_default().to_owned()
        };
        ensure!(of("shard") == format!("{team}s"), "{lease}");
        ensure!(of("claim").contains(&format!("team={team}")), "{lease}");
    }
    Ok(())
}

/// The keys of the authorities are in the Secret of the manager's namespace alone; no pod mounts it.
fn nothing_holds_a_key(scene: &Installed) -> Result<()> {
    for secret in items(scene, "secrets")? {
        let meta = &secret["metadata"];
        let is_ours = meta["namespace"] == Installed::NAMESPACE;
        ensure!(is_ours, "a Secret elsewhere: {meta}");
    }
    for pod in items(scene, "pods")? {
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let secrets = volumes.filter(|volume| !volume["secret"].is_null());
        ensure!(secrets.count() == 0, "{} mounts a Secret", pod["metadata"]["name"]);
    }
    Ok(())
}

/// The files of the operator's ServiceAccount as its container sees them: the link that the kubelet
/// turns over, and the contents behind it.
fn account_files(scene: &Installed, pod: &str) -> Result<(PathBuf, [String; 2])> {
    let process = scene.process(pod, "operator")?;
    let volume = "root/var/run/secrets/kubernetes.io/serviceaccount";
    let volume = Path::new("/proc").join(process.to_string()).join(volume);
    let read = |name| fs::read_to_string(volume.join(name)).context(name);
    Ok((fs::read_link(volume.join("..data"))?, [read("ca.crt")?, read("token")?]))
}

/// The kubelet replaces all files of the volume at once when the bundle changes. The container,
/// which was not restarted, has the new ones: a file that is mounted alone would stay the old one.
fn a_volume_is_replaced(scene: &Installed) -> Result<()> {
    let pod = "demo-operator-1";
    let (before, [bundle, _]) = account_files(scene, pod)?;
    let more = format!("{bundle}# Another root comes here.\n");
    let patch = json!({ "data": { "ca.crt": more } }).to_string();
    let map = ["patch", "configmap", "ctrlmesh-ca-bundle", "--namespace", NAMESPACE, "--patch"];
    scene.node().kubectl(&[&map[..], &[&patch]].concat())?;
    // The kubelet looks once a minute, or when the pod changes.
    scene.node().kubectl(&["annotate", "pod", pod, "--namespace", NAMESPACE, "look=now"])?;
    let (after, token) = until("the container has the new bundle", LIMIT, || {
        let (link, [now, token]) = account_files(scene, pod)?;
        Ok((now == more).then_some((link, token)))
    })?;
    ensure!(after != before, "{} was written into", after.display());
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let status = scene.node().api().client().with_token(token.trim()).get(&path)?.status;
    ensure!(status == 200, "the operator's token is answered by {status}");
    ensure!(restarts(scene, pod, "operator")? == 0, "the operator was restarted");
    Ok(())
}

fn scale(scene: &Installed, replicas: u8) -> Result<()> {
    let namespace = Installed::NAMESPACE;
    let replicas = format!("--replicas={replicas}");
    let args = ["scale", "deployment/ctrlmesh-manager", &replicas, "--namespace", namespace];
    scene.node().kubectl(&args).map(drop)
}

fn the_mesh_goes_on_without_its_manager(scene: &Installed) -> Result<()> {
    let client = scene.node().api().client();
    scale(scene, 0)?;
    until("no manager is left", LIMIT, || {
        let pods = client.get(&format!("/api/v1/namespaces/{}/pods", Installed::NAMESPACE))?;
        Ok(pods.json()?["items"].as_array().is_some_and(Vec::is_empty).then_some(()))
    })?;

    // A changed boundary, and containers that are killed.
    let before = leases(scene)?;
    for container in ["ctrlmesh-proxy", "operator"] {
        scene.kill("demo-operator-0", container)?;
        until("the container runs again", LIMIT, || {
            Ok((restarts(scene, "demo-operator-0", container)? == 1).then_some(()))
        })?;
        scene.wait_ready("demo-operator-0", LIMIT)?;
    }
    scene.draw_over("ants", &["0", "1"], Boundary::Teams(&["ant", "cat"]))?;
    widget(scene, "cat", "cat-0")?;
    until("the new team is handled", LIMIT, || {
        let widgets = scene.shards().widgets()?;
        let cat = widgets.iter().find(|widget| widget.team == "cat").context("a Widget")?;
        Ok(TEAMS[0].1.contains(&cat.handled_by.as_str()).then_some(()))
    })?;

    until("the Lease of the same pod says so, which its next process keeps", LIMIT, || {
        let lease = leases(scene)?.remove("demo-operator-0").context("a Lease")?;
        ensure!(lease["metadata"]["uid"] == before["demo-operator-0"]["metadata"]["uid"]);
        let claim = &lease["metadata"]["annotations"]["ctrlmesh.kusionstack.io/claim"];
        Ok(claim.as_str().is_some_and(|claim| claim.contains("cat")).then_some(()))
    })?;

    a_volume_is_replaced(scene)?;

    // New pods alone fail, by the name of our webhook.
    let refused = scene.node().kubectl(&[
        "run",
        "late",
        "--image=localhost/busybox:1",
        "--labels=ctrlmesh.kusionstack.io/enable-proxy=true",
        "--namespace",
        NAMESPACE,
    ]);
    let said = format!("{:#}", refused.err().context("a pod was created past the mesh")?);
    ensure!(said.contains("pods.ctrlmesh.kusionstack.io"), "{said}");
    let args = ["run", "plain", "--image=localhost/busybox:1", "--namespace", NAMESPACE];
    scene.node().kubectl(&args)?;

    scale(scene, 2)?;
    let manager = "deployment/ctrlmesh-manager";
    let available = "condition=Available";
    scene.node().wait_for(Installed::NAMESPACE, manager, available, LIMIT)?;
    let last = leases(scene)?.remove("demo-operator-3").context("a Lease")?;
    scene.node().kubectl(&["delete", "pod", "demo-operator-3", "--namespace", NAMESPACE])?;
    let named = |lease: &Value| lease["metadata"]["name"] == last["metadata"]["name"];
    ensure!(!leases(scene)?.values().any(named), "a pod left its Lease behind");
    scene.wait_ready("demo-operator-3", LIMIT)?;
    until("the next pod has one of its own", LIMIT, || {
        Ok(leases(scene)?.contains_key("demo-operator-3").then_some(()))
    })?;
    let text = ["get", "pod", "demo-operator-3", "--namespace", NAMESPACE, "-o", "json"];
    ensure!(scene.node().kubectl(&text)?.contains("ctrlmesh-proxy"), "a pod without a proxy");
    Ok(())
}
