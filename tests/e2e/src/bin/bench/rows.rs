//! The measurements: one function for one row or a few rows of the table.

mod leases;
mod reviews;

use std::{fmt::Display, time::Duration};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::Value;

use crate::{
    Args,
    bed::{LABEL, Proxied, Proxy, TestBed, Way},
    figures::Series,
    note,
    running::Usage,
    table::Table,
};

/// The number of requests that warm up connections and caches first.
const WARM_UP: &str = "50";
const WORKERS: &str = "16";
/// The requests of the two loads of which the instructions are counted.
const COUNTED: [u32; 2] = [1000, 3000];
/// The updates per second that watches receive.
const UPDATES: &str = "100";
/// The number of objects at the start of the watches of the memory row.
const WATCHED: &str = "100";
/// The wait for idle connections to end: longer than haproxy keeps one to the API server.
const LET_GO: Duration = Duration::from_secs(60);
const LISTS_A_ROUND: &str = "3";

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Row {
    /// GET, one at a time
    Get,
    /// GET by 16 workers: requests a second, CPU a request
    Load,
    /// The same: user instructions a request
    Instructions,
    /// The delay of watch events
    Watch,
    /// The delay that judging adds to watch events
    Judged,
    /// A long list, protobuf and JSON
    List,
    /// Memory with few and many watches
    Memory,
    /// Connections opened and closed: the rest of them
    Churn,
    /// Reviews of a webhook, answered here and forwarded: delay, CPU a review
    Reviews,
    /// The same into one of 4 pods, 500 a second
    Paced,
    /// Memory with many large reviews at once
    Storm,
    /// Conversions of a custom resource's cache
    Conversions,
    /// The Leases of many pods: CPU of the API server
    Leases,
}

/// A series for each way.
#[derive(Default)]
struct Ways {
    direct: Series,
    ours: Series,
    haproxy: Series,
}

impl Ways {
    fn of(&mut self, way: Way) -> &mut Series {
        match way {
            Way::Direct => &mut self.direct,
            Way::Ours => &mut self.ours,
            Way::Haproxy => &mut self.haproxy,
        }
    }
}

impl Row {
    pub(crate) fn measure(self, args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
        let (title, measured) = match self {
            Self::Get => ("GET, one at a time", get(args, bed, table)),
            Self::Load => ("GET, 16 workers", load(args, bed, table)),
            Self::Watch => ("the watch events", watch(args, bed, table)),
            Self::List => ("the lists", list(args, bed, table)),
            Self::Instructions => return instructions(bed, table),
            Self::Judged => return judged(args, bed, table),
            Self::Memory => return memory(bed, table),
            Self::Churn => return churn(args, bed, table),
            Self::Reviews => return reviews::reviews(args, bed, table),
            Self::Paced => return reviews::paced(args, bed, table),
            Self::Storm => return reviews::storm(bed, table),
            Self::Conversions => return reviews::conversions(args, bed, table),
            Self::Leases => return leases::leases(args, bed, table),
        };
        measured?;
        let rss = |proxy: &Proxy| proxy.running.usage().map(|usage| usage.rss_mb);
        table.memory(&format!("RSS after {title}"), rss(&bed.ours)?, rss(&bed.haproxy)?, None);
        Ok(())
    }
}

fn get(args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
    let (mut p50, mut p99) = (Ways::default(), Ways::default());
    let seconds = args.seconds.to_string();
    rounds(args.rounds, "GET, one at a time", &Way::ALL, |way| {
        let figures = bed.load(
            way,
            &["--mode", "get", "--labels", LABEL, "--warmup", WARM_UP, "--seconds", &seconds],
        )?;
        p50.of(way).add(milliseconds(&figures, "p50_us")?);
        p99.of(way).add(milliseconds(&figures, "p99_us")?);
        Ok(())
    })?;
    table.added("GET, one at a time, p50", &p50.direct, &p50.ours, &p50.haproxy, 0.0);
    table.added("GET, one at a time, p99", &p99.direct, &p99.ours, &p99.haproxy, 0.0);
    Ok(())
}

