//! A root of a Deployment on a node: its shards follow its replicas, while its objects are written, pods are
//! replaced and killed, and the manager is away.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Installed, NAMESPACE, until};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::install::{
    roots::{create, has, kill, number, start, tenants, under_writes},
    scene::{LIMIT, restarts},
};

const INJECTED: &str = "ctrlmesh.kusionstack.io/injected";
const SHARD: &str = "ctrlmesh.kusionstack.io/shard";
/// The pause between looks at the pods in a rollout.
const EVERY: Duration = Duration::from_millis(50);
/// The time for which the leader is away while pods come.
const AWAY: Duration = Duration::from_secs(30);
/// The pause between writes of pods into any namespace.
const PROBES: Duration = Duration::from_millis(500);
/// The beginning of the names of objects that such a write deletes; the pod's name follows.
const PROBE: &str = "by-";

/// A pod of the operator.
#[derive(Clone, Debug)]
struct Pod {
    name: String,
    shard: String,
    is_ready: bool,
}

/// The pods that are not being deleted.
fn pods(scene: &Installed) -> Result<Vec<Pod>> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let list = scene.node().api().client().get(&path)?.json()?;
    let all = list["items"].as_array().context("pods")?.iter();
    let stay = all.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(stay
        .map(|pod| {
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            Pod {
                name: text(&pod["metadata"]["name"]),
                shard: text(&pod["metadata"]["labels"][SHARD]),
                is_ready: conditions.any(|one| one["type"] == "Ready" && one["status"] == "True"),
            }
        })
        .collect())
}

/// The children that have each tenant. Fails if two have one.
fn owners(scene: &Installed, tenants: &[String]) -> Result<BTreeMap<String, String>> {
    let path =
        format!("/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{NAMESPACE}/shardingconfigs");
    let list = scene.node().api().client().get(&path)?.json()?;
    let mut owners = BTreeMap::new();
    for config in list["items"].as_array().context("items")? {
        let name = config["metadata"]["name"].as_str().context("a name")?;
        if name == "demo-operator" {
            continue;
        }
        for tenant in tenants.iter().filter(|tenant| has(&config["spec"]["limits"][0], tenant)) {
            let other = owners.insert(tenant.clone(), name.to_owned());
            ensure!(other.is_none(), "two own {tenant}: {list}");
        }
    }
    Ok(owners)
}

/// Waits until so many shards have all tenants between them, and a pod of each has handled its own. Returns
/// the shards.
fn settle(scene: &Installed, tenants: &[String], size: usize) -> Result<BTreeSet<String>> {
    let mut last = String::new();
    let settled = until("each is handled by a pod of its shard", LIMIT, || {
        let (owners, pods) = (owners(scene, tenants)?, pods(scene)?);
        let widgets = scene.shards().widgets()?;
        let shards: BTreeSet<_> = owners.values().cloned().collect();
        last = format!("{shards:?} {pods:?} {widgets:?}");
        let is_handled = |widget: &ctrlmesh_e2e::Widget| {
            let pod = pods.iter().find(|pod| pod.name == widget.handled_by);
            pod.is_some_and(|pod| owners.get(&widget.namespace) == Some(&pod.shard))
        };
        let is_whole = owners.len() == tenants.len() && shards.len() == size;
        Ok((is_whole && widgets.iter().all(is_handled)).then_some(shards))
    });
    settled.map_err(|error| {
        let said =
            ["status", "handover"].map(|command| scene.ctrlmesh(&[command]).unwrap_or_default());
        error.context(format!("{last}\n{}\n{}", said.join("\n"), scene.told()))
    })
}

fn kubectl(scene: &Installed, args: &[&str]) -> Result<String> {
    scene.node().kubectl(&[&["--namespace", NAMESPACE], args].concat())
}

fn scale(scene: &Installed, replicas: usize) -> Result<()> {
    kubectl(scene, &["scale", "deployment/demo-operator", &format!("--replicas={replicas}")])
        .map(drop)
}

/// Waits until so many pods are ready, and no other is there.
fn wait_ready(scene: &Installed, count: usize) -> Result<Vec<Pod>> {
    let mut last = Vec::new();
    let ready = until("the pods are ready", LIMIT, || {
        last = pods(scene)?;
        Ok((last.len() == count && last.iter().all(|pod| pod.is_ready)).then(|| last.clone()))
    });
    ready.map_err(|error| error.context(format!("{last:?}\n{}", scene.told())))
}

