//! The stores of unmodified informers against an oracle: a fresh informer with a native selector,
//! straight at the API server.

mod boundaries;
mod namespaces;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy, go_clients};
use serde_json::Value;

use crate::direct::bed::{Bed, LIMIT, Way, config_maps};

/// What a store holds: resourceVersion and labels by uid.
pub(crate) type Store = BTreeMap<String, (String, String)>;

/// The kinds of informers that go through the proxy.
const KINDS: [(&str, &[&str]); 6] = [
    ("protobuf, streamed list", &[]),
    ("protobuf, paged list", &["--watchlist=false"]),
    ("JSON, streamed list", &["--json"]),
    ("JSON, paged list, HTTP/1.1", &["--json", "--watchlist=false", "--http1"]),
    ("metadata", &["--metadata"]),
    ("protobuf, HTTP/1.1", &["--http1"]),
];

/// The store that the events of an informer make up so far.
pub(crate) fn from_events(lines: &[Value]) -> Store {
    let mut store = Store::new();
    for line in lines {
        let object = &line["object"];
        let uid = object["uid"].as_str().unwrap_or_default().to_owned();
        match line["event"].as_str() {
            Some("added" | "updated") => drop(store.insert(uid, content(object))),
            Some("deleted" | "missed-delete") => drop(store.remove(&uid)),
            _ => {}
        }
    }
    store
}

pub(crate) fn content(object: &Value) -> (String, String) {
    (object["rv"].as_str().unwrap_or_default().to_owned(), object["labels"].to_string())
}

/// What an informer says its store holds.
pub(crate) fn printed(program: &mut Program) -> Result<Store> {
    let line = program.ask("", "store", LIMIT)?;
    let objects = line["objects"].as_array().context("a store has objects")?;
    let uid = |object: &Value| object["uid"].as_str().unwrap_or_default().to_owned();
    Ok(objects.iter().map(|object| (uid(object), content(object))).collect())
}

/// The store of a fresh informer with a native selector.
pub(crate) fn oracle(bed: &Bed, teams: &BTreeSet<&str>) -> Result<Store> {
    let selector = format!("team in ({})", Vec::from_iter(teams.iter().copied()).join(","));
    let mut fresh = bed.clients(&Way::Straight, "informer", &["--selector", &selector])?;
    fresh.wait_for(LIMIT, |line| line["event"] == "synced")?;
    let store = printed(&mut fresh)?;
    fresh.finish(LIMIT)?;
    Ok(store)
}

/// Waits until the informer's events make up this store, and asks it whether it is so.
pub(crate) fn expect_store(what: &str, program: &mut Program, expected: &Store) -> Result<()> {
    let mut differs = String::new();
    program
        .wait_until(LIMIT, |lines| {
            let store = from_events(lines);
            let (more, less): (Vec<_>, Vec<_>) = (
                store.iter().filter(|(uid, is)| expected.get(*uid) != Some(is)).collect(),
                expected.iter().filter(|(uid, is)| store.get(*uid) != Some(is)).collect(),
            );
            differs = format!("it has {more:?} where it should have {less:?}");
            (more.is_empty() && less.is_empty()).then_some(())
        })
        .with_context(|| format!("{what}: {differs}"))?;
    ensure!(printed(program)? == *expected, "{what}: the store is not what its events say");
    Ok(())
}

/// Random creates, relabels, touches and deletes, straight at the API server.
pub(crate) struct History {
    random: fastrand::Rng,
    living: Vec<String>,
    next: usize,
    ends: usize,
}

impl History {
    const TEAMS: [&str; 3] = ["a", "b", "c"];

    /// `CTRLMESH_SEED` repeats a history that was printed.
    pub(crate) fn new(test: &str) -> Self {
        let given = std::env::var("CTRLMESH_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        println!("{test}: CTRLMESH_SEED={seed}");
        Self { random: fastrand::Rng::with_seed(seed), living: Vec::new(), next: 0, ends: 0 }
    }

    /// So many steps, and an object that each team's shard has not had before. Without it a store
    /// could become the last one early and once more: an object may come and go in between.
    pub(crate) fn go_on(&mut self, bed: &Bed, steps: usize) -> Result<()> {
        for _ in 0..steps {
            self.step(bed)?;
        }
        self.ends += 1;
        for team in Self::TEAMS {
            bed.config_map(&format!("end-{}-{team}", self.ends), &format!("team={team}"))?;
        }
        Ok(())
    }

    fn step(&mut self, bed: &Bed) -> Result<()> {
        let team = self.random.choice(Self::TEAMS).filter(|_| self.random.u8(..5) > 0);
        let choice = self.random.u8(..10);
        if self.living.is_empty() || choice < 4 {
            self.next += 1;
            let name = format!("object-{}", self.next);
            let labels = team.map(|team| format!("team={team}")).unwrap_or_default();
            bed.config_map(&name, &labels)?;
            self.living.push(name);
            return Ok(());
        }
        let at = self.random.usize(..self.living.len());
        if choice < 8 {
            bed.relabel(&self.living[at], team)?;
        } else {
            bed.delete(&self.living.swap_remove(at))?;
        }
        Ok(())
    }

    /// A set of teams other than `present`.
    pub(crate) fn other_teams(
        &mut self,
        present: &BTreeSet<&'static str>,
    ) -> BTreeSet<&'static str> {
        loop {
            let teams: BTreeSet<_> =
                Self::TEAMS.into_iter().filter(|_| self.random.bool()).collect();
            if !teams.is_empty() && teams != *present {
                return teams;
            }
        }
    }
}

