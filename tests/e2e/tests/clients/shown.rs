//! Each client is shown through the proxy the same objects as a label selector shows it directly.
//! It follows its boundary over changes and ends of the proxy without a list.

use std::{collections::BTreeMap, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::Proxy;
use serde_json::{Value, json};

use super::language::{Follower, Language};
use crate::direct::bed::{Bed, Way, config_maps};

const EXPIRED: &str = r#"ctrlmesh_stream_changes_total{how="expired"}"#;

/// Name and version of the ConfigMaps of these teams.
fn present(bed: &Bed, teams: &[&str]) -> Result<BTreeMap<String, String>> {
    let path = format!("{}?labelSelector=team+in+({})", bed.path("configmaps"), teams.join(","));
    let list = bed.api.client().get(&path)?.json()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().context("a list has items")?;
    let entry = |item: &Value| {
        let metadata = &item["metadata"];
        (text(&metadata["name"]), text(&metadata["resourceVersion"]))
    };
    Ok(items.iter().map(entry).collect())
}

fn touch(bed: &Bed, name: &str) -> Result<()> {
    let patch = json!({ "data": { "touched": "yes" } }).to_string().into_bytes();
    let path = format!("{}/{name}", bed.path("configmaps"));
    let kind = "application/merge-patch+json";
    bed.api.client().request("PATCH", &path, kind, patch)?.json().map(drop)
}

/// What the API server shows a client with a selector, and what the proxy shows one without.
fn is_shown_the_same(bed: &Bed, direct: &mut Follower, ours: &mut Follower) -> Result<()> {
    bed.config_map("mark", "team=a")?;
    for follower in [&mut *direct, &mut *ours] {
        follower.mark("mark")?;
    }
    bed.config_map("new", "team=a")?;
    touch(bed, "a1")?;
    bed.relabel("b1", Some("a"))?;
    touch(bed, "b2")?;
    bed.relabel("a2", Some("b"))?;
    bed.delete("a3")?;
    bed.config_map("last", "team=a")?;
    for follower in [&*direct, &*ours] {
        follower.wait_for("ADDED", "last")?;
    }
    let (direct, ours) = (direct.record(), ours.record());
    ensure!(direct == ours, "directly: {direct:?}\nthrough the proxy: {ours:?}");
    ensure!(direct.len() == 6, "{direct:?}");
    Ok(())
}

/// Changes the boundary. When `is_killed`, the proxy ends while it brings the watches over.
#[expect(clippy::disallowed_methods, reason = "the moment of the kill, not the wait for an event")]
fn moves(proxy: &mut Proxy, teams: &[&str], is_killed: bool) -> Result<()> {
    if !is_killed {
        return proxy.change_policy(&config_maps(teams)).map(drop);
    }
    ensure!(proxy.metric(EXPIRED)? == 0.0);
    proxy.set_policy(&config_maps(teams))?;
    // The file is read each half second.
    thread::sleep(Duration::from_millis(450));
    proxy.kill()?;
    proxy.start_again()
}

fn follows(language: Language) -> Result<()> {
    let bed = Bed::new(&format!("shows-{language:?}").to_lowercase())?;
    for (name, team) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")] {
        bed.config_map(name, &format!("team={team}"))?;
    }
    let mut proxy = bed.proxy(&["a"])?;
    let mut direct = language.follow(&bed, &Way::Straight, Some("team in (a)"))?;
    let mut ours = language.follow(&bed, &Way::Through(&proxy), None)?;
    for follower in [&mut direct, &mut ours] {
        follower.until_store(&present(&bed, &["a"])?)?;
    }
    is_shown_the_same(&bed, &mut direct, &mut ours)?;
    direct.end()?;

    let lists = ours.lists();
    for (round, is_killed) in [false, true].into_iter().enumerate() {
        for teams in [&["a", "b"][..], &["b"], &["a"]] {
            let context = || format!("{teams:?}, killed: {is_killed}");
            moves(&mut proxy, teams, is_killed).with_context(context)?;
            ours.until_store(&present(&bed, teams)?).with_context(context)?;
            let next = format!("next-{round}-{}", teams.join("-"));
            bed.config_map(&next, &format!("team={}", teams[0]))?;
            ours.wait_for("ADDED", &next).with_context(context)?;
            ours.until_store(&present(&bed, teams)?).with_context(context)?;
        }
    }
    ensure!(proxy.metric(EXPIRED)? == 0.0);
    proxy.kill()?;
    bed.config_map("meanwhile", "team=a")?;
    bed.delete("last")?;
    proxy.start_again()?;
    ours.until_store(&present(&bed, &["a"])?).context("after an end of the proxy")?;
    ensure!(ours.lists() == lists, "{} lists", ours.lists() - lists);
    ours.end()
}

#[test]
fn java_is_shown_what_a_selector_shows_and_follows_its_shard() -> Result<()> {
    follows(Language::Java)
}

#[test]
fn node_is_shown_what_a_selector_shows_and_follows_its_shard() -> Result<()> {
    follows(Language::Node)
}

#[test]
fn python_is_shown_what_a_selector_shows_and_follows_its_shard() -> Result<()> {
    follows(Language::Python)
}

#[test]
fn async_python_is_shown_what_a_selector_shows_and_follows_its_shard() -> Result<()> {
    follows(Language::AsyncPython)
}

#[test]
fn rust_is_shown_what_a_selector_shows_and_follows_its_shard() -> Result<()> {
    follows(Language::Rust)
}

#[test]
fn go_is_shown_what_a_selector_shows_and_follows_its_shard() -> Result<()> {
    follows(Language::Go)
}
