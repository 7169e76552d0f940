//! What a policy change costs, and whom.

use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy};
use serde_json::Value;

use crate::bed::{Bed, LIMIT, Way, config_maps, seconds};

/// From the policy being in force to the 410 at the client.
const TOLD_WITHIN: f64 = 0.3;
/// How often the file is looked at, and the machine's slack with it.
const FILE_LOOK: f64 = 0.6;

fn ended(program: &Program) -> Vec<Value> {
    program.lines().into_iter().filter(|line| line["event"] == "ended").collect()
}

/// Changes the policy: how long until it was in force, and how much later each of the watches (so
/// many a program) had its 410; in seconds, sorted.
fn change(proxy: &Proxy, affected: &[Program], counts: &[usize]) -> Result<(f64, Vec<f64>)> {
    let written = proxy.set_policy(&config_maps(&["a", "b"]))?;
    let written = written.duration_since(UNIX_EPOCH)?.as_secs_f64();
    let line = proxy
        .wait_for_line(LIMIT, |line| line["message"] == "policy in force" && line["epoch"] == 2)?;
    let in_force = seconds(line["timestamp"].as_str().context("a line has a time")?)?;
    let mut told = Vec::new();
    for (program, count) in affected.iter().zip(counts) {
        program.wait_until(LIMIT, |lines| {
            let all = lines.iter().filter(|line| line["event"] == "ended").count();
            (all == *count).then_some(())
        })?;
        for line in ended(program) {
            ensure!(line["reason"] == "Expired", "{line}");
            told.push(seconds(line["time"].as_str().context("a time")?)? - in_force);
        }
    }
    told.sort_by(f64::total_cmp);
    Ok((in_force - written, told))
}

#[test]
fn affected_watches_have_their_410_in_time_and_others_are_untouched() -> Result<()> {
    let bed = Bed::alone("policy_change")?;
    let proxy = bed.proxy(&["a"])?;
    let way = Way::Through(&proxy);
    bed.config_map("mine", "team=a")?;
    bed.create("secrets", "first", "")?;
    let affected = [
        bed.clients(&way, "watches", &["--count=50"])?,
        bed.clients(&way, "watches", &["--count=10", "--json", "--http1"])?,
    ];
    let mut others = [
        bed.clients(&way, "watches", &["--count=10", "--resource=v1/secrets", "--wire"])?,
        bed.clients(&way, "watches", &["--count=5", "--field-selector=metadata.name=mine"])?,
    ];
    for program in affected.iter().chain(&others) {
        program.wait_for(LIMIT, |line| line["event"] == "open")?;
    }
    let kept_from = proxy.metric(r#"ctrlmesh_streams{kind="watch"}"#)?;
    ensure!(kept_from == 75.0, "{kept_from} watches");

    let (force, told) = change(&proxy, &affected, &[50, 10])?;
    let (first, median, last) = (told[0], told[told.len() / 2], told[told.len() - 1]);
    println!(
        "policy change: file to force {force:.3} s; then the first 410 after {first:.3} s, the \
         median after {median:.3} s, the last of {} after {last:.3} s",
        told.len(),
    );
    ensure!(force <= FILE_LOOK, "{force} s until the policy is in force");
    ensure!(last <= TOLD_WITHIN, "the last 410 came {last} s after the change");
    let how = proxy.metric(r#"ctrlmesh_stream_changes_total{how="expired"}"#)?;
    ensure!(how == 60.0, "{how} watches were expired");

    bed.create("secrets", "second", "")?;
    others[0].wait_until(LIMIT, |lines| {
        let is_second =
            |line: &&Value| line["event"] == "wire" && line["object"]["name"] == "second";
        (lines.iter().filter(is_second).count() == 10).then_some(())
    })?;
    for program in &mut others {
        program.ask("", "counts", LIMIT)?;
        ensure!(ended(program).is_empty(), "{:?}", ended(program));
    }
    ensure!(proxy.metric(r#"ctrlmesh_streams{kind="watch"}"#)? == 15.0);
    Ok(())
}

#[test]
fn a_policy_that_treats_everything_alike_touches_no_watch() -> Result<()> {
    let bed = Bed::new("policy_same")?;
    let proxy = bed.proxy(&["a", "b"])?;
    let mut watches = bed.clients(&Way::Through(&proxy), "watches", &["--count=10", "--wire"])?;
    watches.wait_for(LIMIT, |line| line["event"] == "open")?;
    // The order of values, another document, a comment, then a broken one, then nothing at all.
    proxy.set_policy(&format!("# again\n{}\n---\nkind: Other\n", config_maps(&["b", "a"])))?;
    proxy.set_policy("kind: [")?;
    proxy.wait_for_line(LIMIT, |line| line["message"] == "policy rejected")?;
    let ready = proxy.admin_text("/readyz")?;
    ensure!(ready.contains("stays in force"), "{ready}");
    bed.config_map("mine", "team=b")?;
    watches.wait_until(LIMIT, |lines| {
        (lines.iter().filter(|line| line["object"]["name"] == "mine").count() == 10).then_some(())
    })?;
    watches.ask("", "counts", LIMIT)?;
    ensure!(ended(&watches).is_empty());
    ensure!(proxy.metric("ctrlmesh_policy_epoch")? == 1.0);
    ensure!(proxy.metric("ctrlmesh_policy_rejected_total")? == 1.0);
    Ok(())
}
