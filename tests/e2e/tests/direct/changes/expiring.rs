//! What a policy change costs, and whom.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy};
use serde_json::Value;

use crate::direct::bed::{Bed, LIMIT, Way, config_maps, seconds, until_ready_says};

/// From the change to the 410 at the client.
const TOLD_WITHIN: f64 = 0.3;
/// How often the file is looked at, and the machine's slack with it.
const FILE_LOOK: f64 = 0.6;

/// Watches end, as those do that cannot be brought over by difference.
const EXPIRE: &str = "--on-change=expire";

fn ended(program: &Program) -> Vec<Value> {
    program.lines().into_iter().filter(|line| line["event"] == "ended").collect()
}

/// Watches that a change of the shard's teams affects, and others.
struct Watches {
    affected: [(Program, usize); 2],
    others: [Program; 2],
}

impl Watches {
    fn open(bed: &Bed, proxy: &Proxy) -> Result<Self> {
        let way = Way::Through(proxy);
        bed.config_map("mine", "team=a")?;
        bed.create("secrets", "first", "")?;
        let affected = [
            (bed.clients(&way, "watches", &["--count=50"])?, 50),
            (bed.clients(&way, "watches", &["--count=10", "--json", "--http1"])?, 10),
        ];
        let others = [
            bed.clients(&way, "watches", &["--count=10", "--resource=v1/secrets", "--wire"])?,
            bed.clients(&way, "watches", &["--count=5", "--field-selector=metadata.name=mine"])?,
        ];
        for program in affected.iter().map(|(program, _)| program).chain(&others) {
            program.wait_for(LIMIT, |line| line["event"] == "open")?;
        }
        ensure!(proxy.metric(r#"ctrlmesh_streams{kind="watch"}"#)? == 75.0);
        Ok(Self { affected, others })
    }

    /// When each of the affected had its 410, in seconds since 1970, sorted.
    fn told(&self) -> Result<Vec<f64>> {
        let mut told = Vec::new();
        for (program, count) in &self.affected {
            program.wait_until(LIMIT, |lines| {
                let all = lines.iter().filter(|line| line["event"] == "ended").count();
                (all == *count).then_some(())
            })?;
            for line in ended(program) {
                ensure!(line["reason"] == "Expired", "{line}");
                told.push(seconds(line["time"].as_str().context("a time")?)?);
            }
        }
        told.sort_by(f64::total_cmp);
        Ok(told)
    }

    /// The others go on.
    fn are_untouched(&mut self, bed: &Bed, proxy: &Proxy) -> Result<()> {
        let how = proxy.metric(r#"ctrlmesh_stream_changes_total{how="expired"}"#)?;
        ensure!(how == 60.0, "{how} watches were expired");
        bed.create("secrets", "second", "")?;
        self.others[0].wait_until(LIMIT, |lines| {
            let is_second =
                |line: &&Value| line["event"] == "wire" && line["object"]["name"] == "second";
            (lines.iter().filter(is_second).count() == 10).then_some(())
        })?;
        for program in &mut self.others {
            program.ask("", "counts", LIMIT)?;
            ensure!(ended(program).is_empty(), "{:?}", ended(program));
        }
        ensure!(proxy.metric(r#"ctrlmesh_streams{kind="watch"}"#)? == 15.0);
        Ok(())
    }
}

/// How long after `from` the last of them was told, which must be soon.
fn in_time(what: &str, from: f64, told: &[f64]) -> Result<()> {
    let after = |at: usize| told.get(at).map_or(f64::NAN, |told| told - from);
    let (first, median, last) = (after(0), after(told.len() / 2), after(told.len() - 1));
    println!(
        "policy change: after {what} the first 410 came {first:.3} s, the median {median:.3} s, \
         the last of {} {last:.3} s later",
        told.len(),
    );
    ensure!(last <= TOLD_WITHIN, "the last 410 came {last} s after {what}");
    Ok(())
}

#[test]
fn affected_watches_have_their_410_in_time_and_others_are_untouched() -> Result<()> {
    let bed = Bed::alone("policy_change")?;
    let proxy = Proxy::builder("mine", &config_maps(&["a"])).flag(EXPIRE).start(&bed.api)?;
    let mut watches = Watches::open(&bed, &proxy)?;
    let written = proxy.set_policy(&config_maps(&["a", "b"]))?;
    let written = written.duration_since(UNIX_EPOCH)?.as_secs_f64();
    let line = proxy
        .wait_for_line(LIMIT, |line| line["message"] == "policy in force" && line["epoch"] == 2)?;
    let in_force = seconds(line["timestamp"].as_str().context("a line has a time")?)?;
    let force = in_force - written;
    ensure!(force <= FILE_LOOK, "{force} s until the policy is in force");
    in_time("the policy was in force", in_force, &watches.told()?)?;
    watches.are_untouched(&bed, &proxy)
}

#[test]
fn affected_watches_have_their_410_soon_after_the_api_servers_reply() -> Result<()> {
    let bed = Bed::alone("policy_reply")?;
    bed.install_crds()?;
    bed.draw(&["a"])?;
    let proxy = bed.proxy_of_cluster(&[EXPIRE])?;
    until_ready_says(&proxy, "[+]policy ok: mine epoch 1\n")?;
    let mut watches = Watches::open(&bed, &proxy)?;
    bed.draw(&["a", "b"])?;
    let replied = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    in_time("the API server's reply", replied, &watches.told()?)?;
    watches.are_untouched(&bed, &proxy)
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
