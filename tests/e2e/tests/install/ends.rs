//! The end of a version and the end of an installation: an upgrade breaks nothing, an uninstall is
//! refused while pods need the mesh, and leaves what they need.

use std::{
    collections::BTreeSet,
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{AuditEntry, Binaries, Boundary, Installed, NAMESPACE, images, until};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::install::{
    audit,
    scene::{LIMIT, begin, restarts, settle, widget},
};

/// The longest time without injection while the webhooks get another name.
const OUTAGE: Duration = Duration::from_secs(10);
const OPERATOR: &str = "system:serviceaccount:demo:demo-operator";
/// The objects that an uninstall leaves after a refusal, in the order of the table of the chart's
/// README.
const LEFT: [&str; 11] = [
    "CustomResourceDefinition shardingconfigs.ctrlmesh.kusionstack.io",
    "ShardingConfig demo/ants",
    "ShardingConfig demo/bees",
    "ClusterRole ctrlmesh-proxy",
    "ClusterRole ctrlmesh-proxy-namespaces",
    "RoleBinding demo/ctrlmesh-proxy",
    "ConfigMap demo/ctrlmesh-ca-bundle",
    POD_LEASE,
    "Secret ctrlmesh-system/ctrlmesh-trust",
    "Lease ctrlmesh-system/ctrlmesh-manager",
    REFUSAL,
];

const REFUSAL: &str = "Job ctrlmesh-system/ctrlmesh-manager-uninstall";
const POD_LEASE: &str = "Lease demo/ctrlmesh-UID";

#[test]
fn i12_an_upgrade_breaks_nothing_and_an_uninstall_leaves_what_pods_need() -> Result<()> {
    let scene = Installed::start(Binaries::from_env()?, &[])?;
    scene.label()?;
    scene.draw("ants", &["0", "1"], Boundary::Teams(&["ant"]))?;
    scene.draw("bees", &["2", "3"], Boundary::Teams(&["bee"]))?;
    for pod in Installed::PODS {
        scene.wait_ready(pod, LIMIT)?;
    }
    begin(&scene)?;
    upgrade(&scene)?;
    audit::none_refused(&scene)?;
    uninstall(&scene)?;
    install_again(&scene)?;
    audit::by_themselves(&scene)
}

/// Asks for an injected pod again and again until `is_over`. Returns the longest time without one.
fn ask_for_pods(scene: &Installed, is_over: &AtomicBool) -> Result<Duration> {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "asked",
            "labels": { "ctrlmesh.kusionstack.io/enable-proxy": "true" },
        },
        "spec": { "containers": [{ "name": "app", "image": images::BUSYBOX }] },
    });
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All");
    let client = scene.node().api().client();
    let mut since = Instant::now();
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let answer = client.post(&path, &pod)?;
        if answer.status == 201 {
            ensure!(answer.text.contains("ctrlmesh-proxy"), "a pod without a proxy");
            longest = longest.max(began - since);
            since = began;
        }
        pass(Duration::from_millis(200));
    }
    Ok(longest.max(since.elapsed()))
}

#[allow(clippy::disallowed_methods, reason = "requests come at a rate")]
fn pass(time: Duration) {
    thread::sleep(time);
}

/// The chart with another name for a webhook, and a field more in its definition.
fn changed(scene: &Installed) -> Result<std::path::PathBuf> {
    let other = scene.node().api().directory().join("chart");
    let status = Command::new("cp").arg("-r").arg(Installed::chart()).arg(&other).status()?;
    ensure!(status.success(), "copying the chart");
    let template = other.join("templates/webhooks.yaml");
    let text = fs::read_to_string(&template)?;
    ensure!(text.contains("\"pods.ctrlmesh"), "the chart names its webhooks otherwise");
    fs::write(&template, text.replace("\"pods.ctrlmesh", "\"other.ctrlmesh"))?;
    let template = other.join("templates/crds.yaml");
    let text = fs::read_to_string(&template)?;
    let [before, field] =
        ["                  certDir:\n", "                  certNext: {type: string}\n"];
    // Ours is the first definition.
    ensure!(text.contains(before), "the definition has other fields");
    fs::write(&template, text.replacen(before, &format!("{field}{before}"), 1))?;
    Ok(other)
}

