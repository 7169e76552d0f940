//! The time and memory of a replica: for leaves, for injected pods, for the first pod of a namespace.
//!
//! `FIGURES=2000` asks for that many leaves and creates that many pods, instead of a few, and prints
//! what they took, next to the bound; `CTRLMESH_BIN` names a release build.

use std::{
    env, fs,
    sync::atomic::{AtomicUsize, Ordering},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use ctrlmesh_e2e::{ApiServer, Manager, until};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};

use crate::manager::aggregated::{GROUP, Things};
use crate::manager::roots::root;
use crate::manager::scene::{
    AUDIENCE, OPERATORS, bundle, cluster, config, create, is_injected, let_in, manager, pod, token,
};

/// Requests at once: as many as a replica takes.
const AT_ONCE: usize = 32;
const FEW: usize = 64;
/// More configs than a replica reads at once.
const MORE_THAN_A_PAGE: usize = 60;
const LIMIT: Duration = Duration::from_secs(120);
/// The time from one write to the next where they come at a pace.
const PACE: Duration = Duration::from_millis(20);

fn count() -> Result<usize> {
    let text = env::var("FIGURES").ok().filter(|text| !text.is_empty());
    text.map_or(Ok(FEW), |text| text.parse().with_context(|| format!("FIGURES={text}")))
}

/// The number of namespaces that get their first pod.
fn namespaces() -> Result<usize> {
    Ok(count()?.min(20))
}

/// Does so many things, some at once. Fails with the first failure.
fn all(things: usize, one: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= things {
                return Ok(());
            }
            one(at).with_context(|| format!("the {at}th"))?;
        }
    };
    thread::scope(|threads| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| threads.spawn(work)).collect();
        let mut results = workers.into_iter().map(ScopedJoinHandle::join);
        results.try_for_each(|result| result.map_err(|_| anyhow!("one panicked"))?)
    })
}

/// The seconds of processor time of a replica, and its memory in MiB, now and at most.
pub(crate) fn usage(manager: &Manager) -> Result<(f64, [f64; 2])> {
    let pid = manager.pid().context("it runs")?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, stat) = stat.rsplit_once(") ").context("a name")?;
    let ticks = stat.split(' ').skip(11).take(2).map(str::parse::<f64>);
    let seconds = ticks.sum::<Result<f64, _>>()? / 100.0;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of = |name: &str| -> Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("a line")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    };
    Ok((seconds, [of("VmRSS:")?, of("VmHWM:")?]))
}

fn create_pod(api: &ApiServer, name: &str) -> Result<Value> {
    let path = format!("/api/v1/namespaces/{OPERATORS}/pods");
    api.client().post(&path, &pod(OPERATORS, name))?.json()
}

#[test]
fn i12_a_replica_signs_for_many_at_once() -> Result<()> {
    let api = cluster()?;
    let manager = manager(&api, &[])?;
    create(&api, &config(OPERATORS), &[])?;
    let cas = bundle(&api, OPERATORS)?["manager.crt"].as_str().context("CAs")?.to_owned();
    let mut tokens = Vec::new();
    for name in ["one", "two", "three", "four"] {
        let pod = create_pod(&api, name)?;
        tokens.push(token(&api, Some(AUDIENCE), Some(&pod))?);
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let request = CertificateParams::new(Vec::new())?.serialize_request(&key)?;
    let (leaves, (before, _), began) = (count()?, usage(&manager)?, Instant::now());
    all(leaves, |at| {
        let token = &tokens[at % tokens.len()];
        let answer = manager.ask_for_leaf(&cas, token, request.der())?;
        ensure!(answer.status == 200, "{}: {}", answer.status, answer.text);
        Ok(())
    })?;
    let (time, (after, _)) = (began.elapsed().as_secs_f64(), usage(&manager)?);
    let each = (after - before) * 1e3 / leaves as f64;
    println!("{leaves} leaves in {time:.1} s (2,000: at most 15 s), {each:.2} ms of CPU each");
    Ok(())
}

#[test]
fn i12_a_replica_injects_many_pods_and_keeps_them_in_mind() -> Result<()> {
    let api = cluster()?;
    let manager = manager(&api, &[])?;
    let (pods, (before, _), began) = (count()?, usage(&manager)?, Instant::now());
    all(pods, |at| {
        let stored = create_pod(&api, &format!("pod-{at}"))?;
        ensure!(is_injected(&stored), "a pod without a proxy");
        Ok(())
    })?;
    let (time, (after, _)) = (began.elapsed().as_secs_f64(), usage(&manager)?);
    let each = (after - before) * 1e3 / pods as f64;
    println!("{pods} pods created in {time:.1} s, {each:.2} ms of CPU each");
    until("all are known", LIMIT, || {
        let known = manager.metric("ctrlmesh_manager_injected_pods")?;
        Ok((known == pods as f64).then_some(()))
    })?;
    let (_, [now, most]) = usage(&manager)?;
    println!("with {pods} pods {now:.1} MiB, at most {most:.1} MiB (2,000: at most 40)");
    Ok(())
}

/// The buckets of the API server's own histogram of a webhook: upper bounds in seconds, and how many
/// calls took no longer.
fn buckets(api: &ApiServer, webhook: &str) -> Result<Vec<(f64, f64)>> {
    const NAME: &str = "apiserver_admission_webhook_admission_duration_seconds_bucket{";
    let metrics = api.client().get("/metrics")?.text;
    let named = format!("name=\"{webhook}\"");
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(NAME));
    let mut all: Vec<(f64, f64)> = Vec::new();
    for line in lines.filter(|line| line.contains(&named) && line.contains("\"CREATE\"")) {
        let (_, bound) = line.split_once("le=\"").context("a bound")?;
        let (bound, value) = bound.split_once("\"} ").context("a value")?;
        all.push((bound.replace("+Inf", "inf").parse()?, value.parse()?));
    }
    Ok(all)
}