/// Why pods are not ready.
fn why(scene: &Installed, pods: &[Pod]) -> String {
    let of = |pod: &Pod| {
        let page = scene.page(&pod.name, "/readyz?verbose");
        let told = kubectl(scene, &["describe", "pod", &pod.name]);
        let logs = scene.node().logs(NAMESPACE, &pod.name, "operator");
        [page, told, logs].map(|said| said.unwrap_or_else(|error| format!("{error:#}"))).join("\n")
    };
    let pods = pods.iter().filter(|pod| !pod.is_ready).map(of).collect::<Vec<_>>().join("\n");
    let columns = "custom-columns=NAME:.metadata.name,SHARD:.metadata.labels.ctrlmesh\\.kusionstack\\.io/shard,\
                   CREATED:.metadata.creationTimestamp,DELETED:.metadata.deletionTimestamp,\
                   READY:.status.conditions[?(@.type==\"Ready\")].status,\
                   SINCE:.status.conditions[?(@.type==\"Ready\")].lastTransitionTime";
    let all = kubectl(scene, &["get", "pods", "--output", columns]).unwrap_or_default();
    let events = ["get", "events", "--sort-by=.metadata.creationTimestamp"];
    let events = kubectl(scene, &events).unwrap_or_default();
    let sets = kubectl(scene, &["describe", "deployments,replicasets"]).unwrap_or_default();
    format!("{all}\n{events}\n{sets}\n{pods}")
}

/// Does a rollout, and checks at each moment that each shard has a ready pod.
fn roll(scene: &Installed, how: &str, size: usize) -> Result<()> {
    let (goes_on, is_over) = mpsc::sync_channel::<()>(1);
    thread::scope(|scope| {
        let looker = scope.spawn(move || -> Result<usize> {
            let mut looks = 0;
            while is_over.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let pods = pods(scene)?;
                let ready: BTreeSet<_> =
                    pods.iter().filter(|pod| pod.is_ready).map(|pod| &pod.shard).collect();
                ensure!(
                    ready.len() == size,
                    "a shard is without a ready pod in the {how}: {pods:?}\n{}",
                    why(scene, &pods)
                );
                looks += 1;
            }
            Ok(looks)
        });
        let rolled = kubectl(scene, &["rollout", how, "deployment/demo-operator"]).and_then(|_| {
            kubectl(scene, &["rollout", "status", "deployment/demo-operator", "--timeout=180s"])
        });
        drop(goes_on);
        let looks = looker.join().map_err(|_| anyhow::anyhow!("a look panicked"))??;
        println!("rollout {how}: each shard had a ready pod at {looks} looks");
        rolled.map(drop)
    })
}

/// Kills the proxies of all pods, one after the other.
fn kill_proxies(scene: &Installed) -> Result<()> {
    for pod in pods(scene)? {
        let before = restarts(scene, &pod.name, "ctrlmesh-proxy")?;
        scene.kill(&pod.name, "ctrlmesh-proxy")?;
        until("the kubelet starts it again", LIMIT, || {
            Ok((restarts(scene, &pod.name, "ctrlmesh-proxy")? > before).then_some(()))
        })?;
    }
    Ok(())
}

/// Deletes what is not there in namespaces of all shards, from pods of all shards, until it is over. The API server
/// gets those of the namespace's shard alone. Returns how often each was answered for which reason.
fn probe(
    scene: &Installed,
    tenants: &[String],
    is_over: &mpsc::Receiver<()>,
) -> Result<BTreeMap<String, usize>> {
    let (mut answers, mut clients) = (BTreeMap::new(), BTreeMap::new());
    let mut at = tenants.iter().cycle();
    while is_over.recv_timeout(PROBES) == Err(RecvTimeoutError::Timeout) {
        let Some(tenant) = at.next() else { break };
        let ready: Vec<_> = pods(scene)?.into_iter().filter(|pod| pod.is_ready).collect();
        let Some(pod) = fastrand::choice(&ready) else { continue };
        let client = match clients.entry(pod.name.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => match scene.client_in(&pod.name) {
                Ok(client) => new.insert(client),
                // It ended meanwhile.
                Err(_) => continue,
            },
        };
        let path = format!("/api/v1/namespaces/{tenant}/configmaps/{PROBE}{}", pod.name);
        // Its proxy may be killed just then.
        let Ok(status) = client.request("DELETE", &path) else { continue };
        let reason = status["reason"].as_str().context("a reason")?;
        *answers.entry(reason.to_owned()).or_default() += 1;
    }
    Ok(answers)
}

