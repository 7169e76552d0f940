//! Boundaries that move between the shards of a ring, by real proxies of two API servers on one etcd,
//! which are stopped, killed, frozen and left behind meanwhile.
//!
//! What each proxy shows is recorded by clients that list all the time. An object that moves is in two
//! shards if its former owner shows it in a list that begins after one of its new owner's has ended.

#![allow(clippy::print_stdout, reason = "seeds, and how long things took")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Client, Proxy, Rule, until};
use fastrand::Rng;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const NAMESPACE: &str = "ring";
const TEAMS: [&str; 6] = ["t0", "t1", "t2", "t3", "t4", "t5"];
const SHARDS: [&str; 2] = ["ant", "bee"];
/// A request of unknown end keeps a claim for a minute, and no test waits for more than one.
const LIMIT: Duration = Duration::from_secs(100);

type Teams = BTreeSet<&'static str>;

/// A list by one proxy: when it began and ended, and the teams that it showed.
struct Seen {
    shard: usize,
    began: Instant,
    ended: Instant,
    teams: Teams,
}

struct Scene {
    apis: [ApiServer; 2],
    proxies: Vec<Mutex<Proxy>>,
    clients: Vec<Client>,
    seen: Mutex<Vec<Seen>>,
    is_over: AtomicBool,
}

/// The number of handovers.
fn count(default: usize) -> Result<usize> {
    match env::var("HANDOVERS") {
        Ok(count) => Ok(count.parse().context("HANDOVERS")?),
        Err(_) => Ok(default),
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(shard: &str, teams: &Teams, mode: &str) -> Value {
    let values: Vec<_> = teams.iter().copied().chain([shard]).collect();
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": shard, "namespace": NAMESPACE },
        "spec": {
            "selector": { "matchLabels": { "app": shard } },
            "ring": "ring",
            "handover": { "mode": mode },
            "limits": [{
                "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
                "selector": { "matchExpressions": [
                    { "key": "team", "operator": "In", "values": values },
                ]},
            }],
        },
    })
}

impl Scene {
    fn start(split: &[Teams; 2], mode: &str) -> Result<Self> {
        let api = ApiServer::start()?;
        let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds.yaml");
        api.apply(&fs::read_to_string(definitions)?)?;
        api.kubectl(&["create", "namespace", NAMESPACE])?;
        let account = api.service_account(NAMESPACE, "operator", &[Rule::all()])?;
        until("ShardingConfigs are served", LIMIT, || {
            Ok(api.apply(&config(SHARDS[0], &split[0], mode).to_string()).ok())
        })?;
        api.apply(&config(SHARDS[1], &split[1], mode).to_string())?;
        for team in TEAMS {
            let map = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": { "name": team, "namespace": NAMESPACE, "labels": { "team": team } },
            });
            api.apply(&map.to_string())?;
        }
        let beside = api.beside()?;
        let apis = [api, beside];
        let (mut proxies, mut clients) = (Vec::new(), Vec::new());
        for pod in 0..4 {
            let shard = SHARDS[pod / 2];
            let api = &apis[pod % 2];
            let kubeconfig = api.kubeconfig_for(&api.url(), api.ca_pem(), &account.token)?;
            let proxy = Proxy::builder(shard, "")
                .policy_of_cluster(&kubeconfig, NAMESPACE)
                .labelled(shard)
                .keeps_state()
                .env("POD_NAME", &format!("{shard}-{pod}"))
                .env("POD_UID", &format!("0000000{pod}-0000-4000-8000-000000000000"))
                .start(api)?;
            clients.push(proxy.client(&account.token)?);
            proxies.push(Mutex::new(proxy));
        }
        Ok(Self { apis, proxies, clients, seen: Mutex::default(), is_over: AtomicBool::new(false) })
    }

    /// Lists by one proxy until the test is over. One that does not answer is asked again.
    fn look(&self, pod: usize) {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps?resourceVersion=0");
        while !self.is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            let Some(teams) =
                self.clients[pod].get(&path).ok().and_then(|list| teams_in(&list.text))
            else {
                pass(Duration::from_millis(10));
                continue;
            };
            let seen = Seen { shard: pod / 2, began, ended: Instant::now(), teams };
            lock(&self.seen).push(seen);
        }
    }

    /// Waits until each proxy shows the objects of its shard, in a list that began after this.
    fn settle(&self, split: &[Teams; 2]) -> Result<()> {
        let since = Instant::now();
        for (pod, client) in self.clients.iter().enumerate() {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps?resourceVersion=0");
            let mut last = String::new();
            let settled = until("a proxy shows its shard", LIMIT, || {
                let shown = client.get(&path).ok().and_then(|list| teams_in(&list.text));
                last = format!("{shown:?} of {:?}", split[pod / 2]);
                Ok((shown.as_ref() == Some(&split[pod / 2])).then_some(()))
            });
            settled.with_context(|| {
                let ready = lock(&self.proxies[pod]).admin_text("/readyz").unwrap_or_default();
                format!("pod {pod} shows {last}\n{ready}")
            })?;
        }
        ensure!(since.elapsed() < LIMIT, "it took {:?}", since.elapsed());
        Ok(())
    }

    /// Does something that is not in the way for ever.
    fn disturb(&self, rng: &mut Rng) -> Result<&'static str> {
        let pod = rng.usize(0..4);
        let pause = Duration::from_millis(rng.u64(50..1500));
        // A proxy that was killed keeps its claim for a minute: what it sent may take effect.
        let is_killed = rng.usize(0..16) == 0;
        match rng.usize(0..4) {
            _ if is_killed => {
                let mut proxy = lock(&self.proxies[pod]);
                proxy.kill()?;
                pass(pause);
                proxy.start_again()?;
                Ok("a proxy is killed")
            }
            0 => {
                let proxy = lock(&self.proxies[pod]);
                proxy.signal(Signal::SIGSTOP)?;
                pass(pause);
                proxy.signal(Signal::SIGCONT)?;
                Ok("a proxy stands still")
            }
            1 => {
                let api = &self.apis[pod % 2];
                api.pause()?;
                pass(pause);
                api.resume()?;
                Ok("an API server stands still")
            }
            2 => {
                self.apis[1].fall_behind(pause)?;
                Ok("an API server is behind")
            }
            _ => Ok("nothing"),
        }
    }

    /// The teams that their former owner showed after their new one, since a time.
    fn shown_twice(
        &self,
        owners: &BTreeMap<&'static str, (usize, usize)>,
        since: Instant,
    ) -> Teams {
        let seen = lock(&self.seen);
        let of_now = || seen.iter().filter(move |seen| seen.began >= since);
        let is_twice = |(team, (former, new)): (&&'static str, &(usize, usize))| {
            let shows = |shard| {
                of_now().filter(move |seen| seen.shard == shard && seen.teams.contains(team))
            };
            let taken = shows(*new).map(|seen| seen.ended).min();
            let kept = shows(*former).map(|seen| seen.began).max();
            (former != new && taken < kept && taken.is_some()).then_some(*team)
        };
        owners.iter().filter_map(is_twice).collect()
    }
}