/// Requests that proxies could not pass on or refused, over all pods.
fn failures(scene: &Installed) -> Result<f64> {
    let mut sum = 0.0;
    for pod in Installed::PODS {
        for line in scene.page(pod, "/metrics")?.lines() {
            let is_failed =
                line.starts_with("ctrlmesh_requests_total{") && line.contains("\"5xx\"");
            if is_failed && let Some((_, value)) = line.rsplit_once(' ') {
                sum += value.parse::<f64>()?;
            }
        }
    }
    Ok(sum)
}

/// Another image, other values, another name of a webhook, another definition, under an operator
/// that works.
fn upgrade(scene: &Installed) -> Result<()> {
    let tag = "next";
    for image in [images::PROXY, images::INIT] {
        scene.tag(image, tag)?;
    }
    let chart = changed(scene)?;
    let [failed, began] = [failures(scene)?, seconds(&Timestamp::now().to_string())?];
    let is_over = AtomicBool::new(false);
    let longest = thread::scope(|threads| {
        let asked = threads.spawn(|| ask_for_pods(scene, &is_over));
        let upgraded = upgrade_at_work(scene, &chart, tag);
        is_over.store(true, Ordering::Relaxed);
        let longest = asked.join().map_err(|_| anyhow::anyhow!("who asks for pods panicked"))?;
        upgraded.and(longest)
    })?;
    println!("longest time without a new pod: {:.1} s", longest.as_secs_f64());
    ensure!(longest < OUTAGE, "no pod was injected for {longest:?}");

    for pod in Installed::PODS {
        for container in ["ctrlmesh-proxy", "operator"] {
            ensure!(restarts(scene, pod, container)? == 0, "{container} of {pod} was restarted");
        }
    }
    let more = failures(scene)? - failed;
    ensure!(more == 0.0, "{more} requests failed");
    for entry in scene.node().api().audit().entries()? {
        let at = seconds(&entry.stage_timestamp)?;
        let is_cut = at > began && is_cut(&entry)?;
        ensure!(!is_cut, "a watch was cut: {} {}", entry.request_uri, entry.stage_timestamp);
    }

    the_definition_is_new(scene)?;

    // A pod that is created once the former replicas are gone is of the new version.
    scene.until_replaced()?;
    scene.node().kubectl(&["delete", "pod", "demo-operator-3", "--namespace", NAMESPACE])?;
    scene.wait_ready("demo-operator-3", LIMIT)?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/demo-operator-3");
    let pod = scene.node().api().client().get(&path)?.text;
    for image in ["localhost/ctrlmesh:next", "localhost/ctrlmesh-init:next"] {
        ensure!(pod.contains(image), "demo-operator-3 has no {image}");
    }
    settle(scene)
}

/// Checks that the cluster has the definition of the new chart, and the configs that were there.
fn the_definition_is_new(scene: &Installed) -> Result<()> {
    for config in ["ants", "bees"] {
        let webhook = json!({
            "metadata": { "labels": { "ctrlmesh.kusionstack.io/ignore-validate": "" } },
            "spec": { "webhook": { "certDir": "/certs", "port": 9443, "certNext": "new" } },
        });
        let webhook = webhook.to_string();
        let patch = ["patch", "shardingconfig", config, "--namespace", NAMESPACE, "--type=merge"];
        scene.node().kubectl(&[&patch[..], &["--patch", &webhook]].concat())?;
        let shown = "jsonpath={.spec.webhook.certNext} {.spec.controller.leaderElectionName}";
        let get = ["get", "shardingconfig", config, "--namespace", NAMESPACE, "-o", shown];
        let shown = scene.node().kubectl(&get)?;
        ensure!(shown == "new demo-operator", "{config}: {shown:?}");
        // Our own program does not know the field, and refuses what it does not know.
        let undo = r#"{"spec":{"webhook":null}}"#;
        scene.node().kubectl(&[&patch[..], &["--patch", undo]].concat())?;
    }
    Ok(())
}

