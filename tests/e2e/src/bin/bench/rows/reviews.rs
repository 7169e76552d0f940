//! The rows of webhooks: what a review costs on its way, and what many and large ones do.

use std::{thread, time::Duration};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::until;
use serde_json::{Value, json};

use super::{WARM_UP, WORKERS, milliseconds, number, rounds};
use crate::{
    Args,
    bed::{NAMESPACE, Route, SERVICE, SHARDS, TestBed, Webhooks},
    figures::Series,
    note,
    table::{Beside, Table},
};

/// Bytes of the data of a reviewed object: a review of an update has two, and 3.5 KB in all.
const DATA: &str = "700";
const PACE: &str = "500";
/// The reviews of a storm, and the escaped characters of each: 18 MB.
const STORM: &str = "32";
const ESCAPES: &str = "3000000";
/// The threads that create objects for a conversion.
const CREATORS: u32 = 8;
/// The custom resource that is converted.
const GROUP: &str = "bench.example.com";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CONVERTED: &str = "things.bench.example.com";
const CONVERTED_WITHIN: Duration = Duration::from_secs(300);

/// A series for each way.
#[derive(Default)]
struct Routes([Series; Route::ALL.len()]);

impl Routes {
    fn of(&self, route: Route) -> &Series {
        &self.0[route as usize]
    }

    fn add(&mut self, route: Route, value: f64) {
        self.0[route as usize].add(value);
    }

    /// Those of the direct way, of ctrlmesh, and of haproxy in its place.
    fn beside(&self, ours: Route) -> [&Series; 3] {
        let theirs = if ours == Route::There { Route::Haproxies } else { Route::Haproxy };
        [self.of(Route::Direct), self.of(ours), self.of(theirs)]
    }
}

/// Delays of single reviews, and CPU of many.
pub(super) fn reviews(args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
    let hooks = bed.webhooks()?;
    let (mut p50, mut p99) = (Routes::default(), Routes::default());
    let seconds = args.seconds.to_string();
    let load = |route: Route, more: &[&str]| {
        let always = ["--mode", "review", "--teams", route.team(), "--bytes", DATA];
        let warm = ["--warmup", WARM_UP, "--seconds", &seconds];
        hooks.load(route, &[&always[..], &warm, more].concat())
    };
    rounds(args.rounds, "reviews, one at a time", &Route::ALL, |route| {
        let figures = load(route, &[])?;
        p50.add(route, milliseconds(&figures, "p50_us")?);
        p99.add(route, milliseconds(&figures, "p99_us")?);
        Ok(())
    })?;
    let direct_p99 = p99.of(Route::Direct).median();
    for (title, ours, beside) in [
        ("review answered here", Route::Here, Beside { theirs: "haproxy", more: 0.05 }),
        ("review forwarded", Route::There, Beside { theirs: "two haproxies", more: 0.1 }),
    ] {
        table.review(&format!("{title}, p50"), p50.beside(ours), Some(beside), direct_p99);
        table.review(&format!("{title}, p99"), p99.beside(ours), None, direct_p99);
    }
    let mut cpu = Routes::default();
    rounds(args.rounds * 2, "reviews, 16 workers", &Route::ALL, |route| {
        let before = cpu_of(&hooks, route)?;
        let figures = load(route, &["--workers", WORKERS])?;
        let spent = cpu_of(&hooks, route)?.saturating_sub(before);
        // Those of the warm-up are in neither, or in both.
        let warm_up = WARM_UP.parse::<f64>()?;
        cpu.add(route, spent.as_secs_f64() * 1e6 / (number(&figures["requests"])? + warm_up));
        Ok(())
    })?;
    let haproxy = cpu.of(Route::Haproxy);
    for (title, ours, times) in [
        ("review answered here, 16 workers, CPU a review", Route::Here, 1.2),
        ("review forwarded, 16 workers, CPU of both proxies a review", Route::There, 2.4),
    ] {
        let [_, ours, theirs] = cpu.beside(ours);
        table.cpu_of_reviews(title, ours, theirs, haproxy, times);
    }
    ways_are_as_told(&hooks)
}