/// Does this while pods probe the fence.
fn under_probes<T>(
    scene: &Installed,
    tenants: &[String],
    moves: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let (goes_on, is_over) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        let prober = scope.spawn(move || probe(scene, tenants, &is_over));
        let moved = moves();
        drop(goes_on);
        let answers = prober.join().map_err(|_| anyhow::anyhow!("a probe panicked"))??;
        println!("deletes in any namespace, by the reason of their answer: {answers:?}");
        ensure!(
            answers.get("NotInShard").is_some_and(|refused| *refused > 5) && answers.len() > 1,
            "{answers:?}"
        );
        moved
    })
}

/// A write in a tenant's namespace that the API server took.
#[derive(Debug)]
struct Taken {
    shard: String,
    from: Timestamp,
    to: Timestamp,
}

/// The times of a pod: its creation, the label of its shard, and its first Lease, which its proxy writes once it
/// has a policy.
#[derive(Debug, Default)]
struct Came {
    created: Option<Timestamp>,
    labelled: Option<Timestamp>,
    leased: Option<Timestamp>,
}

fn time(text: &str) -> Result<Timestamp> {
    text.parse().with_context(|| text.to_owned())
}

/// Checks by the audit log that no tenant was written by two shards at once. Also checks that no
/// tenant changed hands more often than there were moves. Tells the times of the pods.
fn check(scene: &Installed, moves: usize) -> Result<()> {
    let mut came: BTreeMap<String, Came> = BTreeMap::new();
    let mut shards: BTreeMap<String, String> = BTreeMap::new();
    let mut uids: BTreeMap<String, String> = BTreeMap::new();
    let mut writes: BTreeMap<String, Vec<(String, Timestamp, Timestamp)>> = BTreeMap::new();
    for entry in scene.node().api().audit().entries()? {
        let Some(of) = &entry.object_ref else { continue };
        let code = entry.response_status.as_ref().map_or(0, |status| status.code);
        let at = time(&entry.stage_timestamp)?;
        let stored = entry.response_object.as_ref().unwrap_or(&Value::Null);
        let meta = &stored["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match (&*of.resource, &*of.subresource, &*entry.verb, code) {
            ("pods", "", "create", 201) if of.namespace == NAMESPACE => {
                let name = text(&meta["name"]);
                if meta["annotations"][INJECTED].is_null() {
                    shards.insert(name.clone(), "without a proxy".to_owned());
                }
                uids.insert(text(&meta["uid"]), name.clone());
                came.entry(name).or_default().created = Some(at);
            }
            ("pods", "", "patch", 200) if of.namespace == NAMESPACE => {
                let shard = text(&meta["labels"][SHARD]);
                let before = shards.insert(of.name.clone(), shard.clone());
                ensure!(before.is_none_or(|before| before == shard), "{} moved", of.name);
                came.entry(of.name.clone()).or_default().labelled.get_or_insert(at);
            }
            ("leases", "", "create", 201) => {
                let uid = of.name.strip_prefix("ctrlmesh-").unwrap_or_default();
                if let Some(name) = uids.get(uid) {
                    came.entry(name.clone()).or_default().leased.get_or_insert(at);
                }
            }
            // A delete that came to the API server, which has no such object.
            ("configmaps", "", "delete", _) if of.name.starts_with(PROBE) => {
                let from = time(&entry.request_received_timestamp)?;
                let pod = of.name.trim_start_matches(PROBE).to_owned();
                writes.entry(of.namespace.clone()).or_default().push((pod, from, at));
            }
            ("widgets", "status", _, 200) if of.namespace.starts_with("ns-") => {
                let from = time(&entry.request_received_timestamp)?;
                let taken = (text(&stored["status"]["handledBy"]), from, at);
                writes.entry(of.namespace.clone()).or_default().push(taken);
            }
            _ => {}
        }
    }
    tell(&came);
    let mut turns = 0;
    for (tenant, writes) in writes {
        let taken = writes.into_iter().map(|(pod, from, to)| {
            let shard = shards.get(&pod).with_context(|| format!("{pod} had no shard"))?.clone();
            Ok(Taken { shard, from, to })
        });
        turns += one_at_a_time(&tenant, taken.collect::<Result<Vec<_>>>()?, moves)?;
    }
    println!("{turns} times another shard began to write a Widget");
    ensure!(turns > 0, "nothing has moved");
    Ok(())
}

