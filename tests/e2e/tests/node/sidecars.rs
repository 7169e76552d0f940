//! The end of a leader's pod, with both kinds of sidecar.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use ctrlmesh_e2e::{AuditObject, NAMESPACE, Shards, until};
use serde_json::Value;

use crate::node::scene::Turn;

const OPERATOR: &str = "system:serviceaccount:demo:demo-operator";
const LEASE: &str = "demo-operator---blue";
const WITHIN: Duration = Duration::from_secs(60);
/// How long the operator's own lease is good for others after its last renewal.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Longer than a drain of the proxy, so that nothing is killed that would have ended.
const GRACE: Duration = Duration::from_secs(30);

/// What was seen of the end of a leader's pod, each time since its deletion was asked for.
#[derive(Debug)]
struct End {
    released: Duration,
    taken_over: Duration,
    /// Each container with exit code and reason.
    containers: Vec<(String, i64, String)>,
    gone: Duration,
}

#[test]
fn i13_a_leader_that_ends_releases_its_lease_with_either_sidecar() -> Result<()> {
    let shards = Turn::wait()?;
    shards.draw("blue", &["ant"])?;
    for kind in ["native", "classic"] {
        let mut deployment: Value = serde_json::from_str(&shards.deployment("blue")?)?;
        deployment["spec"]["replicas"] = 2.into();
        deployment["spec"]["strategy"] = serde_json::json!({ "type": "Recreate" });
        deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] =
            GRACE.as_secs().into();
        let injected =
            shards.mesh().inject(&deployment.to_string(), &[&format!("--sidecar={kind}")])?;
        shards.run_manifest("blue", &injected)?;
        shards.create_widgets(&["ant"], 2)?;
        let leader = await_leader(&shards)?;
        let end = watch_the_end_of(&shards, &leader)?;
        println!("{kind}: {end:?}");
        // The other one tries every two seconds, and somewhat later at random.
        let waited = end.taken_over.saturating_sub(end.released);
        ensure!(waited < LEASE_DURATION / 2, "{kind}: not taken over at once");
        ensure!(end.gone < GRACE / 2, "{kind}: something did not end by itself");
        ensure!(end.containers.len() == 2, "{kind}: {:?}", end.containers);
        for (container, code, reason) in &end.containers {
            ensure!((*code, reason.as_str()) == (0, "Completed"), "{kind}: {container}: {code}");
        }
        delete_operators(&shards)?;
    }
    Ok(())
}

/// Deletes every Deployment of the scene and waits until no pod is left.
pub(super) fn delete_operators(shards: &Shards) -> Result<()> {
    let delete = ["delete", "deployment", "--all"];
    shards.node().kubectl(&[&["--namespace", NAMESPACE], &delete[..]].concat())?;
    let gone = ["wait", "--for=delete", "pod", "--all", "--timeout=60s"];
    shards.node().kubectl(&[&["--namespace", NAMESPACE], &gone[..]].concat()).map(drop)
}

/// The pod that holds the lock; it has handled a Widget, so it watches.
fn await_leader(shards: &Shards) -> Result<String> {
    until("a pod leads and handles", WITHIN, || {
        let leases = shards.leases()?;
        let holder = leases.get(LEASE).and_then(|holder| holder.split('_').next());
        let Some(leader) = holder.filter(|holder| !holder.is_empty()) else { return Ok(None) };
        let is_done = shards.widgets()?.iter().all(|widget| widget.handled_by == leader);
        Ok(is_done.then(|| leader.to_owned()))
    })
}

/// Deletes the leader and watches the lease and the pod until the other one leads and it is gone.
fn watch_the_end_of(shards: &Shards, leader: &str) -> Result<End> {
    let api = shards.node().api();
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
    let lease = format!("{leases}?fieldSelector=metadata.name={LEASE}");
    let pod = format!("/api/v1/namespaces/{NAMESPACE}/pods?fieldSelector=metadata.name={leader}");
    thread::scope(|scope| {
        let (lease_ready, is_lease_ready) = mpsc::sync_channel(1);
        let (pod_ready, is_pod_ready) = mpsc::sync_channel(1);
        let holders = scope.spawn(move || {
            let mut released = None;
            api.client().watch_until(&lease, WITHIN, |event| {
                let _ = lease_ready.try_send(());
                match event["object"]["spec"]["holderIdentity"].as_str().unwrap_or_default() {
                    "" => {
                        released.get_or_insert_with(Instant::now);
                        None
                    }
                    holder if holder.starts_with(leader) => None,
                    // No one takes over what was not released, before its time is over.
                    _ => Some((released, Instant::now())),
                }
            })
        });
        let last = scope.spawn(move || {
            api.client().watch_until(&pod, WITHIN, |event| {
                let _ = pod_ready.try_send(());
                (event["type"] == "DELETED").then(|| (event["object"].clone(), Instant::now()))
            })
        });
        is_lease_ready.recv_timeout(WITHIN)?;
        is_pod_ready.recv_timeout(WITHIN)?;
        let asked = Instant::now();
        let delete = ["delete", "pod", leader, "--wait=false"];
        shards.node().kubectl(&[&["--namespace", NAMESPACE], &delete[..]].concat())?;
        let (released, taken_over) = holders.join().map_err(|_| anyhow!("a panic"))??;
        let (pod, gone) = last.join().map_err(|_| anyhow!("a panic"))??;
        let released = released.context("the lease was not released")?;
        ensure!(released < gone, "the lease was released by someone else");
        the_release_came_through_the_proxy(shards, &pod)?;
        Ok(End {
            released: released - asked,
            taken_over: taken_over - asked,
            containers: how_containers_ended(&pod),
            gone: gone - asked,
        })
    })
}

/// The operator's container and the proxy's, without the one that set up the rules.
fn how_containers_ended(pod: &Value) -> Vec<(String, i64, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ["initContainerStatuses", "containerStatuses"]
        .iter()
        .filter_map(|list| pod["status"][list].as_array())
        .flatten()
        .filter(|status| status["name"] != "ctrlmesh-init")
        .map(|status| {
            let ended = &status["state"]["terminated"];
            (
                text(&status["name"]),
                ended["exitCode"].as_i64().unwrap_or(-1),
                text(&ended["reason"]),
            )
        })
        .collect()
}

/// The operator's last request for its lease is an update that the API server took. It names the
/// lock by the shard's name, which the operator does not know.
fn the_release_came_through_the_proxy(shards: &Shards, pod: &Value) -> Result<()> {
    let entries = shards.node().api().audit().entries()?;
    let last = entries.iter().rfind(|entry| {
        let ip = entry.source_ips.first().map(String::as_str);
        let is_of_lock = |object: &AuditObject| object.resource == "leases" && object.name == LEASE;
        let is_asked_for = entry.object_ref.as_ref().is_some_and(is_of_lock);
        ip == pod["status"]["podIP"].as_str() && is_asked_for
    });
    let last = last.context("the pod asked for its lease")?;
    let status = last.response_status.as_ref().map(|status| status.code);
    ensure!((last.verb.as_str(), status) == ("update", Some(200)), "{last:?}");
    ensure!(last.user.username == OPERATOR, "{last:?}");
    Ok(())
}