fn load(args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
    let (mut throughput, mut cpu, mut cpu_of_twin) =
        (Ways::default(), Ways::default(), Series::default());
    let seconds = args.seconds.to_string();
    let twin = bed.fresh(Proxied::Ours)?;
    let measure = |proxy: Option<&Proxy>| -> Result<(f64, Option<f64>)> {
        let spent = || proxy.map(|proxy| proxy.running.cpu()).transpose();
        let before = spent()?;
        let client =
            ["--mode", "get", "--labels", LABEL, "--workers", WORKERS, "--seconds", &seconds];
        let figures = match proxy {
            Some(proxy) => bed.load_through(proxy, &client)?,
            None => bed.load(Way::Direct, &client)?,
        };
        let requests = number(&figures["requests"])?;
        let spent = before.zip(spent()?).map(|(before, after)| after - before);
        let cpu = spent.map(|spent| spent.as_secs_f64() * 1e6 / requests);
        Ok((number(&figures["per_second"])?, cpu))
    };
    let twice = args.rounds * 2;
    rounds(twice, "GET, 16 workers", &Way::ALL, |way| {
        let (per_second, spent) = measure(bed.proxy(way))?;
        throughput.of(way).add(per_second);
        if let Some(spent) = spent {
            cpu.of(way).add(spent);
        }
        if way == Way::Ours
            && let (_, Some(spent)) = measure(Some(&twin))?
        {
            cpu_of_twin.add(spent);
        }
        Ok(())
    })?;
    table.throughput(
        "GET, 16 workers, requests/s",
        &throughput.direct,
        &throughput.ours,
        &throughput.haproxy,
    );
    table.cpu("the same, proxy CPU a request", &cpu.ours, &cpu_of_twin, &cpu.haproxy);
    Ok(())
}

/// Two loads differ in nothing but their length, so their difference is that of a steady load: the
/// connection's beginning and end are in both.
fn instructions(bed: &TestBed, table: &mut Table) -> Result<()> {
    const WANTED: f64 = 100_000.0;
    let measure = |way: Proxied| -> Result<f64> {
        note(&format!("instructions of {way:?}"));
        let (proxy, counter) = bed.counted(way)?;
        counter.begin(&proxy.running)?;
        let load = |requests: u32| {
            let count = requests.to_string();
            let client =
                ["--mode", "get", "--labels", LABEL, "--workers", WORKERS, "--count", &count];
            bed.load_through(&proxy, &client)?;
            counter.take(&proxy.running)
        };
        let [few, many] = COUNTED;
        load(few)?;
        let (less, more) = (load(few)?, load(many)?);
        Ok((more - less) / f64::from(many - few))
    };
    let (ours, haproxy) = (measure(Proxied::Ours)?, measure(Proxied::Haproxy)?);
    table.count("GET, 16 workers, user instructions a request", ours, haproxy, WANTED);
    Ok(())
}

fn watch(args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
    let (mut p50, mut p99) = (Ways::default(), Ways::default());
    let seconds = args.seconds.to_string();
    let writer = bed.writer();
    rounds(args.rounds, "watch events", &Way::ALL, |way| {
        let mut client = vec!["--mode", "watch", "--labels", LABEL, "--rate", UPDATES];
        client.extend(["--seconds", &seconds]);
        client.extend(writer.iter().map(String::as_str));
        let figures = bed.load(way, &client)?;
        p50.of(way).add(milliseconds(&figures, "p50_us")?);
        p99.of(way).add(milliseconds(&figures, "p99_us")?);
        Ok(())
    })?;
    table.added("watch event, p50", &p50.direct, &p50.ours, &p50.haproxy, 0.05);
    table.added("watch event, p99", &p99.direct, &p99.ours, &p99.haproxy, 0.05);
    Ok(())
}

/// Two ctrlmesh proxies carry the same updates to one client at the same time: one judges each, the
/// other passes all on.
fn judged(args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
    let judging = bed.judging_all()?;
    let seconds = args.seconds.to_string();
    let writer = bed.writer();
    let series = || [Series::default(), Series::default()];
    let (mut p50, mut p99) = (series(), series());
    for round in 0..args.rounds {
        note(&format!("judged watch events: round {} of {}", round + 1, args.rounds));
        let mut ways = [&judging, &bed.ours];
        // The proxies take turns in opening first.
        let is_swapped = round % 2 == 1;
        if is_swapped {
            ways.reverse();
        }
        let beside = ways[1].beside();
        let mut client = vec!["--mode", "watch", "--whole", "--labels", LABEL, "--rate", UPDATES];
        client.extend(["--seconds", &seconds]);
        client.extend(writer.iter().chain(&beside).map(String::as_str));
        let figures = bed.load_through(ways[0], &client)?;
        let mut both = [&figures, &figures["beside"]];
        if is_swapped {
            both.reverse();
        }
        for (figures, (p50, p99)) in both.into_iter().zip(p50.iter_mut().zip(&mut p99)) {
            p50.add(milliseconds(figures, "p50_us")?);
            p99.add(milliseconds(figures, "p99_us")?);
        }
    }
    table.judged("watch event, p50, judged next to passed", &p50);
    table.judged("watch event, p99, judged next to passed", &p99);
    Ok(())
}