/// The calls that came between two looks at a histogram: how many, and the bound of the bucket that
/// has this share of them.
fn quantile(before: &[(f64, f64)], after: &[(f64, f64)], share: f64) -> Result<(f64, f64)> {
    let count = |at: f64| before.iter().find(|(bound, _)| *bound == at).map_or(0.0, |(_, n)| *n);
    let new: Vec<_> = after.iter().map(|(bound, n)| (*bound, n - count(*bound))).collect();
    let (_, all) = *new.last().context("the API server counts no calls of the webhook")?;
    let reached = new.iter().find(|(_, n)| *n >= all * share).context("a bucket")?;
    Ok((all, reached.0))
}

#[test]
fn i12_pods_that_come_at_a_pace_are_each_reviewed() -> Result<()> {
    const WEBHOOK: &str = "pods.ctrlmesh.kusionstack.io";
    let api = cluster()?;
    let _manager = manager(&api, &[])?;
    let (pods, before, began) = (count()?, buckets(&api, WEBHOOK)?, Instant::now());
    all(pods, |at| {
        wait_until(began + PACE * u32::try_from(at)?);
        ensure!(is_injected(&create_pod(&api, &format!("pod-{at}"))?), "a pod without a proxy");
        Ok(())
    })?;
    let rate = pods as f64 / began.elapsed().as_secs_f64();
    let after = buckets(&api, WEBHOOK)?;
    let (calls, p99) = quantile(&before, &after, 0.99)?;
    // It is called again where its own patch changed what another plugin sees.
    ensure!(calls >= pods as f64, "{calls} calls for {pods} pods");
    println!("{rate:.0} pods a second, {calls} calls, p99 at most {:.0} ms (50)", p99 * 1e3);
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "requests come at a rate")]
fn wait_until(time: Instant) {
    thread::sleep(time.saturating_duration_since(Instant::now()));
}

