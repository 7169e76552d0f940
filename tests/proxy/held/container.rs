//! The real binary in the memory of a sidecar. Meanwhile clients do to it all that they can at
//! once, and a controller renews its Lease.

use std::{
    fs,
    future::pending,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use ctrlmesh::net::tls::H2;
use http::{HeaderName, HeaderValue, Method, header};
use serde_json::{Value, json};
use tokio::{
    runtime,
    sync::Notify,
    task::{JoinHandle, JoinSet, spawn_blocking},
    time::interval,
};

use super::{
    memory::{LEASE, MIB, metric, unfinished},
    uploads::{PODS, endless},
};
use crate::support::{
    CONFIGMAPS,
    client::{self, Client, Http, chunk, config, connect, request, request_with, upload},
    cluster::{Cluster, configs},
    process::Process,
    scrape, soon, stand_still, until,
    upstream::Call,
};

/// The memory that `inject` gives the sidecar.
const CONTAINER: usize = 256 * MIB;
/// client-go's renewDeadline. On a machine that does nothing else it takes milliseconds.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_millis(100);
const OBJECTS: usize = 200_000;
const ALL: &str = "/api/v1/configmaps";
const UNREAD: &str = "/api/v1/pods?watch=1";

/// A memory cgroup of the process's own, of version 1 or 2.
struct Cgroup(PathBuf);

impl Cgroup {
    fn around(process: &Process) -> Self {
        let v1 = PathBuf::from("/sys/fs/cgroup/memory");
        let (root, limit) = match v1.exists() {
            true => (v1, "memory.limit_in_bytes"),
            false => (PathBuf::from("/sys/fs/cgroup"), "memory.max"),
        };
        if limit == "memory.max" {
            fs::write(root.join("cgroup.subtree_control"), "+memory").expect("a memory controller");
        }
        let own = root.join(format!("ctrlmesh-test-{}", process.id()));
        fs::create_dir(&own).expect("these tests need root and memory cgroups");
        // Memory that the process has already is not charged to its new group.
        let left = CONTAINER - process.memory("VmRSS");
        fs::write(own.join(limit), left.to_string()).unwrap();
        fs::write(own.join("cgroup.procs"), process.id().to_string()).unwrap();
        Self(own)
    }

    /// The most bytes that were charged to it.
    fn peak(&self) -> usize {
        let names = ["memory.max_usage_in_bytes", "memory.peak"];
        let read = |name: &&str| fs::read_to_string(self.0.join(name)).ok();
        names.iter().find_map(read).map_or(0, |text| text.trim().parse().unwrap())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its process has ended, so that it is empty.
        let _ = fs::remove_dir(&self.0);
    }
}

const CONFIGS: &str = "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/ns/shardingconfigs";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
/// The time after which a pod renews its own Lease.
const RENEWAL: Duration = Duration::from_secs(10);

/// The config of the pod's shard, in a ring.
fn sharding(namespaces: &str) -> String {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "blue", "namespace": "ns", "uid": "c-1", "resourceVersion": "1" },
        "spec": {
            "selector": { "matchLabels": { "app": "op" } },
            "controller": { "leaderElectionName": "op" },
            "limits": [{
                "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
                "namespaces": { "pattern": namespaces },
                "clusterScoped": "Exclude",
            }],
        },
    })
    .to_string()
}

/// The API server's part in the ring of the pod.
#[derive(Default)]
struct Ring {
    /// The signal that the config is another.
    is_edited: Notify,
    /// The writes of the pod's Lease: when, and what it said.
    writes: Mutex<Vec<(Instant, Value)>>,
}

impl Ring {
    /// Stores a Lease, or shows those that are.
    async fn lease(&self, mut call: Call) {
        if call.query("watch").is_some() {
            return call.watch().closed().await;
        }
        if call.parts.method == Method::GET {
            let last = self.writes.lock().unwrap().last().map(|(_, lease)| lease.clone());
            let list = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "LeaseList",
                "metadata": { "resourceVersion": "50" },
                "items": last.as_slice(),
            });
            return call.json(200, &list.to_string());
        }
        let mut lease: Value = serde_json::from_slice(&call.body().await.unwrap()).unwrap();
        let stored = {
            let mut writes = self.writes.lock().unwrap();
            lease["metadata"]["resourceVersion"] = (writes.len() + 7).to_string().into();
            writes.push((Instant::now(), lease.clone()));
            lease.to_string()
        };
        call.json(200, &stored);
    }

    async fn configs(&self, call: Call) {
        if call.query("watch").is_none() {
            return call.json(200, &configs(&[sharding("^even-")]));
        }
        let events = call.watch();
        self.is_edited.notified().await;
        let edited = format!("{{\"type\":\"MODIFIED\",\"object\":{}}}\n", sharding("^even"));
        events.send(edited).await;
        events.closed().await;
    }

    /// Whether the pod's Lease claims these namespaces.
    fn claims(&self, namespaces: &str) -> bool {
        let writes = self.writes.lock().unwrap();
        writes.last().is_some_and(|(_, lease)| {
            lease["metadata"]["annotations"].to_string().contains(&format!("{namespaces}\\"))
        })
    }

    /// The longest time for which the pod's Lease was not written until now.
    fn longest_silence(&self) -> Duration {
        let now = Instant::now();
        let writes: Vec<_> = self.writes.lock().unwrap().iter().map(|(at, _)| *at).collect();
        let until = writes.iter().skip(1).copied().chain([now]);
        writes.iter().zip(until).map(|(at, next)| next - *at).max().unwrap_or_default()
    }
}

