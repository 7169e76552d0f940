//! What a decision costs, with few rules and with many: the same.
//!
//! `cargo bench -p ctrlmesh-bench --bench policy`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot run ends")]

use std::{fmt::Write as _, hint::black_box};

use criterion::{Criterion, criterion_group, criterion_main};
use ctrlmesh::{
    policy::{Policy, from_documents},
    wire::RequestInfo,
};
use http::Method;

/// One limit for each of `count` resources; that of the requests stands in the middle.
fn policy(count: u32) -> Policy {
    let mut text = String::from(
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
         metadata: {name: shard}\nspec:\n  selector: {matchLabels: {app: op}}\n  limits:\n",
    );
    for number in 0..count {
        let resource = if number == count / 2 { "pods".into() } else { format!("kind{number}s") };
        let group =
            if number == count / 2 { "''".into() } else { format!("g{number}.example.com") };
        writeln!(
            text,
            "  - {{relateResources: [{{apiGroups: [{group}], resources: [{resource}]}}], \
             selector: {{matchLabels: {{shard: a}}}}}}"
        )
        .unwrap();
    }
    from_documents(text.as_bytes(), "shard", Some("ns")).unwrap().resolve(None).unwrap()
}

fn decide(policy: &Policy, path: &str, query: Option<&str>) -> Option<String> {
    let info = RequestInfo::parse(&Method::GET, path, query).unwrap();
    let way = policy.sharding.way(&info);
    policy.sharding.rewrite(&way, &info).unwrap().target(&info)
}

fn policies(criterion: &mut Criterion) {
    let requests = [
        ("list", "/api/v1/pods", Some("labelSelector=app%3Dcheckout&limit=500")),
        ("get", "/api/v1/namespaces/team-alpha/pods/checkout", None),
        ("other", "/apis/batch/v1/jobs", Some("watch=true")),
    ];
    let mut group = criterion.benchmark_group("decide");
    for count in [10, 2000] {
        let policy = policy(count);
        for (name, path, query) in requests {
            assert_eq!(decide(&policy, path, query).is_some(), name == "list");
            group.bench_function(format!("{name}/{count}"), |bencher| {
                bencher.iter(|| decide(black_box(&policy), black_box(path), black_box(query)));
            });
        }
    }
    group.finish();
}

criterion_group!(all, policies);
criterion_main!(all);
