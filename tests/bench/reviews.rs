//! What it costs to find the owner of an admission review, small and large.
//!
//! `cargo bench -p ctrlmesh-bench --bench reviews`. A small review is read until its owner is notified;
//! of the large one the stored object comes last, behind 18 MB of the new one, so that all of it is
//! read. Bodies come in pieces of a TLS record.

#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot run ends")]

use std::{hint::black_box, time::Duration};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ctrlmesh::{
    policy::{ControllerShards, Owner, all_of, from_documents},
    wire::review::Reader,
};

/// The longest record of TLS.
const PIECE: usize = 16 << 10;

/// Four shards by label: the owner is notified by the stored object's labels alone.
fn siblings() -> ControllerShards {
    let config = |name: &str| {
        format!(
            "---\napiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
             metadata: {{name: {name}, namespace: ops}}\nspec:\n  \
             selector: {{matchLabels: {{shard: {name}}}}}\n  \
             webhook: {{certDir: /certs, port: 9443}}\n  \
             limits: [{{selector: {{matchLabels: {{team: {name}}}}}}}]\n"
        )
    };
    let configs = ["red", "green", "blue", "black"].map(config).concat();
    let own = from_documents(configs.as_bytes(), "red", None).unwrap();
    ControllerShards::of(&own, &all_of(configs.as_bytes(), "red", None).unwrap(), None)
        .unwrap()
        .unwrap()
}

/// An update, whose objects have `data` besides their metadata.
fn update(data: &str) -> String {
    let object = |data: &str| {
        format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"settings","namespace":"team-alpha","uid":"705ab4f5-6393-11e8-b7cc-42010a800002","labels":{{"team":"blue"}}}},"data":{data}}}"#
        )
    };
    let (new, old) = (object(data), object(r#"{"a":"b"}"#));
    format!(
        r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":"0df28fbd-5f5f-11e8-bc74-36e6bb280816","kind":{{"group":"","version":"v1","kind":"ConfigMap"}},"resource":{{"group":"","version":"v1","resource":"configmaps"}},"name":"settings","namespace":"team-alpha","operation":"UPDATE","userInfo":{{"username":"system:serviceaccount:ops:op","groups":["system:authenticated"]}},"object":{new},"oldObject":{old},"dryRun":false,"options":{{"kind":"UpdateOptions","apiVersion":"meta.k8s.io/v1"}}}}}}"#
    )
}

/// The owner, and the bytes that were read until it was told.
fn owner(siblings: &ControllerShards, body: &[u8]) -> (bool, u64) {
    let mut reader = Reader::new();
    for piece in body.chunks(PIECE) {
        reader.feed(piece).unwrap();
        let owner = reader.review().and_then(|review| siblings.owner(&review));
        if let Some(owner) = owner {
            return (owner == Owner::Sibling("blue"), reader.read());
        }
    }
    (false, reader.read())
}

fn reviews(criterion: &mut Criterion) {
    let siblings = siblings();
    let small = update(&format!(r#"{{"key":"{}"}}"#, "value ".repeat(28)));
    assert!((1000..1100).contains(&small.len()), "{}", small.len());
    let escaped = format!(r#"{{"key":"{}"}}"#, r"\u003c".repeat(3_000_000));
    let plain = format!(r#"{{"key":"{}"}}"#, "lorem ipsum ".repeat(1_500_000));
    let maps: Vec<_> = (0..600_000).map(|at| format!(r#""key-{at:06}":{{"a":["b"]}}"#)).collect();
    let maps = format!("{{{}}}", maps.join(","));
    let mut group = criterion.benchmark_group("review");
    for (name, body) in [
        ("1 KB", small),
        ("18 MB of escapes", update(&escaped)),
        ("18 MB of text", update(&plain)),
        ("16 MB of maps", update(&maps)),
    ] {
        let (is_blue, read) = owner(&siblings, body.as_bytes());
        assert!(is_blue && read + PIECE as u64 >= body.len() as u64, "{name}: {read}");
        group.throughput(Throughput::Bytes(read));
        group.measurement_time(Duration::from_secs(3)).sample_size(20);
        group.bench_function(name, |bencher| {
            bencher.iter(|| owner(black_box(&siblings), black_box(body.as_bytes())));
        });
    }
    group.finish();
}

criterion_group!(all, reviews);
criterion_main!(all);