fn cpu_of(hooks: &Webhooks<'_>, route: Route) -> Result<Duration> {
    hooks.proxies(route).into_iter().map(|proxy| proxy.cpu()).sum()
}

/// The called pod has answered some reviews and forwarded others, and none failed.
fn ways_are_as_told(hooks: &Webhooks<'_>) -> Result<()> {
    let pod = &hooks.pods[0];
    let [here, forwarded, failed] =
        [pod.reviews("here")?, pod.reviews("forwarded")?, pod.reviews("failed")?];
    ensure!(
        here > 0.0 && forwarded > 0.0 && failed < 1.0,
        "{here} reviews were answered by the called pod, {forwarded} forwarded, {failed} failed"
    );
    Ok(())
}

/// Reviews of all shards into one of the pods, at an even pace.
pub(super) fn paced(args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
    let hooks = bed.webhooks()?;
    let (seconds, teams) = (args.paced_seconds.to_string(), SHARDS.join(","));
    let load = |route: Route| {
        note(&format!("{PACE} reviews a second for {seconds} s, {route}"));
        let pace = ["--mode", "paced", "--rate", PACE, "--seconds", &seconds];
        let what = ["--teams", &teams, "--bytes", DATA, "--warmup", WARM_UP];
        hooks.load(route, &[pace, what].concat())
    };
    let (direct, haproxy) = (load(Route::Direct)?, load(Route::Haproxy)?);
    // All shards' reviews go to the pod of the first.
    let ours = load(Route::Here)?;
    ways_are_as_told(&hooks)?;
    let reviews = number(&ours["requests"])?;
    let p99 = |figures: &Value, team: &str| -> Result<f64> {
        Ok(number(&figures["by_team"][team]["p99_us"])? / 1e3)
    };
    let [base, theirs] = [milliseconds(&direct, "p99_us")?, milliseconds(&haproxy, "p99_us")?];
    let others = SHARDS[1..].iter().map(|team| p99(&ours, team)).collect::<Result<Vec<_>>>()?;
    let forwarded = others.into_iter().fold(0.0, f64::max);
    let pace = format!("{PACE} reviews/s into one of 4 pods, {reviews:.0} in all, none failed");
    let here = p99(&ours, SHARDS[0])?;
    table.bounded(&format!("{pace}: p99, answered here"), base, here, theirs, 2.0);
    table.bounded(&format!("{pace}: p99, forwarded, slowest shard"), base, forwarded, theirs, 4.0);
    Ok(())
}

/// The memory that large reviews at once take. A review of an update is held until the stored
/// object, which comes last; there is no room for all.
pub(super) fn storm(bed: &TestBed, table: &mut Table) -> Result<()> {
    const MOST: f64 = 128.0;
    for (what, ours, theirs, more) in [
        ("creations, answered here", Route::Here, Route::Haproxy, &["--create"][..]),
        ("creations, forwarded", Route::There, Route::Haproxies, &["--create"]),
        ("updates, answered here", Route::Here, Route::Haproxy, &["--may-refuse"]),
        ("updates, forwarded", Route::There, Route::Haproxies, &["--may-refuse"]),
    ] {
        let hooks = bed.webhooks()?;
        let load = |route: Route| -> Result<(f64, f64)> {
            note(&format!("storm of {what}, {route}"));
            let always = ["--mode", "review", "--teams", route.team(), "--escapes", ESCAPES];
            let many = ["--workers", STORM, "--count", STORM];
            let figures = hooks.load(route, &[&always[..], &many, more].concat())?;
            let memory = hooks.proxies(route).into_iter().map(|proxy| proxy.most_memory());
            let memory = memory.collect::<Result<Vec<_>>>()?;
            Ok((memory.into_iter().fold(0.0, f64::max), number(&figures["refused"])?))
        };
        let ((ours, refused), (theirs, _)) = (load(ours)?, load(theirs)?);
        let title = format!(
            "most RSS of a proxy in {STORM} reviews of 18 MB at once, {what} ({refused} refused)"
        );
        table.memory(&title, ours, theirs, Some(MOST));
    }
    Ok(())
}

