//! The state of rings as text for people, and as JSON for programs.

use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;

use super::{
    super::table,
    state::{OverlapState, PodState, RingState},
};

/// The heads of the columns; the last is as wide as it needs.
const HEADS: [&str; 6] = ["SHARD", "POD", "UNDER WAY", "SINCE", "RENEWED", "STATE"];

/// The rings as text, at this time by the machine's clock.
pub fn text(rings: &[RingState], now: Timestamp) -> String {
    let mut text = String::new();
    for (at, ring) in rings.iter().enumerate() {
        let gap = if at == 0 { "" } else { "\n" };
        let _ = writeln!(text, "{gap}ring {} of namespace {}", ring.ring, ring.namespace);
        table::write(&mut text, "  ", &rows(ring, now));
        for overlap in &ring.overlaps {
            about(&mut text, overlap);
        }
    }
    text
}

/// The rings as a JSON array.
pub fn json(rings: &[RingState]) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(rings).map(|text| format!("{text}\n"))
}

/// The rings as a JSON array on one line.
pub(super) fn json_line(rings: &[RingState]) -> Result<String, serde_json::Error> {
    serde_json::to_string(rings).map(|text| format!("{text}\n"))
}

fn rows(ring: &RingState, now: Timestamp) -> Vec<[String; 6]> {
    let mut rows = vec![HEADS.map(str::to_owned)];
    for shard in &ring.shards {
        let name = match (&shard.shard, shard.generation) {
            (None, _) => "?".to_owned(),
            (Some(name), Some(_)) => name.clone(),
            (Some(name), None) => format!("{name} (no config)"),
        };
        if shard.pods.is_empty() {
            let none = ["-", "-", "-", "-", "has no pod"].map(str::to_owned);
            let [pod, under_way, since, renewed, says] = none;
            rows.push([name.clone(), pod, under_way, since, renewed, says]);
        }
        for PodState { pod, says, under_way, since, renewed, .. } in &shard.pods {
            let [since, renewed_for] = [since, renewed].map(|at| at.map(|at| age(at, now)));
            let has_lease = renewed.is_some();
            let under_way = if has_lease { under_way.to_string() } else { "-".to_owned() };
            let [since, renewed] =
                [since, renewed_for].map(|age| age.unwrap_or_else(|| "-".into()));
            let pod = if pod.is_empty() { "?".to_owned() } else { pod.clone() };
            rows.push([name.clone(), pod, under_way, since, renewed, says.clone()]);
        }
    }
    rows
}

fn about(text: &mut String, overlap: &OverlapState) {
    let OverlapState { shards: [elder, other], wanted_twice, limited_once } = overlap;
    if !wanted_twice.is_empty() {
        let rules = wanted_twice.join(", ");
        let _ = writeln!(
            text,
            "  {elder} and {other} both want some of {rules}: the one that has them keeps them; draw \
             the two apart"
        );
    }
    if !limited_once.is_empty() {
        let rules = limited_once.join(", ");
        let _ = writeln!(
            text,
            "  only one of {elder} and {other} limits {rules}: nothing keeps the other from those \
             objects; limit them in both"
        );
    }
}

/// A time that has passed, in at most two units. One that is in the future by the machine's clock
/// has not passed.
fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(at.as_second()).max(0);
    let [minutes, hours, days] = [60, 3600, 86_400].map(|unit| seconds / unit);
    match () {
        () if minutes == 0 => format!("{seconds}s"),
        () if hours == 0 => format!("{minutes}m{}s", seconds % 60),
        () if days == 0 => format!("{hours}h{}m", minutes % 60),
        () => format!("{days}d{}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_two_units_and_is_never_negative() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let ago = |seconds| age(Timestamp::from_second(1_700_000_000_i64 - seconds).unwrap(), now);
        let ages = [-5, 0, 59, 60, 3599, 3600, 86_399, 90_000].map(ago);
        assert_eq!(ages, ["0s", "0s", "59s", "1m0s", "59m59s", "1h0m", "23h59m", "1d1h"]);
    }
}