/// How often another shard began to write a tenant's Widget. Fails if two wrote it at once.
fn one_at_a_time(tenant: &str, mut all: Vec<Taken>, moves: usize) -> Result<usize> {
    all.sort_by_key(|taken| taken.from);
    for (at, one) in all.iter().enumerate() {
        let mut beside = all.iter().skip(at + 1).take_while(|other| other.from < one.to);
        let twice = beside.find(|other| other.shard != one.shard);
        ensure!(twice.is_none(), "two shards wrote {tenant}: {one:?}, {twice:?}");
    }
    let turns = all.windows(2).filter(|two| two[0].shard != two[1].shard).count();
    ensure!(turns <= moves, "{turns} turns in {moves} moves of {tenant}: {all:?}");
    Ok(turns)
}

fn tell(came: &BTreeMap<String, Came>) {
    let times = |of: &dyn Fn(&Came) -> Option<(Timestamp, Timestamp)>| {
        let apart = came.values().filter_map(of);
        let mut all: Vec<_> = apart.map(|(a, b)| b.duration_since(a).unsigned_abs()).collect();
        all.sort_unstable();
        (all.get(all.len() / 2).copied(), all.last().copied(), all.len())
    };
    let labelled = times(&|one| Some((one.created?, one.labelled?)));
    let leased = times(&|one| Some((one.created?, one.leased?)));
    let at_last = times(&|one| Some((one.labelled?, one.leased?)));
    println!("from a pod's creation to its label: p50, the slowest, of so many: {labelled:?}");
    println!("from a pod's creation to its proxy's first Lease: {leased:?}");
    println!("from a pod's label to its proxy's first Lease: {at_last:?}");
}

/// `KILLS` says how often the manager is killed.
#[test]
fn no_object_has_two_writers_while_a_deployment_is_scaled_and_replaced() -> Result<()> {
    let scene = start()?;
    let (tenants, kills) = (tenants(30), number("KILLS", 2)?);
    create(&scene, &tenants)?;
    scene.deploy_bare(1)?;
    await_leader(&scene)?;
    let before = spec(&scene)?;
    ctrlmesh(&scene, "shard", &["--shards", "2", "--apply"])?;
    wait_ready(&scene, 2)?;
    settle(&scene, &tenants, 2)?;
    let moves = || {
        let scaled = Instant::now();
        scale(&scene, 4)?;
        wait_ready(&scene, 4)?;
        let ready = scaled.elapsed().max(Duration::from_secs(10));
        settle(&scene, &tenants, 4)?;
        println!(
            "2 to 4: handled {:?} after ready and settled",
            scaled.elapsed().saturating_sub(ready)
        );
        roll(&scene, "restart", 4)?;
        settle(&scene, &tenants, 4)?;
        for _ in 0..kills {
            kill(&scene)?;
            let rollout = ["rollout", "status", "deployment/ctrlmesh-manager", "--timeout=120s"];
            scene
                .node()
                .kubectl(&[&["--namespace", Installed::NAMESPACE], &rollout[..]].concat())?;
        }
        let scaled = Instant::now();
        scale(&scene, 3)?;
        settle(&scene, &tenants, 3)?;
        println!("4 to 3: handled after {:?}", scaled.elapsed());
        roll(&scene, "undo", 3)?;
        settle(&scene, &tenants, 3)?;
        // The writes that these had under way have no known end for a minute.
        kill_proxies(&scene)?;
        wait_ready(&scene, 3)?;
        settle(&scene, &tenants, 3)
    };
    under_writes(&scene, &tenants, || under_probes(&scene, &tenants, moves))?;
    late(&scene, &tenants)?;
    check(&scene, 5)?;
    ctrlmesh(&scene, "unshard", &[])?;
    ensure!(spec(&scene)? == before, "{}\n{before}", spec(&scene)?);
    let left = kubectl(&scene, &["get", "shardingconfigs,leases", "--output=name"])?;
    ensure!(!left.contains("-normal"), "{left}");
    let said = ctrlmesh(&scene, "unshard", &[])?;
    ensure!(said.contains("is not sharded"), "{said}");
    Ok(())
}

