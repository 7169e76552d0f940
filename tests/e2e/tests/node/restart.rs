//! The proxy of a working pod is killed, and the kubelet brings it back.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};
use ctrlmesh_e2e::{Binaries, Families, NAMESPACE, OperatorPod, Shards};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::node::{
    admin::Admin,
    records::{Read, Reader},
    scene::{LIMIT, Owners, settle},
    versions::Writes,
};

const TEAMS: [&str; 5] = ["ant", "bee", "cat", "dog", "eel"];
const PROXY: &str = "ctrlmesh-proxy";
const OPERATOR: &str = "operator";

#[test]
fn i13_t76_kill_9_of_the_proxy_loses_no_object() -> Result<()> {
    let shards = Shards::start(Binaries::from_env()?, Families::Ipv4)?;
    let writes = Writes::follow(&shards)?;
    // What the shard `none` owns is seen by no one.
    let common = [("ant", "blue"), ("bee", "blue"), ("dog", "green")];
    let before = Owners::from_iter(common.into_iter().chain([("cat", "green"), ("eel", "none")]));
    let after = Owners::from_iter(common.into_iter().chain([("cat", "none"), ("eel", "green")]));
    shards.draw("blue", &["ant", "bee"])?;
    shards.draw("green", &["cat", "dog"])?;
    shards.run_operator("blue")?;
    shards.run_operator("green")?;
    let mut pods = shards.pods()?;
    let (green, blue) = (pods.pop().context("green's pod")?, pods.pop().context("blue's pod")?);
    let mut readers = [Reader::follow(&shards, blue)?, Reader::follow(&shards, green)?];
    let mut admin = Admin::new(&shards, &TEAMS);
    shards.create_widgets(&TEAMS, 2)?;
    admin.create_lasting()?;
    settle(&shards, &readers, &before)?;

    // Nothing else has changed: the operator goes on where it was. It has no write under way when
    // the proxy is killed: one that met the end of its connection before the reader did would have
    // client-go list by itself, as after the end of an API server (`reflectors`).
    let killed = kill(&shards, &readers[0].pod, &mut admin, 1, Edits::Behind, || Ok(()))?;
    settle(&shards, &readers, &before)?;
    let relists = tell("same policy", &readers[0], &killed)?;
    let expired = count_expired(&shards, &readers[0].pod)?;
    ensure!(expired == 0, "{expired} watches had to be listed again");
    let said = reflectors(&shards, &readers[0].pod)?;
    ensure!(relists.is_empty(), "listed again: {relists:?}; its reflectors: {said:#?}");

    // Its watches resume under another policy, and are told what has left and come.
    let redraw = || redraw(&shards, "green", &["dog", "eel"]);
    let moved = kill(&shards, &readers[1].pod, &mut admin, 1, Edits::Around, redraw)?;
    settle(&shards, &readers, &after)?;
    let relists = tell("another policy", &readers[1], &moved)?;
    let expired = count_expired(&shards, &readers[1].pod)?;
    ensure!(expired == 0, "{expired} watches had to be listed again");
    let said = reflectors(&shards, &readers[1].pod)?;
    ensure!(relists.is_empty(), "listed again: {relists:?}; its reflectors: {said:#?}");
    only_the_proxies_were_restarted(&shards)?;
    judge(&writes, &readers, &before, (&moved, &after))?;

    // The kubelet backs off: longer than the operator may be without its lease.
    let pod = readers[0].pod.clone();
    let killed = kill(&shards, &pod, &mut admin, 2, Edits::Around, || Ok(()))?;
    await_lease(&shards, "blue", killed.back)?;
    readers[0] = Reader::follow(&shards, pod)?;
    settle(&shards, &readers, &after)?;
    tell("the second time", &readers[0], &killed)?;
    the_operator_ended_by_itself(&shards, &readers[0].pod)
}

/// A proxy's absence.
struct Killed {
    at: Timestamp,
    /// When what was to be done meanwhile was done.
    done: Timestamp,
    /// When the next proxy listened.
    listening: Timestamp,
    /// When the kubelet said that it is ready.
    back: Timestamp,
}

/// When someone edits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edits {
    /// Before the kill, during it and until the proxy is back.
    Around,
    /// From the kill until the proxy is back.
    Behind,
}

