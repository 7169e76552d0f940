//! The proxy is away for longer than clients pause. Several clients of one resource then come back
//! one after the other. None may go on with a store of another shard because another client was
//! shown something first.
//!
//! `ABSENCES=20` makes that many rounds instead of three.

use std::{
    collections::BTreeSet,
    env,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Front, Program, Proxy, python_client};
use serde_json::Value;

use crate::direct::{
    bed::{Bed, Way, config_maps},
    stores::{History, Store, content, from_events, oracle, printed},
};

const ROUNDS: usize = 3;
/// client-go pauses for 0.8 s first, kube-rs for as long.
const AWAY: Duration = Duration::from_secs(5);
/// By so much the second of two API servers is behind: less than a server waits for its cache.
const BEHIND: Duration = Duration::from_millis(1500);
/// After this absence some wait for half a minute before they ask again.
const LIMIT: Duration = Duration::from_secs(120);

/// client-go's informers: to stream a list and to page it, in all encodings.
const GO: [&[&str]; 6] = [
    &[],
    &["--json"],
    &["--metadata"],
    &["--watchlist=false"],
    &["--json", "--watchlist=false"],
    &["--json", "--watchlist=false", "--http1"],
];

struct Informer {
    name: String,
    program: Program,
    /// The store that what it printed makes up.
    holds: fn(&[Value]) -> Store,
}

impl Informer {
    /// Whether its store becomes this one.
    fn expect(&mut self, what: &str, expected: &Store) -> Result<()> {
        let Self { name, program, holds } = self;
        let mut held = Store::new();
        let waited = program.wait_until(LIMIT, |lines| {
            held = holds(lines);
            (held == *expected).then_some(())
        });
        waited.with_context(|| {
            let foreign = held.keys().filter(|uid| !expected.contains_key(*uid)).count();
            let missing = expected.keys().filter(|uid| !held.contains_key(*uid)).count();
            format!(
                "{what}: {name} holds {} objects, {foreign} of others, and lacks {missing} of {}",
                held.len(),
                expected.len()
            )
        })?;
        ensure!(printed(program)? == *expected, "{what}: {name} prints another store");
        Ok(())
    }

    /// How often it has listed, if it says so.
    fn lists(&mut self) -> Result<Option<u64>> {
        let store = self.program.ask("", "store", LIMIT)?;
        let count = |name: &str| store[name].as_u64();
        Ok(count("count_lists").map(|lists| lists + count("count_watchLists").unwrap_or_default()))
    }
}

fn informers(bed: &Bed, proxy: &Proxy) -> Result<Vec<Informer>> {
    let way = Way::Through(proxy);
    let mut all = Vec::new();
    for args in GO {
        let program = bed.clients(&way, "informer", args)?;
        all.push(Informer { name: format!("client-go {args:?}"), program, holds: from_events });
    }
    let kubeconfig = way.kubeconfig(bed)?;
    for streaming in [true, false] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kube-client"));
        command.args(["reflector", "--namespace", &bed.namespace]);
        command.args(streaming.then_some("--streaming")).arg("--kubeconfig").arg(&kubeconfig);
        let program = bed.program("reflector", &command)?;
        all.push(Informer {
            name: format!("kube, streaming {streaming}"),
            program,
            holds: replayed,
        });
    }
    let program = python(bed, &kubeconfig)?;
    all.push(Informer { name: "Python".to_owned(), program, holds: replayed });
    Ok(all)
}

fn python(bed: &Bed, kubeconfig: &Path) -> Result<Program> {
    let (python, program) = python_client()?;
    let mut command = Command::new(python);
    command.arg(program).args(["listwatch", "--content", "--persist"]);
    command.args(["--namespace", &bed.namespace]).arg("--kubeconfig").arg(kubeconfig);
    bed.program("python", &command)
}

/// What lists and events make up.
fn replayed(lines: &[Value]) -> Store {
    let uid = |object: &Value| object["uid"].as_str().unwrap_or_default().to_owned();
    let mut store = Store::new();
    for line in lines {
        let object = &line["object"];
        match (line["event"].as_str(), line["type"].as_str()) {
            (Some("list"), _) => {
                let objects = line["objects"].as_array().into_iter().flatten();
                store = objects.map(|object| (uid(object), content(object))).collect();
            }
            (Some("wire"), Some("DELETED")) => drop(store.remove(&uid(object))),
            (Some("wire"), Some("BOOKMARK")) => {}
            (Some("wire"), _) => drop(store.insert(uid(object), content(object))),
            _ => {}
        }
    }
    store
}