/// An API server that answers each request of the test in its way.
fn answer(call: Call, ring: &Arc<Ring>, tasks: &mut JoinSet<()>) {
    let (target, ring) = (call.target().to_owned(), Arc::clone(ring));
    if call.path() == CONFIGS {
        tasks.spawn(async move { ring.configs(call).await });
        return;
    }
    let is_own = |path: &str| path == LEASES || path.starts_with(&format!("{LEASES}/ctrlmesh-"));
    if is_own(call.path()) {
        tasks.spawn(async move { ring.lease(call).await });
        return;
    }
    if target.starts_with("/apis/g/") {
        return call.json(403, "{}");
    }
    if target.starts_with(LEASE) || target.starts_with("/apis/coordination") {
        return call.json(200, "{}");
    }
    if target == ALL {
        tasks.spawn(list(call));
        return;
    }
    if target == PODS {
        tasks.spawn(async move {
            pending::<()>().await;
            drop(call);
        });
        return;
    }
    if !target.contains("watch=1") {
        // An upload that has no end.
        return;
    }
    let events = call.watch();
    tasks.spawn(async move {
        if target == UNREAD {
            let event = format!("{{\"type\":\"ADDED\",\"object\":\"{}\"}}\n", "x".repeat(16 << 10));
            events.flood(Bytes::from(event), Arc::default()).await;
        } else {
            events.closed().await;
        }
    });
}

async fn list(call: Call) {
    let body = call.stream(200, &[("content-type", "application/json")]);
    body.send("{\"kind\":\"ConfigMapList\",\"metadata\":{\"resourceVersion\":\"5\"},\"items\":[")
        .await;
    let text = "x".repeat(400);
    let mut piece = String::new();
    for at in 0..OBJECTS {
        let namespace = if at.is_multiple_of(2) { "even-a" } else { "odd-a" };
        let comma = if at == 0 { "" } else { "," };
        piece.push_str(&format!(
            "{comma}{{\"metadata\":{{\"name\":\"object-{at}\",\"namespace\":\"{namespace}\"}},\"data\":{{\"text\":\"{text}\"}}}}"
        ));
        if piece.len() > 60_000 {
            body.send(std::mem::take(&mut piece)).await;
        }
    }
    body.send(piece + "]}").await;
    body.end();
}