fn teams_in(list: &str) -> Option<Teams> {
    let list: Value = serde_json::from_str(list).ok()?;
    let names = list["items"].as_array()?.iter().map(|item| item["metadata"]["name"].as_str());
    Some(TEAMS.into_iter().filter(|team| names.clone().any(|name| name == Some(team))).collect())
}

#[allow(clippy::disallowed_methods, reason = "what is disturbed is so for a while")]
fn pass(time: Duration) {
    thread::sleep(time);
}

fn split(rng: &mut Rng) -> [Teams; 2] {
    let (ants, bees) = TEAMS.into_iter().partition(|_| rng.bool());
    [ants, bees]
}

/// Moves boundaries `count` times. Returns how often a team was in two shards.
fn moves(scene: &Scene, rng: &mut Rng, mode: &str, count: usize) -> Result<usize> {
    let mut twice = 0;
    let mut last = split(&mut Rng::with_seed(0));
    for number in 0..count {
        let next = split(rng);
        let owner = |of: &[Teams; 2], team| usize::from(of[1].contains(team));
        let owners = TEAMS.map(|team| (team, (owner(&last, team), owner(&next, team))));
        let began = Instant::now();
        // Taken before it is given up, or the other way round.
        let first = rng.usize(0..2);
        scene.apis[0].apply(&config(SHARDS[first], &next[first], mode).to_string())?;
        let what = scene.disturb(rng)?;
        scene.apis[0].apply(&config(SHARDS[1 - first], &next[1 - first], mode).to_string())?;
        let disturbed = scene.disturb(rng)?;
        scene.settle(&next).with_context(|| format!("handover {number}: {what}, {disturbed}"))?;
        let teams = scene.shown_twice(&owners.into(), began);
        let time = began.elapsed().as_millis();
        println!("handover {number}: {what}, {disturbed}: {time} ms, in two shards: {teams:?}");
        twice += teams.len();
        lock(&scene.seen).clear();
        scene.apis[1].fall_behind(Duration::ZERO)?;
        last = next;
    }
    Ok(twice)
}

fn run(mode: &str, count: usize) -> Result<usize> {
    let seed = env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("SEED={seed}");
    let scene = Scene::start(&split(&mut Rng::with_seed(0)), mode)?;
    scene.settle(&split(&mut Rng::with_seed(0)))?;
    thread::scope(|threads| {
        for pod in 0..4 {
            let scene = &scene;
            threads.spawn(move || scene.look(pod));
        }
        let twice = moves(&scene, &mut Rng::with_seed(seed), mode, count);
        scene.is_over.store(true, Ordering::Relaxed);
        twice
    })
}

#[test]
fn i14_no_object_is_in_two_shards_while_boundaries_move() -> Result<()> {
    let twice = run("Wait", count(20)?)?;
    ensure!(twice == 0, "{twice} objects were in two shards");
    Ok(())
}

#[test]
fn i14_without_the_ring_the_same_finds_objects_in_two_shards() -> Result<()> {
    let twice = run("Immediate", count(8)?)?;
    ensure!(twice > 0, "the moves do not show what the ring is for");
    Ok(())
}