/// Waits until a pod that is there holds the operator's lock: by its holder it is found.
fn await_leader(scene: &Installed) -> Result<()> {
    let lease = ["get", "lease", "demo-operator", "--ignore-not-found"];
    until("a pod of the operator leads", LIMIT, || {
        let args = [&lease[..], &["--output=jsonpath={.spec.holderIdentity}"]].concat();
        let holder = kubectl(scene, &args)?;
        Ok(pods(scene)?.iter().any(|pod| holder.starts_with(&pod.name)).then_some(()))
    })
}

/// The spec of the Deployment.
fn spec(scene: &Installed) -> Result<Value> {
    let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/demo-operator");
    Ok(scene.node().api().client().get(&path)?.json()?["spec"].take())
}

/// Runs `ctrlmesh shard` or `ctrlmesh unshard` about it, and prints what it says.
fn ctrlmesh(scene: &Installed, verb: &str, more: &[&str]) -> Result<String> {
    let of = [verb, "deployment/demo-operator", "--namespace", NAMESPACE];
    let said = scene.ctrlmesh(&[&of[..], more].concat())?;
    println!("$ ctrlmesh {} {}\n{said}", of.join(" "), more.join(" "));
    Ok(said)
}

/// Whether a replica of the manager leads.
fn leads(scene: &Installed) -> Result<bool> {
    let of = ["--namespace", Installed::NAMESPACE, "get", "pods", "-o", "name"];
    let pods = scene
        .node()
        .kubectl(&[&of[..], &["--selector=app.kubernetes.io/component=manager"]].concat())?;
    for pod in pods.lines().filter_map(|pod| pod.strip_prefix("pod/")) {
        let path =
            format!("/api/v1/namespaces/{}/pods/{pod}:5441/proxy/metrics", Installed::NAMESPACE);
        let metrics = scene.node().kubectl(&["get", "--raw", &path])?;
        if metrics.lines().any(|line| line == "ctrlmesh_manager_leader 1") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Without a leader a new pod waits, and its app does not start; the others go on.
fn late(scene: &Installed, tenants: &[String]) -> Result<()> {
    let hold = |holder: &str| {
        let spec =
            json!({ "holderIdentity": holder, "renewTime": format!("{:.6}", Timestamp::now()) });
        let patch = json!({ "spec": spec }).to_string();
        let of = ["--namespace", Installed::NAMESPACE, "patch", "lease", "ctrlmesh-manager"];
        scene.node().kubectl(&[&of[..], &["--type=merge", "-p", &patch]].concat())
    };
    // No one renews the Lease whose holder this is, and no replica takes it from one that does.
    until("no one leads", LIMIT, || {
        hold("nobody")?;
        Ok((!leads(scene)?).then_some(()))
    })?;
    let begun = Instant::now();
    scale(scene, 4)?;
    let mut waited = 0;
    until("the leader was away for long", LIMIT, || {
        hold("nobody")?;
        let pods = pods(scene)?;
        let lone: Vec<_> = pods.iter().filter(|pod| pod.shard.is_empty()).collect();
        ensure!(lone.iter().all(|pod| !pod.is_ready), "one is ready without a shard: {pods:?}");
        let others = pods.iter().filter(|pod| pod.is_ready).count();
        ensure!(others == 3, "the others go on: {pods:?}");
        waited += lone.len();
        Ok((begun.elapsed() >= AWAY).then_some(()))
    })?;
    ensure!(waited > 5, "the pod did not wait");
    hold("")?;
    let back = Instant::now();
    wait_ready(scene, 4)?;
    println!("a pod that waited for a leader is ready {:?} after there may be one", back.elapsed());
    settle(scene, tenants, 4).map(drop)
}