fn scope(teams: &BTreeSet<&str>) -> String {
    config_maps(&Vec::from_iter(teams.iter().copied()))
}

#[test]
fn informers_have_the_store_of_a_native_selector_over_policy_changes() -> Result<()> {
    let bed = Bed::new("stores")?;
    let mut history = History::new("stores");
    let mut teams = BTreeSet::from(["a"]);
    history.go_on(&bed, 30)?;
    let proxy = Proxy::builder("mine", &scope(&teams)).start(&bed.api)?;
    let mut informers = KINDS
        .iter()
        .map(|(kind, args)| Ok((*kind, bed.clients(&Way::Through(&proxy), "informer", args)?)))
        .collect::<Result<Vec<_>>>()?;
    for change in 0..4 {
        if change > 0 {
            // In the middle of the writes, so that some fall on either side of the change.
            history.go_on(&bed, 10)?;
            teams = history.other_teams(&teams);
            proxy.set_policy(&scope(&teams))?;
        }
        history.go_on(&bed, 30)?;
        let expected = oracle(&bed, &teams)?;
        println!("stores: after change {change}, {teams:?} has {} objects", expected.len());
        for (kind, informer) in &mut informers {
            let what = format!("{kind}, change {change} to {teams:?}");
            expect_store(&what, informer, &expected)?;
        }
    }
    for (kind, informer) in informers {
        let summary = informer.finish(LIMIT)?.pop().context("a summary")?;
        println!(
            "stores: {kind}: {} lists, {} watches ({} streamed lists), {} watch errors",
            summary["count_lists"],
            summary["count_watches"],
            summary["count_watchLists"],
            summary["count_watchErrors"],
        );
    }
    Ok(())
}

#[test]
fn informers_agree_with_their_own_lists_without_a_change() -> Result<()> {
    let bed = Bed::new("detector")?;
    let mut history = History::new("detector");
    history.go_on(&bed, 30)?;
    let proxy = bed.proxy(&["a"])?;
    let mut informers = Vec::new();
    for (kind, args) in
        [("protobuf", &[][..]), ("JSON", &["--json"]), ("metadata", &["--metadata"])]
    {
        let mut command: Command = bed.clients_command(&Way::Through(&proxy), "informer")?;
        // client-go then lists after a streamed list, and panics when the two differ.
        command.args(args).env("KUBE_WATCHLIST_INCONSISTENCY_DETECTOR", "true");
        informers.push((kind, bed.program("informer", &command)?));
    }
    history.go_on(&bed, 60)?;
    let expected = oracle(&bed, &BTreeSet::from(["a"]))?;
    for (kind, informer) in &mut informers {
        expect_store(kind, informer, &expected)?;
    }
    for (kind, informer) in informers {
        let summary = informer.finish(LIMIT)?.pop().context("a summary")?;
        ensure!(summary["count_watchErrors"] == 0, "{kind}: {summary}");
        ensure!(
            summary["count_watches"] == 1 && summary["count_watchLists"] == 1,
            "{kind}: {summary}"
        );
        // The detector's own list.
        ensure!(summary["count_lists"] == 1, "{kind}: the detector did not run: {summary}");
    }
    ensure!(go_clients()?.exists());
    Ok(())
}

#[test]
fn t07_an_event_does_not_wait_for_the_next() -> Result<()> {
    let bed = Bed::new("t07")?;
    let proxy = bed.proxy(&["a"])?;
    for (kind, args) in KINDS {
        let informer = bed.clients(&Way::Through(&proxy), "informer", args)?;
        informer.wait_for(LIMIT, |line| line["event"] == "synced")?;
        // Each of these is the last event that there is when it is waited for.
        for name in ["one", "two", "three"] {
            bed.config_map(name, "team=a")?;
            let told = |event: &'static str| {
                move |line: &Value| line["event"] == event && line["object"]["name"] == name
            };
            informer.wait_for(LIMIT, told("added")).context(kind)?;
            bed.delete(name)?;
            informer.wait_for(LIMIT, told("deleted")).context(kind)?;
        }
        informer.finish(LIMIT)?;
    }
    Ok(())
}
