//! How fast bodies are filtered, in bytes of the body a second of one core.
//!
//! `cargo bench -p ctrlmesh-bench --bench filters`; a name after `--` chooses some of them. Bodies
//! come in chunks of an HTTP/2 frame. `serde_json` is the yardstick: what a program does that reads
//! the items as `RawValue`, looks at their metadata and writes the rest again.

#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot run ends")]

use std::{borrow::Cow, hint::black_box, time::Duration};

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use ctrlmesh::wire::{
    Encoding,
    frames::{ListFilter, Verdict, WatchFilter},
    object::Object,
};
use ctrlmesh_bench::{KEPT, list, watch};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A frame of HTTP/2 that no one asked to be larger.
const CHUNK: usize = 16 << 10;
const PODS: u32 = 500;
const ENCODINGS: [(Encoding, &str); 3] =
    [(Encoding::Json, "json"), (Encoding::Protobuf, "protobuf"), (Encoding::Cbor, "cbor")];
const PERCENT: [u32; 3] = [0, 50, 100];

fn judge(object: &Object<'_>) -> Verdict {
    if object.namespace == KEPT { Verdict::Keep } else { Verdict::Drop }
}

/// Bytes that left.
fn filter_list(encoding: Encoding, body: &[u8], out: &mut Vec<u8>) -> usize {
    let mut filter = ListFilter::new(encoding).unwrap();
    let mut left = 0;
    for chunk in body.chunks(CHUNK) {
        out.clear();
        filter.feed(chunk, &mut |object| judge(object), out).unwrap();
        left += black_box(&*out).len();
    }
    out.clear();
    filter.finish(out).unwrap();
    left + out.len()
}

fn filter_watch(encoding: Encoding, body: &[u8], out: &mut Vec<u8>) -> usize {
    let mut filter = WatchFilter::new(encoding).unwrap();
    let mut left = 0;
    for mut chunk in body.chunks(CHUNK) {
        out.clear();
        while let Some(passed) = filter.next(chunk, &mut |object| judge(object), out).unwrap() {
            chunk = &chunk[passed.at..];
        }
        left += black_box(&*out).len();
    }
    left
}

#[derive(Deserialize, Serialize)]
struct List<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize, Serialize)]
struct Event<'a> {
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Pod<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow)]
    namespace: Cow<'a, str>,
}

fn is_kept(pod: &RawValue) -> bool {
    serde_json::from_str::<Pod<'_>>(pod.get()).unwrap().metadata.namespace == KEPT
}

fn raw_list(body: &[u8], out: &mut Vec<u8>) -> usize {
    out.clear();
    let mut list: List<'_> = serde_json::from_slice(body).unwrap();
    list.items.retain(|item| is_kept(item));
    serde_json::to_writer(&mut *out, &list).unwrap();
    out.len()
}

fn raw_watch(body: &[u8], out: &mut Vec<u8>) -> usize {
    out.clear();
    for event in serde_json::Deserializer::from_slice(body).into_iter::<Event<'_>>() {
        let event = event.unwrap();
        if is_kept(event.object) {
            serde_json::to_writer(&mut *out, &event).unwrap();
            out.push(b'\n');
        }
    }
    out.len()
}

fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    percent: u32,
    body: &[u8],
    filter: impl Fn(&[u8], &mut Vec<u8>) -> usize,
) {
    let mut out = Vec::with_capacity(2 * body.len());
    let left = filter(body, &mut out);
    // Protobuf replaces dropped items by a gap of the same length.
    let gaps = name == "protobuf" && left == body.len();
    let share = 100.0 * left as f64 / body.len() as f64;
    assert!(gaps || (share - f64::from(percent)).abs() < 1.0, "{name}: {share} % left");
    group.throughput(Throughput::Bytes(body.len() as u64));
    group.bench_function(format!("{name}/{percent}"), |bencher| {
        bencher.iter(|| filter(black_box(body), &mut out));
    });
}

fn filters(criterion: &mut Criterion) {
    for percent in PERCENT {
        let mut group = criterion.benchmark_group("list");
        for (encoding, name) in ENCODINGS {
            let body = list(encoding, PODS, percent);
            bench(&mut group, name, percent, &body, |body, out| filter_list(encoding, body, out));
        }
        bench(&mut group, "serde_json", percent, &list(Encoding::Json, PODS, percent), raw_list);
        group.finish();
        let mut group = criterion.benchmark_group("watch");
        for (encoding, name) in ENCODINGS {
            let body = watch(encoding, PODS, percent);
            bench(&mut group, name, percent, &body, |body, out| filter_watch(encoding, body, out));
        }
        bench(&mut group, "serde_json", percent, &watch(Encoding::Json, PODS, percent), raw_watch);
        group.finish();
    }
}

criterion_group! {
    name = all;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = filters
}
criterion_main!(all);
