//! What it costs to compare the boundaries of two configs: at most a millisecond for 1,000 names,
//! 32 ranges and two patterns.
//!
//! `cargo bench -p ctrlmesh-bench --bench rings`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot run ends")]

use std::{fmt::Write as _, hint::black_box, sync::Arc};

use criterion::{Criterion, criterion_group, criterion_main};
use ctrlmesh::policy::{Area, Scope, from_documents, ring::ScopeClaim};

/// A config with a limit of each kind. Those of the shards 0 and 1 are disjoint by what stands last
/// in each.
fn area(shard: u32) -> Area<Arc<Scope>> {
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

criterion_group!(all, rings);
criterion_main!(all);