fn scope(teams: &BTreeSet<&str>) -> String {
    config_maps(&Vec::from_iter(teams.iter().copied()))
}

fn rounds() -> Result<usize> {
    let text = env::var("ABSENCES").ok().filter(|text| !text.is_empty());
    text.map_or(Ok(ROUNDS), |text| text.parse().with_context(|| format!("ABSENCES={text}")))
}

/// In turn the policy changes while the proxy is away, never, and when it is back.
fn come_back(bed: &Bed, front: Option<&Front>, keeps_state: bool) -> Result<()> {
    let name = &bed.namespace;
    let mut history = History::new(name);
    history.go_on(bed, 60)?;
    let mut teams = BTreeSet::from(["a"]);
    let mut builder = Proxy::builder("mine", &scope(&teams));
    if let Some(front) = front {
        builder = builder.upstream(&front.address().to_string());
    }
    let mut proxy = if keeps_state { builder.keeps_state() } else { builder }.start(&bed.api)?;
    let mut informers = informers(bed, &proxy)?;
    let expected = oracle(bed, &teams)?;
    for informer in &mut informers {
        informer.expect("at the start", &expected)?;
    }
    for round in 0..rounds()? {
        // A watch that has shown nothing is begun again by a list.
        let team = teams.first().context("a shard has a team")?;
        bed.config_map(&format!("shown-{round}"), &format!("team={team}"))?;
        history.go_on(bed, 10)?;
        let expected = oracle(bed, &teams)?;
        let mut lists = Vec::new();
        for informer in &mut informers {
            informer.expect(&format!("round {round}, before the kill"), &expected)?;
            lists.push(informer.lists()?);
        }
        proxy.kill()?;
        let began = Instant::now();
        history.go_on(bed, 20)?;
        if round % 3 == 0 {
            teams = history.other_teams(&teams);
            proxy.set_policy(&scope(&teams))?;
        }
        pass(AWAY.saturating_sub(began.elapsed()));
        proxy.start_again()?;
        if round % 3 == 2 {
            teams = history.other_teams(&teams);
            proxy.change_policy(&scope(&teams))?;
        }
        history.go_on(bed, 10)?;
        let expected = oracle(bed, &teams)?;
        let what = format!("round {round}, back with {teams:?}");
        for (informer, lists) in informers.iter_mut().zip(lists) {
            informer.expect(&what, &expected)?;
            let is_same = round % 3 == 1 && keeps_state;
            let now = informer.lists()?;
            ensure!(!is_same || now == lists, "{what}: {} listed again", informer.name);
        }
        println!("{name}: {what}: all of {} are right", informers.len());
    }
    Ok(())
}

#[test]
fn t76_all_clients_of_a_resource_come_back_to_the_present_shard() -> Result<()> {
    come_back(&Bed::new("absence")?, None, true)
}

#[test]
fn t76_all_clients_come_back_to_it_without_a_state_directory() -> Result<()> {
    come_back(&Bed::new("absence_forgot")?, None, false)
}

/// Every other connection is one to a server that is behind: what it shows is older than what a
/// client of another connection holds.
fn come_back_behind(name: &str, keeps_state: bool) -> Result<()> {
    let bed = Bed::with_own_server(name)?;
    let slow = bed.api.beside()?;
    slow.fall_behind(BEHIND)?;
    let front = Front::start(vec![bed.api.address(), slow.address()])?;
    come_back(&bed, Some(&front), keeps_state)?;
    let user = bed.account.user();
    let mut asked = slow.audit().entries()?.into_iter().filter(|entry| entry.user.username == user);
    ensure!(asked.any(|entry| entry.verb == "watch"), "no one watched by the server behind");
    Ok(())
}

#[test]
fn t76_all_clients_come_back_where_one_api_server_is_behind() -> Result<()> {
    come_back_behind("absence_behind", true)
}

#[test]
fn t76_all_clients_come_back_without_a_state_directory_where_one_is_behind() -> Result<()> {
    come_back_behind("absence_behind_forgot", false)
}

#[allow(clippy::disallowed_methods, reason = "the absence is as long as it is said to be")]
fn pass(time: Duration) {
    thread::sleep(time);
}
