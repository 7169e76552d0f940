//! The records of informers: which shard had which object from when to when.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::handover::moves::{SHARDS, TEAMS, Teams};

/// The time by which a proxy may be late to send what it has written: two cores are shared by all.
const SCHEDULING: Duration = Duration::from_millis(50);

/// The time in which a pod of a shard had an object.
#[derive(Clone, Debug)]
struct Held {
    shard: usize,
    pod: usize,
    from: Timestamp,
    /// `None` if it has it still.
    to: Option<Timestamp>,
}

/// Everything that the informers were told.
#[derive(Debug, Default)]
pub(crate) struct Records {
    of_team: BTreeMap<&'static str, Vec<Held>>,
    pods: usize,
    relists: usize,
}

/// An object that two shards had at once.
#[derive(Debug)]
#[expect(dead_code, reason = "a failure prints it")]
pub(crate) struct Twice {
    team: &'static str,
    shards: [&'static str; 2],
    since: Timestamp,
    for_: Duration,
}

/// The teams that a client has now.
pub(crate) fn held(lines: &[Value]) -> Teams {
    let mut held = Teams::new();
    for line in lines {
        match (line["event"].as_str(), team(line)) {
            (Some("added" | "updated"), Some(team)) => drop(held.insert(team)),
            (Some("deleted" | "missed-delete"), Some(team)) => drop(held.remove(team)),
            _ => {}
        }
    }
    held
}

fn team(line: &Value) -> Option<&'static str> {
    let name = line["object"]["name"].as_str()?;
    TEAMS.into_iter().find(|team| *team == name)
}

impl Records {
    /// Adds the lines of the informer of a shard's pod, which had its end at this time.
    pub(crate) fn add(
        &mut self,
        shard: usize,
        lines: &[Value],
        end: Option<Timestamp>,
    ) -> Result<()> {
        let pod = self.pods;
        self.pods += 1;
        let lists = lines.iter().filter(|line| {
            // A list, or a stream that begins with one.
            (line["event"] == "list" && line["continue"] == false)
                || (line["event"] == "watch" && line["initialEvents"] == true)
        });
        self.relists += lists.filter(|line| line["error"].is_null()).count().saturating_sub(1);
        for line in lines {
            let Some(team) = team(line) else { continue };
            // Not when the informer came to print it, which on a busy machine is later.
            let time = line["received"].as_str().context("a line without the time of arrival")?;
            let time: Timestamp = time.parse().context("a time")?;
            let all = self.of_team.entry(team).or_default();
            let open = all.iter_mut().find(|held| held.pod == pod && held.to.is_none());
            match (line["event"].as_str(), open) {
                (Some("added" | "updated"), None) => {
                    all.push(Held { shard, pod, from: time, to: None })
                }
                (Some("deleted" | "missed-delete"), Some(open)) => open.to = Some(time),
                _ => {}
            }
        }
        for held in self.of_team.values_mut().flatten().filter(|held| held.pod == pod) {
            held.to = held.to.or(end);
        }
        Ok(())
    }

    /// The times of the moves after the edit, in seconds. The first are from `edit` until each pod
    /// that gained an object had it. The second are from when no pod had it until then.
    pub(crate) fn moves_since(&self, edit: Timestamp) -> [Vec<f64>; 2] {
        let [mut opened, mut unowned] = [Vec::new(), Vec::new()];
        for all in self.of_team.values() {
            let gains: Vec<_> = all.iter().filter(|held| held.from >= edit).collect();
            opened.extend(gains.iter().map(|held| held.from.duration_since(edit).as_secs_f64()));
            let lost = all.iter().filter_map(|held| held.to).filter(|to| *to >= edit).max();
            let gained = gains.iter().map(|held| held.from).min();
            if let (Some(lost), Some(gained)) = (lost, gained) {
                unowned.push(gained.duration_since(lost).as_secs_f64());
            }
        }
        [opened, unowned]
    }

    /// How often informers have listed but for the first time.
    pub(crate) fn relists(&self) -> usize {
        self.relists
    }

    /// The objects that two shards had for longer than a proxy may be late.
    pub(crate) fn twice(&self) -> Vec<Twice> {
        self.overlaps().filter(|twice| twice.for_ > SCHEDULING).collect()
    }

    /// The longest time for which two shards had an object.
    pub(crate) fn longest_twice(&self) -> Duration {
        self.overlaps().map(|twice| twice.for_).max().unwrap_or_default()
    }

    fn overlaps(&self) -> impl Iterator<Item = Twice> {
        self.of_team.iter().flat_map(|(team, all)| {
            all.iter().enumerate().flat_map(move |(at, one)| {
                let others = all.iter().skip(at + 1).filter(|other| other.shard != one.shard);
                others.filter_map(|other| {
                    let for_ = one.overlap(other)?;
                    let shards = [SHARDS[one.shard], SHARDS[other.shard]];
                    Some(Twice { team, shards, since: one.from.max(other.from), for_ })
                })
            })
        })
    }
}

impl Held {
    /// The time for which both had it.
    fn overlap(&self, other: &Self) -> Option<Duration> {
        let from = self.from.max(other.from);
        let to = match (self.to, other.to) {
            (Some(one), Some(other)) => one.min(other),
            (one, other) => one.or(other).unwrap_or_else(Timestamp::now),
        };
        Duration::try_from(to.duration_since(from)).ok().filter(|time| !time.is_zero())
    }
}
