//! kopf (Python): it compares no lists, and ends the timers and daemons of an object by its
//! `deletionTimestamp` alone.
//!
//! Two shards with an operator each; an object goes from one to the other and back.

use std::{
    env,
    process::Command,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy, Rule, ServiceAccount, python_client};
use serde_json::Value;

use crate::direct::bed::{Bed, LIMIT, config_maps, seconds};

/// The object that goes to and fro.
const MOVES: &str = "moves";
/// The ticks after which all that belonged to an object that left has ended: two seconds.
const END: usize = 8;
/// The ticks for which operators are observed after that.
const OBSERVED: usize = 12;

/// An operator, its proxy and its account: a shard.
struct Shard<'a> {
    /// The object that stays: the ticks of its timer, four a second, are the clock. Its label `team` has
    /// the same value, and so has the account its name.
    own: &'static str,
    bed: &'a Bed,
    proxy: Proxy,
    account: ServiceAccount,
    operator: Program,
    /// When it was told of the object, and when it was told that it is its no more.
    had: Vec<(f64, f64)>,
}

impl<'a> Shard<'a> {
    fn start(bed: &'a Bed, own: &'static str, teams: &[&str]) -> Result<Self> {
        bed.config_map(own, &format!("team={own},kopf=yes"))?;
        let account = bed.api.service_account(&bed.namespace, own, &[Rule::all()])?;
        let proxy = bed.proxy(teams)?;
        let (python, client) = python_client()?;
        let mut command = Command::new(python);
        command.arg(client.with_file_name("kopf_operator.py")).arg(&bed.namespace);
        command.env("KUBECONFIG", proxy.kubeconfig(&bed.api, &account.token)?);
        let operator = bed.program("kopf", &command)?;
        let shard = Self { own, bed, proxy, account, operator, had: Vec::new() };
        shard.wait_for("daemon begins", own, 0.0)?;
        shard.works_once_on(own)?;
        Ok(shard)
    }

    fn wait_for(&self, event: &str, name: &str, since: f64) -> Result<()> {
        let is_it = |line: &Value| {
            line["event"] == event && line["name"] == name && line["at"].as_f64() >= Some(since)
        };
        let seen = self.operator.wait_for(LIMIT, is_it);
        seen.map(drop).with_context(|| format!("{}: no {event} of {name}", self.own))
    }

    /// Waits for so many ticks from now on; returns when they began.
    fn ticks(&self, count: usize) -> Result<f64> {
        let since = now();
        let has_ticked =
            |lines: &[Value]| (times(lines, "timer", self.own, since) >= count).then_some(());
        self.operator.wait_until(LIMIT, has_ticked).context("the clock stands still")?;
        Ok(since)
    }

    /// The events of this kind about an object since a time.
    fn count(&self, event: &str, name: &str, since: f64) -> usize {
        times(&self.operator.lines(), event, name, since)
    }

    /// One timer and one daemon work on the object, not two, and none is missing.
    fn works_once_on(&self, name: &str) -> Result<()> {
        self.wait_for("timer", name, now())?;
        self.wait_for("daemon", name, now())?;
        let since = self.ticks(OBSERVED)?;
        for event in ["timer", "daemon"] {
            let count = self.count(event, name, since);
            let is_one = (OBSERVED / 3..OBSERVED * 3 / 2).contains(&count);
            ensure!(is_one, "{}: {event} of {name}: {count} in {OBSERVED} ticks", self.own);
        }
        Ok(())
    }

    /// The object comes, and one timer and one daemon work on it.
    fn takes(&mut self, teams: &[&str], is_killed: Option<usize>) -> Result<()> {
        let came = now();
        self.moves_to(teams, is_killed)?;
        self.wait_for("daemon begins", MOVES, came)?;
        for name in [MOVES, self.own] {
            self.works_once_on(name)?;
        }
        ensure!(self.count("daemon begins", MOVES, came) == 1, "{}: two daemons", self.own);
        self.had.push((came, f64::INFINITY));
        Ok(())
    }

