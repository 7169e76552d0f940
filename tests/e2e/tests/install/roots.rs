//! A root whose shards grow and shrink on a node, while its objects are written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{AuditLevel, Binaries, Installed, NAMESPACE, Node, until};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::install::scene::{LIMIT, restarts};

/// The pause between the writes of a Widget: the operator itself writes twenty times a second at most.
const EVERY: Duration = Duration::from_secs(1);
const WIDGETS: &str = "/apis/demo.example.com/v1alpha1";

pub(crate) fn tenants(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("ns-{at:04}")).collect()
}

/// A number that the environment may say, for longer runs by hand.
pub(crate) fn number(name: &str, default: usize) -> Result<usize> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
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

/// The pod that is to handle each tenant, by the configs as they are. Each shard has one pod. Fails
/// if two pods are to handle a tenant.
fn owners(scene: &Installed, tenants: &[String]) -> Result<BTreeMap<String, String>> {
    let path =
        format!("/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{NAMESPACE}/shardingconfigs");
    let list = scene.node().api().client().get(&path)?.json()?;
    let mut owners = BTreeMap::new();
    for config in list["items"].as_array().context("items")? {
        if config["metadata"]["name"] == Installed::ROOT {
            continue;
        }
        let pod = &config["spec"]["selector"]["matchExpressions"][0]["values"][0];
        let pod = pod.as_str().context("a pod")?;
        for tenant in tenants.iter().filter(|tenant| has(&config["spec"]["limits"][0], tenant)) {
            let other = owners.insert(tenant.clone(), pod.to_owned());
            ensure!(other.is_none(), "two own {tenant}: {list}");
        }
    }
    Ok(owners)
}

/// Whether a limit, as a child of a root has it, has a tenant.
pub(crate) fn has(limit: &Value, tenant: &str) -> bool {
    let text = format!("{:#018x}", hash(tenant));
    // Texts of one length are in the order of their numbers.
    let in_range = |range: &Value| {
        let [from, to] = [&range["from"], &range["to"]];
        let [from, to] = [from, to].map(|end| end.as_str().unwrap_or_default());
        from <= &*text && (to.is_empty() || &*text < to)
    };
    let ranges = limit["hash"]["ranges"].as_array();
    let is_hashed = ranges.is_none_or(|ranges| ranges.iter().any(in_range));
    let mut names = limit["selector"]["matchExpressions"].as_array().into_iter().flatten();
    is_hashed
        && names.all(|one| {
            let is_listed =
                one["values"].as_array().is_some_and(|all| all.contains(&json!(tenant)));
            is_listed == (one["operator"] == "In")
        })
}

/// Waits until each tenant's Widget is handled by its owner, one of so many pods, and returns the owners.
fn settle(scene: &Installed, tenants: &[String], pods: usize) -> Result<BTreeMap<String, String>> {
    scene.wait_drawn(Installed::ROOT, pods, LIMIT)?;
    let owners = owners(scene, tenants)?;
    ensure!(owners.len() == tenants.len(), "someone is no one's: {owners:?}");
    let busy: BTreeSet<_> = owners.values().collect();
    ensure!(busy.len() == pods, "a shard is idle: {owners:?}");
    let mut last = Vec::new();
    let settled = until("each is handled by its owner", LIMIT, || {
        last = scene.shards().widgets()?;
        last.retain(|widget| owners.get(&widget.namespace) != Some(&widget.handled_by));
        Ok(last.is_empty().then_some(()))
    });
    settled.with_context(|| format!("{owners:?}: {last:?}"))?;
    Ok(owners)
}

/// Changes the Widgets, one after the other and each once a second at most, until the other end is gone.
fn write(scene: &Installed, tenants: &[String], is_over: &Receiver<()>) -> Result<u32> {
    let client = scene.node().api().client();
    let mut size = 1;
    while is_over.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        size += 1;
        for tenant in tenants {
            let path = format!("{WIDGETS}/namespaces/{tenant}/widgets/widget");
            let body = json!({ "spec": { "size": size } }).to_string().into_bytes();
            client.request("PATCH", &path, "application/merge-patch+json", body)?.json()?;
        }
    }
    Ok(size)
}

/// Does the moves while all Widgets are written.
pub(crate) fn under_writes<T>(
    scene: &Installed,
    tenants: &[String],
    moves: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let (goes_on, is_over) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let writer = scope.spawn(move || write(scene, tenants, &is_over));
        let moved = moves();
        drop(goes_on);
        let written = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        println!("each Widget was written {written} times");
        moved
    })
}

/// How many of the one owners are not the other's.
fn moved(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> usize {
    one.iter().filter(|(tenant, pod)| other.get(*tenant) != Some(*pod)).count()
}

/// A write of a Widget's status: who wrote, and when it was answered.
type Written = (String, Timestamp);

/// The writes of each tenant's Widget, in the order in which they took effect.
fn writes(scene: &Installed) -> Result<BTreeMap<String, Vec<Written>>> {
    let mut writes: BTreeMap<String, BTreeMap<u64, Written>> = BTreeMap::new();
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
        let written = (pod.to_owned(), entry.stage_timestamp.parse()?);
        writes.entry(object.namespace.clone()).or_default().insert(version.parse()?, written);
    }
    Ok(writes.into_iter().map(|(at, writes)| (at, writes.into_values().collect())).collect())
}