fn list(args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
    const WANTED: f64 = 1.1;
    let items = args.items.to_string();
    note(&format!("creating {items} ConfigMaps of 2 kB"));
    bed.make_namespace("lists")?;
    fill(bed, "lists", &items)?;
    let judging = bed.judging()?;
    for (encoding, flag) in [("protobuf", "--protobuf"), ("JSON", "--json")] {
        let whole = format!("list of {items} ConfigMaps of 2 kB, {encoding}");
        let half = format!("the same, half of it left out by ctrlmesh, {encoding}");
        for (title, ours) in [(whole, &bed.ours), (half, &judging)] {
            let mut seconds = Ways::default();
            rounds(args.rounds, &title, &Way::ALL, |way| {
                let args = ["--mode", "list", "--namespace", "lists", "--selector", LABEL, flag];
                let args = [&args[..], &["--count", LISTS_A_ROUND, "--warmup", "1"]].concat();
                let figures = match way {
                    Way::Ours => bed.load_through(ours, &args)?,
                    _ => bed.load(way, &args)?,
                };
                seconds.of(way).add(milliseconds(&figures, "p50_us")? / 1e3);
                Ok(())
            })?;
            table.ratio(&title, &seconds.direct, &seconds.ours, &seconds.haproxy, WANTED);
        }
    }
    let rss = |proxy: &Proxy| proxy.running.usage().map(|usage| usage.rss_mb);
    let title = "RSS after lists of which half was left out";
    table.memory(title, rss(&judging)?, rss(&bed.haproxy)?, None);
    Ok(())
}

/// Each figure is of a proxy without other traffic.
fn memory(bed: &TestBed, table: &mut Table) -> Result<()> {
    note("memory with watches");
    fill(bed, "bench", WATCHED)?;
    let measure = |watches: usize| -> Result<[f64; 2]> {
        let mut rss = [0.0; 2];
        for (at, way) in rss.iter_mut().zip(Proxied::ALL) {
            let proxy = bed.fresh(way)?;
            let client = if watches > 0 { Some(bed.watches(&proxy, watches)?) } else { None };
            *at = proxy.running.usage()?.rss_mb;
            drop(client);
        }
        Ok(rss)
    };
    let rows = [
        ("RSS after its start", 0, None),
        ("RSS with one client's 10 watches", 10, Some(15.0)),
        ("RSS with one client's 300 watches", 300, Some(30.0)),
    ];
    for (title, watches, wanted) in rows {
        let [ours, haproxy] = measure(watches)?;
        table.memory(title, ours, haproxy, wanted);
    }
    Ok(())
}

/// A leak shows as growth from the first half to the second: the first connections fill pools.
fn churn(args: &Args, bed: &TestBed, table: &mut Table) -> Result<()> {
    note(&format!("{} connections", args.cycles));
    let half = (args.cycles / 2).to_string();
    let measure = |way: Proxied| -> Result<Vec<Usage>> {
        let mut proxy = bed.fresh(way)?;
        proxy.running.await_idle(LET_GO)?;
        let mut seen = vec![proxy.running.usage()?];
        for _ in 0..2 {
            bed.load_through(
                &proxy,
                &["--mode", "churn", "--labels", LABEL, "--workers", "4", "--count", &half],
            )?;
            proxy.running.await_idle(LET_GO)?;
            seen.push(proxy.running.usage()?);
        }
        Ok(seen)
    };
    table.churn(args.cycles, &measure(Proxied::Ours)?, &measure(Proxied::Haproxy)?);
    Ok(())
}

fn fill(bed: &TestBed, namespace: &str, count: &str) -> Result<()> {
    bed.load(
        Way::Direct,
        &[
            "--mode",
            "fill",
            "--namespace",
            namespace,
            "--labels",
            LABEL,
            "--name",
            "item",
            "--count",
            count,
            "--workers",
            WORKERS,
        ],
    )?;
    Ok(())
}

/// Measures all ways in each round; the first one rotates.
fn rounds<W: Copy + Display>(
    count: u32,
    title: &str,
    ways: &[W],
    mut measure: impl FnMut(W) -> Result<()>,
) -> Result<()> {
    for round in 0..count {
        note(&format!("{title}: round {} of {count}", round + 1));
        let first = usize::try_from(round)? % ways.len();
        for way in ways.iter().cycle().skip(first).take(ways.len()) {
            measure(*way).with_context(|| format!("{title}, {way}"))?;
        }
    }
    Ok(())
}

fn milliseconds(figures: &Value, percentile: &str) -> Result<f64> {
    Ok(number(&figures["latency"][percentile])? / 1e3)
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("the client printed {value} for a number"))
}
