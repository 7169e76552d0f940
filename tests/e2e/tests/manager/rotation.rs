//! Certificates of short lives, in real time: under clients that would notice a break, and in the way
//! of clients that do not know the next root.
//!
//! `ROTATE_ROOT=1` replaces a root under those clients too. That takes eight minutes: what pods mount
//! has five to spread.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{
    ApiServer, Client, Manager, Network, Program, Proxy, Rule, ServiceAccount, go_clients, until,
};
use k8s_openapi::jiff::{Timestamp, Unit};
use serde_json::{Value, json};

use crate::manager::scene::{
    AUDIENCE, OPERATORS, SOON, at, authorities, bundle, certificate, cluster, config, create,
    manager, pod, token,
};

/// Longer than the lives below take on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);
/// Watches of one client.
const WATCHES: usize = 50;
/// Callers, each of which sends ten requests a second.
const CALLERS: usize = 5;
const PAUSE: Duration = Duration::from_millis(100);
/// The time that a changed bundle has to spread, and a little more.
const SPREAD: Duration = Duration::from_secs(310);

/// The informers of client-go, streamed and paged, in two encodings, and the requests by which each
/// begins.
const INFORMERS: [(&[&str], usize); 3] = [(&[], 1), (&["--json"], 1), (&["--watchlist=false"], 2)];
/// The shortest time after which an informer asks for its watch again by itself (`minWatchTimeout` of
/// client-go's reflector).
const WATCH: Duration = Duration::from_secs(300);
/// The time in which what must not happen would: the leader waits for two seconds between writes of
/// the authorities.
const WITHOUT: Duration = Duration::from_secs(6);

/// A proxy that has its certificate from a manager, as that of a pod.
struct Scene {
    api: ApiServer,
    manager: Manager,
    proxy: Proxy,
    account: ServiceAccount,
    files: PathBuf,
}

impl Scene {
    fn new(flags: &[&str]) -> Result<Self> {
        let api = cluster()?;
        let manager = manager(&api, flags)?;
        create(&api, &config(OPERATORS), &[])?;
        let files = api.directory().join("pod");
        fs::create_dir(&files)?;
        mount(&api, &files)?;
        let pod = create(&api, &pod(OPERATORS, "one"), &[])?;
        fs::write(files.join("token"), token(&api, Some(AUDIENCE), Some(&pod))?)?;
        let account = api.service_account(OPERATORS, "controller", &[Rule::all()])?;
        let proxy = Proxy::builder("mine", &policy()).enrols_with(&manager, &files).start(&api)?;
        until("the proxy has a certificate", SOON, || {
            Ok(proxy.admin_text("/readyz")?.contains("[+]certificate ok").then_some(()))
        })?;
        Ok(Self { api, manager, proxy, account, files })
    }

    /// Creates a ConfigMap of the proxy's shard.
    fn config_map(&self, number: usize) -> Result<()> {
        let map = json!({
            "metadata": { "name": format!("map-{number}"), "labels": { "team": "a" } },
        });
        let path = format!("/api/v1/namespaces/{OPERATORS}/configmaps");
        self.api.client().post(&path, &map)?.json().map(drop)
    }