/// Renews the Lease until the test is over. It has a thread of its own, so that it does not wait
/// for the test. Returns the number of renewals and the longest time of one.
fn renew(
    proxy: SocketAddr,
    trust: Vec<u8>,
    is_over: Arc<AtomicBool>,
) -> JoinHandle<(usize, Duration)> {
    let renewals = async move {
        let mut client = Client::to(proxy, &trust, Http::Two).await;
        let (mut count, mut longest) = (0, Duration::ZERO);
        let mut ticks = interval(RENEW_EVERY);
        while !is_over.load(Relaxed) {
            ticks.tick().await;
            let began = Instant::now();
            let put = request_with(Method::PUT, LEASE, r#"{"metadata":{"name":"op"}}"#);
            let (code, said) = client::text(client.send(put).await.unwrap()).await;
            assert_eq!(code, 200, "{said}");
            longest = longest.max(began.elapsed());
            count += 1;
        }
        (count, longest)
    };
    spawn_blocking(|| {
        runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(renewals)
    })
}

#[tokio::test]
async fn all_that_clients_may_hold_fits_the_container_and_the_lease_is_renewed() {
    let began = Instant::now();
    let flags = ["--threads=2", "--pushdown=off"];
    let Cluster { mut upstream, files, process } = Cluster::of_pod_with("3f9c", &flags).await;
    // Dropped after the process: a group that is not empty cannot be removed.
    let (cgroup, process) = (Cgroup::around(&process), process);
    let (ring, mut tasks) = (Arc::<Ring>::default(), JoinSet::new());
    let of_server = Arc::clone(&ring);
    upstream.serve(move |call| answer(call, &of_server, &mut tasks));
    let claims = |namespaces: &'static str| {
        until("a claim", || async { ring.claims(namespaces) }, |claims| *claims)
    };
    claims("^even-").await;
    let ready = || scrape::page(process.admin, "/readyz");
    until("the claim's answer", ready, |(code, _)| *code == 200).await;
    let trust = files.mesh_ca_pem();
    let connect_to = || Client::to(process.addr, &trust, Http::Two);
    let is_over = Arc::new(AtomicBool::new(false));
    let renewing = renew(process.addr, trust.clone(), Arc::clone(&is_over));
    let tell = |what: &str| {
        println!("{what}: {} MiB, {} at most", process.memory("VmRSS") / MIB, cgroup.peak() / MIB);
    };

    // Invented resources, without a token; then a change of the policy.
    let mut client = connect_to().await;
    for n in 0..1_100 {
        let name = "r".repeat(65_300);
        let mut sent = request(Method::GET, &format!("/apis/g/v1/{name}{n}"));
        sent.headers_mut().remove(header::AUTHORIZATION);
        assert_eq!(client::text(client.send(sent).await.unwrap()).await.0, 403);
    }
    ring.is_edited.notify_one();
    let metrics = || async { scrape::page(process.admin, "/metrics").await.1 };
    let epoch = |page: &String| scrape::sample(page, "ctrlmesh_policy_epoch", &[]) > 1.5;
    until("the second policy", metrics, epoch).await;
    claims("^even").await;
    let written = fs::metadata(files.state().join("positions.json")).unwrap().len();
    assert!(written < 1 << 10, "{written} bytes of positions");
    tell("invented resources");

    // Watches with large heads.
    let (mut clients, mut held, mut untaken) = (vec![client], Vec::new(), JoinSet::new());
    for _ in 0..4 {
        let mut client = connect_to().await;
        for _ in 0..90 {
            let mut sent = request(Method::GET, &format!("{CONFIGMAPS}?watch=1"));
            for n in 0..25 {
                let name = HeaderName::try_from(format!("x-{n}")).unwrap();
                let value = HeaderValue::from_str(&"x".repeat(32_000)).unwrap();
                sent.headers_mut().insert(name, value);
            }
            held.push(client.send(sent).await.unwrap());
        }
        clients.push(client);
    }
    tell("360 heads of 800 kB");

    // Uploads without an end, which may name the lock, without a token.
    let (mut uploads, mut bodies) = (JoinSet::new(), Vec::new());
    for _ in 0..3 {
        let mut client = connect_to().await;
        for _ in 0..100 {
            let (mut sent, body) = upload(Method::POST, CONFIGMAPS);
            sent.headers_mut().remove(header::AUTHORIZATION);
            uploads.spawn(unfinished(client.send(sent), body));
        }
        clients.push(client);
    }
    while let Some(ended) = soon("an upload", uploads.join_next()).await {
        bodies.extend(ended.unwrap().ok());
    }
    tell("300 uploads without an end");

    // Uploads that the API server does not take.
    let taken = Arc::<AtomicUsize>::default();
    for _ in 0..7 {
        let mut client = connect_to().await;
        for _ in 0..60 {
            untaken.spawn(endless(&mut client, &taken));
        }
        clients.push(client);
    }
    stand_still(&taken).await;
    let room = || metric(&process, "ctrlmesh_upload_memory_bytes", &[]);
    until("a full room", room, |bytes| *bytes > 27.9 * MIB as f64).await;
    tell("420 uploads that no one takes");

    // Watches that no one reads.
    for _ in 0..5 {
        let tls = connect(process.addr, config(&trust, &[H2]), "kubernetes").await.unwrap();
        let mut client = Client::over(tls, Http::Two, 1 << 10).await;
        for _ in 0..120 {
            held.push(client.send(request(Method::GET, UNREAD)).await.unwrap());
        }
        clients.push(client);
    }
    tell("600 watches that no one reads");

    let mut client = connect_to().await;
    let mut response = client.send(request(Method::GET, ALL)).await.unwrap();
    let mut length = 0;
    while let Some(bytes) = soon("the list", chunk(&mut response)).await {
        length += bytes.unwrap().len();
    }
    assert!(length > OBJECTS / 2 * 400, "{length} bytes of a list");
    tell("a list of 200,000 objects");
    // The first write says what the pod wants, the second what has been moved.
    let writes = || async { ring.writes.lock().unwrap().len() };
    until("a renewal of the pod's own Lease", writes, |count| *count > 2).await;

    is_over.store(true, Relaxed);
    let (count, longest) = soon("the last renewal", renewing).await.unwrap();
    println!("{count} renewals, the longest took {longest:?}");
    assert!(count > 10 && longest < RENEW_DEADLINE, "{count} renewals, {longest:?}");
    let silence = ring.longest_silence();
    println!("the pod's own Lease, for {:?}: written each {silence:?}", began.elapsed());
    assert!(silence < RENEWAL + RENEW_DEADLINE / 2, "{silence:?}");
    let (code, _) = scrape::page(process.admin, "/healthz").await;
    assert_eq!(code, 200, "it lives");
    drop((clients, held, bodies));
}
