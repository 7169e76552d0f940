//! What must be equal, and what to print where it is not.

use std::{collections::BTreeMap, fmt::Write};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::oracle::story::{Entry, Store, Story, Told};

/// How many of what differs are printed.
const SHOWN: usize = 12;

/// Two stores, to the last byte.
pub(crate) fn same_stores(what: &str, native: &Store, ours: &Store) -> Result<()> {
    let difference = difference(native, ours, |a, b| a == b);
    ensure!(difference.is_empty(), "{what}: native and ours differ:\n{difference}");
    Ok(())
}

/// A store against a list that another client decoded.
pub(crate) fn same_as_list(list: &Store, ours: &Store) -> Result<(), String> {
    let difference = difference(list, ours, |a, b| {
        let has_data = !a.data.is_null() && !b.data.is_null();
        a.uid == b.uid && a.rv == b.rv && a.labels == b.labels && (!has_data || a.data == b.data)
    });
    if difference.is_empty() { Ok(()) } else { Err(difference) }
}

/// A store against the test's own model.
pub(crate) fn same_as_model(
    what: &str,
    model: &BTreeMap<(String, String), (String, u64)>,
    store: &Store,
) -> Result<()> {
    let held: BTreeMap<_, _> =
        store.iter().map(|(key, entry)| (key.clone(), (entry.uid.clone(), entry.rv))).collect();
    let more: Vec<_> = held.iter().filter(|(key, is)| model.get(*key) != Some(is)).collect();
    let less: Vec<_> = model.iter().filter(|(key, is)| held.get(*key) != Some(is)).collect();
    ensure!(
        more.is_empty() && less.is_empty(),
        "{what}: holds {more:?} where the model has {less:?}"
    );
    Ok(())
}

/// Two streams behind a floor.
pub(crate) fn same_streams(what: &str, floor: u64, native: &Story, ours: &Story) -> Result<()> {
    let behind = |story: &Story| -> Vec<Told> {
        story.events.iter().filter(|told| told.rv > floor).cloned().collect()
    };
    let (native, ours) = (behind(native), behind(ours));
    let Some(at) = (0..native.len().max(ours.len())).find(|at| native.get(*at) != ours.get(*at))
    else {
        return Ok(());
    };
    let window = |events: &[Told]| -> String {
        let from = at.saturating_sub(3).min(events.len());
        let to = (at + SHOWN).min(events.len());
        events[from..to].iter().map(|told| format!("    {}\n", line(told))).collect()
    };
    anyhow::bail!(
        "{what}: the streams part behind {at} events after {floor}:\n  native:\n{}  ours:\n{}",
        window(&native),
        window(&ours),
    )
}

fn difference(native: &Store, ours: &Store, is_same: impl Fn(&Entry, &Entry) -> bool) -> String {
    let mut text = String::new();
    let keys: std::collections::BTreeSet<_> = native.keys().chain(ours.keys()).collect();
    let mut count = 0;
    for key in keys {
        let (a, b) = (native.get(key), ours.get(key));
        let is_equal = match (a, b) {
            (Some(a), Some(b)) => is_same(a, b),
            _ => false,
        };
        if !is_equal {
            count += 1;
            if count <= SHOWN {
                let _ = writeln!(
                    text,
                    "    {}/{}: native {}, ours {}",
                    key.0,
                    key.1,
                    short(a),
                    short(b)
                );
            }
        }
    }
    if count > SHOWN {
        let _ = writeln!(text, "    and {} more", count - SHOWN);
    }
    text
}

fn short(entry: Option<&Entry>) -> String {
    let Some(entry) = entry else { return "has none".to_owned() };
    let Entry { uid, rv, labels, digest, .. } = entry;
    format!("has version {rv} of {uid}, labels {labels}, digest {digest}")
}

fn line(told: &Told) -> String {
    let Told { rv, kind, key, uid, digest } = told;
    format!("{rv} {kind} {}/{} {uid} {digest}", key.0, key.1)
}

/// The last lines of a program that tell of its stream, for a report.
pub(crate) fn last_lines(lines: &[Value]) -> String {
    let told: Vec<_> = lines.iter().filter(|line| line["event"] != "store").collect();
    let from = told.len().saturating_sub(SHOWN);
    let mut text = String::new();
    for line in &told[from..] {
        let line = line.to_string();
        let end = line.char_indices().nth(400).map_or(line.len(), |(at, _)| at);
        let _ = writeln!(text, "    {}", &line[..end]);
    }
    text
}