/// Upgrades while Widgets are made.
fn upgrade_at_work(scene: &Installed, chart: &std::path::Path, tag: &str) -> Result<()> {
    let mut values = vec!["--set", "trust.leafLifetime=43200", "--set", "webhook.timeoutSeconds=6"];
    let tags = ["manager", "init"].map(|image| format!("{image}.image.tag={tag}"));
    values.extend(tags.iter().flat_map(|value| ["--set", value]));
    thread::scope(|threads| {
        let upgraded = threads.spawn(|| scene.helm_with(chart, "upgrade", &values));
        let mut number = 0;
        while !upgraded.is_finished() {
            widget(scene, "ant", &format!("ant-upgrade-{number}"))?;
            widget(scene, "bee", &format!("bee-upgrade-{number}"))?;
            number += 1;
        }
        println!("{number} Widgets of each team while it was upgraded");
        upgraded.join().map_err(|_| anyhow::anyhow!("helm panicked"))?.map(drop)
    })?;
    settle(scene)
}

/// Whether this is the end of a watch of an operator before the time that it asked for.
fn is_cut(entry: &AuditEntry) -> Result<bool> {
    let is_own = entry.user_agent.as_ref().is_some_and(|agent| agent.starts_with("ctrlmesh/"));
    if entry.verb != "watch" || entry.stage != "ResponseComplete" || is_own {
        return Ok(false);
    }
    if entry.user.username != OPERATOR {
        return Ok(false);
    }
    let asked = entry.request_uri.split(['?', '&']);
    let asked = asked.filter_map(|pair| pair.strip_prefix("timeoutSeconds=")).next();
    let asked: f64 = asked.context("a watch without a limit")?.parse()?;
    let took = seconds(&entry.stage_timestamp)? - seconds(&entry.request_received_timestamp)?;
    Ok(took < asked - 1.0)
}

/// RFC 3339 in seconds since 1970.
fn seconds(time: &str) -> Result<f64> {
    let time: Timestamp = time.parse()?;
    Ok(time.as_microsecond() as f64 / 1e6)
}

/// Objects of ours, as `Kind name` or `Kind namespace/name`.
fn ours(scene: &Installed) -> Result<BTreeSet<String>> {
    let kubectl = |args: &[&str]| scene.node().kubectl(args);
    let all = kubectl(&["api-resources", "--verbs=list,get", "-o", "name"])?;
    // Events end by themselves.
    let all: Vec<&str> = all.lines().filter(|name| !name.starts_with("events")).collect();
    let text = kubectl(&["get", &all.join(","), "--all-namespaces", "-o", "json"])?;
    let list: Value = serde_json::from_str(&text)?;
    let mut ours = BTreeSet::new();
    for item in list["items"].as_array().context("items")? {
        let [kind, name] = [&item["kind"], &item["metadata"]["name"]];
        let [kind, name] = [kind, name].map(|text| text.as_str().unwrap_or_default());
        let labels = item["metadata"]["labels"].to_string();
        let is_of_a_pod = labels.contains("ctrlmesh.kusionstack.io/ring");
        let name = if is_of_a_pod { "ctrlmesh-UID" } else { name };
        let is_ours = kind == "ShardingConfig"
            || name.contains("ctrlmesh")
            || labels.contains("\"app.kubernetes.io/name\":\"ctrlmesh\"");
        // The pod is its Job's, an APIService is a definition's.
        let is_part = kind == "Pod" && name.contains("-uninstall-") || kind == "APIService";
        if is_ours && !is_part && kind != "Namespace" {
            ours.insert(match item["metadata"]["namespace"].as_str() {
                Some(namespace) => format!("{kind} {namespace}/{name}"),
                None => format!("{kind} {name}"),
            });
        }
    }
    Ok(ours)
}

