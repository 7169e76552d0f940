//! A root whose shards grow and shrink on a node, while its objects are written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{AuditLevel, Binaries, Installed, NAMESPACE, Node, until};
use serde_json::{Value, json};

use crate::scene::{LIMIT, restarts};

const TENANTS: usize = 30;
const WIDGETS: &str = "/apis/demo.example.com/v1alpha1";

fn tenants() -> Vec<String> {
    (0..TENANTS).map(|at| format!("ns-{at:04}")).collect()
}

/// The mixed hash of a name: FNV-1a, then the finaliser of MurmurHash3.
fn hash(name: &str) -> u64 {
    let plain = name.bytes().fold(14_695_981_039_346_656_037_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
    });
    let round = |hash: u64, factor: u64| (hash ^ (hash >> 33)).wrapping_mul(factor);
    let hash = round(round(plain, 0xff51_afd7_ed55_8ccd), 0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The pod that is to handle each tenant, by the configs as they are. Fails if two are.
fn owners(scene: &Installed) -> Result<BTreeMap<String, String>> {
    let path =
        format!("/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{NAMESPACE}/shardingconfigs");
    let list = scene.node().api().client().get(&path)?.json()?;
    let mut owners = BTreeMap::new();
    for config in list["items"].as_array().context("items")? {
        let Some(ranges) = config["spec"]["limits"][0]["hash"]["ranges"].as_array() else {
            continue;
        };
        let pod = config["spec"]["selector"]["matchExpressions"][0]["values"][0].as_str();
        for name in tenants() {
            let text = format!("{:#018x}", hash(&name));
            // Texts of one length are in the order of their numbers.
            let has = |range: &Value| {
                let [from, to] =
                    [&range["from"], &range["to"]].map(|end| end.as_str().unwrap_or_default());
                from <= &*text && (to.is_empty() || &*text < to)
            };
            if ranges.iter().any(has) {
                let other = owners.insert(name, pod.context("a pod")?.to_owned());
                ensure!(other.is_none(), "two own {text}: {list}");
            }
        }
    }
    Ok(owners)
}

/// Waits until each tenant's Widget is handled by its owner, and returns the owners.
fn settle(scene: &Installed, pods: u32) -> Result<BTreeMap<String, String>> {
    scene.wait_drawn(usize::try_from(pods)?, LIMIT)?;
    let owners = owners(scene)?;
    ensure!(owners.len() == TENANTS, "somebody is nobody's: {owners:?}");
    let busy: BTreeSet<_> = owners.values().collect();
    ensure!(busy.len() == usize::try_from(pods)?, "a shard is idle: {owners:?}");
    let mut last = Vec::new();
    let settled = until("each is handled by its owner", LIMIT, || {
        last = scene.shards().widgets()?;
        let is_right = |widget: &ctrlmesh_e2e::Widget| {
            owners.get(&widget.namespace) == Some(&widget.handled_by)
        };
        Ok(last.iter().all(is_right).then_some(()))
    });
    settled.with_context(|| format!("{owners:?}: {last:?}"))?;
    Ok(owners)
}

/// Changes the Widgets, one after the other, until this is over.
fn write(scene: &Installed, is_over: &AtomicBool) -> Result<u32> {
    let client = scene.node().api().client();
    let mut size = 1;
    while !is_over.load(Ordering::Relaxed) {
        size += 1;
        for tenant in tenants() {
            let path = format!("{WIDGETS}/namespaces/{tenant}/widgets/widget");
            let body = json!({ "spec": { "size": size } }).to_string().into_bytes();
            client.request("PATCH", &path, "application/merge-patch+json", body)?.json()?;
        }
    }
    Ok(size)
}

/// The pods that wrote each tenant's Widget, in the order in which their writes took effect, each once
/// until another wrote.
fn writers(scene: &Installed) -> Result<BTreeMap<String, Vec<String>>> {
    let mut writes: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
    for entry in scene.node().api().audit().entries()? {
        let Some(object) = &entry.object_ref else { continue };
        let is_status = (&*object.resource, &*object.subresource) == ("widgets", "status");
        let is_done = entry.response_status.as_ref().is_some_and(|status| status.code == 200);
        if !(is_status && is_done && object.namespace.starts_with("ns-")) {
            continue;
        }
        let stored = entry.response_object.as_ref().context("what was stored")?;
        let version = stored["metadata"]["resourceVersion"].as_str().context("a version")?;
        let pod = stored["status"]["handledBy"].as_str().context("a pod")?;
        writes
            .entry(object.namespace.clone())
            .or_default()
            .insert(version.parse()?, pod.to_owned());
    }
    let once = |(tenant, writes): (String, BTreeMap<u64, String>)| {
        let mut pods: Vec<_> = writes.into_values().collect();
        pods.dedup();
        (tenant, pods)
    };
    Ok(writes.into_iter().map(once).collect())
}

#[test]
fn i15_a_root_grows_and_shrinks_and_no_object_has_two_writers() -> Result<()> {
    let node = Node::builder().audit(AuditLevel::RequestResponse);
    let scene = Installed::start_on(Binaries::from_env()?, node, &[])?;
    let names = tenants();
    scene.shards().create_tenants(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    scene.draw_root(2)?;
    scene.run(2)?;
    for pod in &Installed::PODS[..2] {
        scene.wait_ready(pod, LIMIT)?;
    }
    let two = settle(&scene, 2)?;
    let is_over = AtomicBool::new(false);
    let (three, again) = thread::scope(|scope| -> Result<_> {
        let writer = scope.spawn(|| write(&scene, &is_over));
        let moves = || -> Result<_> {
            scene.draw_root(3)?;
            scene.run(3)?;
            scene.wait_ready(Installed::PODS[2], LIMIT)?;
            let three = settle(&scene, 3)?;
            scene.draw_root(2)?;
            let again = settle(&scene, 2)?;
            scene.run(2)?;
            Ok((three, again))
        };
        let moved = moves();
        is_over.store(true, Ordering::Relaxed);
        let written = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        println!("each Widget was written {written} times");
        moved
    })?;
    let moved = two.iter().filter(|(tenant, pod)| three.get(*tenant) != Some(*pod)).count();
    println!("{moved} of {TENANTS} tenants moved to the third shard");
    ensure!(two == again, "they did not come back");
    for (tenant, pods) in writers(&scene)? {
        let mut expected = vec![two[&tenant].clone(), three[&tenant].clone(), two[&tenant].clone()];
        expected.dedup();
        ensure!(pods == expected, "{tenant}: {pods:?} wrote, not {expected:?}");
    }
    for pod in &Installed::PODS[..2] {
        for container in ["operator", "ctrlmesh-proxy"] {
            ensure!(restarts(&scene, pod, container)? == 0, "{container} of {pod} was restarted");
        }
        let metrics = scene.page(pod, "/metrics")?;
        let expired = metrics.lines().filter(|line| {
            line.starts_with("ctrlmesh_stream_changes_total") && line.contains("expired")
        });
        for line in expired {
            ensure!(line.ends_with(" 0"), "{pod}: {line}");
        }
    }
    Ok(())
}
