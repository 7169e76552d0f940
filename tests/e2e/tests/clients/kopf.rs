//! kopf (Python): it compares no lists, and ends the timers and daemons of an object by its
//! `deletionTimestamp` alone.

use std::{
    env,
    process::Command,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy, python_client};
use serde_json::Value;

use crate::direct::bed::{Bed, LIMIT, Way, config_maps};

/// The object that stays in the shard: the ticks of its timer, four a second, are the clock.
const STAYS: &str = "stays";
/// The object that leaves and comes back.
const LEAVES: &str = "leaves";
/// The ticks after which all that belonged to an object that left has ended: two seconds.
const END: usize = 8;
/// The ticks for which the operator is observed after that.
const OBSERVED: usize = 12;

struct Operator(Program);

impl Operator {
    fn start(bed: &Bed, way: &Way<'_>) -> Result<Self> {
        let (python, client) = python_client()?;
        let mut command = Command::new(python);
        command.arg(client.with_file_name("kopf_operator.py")).arg(&bed.namespace);
        command.env("KUBECONFIG", way.kubeconfig(bed)?);
        Ok(Self(bed.program("kopf", &command)?))
    }

    fn wait_for(&self, event: &str, name: &str, since: f64) -> Result<()> {
        let is_it = |line: &Value| {
            line["event"] == event && line["name"] == name && line["at"].as_f64() >= Some(since)
        };
        let seen = self.0.wait_for(LIMIT, is_it);
        seen.map(drop).with_context(|| format!("no {event} of {name}"))
    }

    /// Waits for so many ticks from now on; returns when they began.
    fn ticks(&self, count: usize) -> Result<f64> {
        let since = now();
        let has_ticked =
            |lines: &[Value]| (times(lines, "timer", STAYS, since) >= count).then_some(());
        self.0.wait_until(LIMIT, has_ticked).context("the clock stands still")?;
        Ok(since)
    }

    /// The events of this kind about an object since a time.
    fn count(&self, event: &str, name: &str, since: f64) -> usize {
        times(&self.0.lines(), event, name, since)
    }

    /// One timer and one daemon work on the object, not two, and none is missing.
    fn works_once_on(&self, name: &str) -> Result<()> {
        self.wait_for("timer", name, now())?;
        self.wait_for("daemon", name, now())?;
        let since = self.ticks(OBSERVED)?;
        for event in ["timer", "daemon"] {
            let count = self.count(event, name, since);
            let is_one = (OBSERVED / 3..OBSERVED * 3 / 2).contains(&count);
            ensure!(is_one, "{event} of {name}: {count} times in {OBSERVED} ticks");
        }
        Ok(())
    }

    fn leaves_alone(&self, name: &str, since: f64) -> Result<()> {
        for event in ["timer", "daemon", "daemon begins", "deleted"] {
            let count = self.count(event, name, since);
            ensure!(count == 0, "{event} of {name}: {count} times after it left");
        }
        Ok(())
    }

    /// The time of the last event about an object.
    fn last(&self, name: &str) -> f64 {
        let lines = self.0.lines();
        let times = lines.iter().filter(|line| line["name"] == name);
        times.filter_map(|line| line["at"].as_f64()).fold(0.0, f64::max)
    }
}

/// Moves the boundary. In every other round the proxy is killed at that, each time a bit later after
/// the change of its file, which it reads each half second: the watches are brought over by it, by
/// half, or by the next process.
#[expect(clippy::disallowed_methods, reason = "the moment of the kill, not the wait for an event")]
fn moves_to(proxy: &mut Proxy, teams: &[&str], round: usize) -> Result<()> {
    if round.is_multiple_of(2) {
        return proxy.change_policy(&config_maps(teams)).map(drop);
    }
    proxy.set_policy(&config_maps(teams))?;
    thread::sleep(Duration::from_millis(350 + 20 * (round as u64 % 10)));
    proxy.kill()?;
    proxy.start_again()
}

fn times(lines: &[Value], event: &str, name: &str, since: f64) -> usize {
    let is_it = |line: &&Value| {
        line["event"] == event && line["name"] == name && line["at"].as_f64() >= Some(since)
    };
    lines.iter().filter(is_it).count()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[test]
fn kopf_works_on_the_objects_of_its_shard_alone_while_they_leave_and_come_back() -> Result<()> {
    let moves = env::var("MOVES").ok().map_or(Ok(2), |moves| moves.parse::<usize>())?;
    let bed = Bed::new("kopf")?;
    bed.config_map(LEAVES, "team=a,kopf=yes")?;
    bed.config_map(STAYS, "team=b,kopf=yes")?;
    let mut proxy = bed.proxy(&["a", "b"])?;
    let operator = Operator::start(&bed, &Way::Through(&proxy))?;
    for name in [LEAVES, STAYS] {
        operator.wait_for("daemon begins", name, 0.0)?;
        operator.works_once_on(name)?;
    }
    let mut slowest = 0.0_f64;
    for round in 0..moves {
        let context = || format!("move {round}");
        let moved = now();
        moves_to(&mut proxy, &["b"], round)?;
        operator.wait_for("daemon ends", LEAVES, moved).with_context(context)?;
        operator.ticks(END)?;
        let since = operator.ticks(OBSERVED)?;
        operator.leaves_alone(LEAVES, since).with_context(context)?;
        slowest = slowest.max(operator.last(LEAVES) - moved);

        let back = now();
        moves_to(&mut proxy, &["a", "b"], round)?;
        operator.wait_for("daemon begins", LEAVES, back).with_context(context)?;
        for name in [LEAVES, STAYS] {
            operator.works_once_on(name).with_context(context)?;
        }
        ensure!(operator.count("daemon begins", LEAVES, back) == 1, "move {round}: two daemons");
    }
    for name in [LEAVES, STAYS] {
        ensure!(operator.count("deleted", name, 0.0) == 0, "{name} was not deleted");
    }
    ensure!(proxy.metric(r#"ctrlmesh_stream_changes_total{how="expired"}"#).unwrap_or(0.0) == 0.0);
    println!(
        "kopf: {moves} moves out and back; the last timer and daemon ended after {slowest:.2} s"
    );
    Ok(())
}