/// The limits that each pod's shard was given, in their order, each with the time of its write.
fn given(scene: &Installed) -> Result<BTreeMap<String, Vec<(Timestamp, Value)>>> {
    let mut given: BTreeMap<String, Vec<(Timestamp, Value)>> = BTreeMap::new();
    for entry in scene.node().api().audit().entries()? {
        let Some(object) = &entry.object_ref else { continue };
        let is_spec = (&*object.resource, &*object.subresource) == ("shardingconfigs", "");
        let is_write = ["create", "update", "patch"].contains(&&*entry.verb);
        let Some(stored) = entry.response_object.filter(|_| is_spec && is_write) else { continue };
        let pod = &stored["spec"]["selector"]["matchExpressions"][0]["values"][0];
        let (Some(pod), limit) = (pod.as_str(), &stored["spec"]["limits"][0]) else { continue };
        let written = (entry.stage_timestamp.parse()?, limit.clone());
        given.entry(pod.to_owned()).or_default().push(written);
    }
    given.values_mut().for_each(|all| all.sort_by_key(|(time, _)| *time));
    Ok(given)
}

/// The last time before another at which a shard no longer had a tenant.
fn lost(given: &[(Timestamp, Value)], tenant: &str, before: Timestamp) -> Option<Timestamp> {
    let written = given.windows(2).filter(|pair| has(&pair[0].1, tenant));
    let lost = written.filter(|pair| pair[1].0 <= before && !has(&pair[1].1, tenant));
    lost.map(|pair| pair[1].0).next_back()
}

/// Prints how long it took until the first write of the next owner of each object: from the write of
/// the config by which the owner before lost it, or from that owner's last write, if that was later.
fn tell_gaps(scene: &Installed, writes: &BTreeMap<String, Vec<Written>>) -> Result<()> {
    let given = given(scene)?;
    let mut gaps: Vec<Duration> = Vec::new();
    for (tenant, writes) in writes {
        for pair in writes.windows(2).filter(|pair| pair[0].0 != pair[1].0) {
            let (ended, begun) = (pair[0].1, pair[1].1);
            let given = given.get(&pair[0].0).context("a shard of that pod")?;
            let lost = lost(given, tenant, begun).context("a write that takes it away")?;
            gaps.push(begun.duration_since(ended.max(lost)).unsigned_abs());
        }
    }
    gaps.sort_unstable();
    let at = |part: usize| {
        gaps.get(gaps.len() * part / 100).or_else(|| gaps.last()).copied().unwrap_or_default()
    };
    println!("{} changed hands: p50 {:?}, p99 {:?}", gaps.len(), at(50), at(99));
    Ok(())
}

/// Checks that each object was written by its owners alone, each in its time. Also checks that
/// nothing was restarted or listed again.
fn check(scene: &Installed, pods: usize, phases: &[&BTreeMap<String, String>]) -> Result<()> {
    let writes = writes(scene)?;
    tell_gaps(scene, &writes)?;
    for (tenant, writes) in writes {
        let mut pods: Vec<_> = writes.into_iter().map(|(pod, _)| pod).collect();
        pods.dedup();
        let mut expected: Vec<_> = phases.iter().map(|owners| owners[&tenant].clone()).collect();
        expected.dedup();
        ensure!(pods == expected, "{tenant}: {pods:?} wrote, not {expected:?}");
    }
    for pod in (0..pods).map(|at| format!("demo-operator-{at}")) {
        for container in ["operator", "ctrlmesh-proxy"] {
            ensure!(restarts(scene, &pod, container)? == 0, "{container} of {pod} was restarted");
        }
        let metrics = scene.page(&pod, "/metrics")?;
        let expired = metrics.lines().filter(|line| {
            line.starts_with("ctrlmesh_stream_changes_total") && line.contains("expired")
        });
        for line in expired {
            ensure!(line.ends_with(" 0"), "{pod}: {line}");
        }
    }
    Ok(())
}

pub(crate) fn start() -> Result<Installed> {
    let node = Node::builder().audit(AuditLevel::RequestResponse);
    // What the operators handle, for roots by weight.
    let counted = [
        "--set=counted[0].apiGroups={demo.example.com}",
        "--set=counted[0].resources={widgets}",
        "--set=counted[1].apiGroups[0]=",
        "--set=counted[1].resources={configmaps}",
    ];
    Installed::start_on(Binaries::from_env()?, node, &counted)
}

