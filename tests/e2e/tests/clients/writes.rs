//! Each client writes through the proxy as it does directly: a body of 1 MB, and the lock of its
//! elections, where the language has any. (Those of client-go and of the official Python client are
//! in `direct::locks`.)

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy, until};
use serde_json::Value;

use super::language::Language;
use crate::direct::bed::{Bed, LIMIT, Way, policy};

const LOCK: &str = "operator";
const SHARDS: [&str; 2] = ["blue", "green"];
const MEGABYTE: usize = 1_000_000;

/// The spec of a shard's lock.
fn lock_of(bed: &Bed, shard: &str) -> Result<Value> {
    let path = "/apis/coordination.k8s.io/v1/namespaces";
    let path = format!("{path}/{}/leases/{LOCK}---{shard}", bed.namespace);
    Ok(bed.api.client().get(&path)?.json()?["spec"].clone())
}

fn shard(bed: &Bed, shard: &str) -> Result<Proxy> {
    let limits: &[(&[&str], &[&str], &[&str])] = &[(&[""], &["configmaps"], &["a"])];
    Proxy::builder(shard, &policy(shard, Some(LOCK), limits))
        .flag(&format!("--pod-namespace={}", bed.namespace))
        .start(&bed.api)
}

/// Two shards lead at the same time, renew, and give up the lock if `releases`.
fn elects(language: Language, bed: &Bed, proxies: &[Proxy; 2], releases: bool) -> Result<()> {
    let mut candidates: Vec<Program> = Vec::new();
    for (shard, proxy) in SHARDS.iter().zip(proxies) {
        let args = ["elect", "--lock", LOCK, "--identity", shard];
        candidates.push(language.start(bed, &Way::Through(proxy), &args)?);
    }
    for (shard, candidate) in SHARDS.iter().zip(&candidates) {
        candidate.wait_for(LIMIT, |line| line["event"] == "acquired").context(*shard)?;
    }
    for shard in SHARDS {
        let first = lock_of(bed, shard)?;
        ensure!(first["holderIdentity"] == shard, "{first}");
        until("the lock is renewed", LIMIT, || {
            let now = lock_of(bed, shard)?;
            Ok((now["renewTime"] != first["renewTime"]).then_some(()))
        })?;
    }
    for (shard, candidate) in SHARDS.iter().zip(candidates) {
        candidate.finish(LIMIT)?;
        // fabric8 leaves its name, and a duration that ends at once.
        let lock = lock_of(bed, shard)?;
        ensure!((lock["leaseDurationSeconds"] == 1) == releases, "{lock}");
    }
    Ok(())
}

fn uploads(language: Language, bed: &Bed, proxy: &Proxy) -> Result<()> {
    let upload = |way: &Way<'_>, name: &str| {
        let mut args = vec!["upload", "--name", name, "--team", "a"];
        if language == Language::Go {
            args.push("--protobuf");
        }
        let lines = language.start(bed, way, &args)?.finish(LIMIT)?;
        let uploaded = lines.iter().find(|line| line["event"] == "uploaded");
        Ok::<_, anyhow::Error>(uploaded.and_then(|line| line["bytes"].as_u64()))
    };
    for (way, name) in [(Way::Straight, "directly"), (Way::Through(proxy), "through")] {
        let bytes = upload(&way, name)?;
        ensure!(bytes == u64::try_from(MEGABYTE).ok(), "{name}: {bytes:?} bytes");
    }
    Ok(())
}

fn writes(language: Language, releases: Option<bool>) -> Result<()> {
    let bed = Bed::new(&format!("writes-{language:?}").to_lowercase())?;
    let proxies = [shard(&bed, SHARDS[0])?, shard(&bed, SHARDS[1])?];
    if let Some(releases) = releases {
        elects(language, &bed, &proxies, releases)?;
    }
    uploads(language, &bed, &proxies[0])
}

#[test]
fn java_elects_releases_and_uploads() -> Result<()> {
    writes(Language::Java, Some(true))
}

#[test]
fn async_python_elects_and_uploads() -> Result<()> {
    // The package gives no lock back.
    writes(Language::AsyncPython, Some(false))
}

#[test]
fn node_python_rust_and_go_upload() -> Result<()> {
    for language in [Language::Node, Language::Python, Language::Rust, Language::Go] {
        writes(language, None).with_context(|| format!("{language:?}"))?;
    }
    Ok(())
}