    fn enrolments(&self) -> Result<f64> {
        self.proxy.metric(r#"ctrlmesh_enrolments_total{result="ok"}"#)
    }
}

/// Writes the bundle as the kubelet does; returns whether it is another.
fn mount(api: &ApiServer, files: &Path) -> Result<bool> {
    let data = bundle(api, OPERATORS)?;
    let mut is_other = false;
    for key in ["ca.crt", "manager.crt"] {
        let text = data[key].as_str().with_context(|| format!("no {key}"))?;
        let path = files.join(key);
        if fs::read_to_string(&path).is_ok_and(|is| is == text) {
            continue;
        }
        let fresh = files.join("fresh");
        fs::write(&fresh, text)?;
        fs::rename(&fresh, &path)?;
        is_other = true;
    }
    Ok(is_other)
}

fn policy() -> String {
    let limits = json!([{
        "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
        "selector": { "matchLabels": { "team": "a" } },
    }]);
    let mut config = config(OPERATORS);
    config["metadata"] = json!({ "name": "mine" });
    config["spec"]["limits"] = limits;
    config.to_string()
}

/// Unmodified clients at work.
struct Traffic {
    watches: Program,
    informers: Vec<Program>,
    callers: Vec<JoinHandle<Result<usize>>>,
    is_over: Arc<AtomicBool>,
    /// The CAs that the Go programs trust.
    trusted: PathBuf,
    began: Instant,
}

impl Traffic {
    fn start(scene: &Scene) -> Result<Self> {
        let Scene { api, proxy, account, files, .. } = scene;
        let kubeconfig = proxy.kubeconfig(api, &account.token)?;
        let program = |subcommand: &str, name: &str, args: &[&str]| {
            let mut command = Command::new(go_clients()?);
            command.args([subcommand, "--namespace", OPERATORS]).args(args);
            command.arg("--kubeconfig").arg(&kubeconfig);
            Program::start(name, &command, &api.directory().join(format!("{name}.log")))
        };
        let watches = program("watches", "watches", &[&format!("--count={WATCHES}")])?;
        watches.wait_for(SOON, |line| line["event"] == "open")?;
        let mut informers = Vec::new();
        for (at, (args, _)) in INFORMERS.into_iter().enumerate() {
            let informer = program("informer", &format!("informer-{at}"), args)?;
            informer.wait_for(SOON, |line| line["event"] == "synced")?;
            informers.push(informer);
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let callers = (0..CALLERS).map(|at| {
            let caller = Caller {
                url: proxy.url(),
                cas: files.join("ca.crt"),
                token: account.token.clone(),
                // Who asks again each time sees each certificate.
                is_anew: at == 0,
                is_over: Arc::clone(&is_over),
            };
            thread::spawn(move || caller.call())
        });
        let callers = callers.collect();
        let trusted = kubeconfig.with_extension("crt");
        Ok(Self { watches, informers, callers, is_over, trusted, began: Instant::now() })
    }

    /// Whether a caller has ended before its time. [`Self::finish`] says why.
    fn has_failed(&self) -> bool {
        self.callers.iter().any(JoinHandle::is_finished)
    }

    /// Ends all. Fails if a request failed, a watch ended, or one of them was not told of all these
    /// ConfigMaps.
    fn finish(self, maps: usize) -> Result<()> {
        let time = self.began.elapsed();
        self.is_over.store(true, Ordering::Relaxed);
        let mut requests = 0;
        for caller in self.callers {
            requests += caller.join().map_err(|_| anyhow::anyhow!("a caller panicked"))??;
        }
        println!("{requests} requests in {:.0} s: none failed", time.as_secs_f64());
        ensure!(requests > 0, "no request");
        for (informer, (_, wanted)) in self.informers.into_iter().zip(INFORMERS) {
            informer.wait_until(SOON, |lines| (count(lines, "added") == maps).then_some(()))?;
            let lines = informer.finish(SOON)?;
            ensure!(count(&lines, "watch-error") == 0, "an informer's watch broke");
            let [lists, watches] = ["list", "watch"].map(|event| count(&lines, event));
            let is_one = lists + watches == wanted || (time > WATCH && lists < wanted);
            ensure!(is_one, "an informer began again: {lists} lists, {watches} watches");
        }
        let mut watches = self.watches;
        let told = |each: &Value| each["ADDED"].as_u64() == u64::try_from(maps).ok();
        until("each watch was told of each ConfigMap", SOON, || {
            let counts = watches.ask("", "counts", SOON)?;
            let each = counts["watches"].as_array().context("counts")?;
            Ok((each.len() == WATCHES && each.iter().all(told)).then_some(()))
        })?;
        let lines = watches.finish(SOON)?;
        ensure!(count(&lines, "ended") == 0, "a watch ended");
        Ok(())
    }

    /// Gives the Go programs the bundle as it is mounted now.
    fn trust(&self, files: &Path) -> Result<()> {
        let fresh = self.trusted.with_extension("fresh");
        fs::copy(files.join("ca.crt"), &fresh)?;
        Ok(fs::rename(&fresh, &self.trusted)?)
    }
}

fn count(lines: &[Value], event: &str) -> usize {
    lines.iter().filter(|line| line["event"] == event).count()
}

/// One that sends requests until all is over.
struct Caller {
    url: String,
    cas: PathBuf,
    token: String,
    is_anew: bool,
    is_over: Arc<AtomicBool>,
}

impl Caller {
    /// Returns the number of requests. Fails with the first that failed.
    fn call(&self) -> Result<usize> {
        let path = format!("/api/v1/namespaces/{OPERATORS}/configmaps?limit=1");
        let mut client = None;
        let mut requests = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            let fresh = || {
                Client::new(&self.url, &fs::read_to_string(&self.cas)?, &self.token, &Network::Own)
            };
            let kept = client.take().filter(|_| !self.is_anew);
            let kept = kept.map_or_else(fresh, Ok)?;
            let answer = kept.get(&path).with_context(|| format!("after {requests} requests"))?;
            ensure!(answer.status == 200, "{}: {}", answer.status, answer.text);
            client = Some(kept);
            requests += 1;
            pass(PAUSE.saturating_sub(began.elapsed()));
        }
        Ok(requests)
    }
}

#[allow(clippy::disallowed_methods, reason = "requests come at a rate")]
fn pass(time: Duration) {
    thread::sleep(time);
}

#[test]
fn i12_i19_leaf_and_issuer_rotate_under_watches_and_requests() -> Result<()> {
    let scene = Scene::new(&["--leaf-lifetime=60", "--issuer-lifetime=60"])?;
    let traffic = Traffic::start(&scene)?;
    let mut issuers = BTreeSet::new();
    let mut maps = 0;
    until("four leaves of three issuers", LIMIT, || {
        scene.config_map(maps)?;
        maps += 1;
        issuers.insert(certificate(&scene.api, "issuer.crt")?);
        let is_done = issuers.len() >= 3 && scene.enrolments()? >= 4.0;
        Ok((is_done || traffic.has_failed()).then_some(()))
    })?;
    println!("{} leaves, {} issuers", scene.enrolments()?, issuers.len());
    ensure!(issuers.len() < 6, "an issuer is replaced before its time");
    traffic.finish(maps)
}

/// Streams that are open need no certificate; who comes again does.
#[test]
fn bad_i12_i19_a_leaf_ends_while_the_manager_is_away() -> Result<()> {
    let mut scene = Scene::new(&["--leaf-lifetime=60"])?;
    let mut traffic = Traffic::start(&scene)?;
    scene.manager.kill()?;
    // New connections alone break, once it has ended.
    let anew = traffic.callers.remove(0);
    until("the leaf has ended", LIMIT, || {
        let ready = scene.proxy.admin_text("/readyz")?;
        let is_told = ready.contains("[-]certificate") && anew.is_finished();
        let place = format!("localhost:{}", scene.manager.address().port());
        ensure!(!is_told || ready.contains(&place), "no {place} in {ready}");
        Ok(is_told.then_some(()))
    })?;
    let broken = anew.join().map_err(|_| anyhow::anyhow!("a caller panicked"))?;
    ensure!(broken.is_err(), "new clients accept a leaf that has ended");
    scene.config_map(0)?;
    scene.manager.start_again()?;
    let back = Instant::now();
    until("the proxy has a certificate", SOON, || {
        Ok(scene.proxy.admin_text("/readyz")?.contains("[+]certificate ok").then_some(()))
    })?;
    println!("the proxy has a certificate {:.1} s later", back.elapsed().as_secs_f64());
    let client = scene.proxy.client(&scene.account.token)?;
    ensure!(client.get(&format!("/api/v1/namespaces/{OPERATORS}/configmaps"))?.status == 200);
    traffic.finish(1)
}

/// Notes that the only container of a pod started now.
fn start_container(api: &ApiServer, pod: &str) -> Result<()> {
    let container = json!({
        "name": "app",
        "image": "localhost/app:1",
        "imageID": "",
        "ready": true,
        "restartCount": 0,
        "state": { "running": { "startedAt": Timestamp::now().round(Unit::Second)?.to_string() } },
    });
    let patch = json!({ "status": { "phase": "Running", "containerStatuses": [container] } });
    let path = format!("{}/status", at(OPERATORS, "pods", pod));
    let kind = "application/merge-patch+json";
    api.client().request("PATCH", &path, kind, patch.to_string().into_bytes())?.json().map(drop)
}

fn in_the_way(manager: &Manager) -> Result<f64> {
    manager.metric("ctrlmesh_manager_pods_without_next_root")
}

/// Waits until the next root is in the bundle; returns it.
fn next_root(api: &ApiServer) -> Result<String> {
    until("the next root is published", LIMIT, || {
        let data = authorities(api)?;
        let bundle = bundle(api, OPERATORS)?;
        let text = bundle["ca.crt"].as_str().context("text")?;
        if data["root-next.crt"].is_null() {
            return Ok(None);
        }
        let next = certificate(api, "root-next.crt")?;
        Ok(text.contains(&next).then_some(next))
    })
}

/// Checks that this root goes on to sign.
fn signs_for_now(api: &ApiServer, root: &str) -> Result<()> {
    let began = Instant::now();
    until("nothing happens", SOON, || {
        ensure!(certificate(api, "root.crt")? == root, "the next root signs before it is known");
        Ok((began.elapsed() > WITHOUT).then_some(()))
    })
}

#[test]
fn i12_a_root_near_its_end_has_a_next_which_waits_for_who_does_not_know_it() -> Result<()> {
    let api = cluster()?;
    let manager = manager(&api, &["--root-lifetime=105"])?;
    create(&api, &config(OPERATORS), &[])?;
    bundle(&api, OPERATORS)?;
    for name in ["before", "waiting"] {
        create(&api, &pod(OPERATORS, name), &[])?;
    }
    start_container(&api, "before")?;
    let [root, issuer] = ["root.crt", "issuer.crt"];
    let former = [certificate(&api, root)?, certificate(&api, issuer)?];
    let next = next_root(&api)?;
    until("both are in the way", SOON, || Ok((in_the_way(&manager)? == 2.0).then_some(())))?;
    // With no one in the way, what pods mount still has to spread.
    api.kubectl(&["delete", "pod", "before", "waiting", "-n", OPERATORS, "--now"])?;
    until("no one is in the way", SOON, || Ok((in_the_way(&manager)? == 0.0).then_some(())))?;
    signs_for_now(&api, &former[0])?;
    ensure!(certificate(&api, issuer)? == former[1], "an issuer of the next root signs");
    // No one accepts what an ended root signs: to wait any longer would help no one.
    until("the next one signs at the end", LIMIT, || {
        Ok((certificate(&api, root)? == next).then_some(()))
    })?;
    ensure!(certificate(&api, issuer)? != former[1], "its issuer is the former's");
    Ok(())
}

/// Without `ROTATE_ROOT=1` it ends once the next root is held back.
#[test]
fn i12_i19_a_root_is_replaced_under_watches_and_requests() -> Result<()> {
    let is_whole = env::var("ROTATE_ROOT").is_ok_and(|text| !text.is_empty());
    let mut scene = Scene::new(&["--leaf-lifetime=60"])?;
    start_container(&scene.api, "one")?;
    let traffic = Traffic::start(&scene)?;
    scene.config_map(0)?;
    let former = certificate(&scene.api, "root.crt")?;
    // Another name of the API server is a reason for another root.
    scene.manager.stop()?;
    scene.manager.start_again_with("--trust-names=api.example.com")?;
    let next = next_root(&scene.api)?;
    let published = Instant::now();
    mount(&scene.api, &scene.files)?;
    traffic.trust(&scene.files)?;
    until(
        "the pod is in the way",
        SOON,
        || Ok((in_the_way(&scene.manager)? == 1.0).then_some(())),
    )?;
    signs_for_now(&scene.api, &former)?;
    if !is_whole {
        return traffic.finish(1);
    }
    until("what pods mount has spread", SPREAD * 2, || {
        ensure!(certificate(&scene.api, "root.crt")? == former, "it signs before it is known");
        Ok((published.elapsed() > SPREAD || traffic.has_failed()).then_some(()))
    })?;
    start_container(&scene.api, "one")?;
    until("the next root signs", SOON, || {
        Ok((certificate(&scene.api, "root.crt")? == next).then_some(()))
    })?;
    println!("the next root signs {:.0} s after its bundle", published.elapsed().as_secs_f64());
    until("the former root is gone", LIMIT, || {
        mount(&scene.api, &scene.files)?;
        traffic.trust(&scene.files)?;
        let trusted = fs::read_to_string(scene.files.join("ca.crt"))?;
        Ok((!trusted.contains(&former) || traffic.has_failed()).then_some(()))
    })?;
    println!("the former root is gone after {:.0} s", published.elapsed().as_secs_f64());
    scene.config_map(1)?;
    traffic.finish(2)
}
