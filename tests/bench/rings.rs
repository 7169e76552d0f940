//! The cost of comparing the boundaries of two configs: at most a millisecond for 1,000 names,
//! 32 ranges and two patterns. And of reviewing a config next to a thousand others of its ring, in a
//! cluster of 10,000 namespaces: at most 50 ms.
//!
//! `cargo bench -p ctrlmesh-bench --bench rings`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot run ends")]

use std::{fmt::Write as _, hint::black_box, sync::Arc};

use criterion::{Criterion, criterion_group, criterion_main};
use ctrlmesh::{
    manager::{
        admission::{Found, review_config},
        configs::Configs,
    },
    policy::{ByResource, LabelSet, Scope, from_documents, ring::ScopeClaim},
};
use serde_json::{Value, json};

/// A config with a limit of each kind. Those of the shards 0 and 1 are disjoint by what stands last
/// in each.
fn area(shard: u32) -> ByResource<Arc<Scope>> {
    let mut text = String::from(
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
         metadata: {name: shard}\nspec:\n  selector: {matchLabels: {app: op}}\n  limits:\n",
    );
    let mut limit = |resource: &str, boundary: &str| {
        writeln!(
            text,
            "  - {{relateResources: [{{apiGroups: [''], resources: [{resource}]}}], {boundary}, \
             clusterScoped: Exclude}}"
        )
        .unwrap();
    };
    let names = (0..1000).map(|at| format!("namespace-{}", 2 * at + shard));
    let names = names.collect::<Vec<_>>().join(", ");
    limit("pods", &format!("namespaces: {{names: [{names}]}}"));
    let ranges = (0..32_u64).map(|at| {
        let from = (2 * at + u64::from(shard)) << 58;
        let to = from.checked_add(1 << 58).map(|to| format!("{to:#018x}")).unwrap_or_default();
        format!("{{from: '{from:#018x}', to: '{to}'}}")
    });
    let ranges = ranges.collect::<Vec<_>>().join(", ");
    limit("secrets", &format!("hash: {{of: uid, ranges: [{ranges}]}}"));
    let end = ["blue", "green"][shard as usize];
    limit("services", &format!("namespaces: {{pattern: '^team-[a-z0-9-]+-{end}$'}}"));
    let policy = from_documents(text.as_bytes(), "shard", Some("ns")).unwrap();
    policy.resolve(None).unwrap().sharding.area()
}

/// A shard that has three kinds of objects. It has ten namespaces of 10,000 by name, the pods of
/// one hash in a thousand, and all other objects with its label.
fn shard(at: u64) -> Value {
    let names = (0..10).map(|of| format!("namespace-{}", 10 * at + of)).collect::<Vec<_>>();
    let range = u64::MAX / 1000;
    let to = if at < 999 { format!("{:#018x}", (at + 1) * range) } else { String::new() };
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "namespace": "ns", "name": format!("shard-{at}"), "uid": format!("{at}") },
        "spec": {
            "selector": { "matchLabels": { "shard": format!("{at}") } },
            "controller": { "leaderElectionName": "op" },
            "limits": [{
                "relateResources": [{ "apiGroups": ["example.com"], "resources": ["widgets"] }],
                "namespaces": { "names": names },
                "clusterScoped": "Exclude",
            }, {
                "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
                "hash": {
                    "of": "uid",
                    "ranges": [{ "from": format!("{:#018x}", at * range), "to": to }],
                },
            }, {
                "relateResources": [{ "apiGroups": [""], "resources": ["secrets"] }],
                "selector": { "matchLabels": { "shard": format!("{at}") } },
            }],
        },
    })
}

fn reviews(criterion: &mut Criterion) {
    let mut there = Configs::default();
    (0..1000).for_each(|at| there.add(&serde_json::from_value(shard(at)).unwrap()));
    let known = (0..10_000).map(|at| (format!("namespace-{at}"), LabelSet::default())).collect();
    let review = |object: &Value| {
        let kind = json!({
            "group": "ctrlmesh.kusionstack.io",
            "version": "v1alpha1",
            "kind": "ShardingConfig",
        });
        json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "1", "kind": kind, "namespace": "ns", "operation": "CREATE", "object": object,
            },
        })
        .to_string()
    };
    let apart = review(&shard(7));
    let mut other = shard(7);
    other["spec"]["limits"][0]["namespaces"]["names"] = json!(["namespace-70", "namespace-9999"]);
    let torn = review(&other);
    let answer =
        |review: &str| review_config(review.as_bytes(), &there, &known, Found::default()).unwrap();
    assert!(answer(&apart).refused.is_none());
    assert!(answer(&torn).refused.is_some_and(|why| why.contains("namespace namespace-9999")));
    let mut group = criterion.benchmark_group("review next to 1,000");
    group.sample_size(20);
    group.bench_function("apart", |bencher| bencher.iter(|| answer(black_box(&apart))));
    group.bench_function("refused", |bencher| bencher.iter(|| answer(black_box(&torn))));
    group.finish();
}

fn rings(criterion: &mut Criterion) {
    let areas = [area(0), area(1)];
    assert!(areas[0].is_disjoint(&areas[1]) && !areas[0].is_disjoint(&areas[0]));
    let mut group = criterion.benchmark_group("area");
    group.bench_function("disjoint", |bencher| {
        bencher.iter(|| black_box(&areas[0]).is_disjoint(black_box(&areas[1])));
    });
    group.bench_function("meet", |bencher| {
        bencher.iter(|| black_box(&areas[0]).meet(black_box(&areas[1])));
    });
    let text = ScopeClaim::of(areas[0].clone()).text().unwrap();
    group.bench_function("read", |bencher| {
        bencher.iter(|| ScopeClaim::read(black_box(&text)));
    });
    group.finish();
}

criterion_group!(all, rings, reviews);
criterion_main!(all);