/// Makes the tenants.
pub(crate) fn create(scene: &Installed, tenants: &[String]) -> Result<()> {
    scene.shards().create_tenants(&tenants.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs so many pods, and waits for those from `first`.
fn run(scene: &Installed, first: usize, pods: usize) -> Result<()> {
    scene.run(u32::try_from(pods)?)?;
    (first..pods).try_for_each(|at| scene.wait_ready(&format!("demo-operator-{at}"), LIMIT))
}

#[test]
fn i15_a_root_grows_and_shrinks_and_no_object_has_two_writers() -> Result<()> {
    let scene = start()?;
    let tenants = tenants(30);
    create(&scene, &tenants)?;
    scene.draw_root(2)?;
    run(&scene, 0, 2)?;
    let two = settle(&scene, &tenants, 2)?;
    let (three, again) = under_writes(&scene, &tenants, || {
        scene.draw_root(3)?;
        until("the status names the shard without a pod", LIMIT, || {
            let said = scene.ctrlmesh(&["status"])?;
            Ok(said.contains("no pod of demo-3-normal is ready").then_some(()))
        })?;
        run(&scene, 2, 3)?;
        let three = settle(&scene, &tenants, 3)?;
        scene.draw_root(2)?;
        let again = settle(&scene, &tenants, 2)?;
        run(&scene, 2, 2)?;
        Ok((three, again))
    })?;
    ensure!(two == again, "they did not come back");
    check(&scene, 2, &[&two, &three, &two])
}

/// Kills all replicas of the manager.
pub(crate) fn kill(scene: &Installed) -> Result<()> {
    let manager = "--selector=app.kubernetes.io/component=manager";
    let at_once = ["--force", "--grace-period=0", "--namespace", Installed::NAMESPACE];
    scene.node().kubectl(&[&["delete", "pods", manager], &at_once[..]].concat()).map(drop)
}

/// How much a namespace weighs.
fn weight() -> String {
    std::env::var("WEIGHT").unwrap_or_else(|_| "Even".to_owned())
}

/// `TENANTS` says how many there are, `KILLS` how often the manager is killed, [`weight`] is `WEIGHT`.
#[test]
fn i15_a_canary_and_three_shards_become_four_while_the_manager_is_killed() -> Result<()> {
    let scene = start()?;
    let (count, kills) = (number("TENANTS", 60)?, number("KILLS", 2)?);
    let (mut tenants, weight) = (tenants(count), weight());
    create(&scene, &tenants)?;
    let canary = json!({ "replicas": 1, "inNamespaces": [tenants[0], tenants[1]] });
    scene.draw_root_beside(&canary, 3, &weight)?;
    run(&scene, 0, 4)?;
    let three = settle(&scene, &tenants, 4)?;
    let mut sizes: BTreeMap<&String, usize> = BTreeMap::new();
    three.values().for_each(|pod| *sizes.entry(pod).or_default() += 1);
    println!("{count} tenants: {sizes:?}");
    ensure!(sizes.values().min() == Some(&2), "the canary has its two");
    let mean = (count - 2) as f64 / 3.0;
    let largest = *sizes.values().max().context("shards")? as f64;
    ensure!(largest <= if count < 1000 { 1.6 } else { 1.15 } * mean, "{sizes:?}");

    // One more is handled, too.
    let more = format!("ns-{count:04}");
    let made = Instant::now();
    create(&scene, std::slice::from_ref(&more))?;
    tenants.push(more);
    let before = settle(&scene, &tenants, 4)?;
    println!("a new one is handled within {:?}", made.elapsed());
    ensure!(moved(&three, &before) == 0, "a new one moved others");

    // No one reviews a root while all replicas are killed.
    let draw = |size| {
        let draw = || scene.draw_root_beside(&canary, size, &weight);
        until("the root comes in", LIMIT, || Ok(draw().ok()))
    };
    let is_over = AtomicBool::new(false);
    let (four, again) = thread::scope(|scope| {
        let killer = scope.spawn(|| -> Result<usize> {
            for done in 0..kills {
                if is_over.load(Ordering::Relaxed) {
                    return Ok(done);
                }
                kill(&scene)?;
                scene.node().wait_for(
                    Installed::NAMESPACE,
                    "deployment/ctrlmesh-manager",
                    "condition=Available",
                    LIMIT,
                )?;
            }
            Ok(kills)
        });
        let moved = under_writes(&scene, &tenants, || {
            draw(4)?;
            run(&scene, 4, 5)?;
            let four = settle(&scene, &tenants, 5)?;
            draw(3)?;
            Ok((four, settle(&scene, &tenants, 4)?))
        });
        is_over.store(true, Ordering::Relaxed);
        let killed = killer.join().map_err(|_| anyhow::anyhow!("the killer panicked"))??;
        println!("the manager was killed {killed} times");
        moved
    })?;
    let shares = [moved(&before, &four), moved(&four, &again)];
    println!("{shares:?} of {count} tenants moved, there and back");
    let most = if count < 1000 { 0.45 } else { 0.28 } * count as f64;
    ensure!(shares.iter().all(|moved| *moved as f64 <= most), "{shares:?}");
    check(&scene, 5, &[&before, &four, &again])
}