#[test]
fn i12_the_first_pod_of_a_namespace_gets_its_bundle_and_its_rights() -> Result<()> {
    let api = cluster()?;
    let _manager = manager(&api, &[])?;
    let mut times = Vec::new();
    for at in 0..namespaces()? {
        let namespace = format!("first-{at}");
        api.kubectl(&["create", "namespace", &namespace])?;
        api.kubectl(&["create", "serviceaccount", "default", "-n", &namespace])?;
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let began = Instant::now();
        api.client().post(&pods, &pod(&namespace, "first"))?.json()?;
        let rights = "/apis/rbac.authorization.k8s.io/v1/namespaces";
        for path in [
            format!("/api/v1/namespaces/{namespace}/configmaps/ctrlmesh-ca-bundle"),
            format!("{rights}/{namespace}/rolebindings/ctrlmesh-proxy"),
        ] {
            while api.client().get(&path)?.status != 200 {
                ensure!(began.elapsed() < LIMIT, "no {path}");
            }
        }
        times.push(began.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let (median, worst) = (times[times.len() / 2], times.last().context("a time")?);
    println!("bundle and rights after {median:.2} s, at most {worst:.2} s (2)");
    Ok(())
}

/// The reviews of configs, and those of them that were answered within 50 ms.
fn reviews(manager: &Manager) -> Result<[f64; 2]> {
    const NAME: &str = "ctrlmesh_manager_config_review_duration_seconds";
    let in_time = manager.metric(&format!("{NAME}_bucket{{le=\"0.05\"}}"))?;
    Ok([manager.metric(&format!("{NAME}_count"))?, in_time])
}

/// A root whose objects are those of the server behind the API server, in a namespace of its own.
fn weighed() -> Value {
    let mut root = let_in(root(3));
    root["metadata"]["namespace"] = json!("default");
    root["spec"]["root"]["auto"]["weight"] = json!("Objects");
    root["spec"]["root"]["resourceSelector"][0]["relateResources"] =
        json!([{ "apiGroups": [GROUP], "resources": ["things"] }]);
    root
}

/// Waits until a config is refused because of a namespace, also if many write it at once: each has the
/// replica read all configs.
fn wait_refused(api: &ApiServer, path: &str, config: &Value, namespace: &str) -> Result<()> {
    let is_refused = || -> Result<bool> {
        let answer = api.client().post(&format!("{path}?dryRun=All"), config)?;
        Ok(answer.status == 422 && answer.text.contains(namespace))
    };
    until("what another has is refused", LIMIT, || Ok(is_refused()?.then_some(())))?;
    all(2 * AT_ONCE, |_| {
        ensure!(is_refused()?, "{namespace} is given twice");
        Ok(())
    })
}

/// Waits until each of so many configs says what its ring leaves to no one.
fn wait_compared(api: &ApiServer, path: &str, configs: usize) -> Result<()> {
    until("each config is compared", LIMIT, || {
        let all = api.client().get(path)?.json()?;
        let all = all["items"].as_array().context("configs")?;
        let says = |config: &&Value| {
            let conditions = config["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "NoGaps"))
        };
        Ok((all.iter().filter(says).count() == configs).then_some(()))
    })
}

/// Waits until the objects of roots were counted since the start of the replica.
fn wait_counted(manager: &Manager) -> Result<()> {
    until("the objects are counted", 2 * LIMIT, || {
        Ok((manager.metric("ctrlmesh_manager_counts_total{result=\"ok\"}")? > 0.0).then_some(()))
    })
}

/// A shard that has ten namespaces by name.
fn shard(name: &str, namespaces: &[String]) -> Value {
    let mut shard = config(OPERATORS);
    shard["metadata"]["name"] = json!(name);
    shard["spec"] = json!({
        "selector": { "matchLabels": { "shard": name } },
        "ring": "op",
        "limits": [{
            "namespaces": { "names": namespaces },
            "clusterScoped": "Exclude",
        }],
    });
    shard
}

#[test]
fn i15_a_replica_compares_many_configs_among_many_namespaces() -> Result<()> {
    const WEBHOOK: &str = "shardingconfigs.ctrlmesh.kusionstack.io";
    let api = cluster()?;
    let mut manager = manager(&api, &[])?;
    let configs = (count()? / 2).max(MORE_THAN_A_PAGE);
    let things = Things { count: 1000 * configs, namespaces: 10 * configs };
    things.serve(&api)?;
    all(10 * configs, |at| {
        let namespace = json!({ "metadata": { "name": format!("namespace-{at}") } });
        api.client().post("/api/v1/namespaces", &namespace)?.json().map(drop)
    })?;
    let path =
        format!("/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{OPERATORS}/shardingconfigs");
    let names = |at: usize| (0..10).map(move |of| format!("namespace-{}", 10 * at + of));
    let pods = count()?;
    all(pods, |at| {
        let mut pod = pod(OPERATORS, &format!("pod-{at}"));
        pod["metadata"]["labels"]["shard"] = json!(format!("shard-{}", at % configs));
        api.client().post(&format!("/api/v1/namespaces/{OPERATORS}/pods"), &pod)?.json().map(drop)
    })?;
    let (before, began, own) = (buckets(&api, WEBHOOK)?, Instant::now(), reviews(&manager)?);
    all(configs, |at| {
        wait_until(began + PACE * u32::try_from(at)?);
        let shard = shard(&format!("shard-{at}"), &names(at).collect::<Vec<_>>());
        api.client().post(&path, &shard)?.json().map(drop)
    })?;
    let time = began.elapsed().as_secs_f64();
    let after = buckets(&api, WEBHOOK)?;
    let (calls, p99) = quantile(&before, &after, 0.99)?;
    let (_, p50) = quantile(&before, &after, 0.5)?;
    ensure!(calls >= configs as f64, "{calls} calls for {configs} configs");
    let fast = own.iter().zip(reviews(&manager)?).map(|(before, after)| after - before);
    let [reviewed, in_time] = fast.collect::<Vec<_>>()[..] else { unreachable!("two numbers") };
    // By its name it is the last one of all that has this namespace.
    let torn = names(9).skip(9).collect::<Vec<_>>();
    wait_refused(&api, &path, &shard("torn", &torn), &torn[0])?;
    wait_compared(&api, &path, configs)?;
    create(&api, &weighed(), &[])?;
    wait_counted(&manager)?;
    let (cpu, [now, most]) = usage(&manager)?;
    manager.kill()?;
    manager.start_again()?;
    wait_counted(&manager)?;
    let (_, [_, again]) = usage(&manager)?;
    println!(
        "{configs} configs, {} namespaces, {pods} pods: written in {time:.1} s, {:.2} % reviewed in 50 ms \
         (99), at the API server p50 at most {:.0} ms, p99 {:.0} ms; {} objects counted; {now:.1} MiB, at most \
         {most:.1} MiB, {again:.1} MiB after a start (61), {cpu:.1} s of CPU",
        10 * configs,
        in_time / reviewed * 1e2,
        p50 * 1e3,
        p99 * 1e3,
        things.count,
    );
    Ok(())
}