/// Kills the proxy, and waits until it is ready again: its `count`th restart.
fn kill(
    shards: &Shards,
    pod: &OperatorPod,
    admin: &mut Admin<'_>,
    count: u64,
    when: Edits,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<Killed> {
    let is_over = AtomicBool::new(false);
    let (tell_kill, killed) = mpsc::sync_channel::<()>(1);
    thread::scope(|scope| {
        let is_over = &is_over;
        let edits = scope.spawn(move || -> Result<()> {
            if when == Edits::Behind {
                let _ = killed.recv();
            }
            while !is_over.load(SeqCst) {
                admin.step()?;
            }
            Ok(())
        });
        let killed = kill_and_wait(shards, pod, count, || {
            drop(tell_kill);
            meanwhile()
        });
        is_over.store(true, SeqCst);
        edits.join().map_err(|_| anyhow!("the edits panicked"))??;
        killed
    })
}

fn kill_and_wait(
    shards: &Shards,
    pod: &OperatorPod,
    count: u64,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<Killed> {
    let id = container_id(&find_pod(shards, &pod.name)?)?;
    let at = Timestamp::now();
    shards.node().kill_container(&id)?;
    meanwhile()?;
    let done = Timestamp::now();
    let path =
        format!("/api/v1/namespaces/{NAMESPACE}/pods?fieldSelector=metadata.name={}", pod.name);
    let is_back = |event: &Value| {
        let proxy = status(&event["object"], PROXY)?;
        (proxy["restartCount"] == count && proxy["ready"] == true).then_some(())
    };
    shards.node().api().client().watch_until(&path, LIMIT, is_back)?;
    let back = Timestamp::now();
    let log = shards.node().logs(NAMESPACE, &pod.name, PROXY)?;
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut listens = lines.filter(|line| line["message"] == "listening");
    let listening = listens.next().context("the proxy says where it listens")?;
    let listening = listening["timestamp"].as_str().context("a line has a time")?.parse()?;
    ensure!(done < listening, "what was to be done while the proxy was away came too late");
    Ok(Killed { at, done, listening, back })
}

/// As [`Shards::draw`] and in a few milliseconds: the kubelet is quick as well.
fn redraw(shards: &Shards, shard: &str, teams: &[&str]) -> Result<()> {
    let path = format!(
        "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{NAMESPACE}/shardingconfigs/{shard}"
    );
    let values = "/spec/limits/0/selector/matchExpressions/0/values";
    let patch = json!([{ "op": "replace", "path": values, "value": teams }]).to_string();
    let client = shards.node().api().client();
    let answer = client.request("PATCH", &path, "application/json-patch+json", patch.into_bytes());
    answer?.json().map(drop)
}

/// Waits until the operator of a shard has renewed its lease after `since`: it lives and works.
fn await_lease(shards: &Shards, shard: &str, since: Timestamp) -> Result<()> {
    let path = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases\
         ?fieldSelector=metadata.name=demo-operator---{shard}"
    );
    shards.node().api().client().watch_until(&path, LIMIT, |event| {
        let spec = &event["object"]["spec"];
        let renewed: Timestamp = spec["renewTime"].as_str()?.parse().ok()?;
        let is_held = spec["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty());
        (is_held && renewed > since).then_some(())
    })
}

/// The objects that were listed again since.
fn tell(what: &str, reader: &Reader, killed: &Killed) -> Result<Vec<Read>> {
    let mut reads = reader.reads()?;
    let since = |time: Timestamp| time.duration_since(killed.at).as_secs_f64();
    let read_again = |resource: &str| {
        let is_next = |read: &&Read| read.resource == resource && read.time > killed.listening;
        reads.iter().find(is_next).map_or(f64::NAN, |read| since(read.time))
    };
    let listening = since(killed.listening);
    let [widgets, config_maps] = ["widgets", "configmaps"].map(read_again);
    reads.retain(|read| read.time > killed.at && read.is_of_relist());
    println!(
        "kill -9, {what}: the next proxy listened after {listening:.1} s and was ready after \
         {:.1} s; Widgets were read again after {widgets:.1} s, ConfigMaps after {config_maps:.1} \
         s; all was handled after {:.1} s; {} objects were listed again",
        since(killed.back),
        since(Timestamp::now()),
        reads.len(),
    );
    Ok(reads)
}

/// What the operator's reflectors say of their watches. One that says `force closed via
/// ClientConn.Close` has listed by itself: a write met the end of its connection before the reader
/// did, so Go's HTTP/2 closed it (`cleanupWriteRequest`) with an error that client-go does not take
/// for an end (`IsProbableEOF`).
fn reflectors(shards: &Shards, pod: &OperatorPod) -> Result<Vec<String>> {
    let log = shards.node().logs(NAMESPACE, &pod.name, OPERATOR)?;
    Ok(log.lines().filter(|line| line.contains("reflector.go")).map(str::to_owned).collect())
}

/// How many watches the present proxy did not let go on.
fn count_expired(shards: &Shards, pod: &OperatorPod) -> Result<usize> {
    let log = shards.node().logs(NAMESPACE, &pod.name, PROXY)?;
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(lines.filter(|line| line["reason"] == "expired").count())
}

fn only_the_proxies_were_restarted(shards: &Shards) -> Result<()> {
    for pod in shards.pods()? {
        let status = status_of(&find_pod(shards, &pod.name)?, PROXY)?;
        let proxy = status["restartCount"].as_u64();
        ensure!(proxy == Some(1) && pod.restarts == 1, "{}: {} restarts", pod.name, pod.restarts);
    }
    Ok(())
}

/// Every version was read by its own shard alone: green's by the new policy since the proxy
/// listened that came back to it.
fn judge(
    writes: &Writes,
    readers: &[Reader; 2],
    before: &Owners,
    (moved, after): (&Killed, &Owners),
) -> Result<()> {
    let [blue, green] = [readers[0].reads()?, readers[1].reads()?];
    let versions = writes.versions(blue.iter().chain(&green))?;
    for read in &blue {
        versions.judge(read, "blue", before)?;
    }
    // Until its writes of before are over, the shard has what both policies give it.
    let both: Owners = before
        .iter()
        .filter(|(team, owner)| after.get(*team) == Some(*owner))
        .map(|(team, owner)| (*team, *owner))
        .collect();
    for read in &green {
        let meanwhile = || versions.judge(read, "green", &both);
        let handed_over = || versions.judge_handed_over(read, "green", [before, after]);
        let [before, after] = [before, after].map(|owners| versions.judge(read, "green", owners));
        if read.time < moved.done {
            before?;
        } else if read.time > moved.listening {
            after.or_else(|_| meanwhile()).or_else(|_| handed_over())?;
        } else {
            // It came before the kill, and was handled late.
            before.or(after)?;
        }
    }
    println!("{} versions read, each by its own shard", blue.len() + green.len());
    Ok(())
}

/// An operator that cannot renew its lease in time ends itself. It would do so if the API server
/// were away for as long. It may have been restarted for this reason alone.
fn the_operator_ended_by_itself(shards: &Shards, pod: &OperatorPod) -> Result<()> {
    let operator = status_of(&find_pod(shards, &pod.name)?, OPERATOR)?;
    let restarts = operator["restartCount"].as_u64().context("a count")?;
    println!(
        "restarts of the operator, whose proxy was away for longer than its lease: {restarts}"
    );
    if restarts == 0 {
        return Ok(());
    }
    let args = ["--namespace", NAMESPACE, "logs", "--previous", &pod.name, "--container", OPERATOR];
    let last_words = shards.node().kubectl(&args)?;
    ensure!(restarts == 1 && last_words.contains("leader election lost"), "{last_words}");
    Ok(())
}

fn find_pod(shards: &Shards, name: &str) -> Result<Value> {
    let args = ["--namespace", NAMESPACE, "get", "pod", name, "-o", "json"];
    Ok(serde_json::from_str(&shards.node().kubectl(&args)?)?)
}

fn container_id(pod: &Value) -> Result<String> {
    let proxy = status_of(pod, PROXY)?;
    let id = proxy["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://"));
    id.map(str::to_owned).context("the proxy's container")
}

fn status_of(pod: &Value, container: &str) -> Result<Value> {
    status(pod, container).cloned().with_context(|| format!("{container} in {pod}"))
}

fn status<'a>(pod: &'a Value, container: &str) -> Option<&'a Value> {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let mut all = lists.iter().filter_map(|list| pod["status"][list].as_array()).flatten();
    all.find(|status| status["name"] == container)
}