/// Waits until the rest is what the README says. Without a refusal there are no pods: their Leases are
/// gone, but for that of a killed one, while the end of a write that it had begun is unknown.
fn left(scene: &Installed, is_refused: bool) -> Result<()> {
    let is_known = |object: &&str| is_refused || ![REFUSAL, POD_LEASE].contains(object);
    let wanted: BTreeSet<String> = LEFT.into_iter().filter(is_known).map(str::to_owned).collect();
    let mut found = BTreeSet::new();
    let waited = until("the rest is gone", LIMIT, || {
        found = ours(scene)?;
        if !is_refused {
            found.remove(POD_LEASE);
        }
        Ok((found == wanted).then_some(()))
    });
    waited.with_context(|| {
        let [more, less] = [(&found, &wanted), (&wanted, &found)]
            .map(|(one, other)| one.difference(other).cloned().collect::<Vec<_>>());
        format!("left besides: {more:?}; gone: {less:?}")
    })?;
    let readme = fs::read_to_string(Installed::chart().join("README.md"))?;
    let (_, table) = readme.split_once("`helm uninstall` leaves these").context("the table")?;
    let (table, _) = table.split_once("\n## ").context("its end")?;
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let name = |object: &str| object.rsplit([' ', '/']).next().unwrap_or_default().to_owned();
    let named =
        |object: &&&str| object.starts_with("ShardingConfig") || table.contains(&name(object));
    ensure!(LEFT.iter().filter(named).count() == LEFT.len(), "the table lacks one: {table}");
    let is_left = |row: &&&str| LEFT.iter().any(|object| row.contains(&name(object)));
    ensure!(rows.iter().filter(is_left).count() == rows.len(), "one too many: {table}");
    Ok(())
}

fn uninstall(scene: &Installed) -> Result<()> {
    let helm = |more: &[&str]| -> Result<(bool, String)> {
        let mut helm = scene.helm_command()?;
        let output = helm.args(["uninstall", "ctrlmesh", "--wait"]).args(more).output()?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let (is_done, said) = helm(&[])?;
    ensure!(!is_done, "uninstalled under four pods: {said}");
    let job = ["logs", "job/ctrlmesh-manager-uninstall", "--namespace", Installed::NAMESPACE];
    let log = scene.node().kubectl(&job)?;
    for pod in Installed::PODS {
        ensure!(log.contains(&format!("{NAMESPACE}/{pod}")), "no {pod} in {log}");
    }
    // All of it is still there.
    scene.node().kubectl(&["delete", "pod", "demo-operator-2", "--namespace", NAMESPACE])?;
    scene.wait_ready("demo-operator-2", LIMIT)?;

    let (is_done, said) = helm(&["--no-hooks"])?;
    ensure!(is_done, "{said}");
    left(scene, true)?;
    // Pods go on, their containers come back, boundaries move.
    scene.kill("demo-operator-0", "ctrlmesh-proxy")?;
    scene.kill("demo-operator-0", "operator")?;
    until("both run again", LIMIT, || {
        let again =
            |container| Ok::<_, anyhow::Error>(restarts(scene, "demo-operator-0", container)? > 0);
        Ok((again("ctrlmesh-proxy")? && again("operator")?).then_some(()))
    })?;
    scene.wait_ready("demo-operator-0", LIMIT)?;
    widget(scene, "ant", "ant-left")?;
    widget(scene, "bee", "bee-left")?;
    settle(scene)
}

/// An installation to come takes over what was left; with no injected pod, its end is not refused.
fn install_again(scene: &Installed) -> Result<()> {
    let namespace = Installed::NAMESPACE;
    let secret = ["get", "secret", "ctrlmesh-trust", "-n", namespace, "-o", "jsonpath={.data}"];
    let before = scene.node().kubectl(&secret)?;
    scene.helm("install", &[])?;
    ensure!(scene.node().kubectl(&secret)? == before, "pods do not trust the new installation");
    scene.node().kubectl(&["delete", "pod", "demo-operator-1", "--namespace", NAMESPACE])?;
    scene.wait_ready("demo-operator-1", LIMIT)?;
    let scale = ["scale", "statefulset/demo-operator", "--replicas=0", "--namespace", NAMESPACE];
    scene.node().kubectl(&scale)?;
    for pod in Installed::PODS {
        scene.node().wait_for(NAMESPACE, &format!("pod/{pod}"), "delete", LIMIT)?;
    }
    let output = scene.helm_command()?.args(["uninstall", "ctrlmesh", "--wait"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    left(scene, false)
}