/// The time of the conversions of all objects of a custom resource. The API server asks for them
/// one after the other when a cache starts.
pub(super) fn conversions(args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
    const WANTED: f64 = 1.25;
    let hooks = bed.webhooks()?;
    note(&format!("creating {} custom resources", args.conversions));
    create_converted(args.conversions, bed)?;
    let ways = [Route::Direct, Route::Here, Route::Haproxy];
    let mut seconds = Routes::default();
    rounds(args.rounds, "conversions", &ways, |route| {
        seconds.add(route, convert(args.conversions, bed, &hooks, route)?);
        Ok(())
    })?;
    let (came, sent) = (hooks.pods[0].requests()?, args.rounds * args.conversions);
    ensure!(came >= f64::from(sent), "{came} requests of {sent} came through ctrlmesh");
    let [direct, ours, haproxy] = seconds.beside(Route::Here);
    let title = format!("{} conversions of a custom resource's cache", args.conversions);
    table.ratio(&title, direct, ours, haproxy, WANTED);
    Ok(())
}

/// Has the API server start its caches again, with the webhook at the end of a way. The seconds from
/// the first to the last conversion.
fn convert(count: u32, bed: &TestBed, hooks: &Webhooks<'_>, route: Route) -> Result<f64> {
    let (api, operator) = (bed.api().client(), hooks.operator()?);
    operator.delete("/conversions")?;
    let service = json!({
        "namespace": NAMESPACE, "name": SERVICE, "path": "/convert",
        "port": hooks.addr(route)?.port(),
    });
    let client = json!({ "service": service, "caBundle": base64_of(bed.api().ca_pem()) });
    let webhook = json!({ "clientConfig": client, "conversionReviewVersions": ["v1"] });
    let change = json!({ "spec": { "conversion": { "strategy": "Webhook", "webhook": webhook } } });
    let merge = "application/merge-patch+json";
    let path = format!("{CRD}/{CONVERTED}");
    api.request("PATCH", &path, merge, change.to_string().into_bytes())?.json()?;
    let took = until("all objects are converted", CONVERTED_WITHIN, || {
        // A cache starts with the first request of its version.
        api.get(&format!("/apis/{GROUP}/v2/things?limit=1&resourceVersion=0"))?;
        let seen = operator.get(&format!("/conversions?of={count}"))?.json()?;
        Ok(seen["took_us"].as_f64())
    })?;
    Ok(took / 1e6)
}

fn create_converted(count: u32, bed: &TestBed) -> Result<()> {
    let api = bed.api().client();
    let service = json!({
        "metadata": { "name": SERVICE },
        "spec": { "type": "ExternalName", "externalName": "127.0.0.1" },
    });
    api.post(&format!("/api/v1/namespaces/{NAMESPACE}/services"), &service)?.json()?;
    let version = |name: &str, is_stored: bool| {
        json!({
            "name": name, "served": true, "storage": is_stored,
            "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            } },
        })
    };
    let crd = json!({
        "metadata": { "name": CONVERTED },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": { "plural": "things", "singular": "thing", "kind": "Thing" },
            "versions": [version("v1", true), version("v2", false)],
        },
    });
    api.post(CRD, &crd)?.json()?;
    let things = format!("/apis/{GROUP}/v1/namespaces/{NAMESPACE}/things");
    until("the custom resource is served", CONVERTED_WITHIN, || {
        Ok((api.get(&things)?.status == 200).then_some(()))
    })?;
    let create = |numbers: Vec<u32>| -> Result<()> {
        for number in numbers {
            let thing = json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": "Thing",
                "metadata": { "name": format!("thing-{number:05}"), "labels": { "team": "blue" } },
                "spec": { "settings": "lorem ipsum dolor ".repeat(40), "replicas": number },
            });
            api.post(&things, &thing)?.json()?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..CREATORS)
            .map(|at| (0..count).filter(move |number| number % CREATORS == at).collect())
            .map(|numbers| scope.spawn(|| create(numbers)))
            .collect();
        all.into_iter().try_for_each(|one| one.join().ok().context("a creator panicked")?)
    })
}

fn base64_of(text: &str) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(text)
}