    /// The object leaves, and after two seconds nothing works on it. Returns after how many seconds the
    /// last event came.
    fn gives(&mut self, teams: &[&str], is_killed: Option<usize>) -> Result<f64> {
        let left = now();
        self.moves_to(teams, is_killed)?;
        self.wait_for("daemon ends", MOVES, left)?;
        self.ticks(END)?;
        let since = self.ticks(OBSERVED)?;
        for event in ["timer", "daemon", "daemon begins", "deleted"] {
            let count = self.count(event, MOVES, since);
            ensure!(count == 0, "{}: {event} {count} times after it left", self.own);
        }
        let lines = self.operator.lines();
        let events = lines.iter().filter(|line| line["name"] == MOVES);
        let last = events.filter_map(|line| line["at"].as_f64()).fold(0.0, f64::max);
        self.had.last_mut().context("it had it")?.1 = last.max(left);
        Ok(last - left)
    }

    /// Moves the boundary. A proxy that is killed is killed each time a bit later after the change of its
    /// file, which it reads each half second: the watches are brought over by it, by half, or by the next
    /// process.
    #[expect(clippy::disallowed_methods, reason = "the moment of the kill, not the wait for one")]
    fn moves_to(&mut self, teams: &[&str], is_killed: Option<usize>) -> Result<()> {
        let Some(round) = is_killed else {
            return self.proxy.change_policy(&config_maps(teams)).map(drop);
        };
        self.proxy.set_policy(&config_maps(teams))?;
        thread::sleep(Duration::from_millis(350 + 20 * (round as u64 % 10)));
        self.proxy.kill()?;
        self.proxy.start_again()
    }

    /// Each write of the object, as the API server knows it, was by the shard that had it then.
    fn wrote_its_own_alone(&self) -> Result<usize> {
        let user = format!("system:serviceaccount:{}:{}", self.bed.namespace, self.own);
        let mut writes = 0;
        for entry in self.bed.api.audit().entries()? {
            let of = entry.object_ref.unwrap_or_default();
            let is_write = ["patch", "update", "delete"].contains(&entry.verb.as_str());
            if !is_write || entry.user.username != user || of.name != MOVES {
                continue;
            }
            writes += 1;
            let at = seconds(&entry.request_received_timestamp)?;
            // The write of a timer's last run follows it.
            let had = self.had.iter().any(|(from, to)| *from <= at && at <= *to + 0.5);
            ensure!(had, "{}: a write at {at}, but it had the object {:?}", self.own, self.had);
        }
        ensure!(writes > 0, "{} wrote nothing", self.account.kubeconfig.display());
        Ok(writes)
    }

    fn ends(&self) -> Result<usize> {
        for name in [MOVES, self.own] {
            ensure!(self.count("deleted", name, 0.0) == 0, "{name} was not deleted");
        }
        let expired = self.proxy.metric(r#"ctrlmesh_stream_changes_total{how="expired"}"#)?;
        ensure!(expired == 0.0, "{expired} watches got a 410");
        self.wrote_its_own_alone()
    }
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
    let moves = env::var("MOVES").ok().map_or(Ok(1), |moves| moves.parse::<usize>())?;
    let bed = Bed::new("kopf")?;
    bed.config_map(MOVES, "team=a,kopf=yes")?;
    let mut blue = Shard::start(&bed, "blue", &["a", "blue"])?;
    blue.wait_for("daemon begins", MOVES, 0.0)?;
    blue.works_once_on(MOVES)?;
    blue.had.push((0.0, f64::INFINITY));
    let mut green = Shard::start(&bed, "green", &["green"])?;
    let mut slowest = 0.0_f64;
    for round in 0..moves {
        let is_even = round.is_multiple_of(2);
        let [kills_blue, kills_green] = [!is_even, is_even].map(|is_it| is_it.then_some(round));
        let mut go = || -> Result<()> {
            slowest = slowest.max(blue.gives(&["blue"], kills_blue)?);
            green.takes(&["a", "green"], kills_green)?;
            slowest = slowest.max(green.gives(&["green"], kills_green)?);
            blue.takes(&["a", "blue"], kills_blue)
        };
        go().with_context(|| format!("move {round}"))?;
    }
    let writes = blue.ends()? + green.ends()?;
    println!(
        "kopf: {moves} moves out and back; the last timer and daemon ended after {slowest:.2} s; \
         {writes} writes, each by the shard that had the object"
    );
    Ok(())
}
