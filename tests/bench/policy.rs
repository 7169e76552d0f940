//! The cost of a decision, with few rules and with many: the same. And that of judging an object by its
//! namespace: no more where a label is computed than where names are listed. And that of a write by the
//! namespace in its path.
//!
//! `cargo bench -p ctrlmesh-bench --bench policy`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot run ends")]

use std::{fmt::Write as _, hint::black_box};

use criterion::{Criterion, criterion_group, criterion_main};
use ctrlmesh::{
    policy::{GroupResource, ObjectFacts, Policy, from_documents},
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
    let action = policy.sharding.action(&info, None);
    policy.sharding.rewrite(&action, &info).unwrap().target(&info)
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

/// The judgement of an object by its namespace: names that are listed, and KusionStack's labels, which
/// are computed from the name.
fn judgements(criterion: &mut Criterion) {
    let names: Vec<_> = (0..1000).map(|at| format!("team-{at}")).collect();
    let half = names.iter().step_by(2).cloned().collect::<Vec<_>>().join(", ");
    let buckets = (0..16).map(|at| format!("'{at}'")).collect::<Vec<_>>().join(", ");
    let computed = |key: &str, values: &str| {
        format!(
            "selector: {{matchExpressions: [{{key: ctrlmesh.kusionstack.io/{key}, operator: In, \
             values: [{values}]}}]}}"
        )
    };
    let mut group = criterion.benchmark_group("judge");
    for (name, limit) in [
        ("names", format!("namespaces: {{names: [{half}]}}, clusterScoped: Exclude")),
        ("namespace", computed("namespace", &half)),
        ("shard-hash", computed("shard-hash", &buckets)),
        ("sharding-hash", computed("sharding-hash", &buckets)),
    ] {
        let text = format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
             metadata: {{name: shard}}\nspec:\n  selector: {{matchLabels: {{app: op}}}}\n  limits:\n\
             \x20 - {{relateResources: [{{apiGroups: [''], resources: [pods]}}], {limit}}}\n"
        );
        let policy = from_documents(text.as_bytes(), "shard", Some("ns")).unwrap();
        let policy = policy.resolve(None).unwrap();
        let scope = policy.sharding.scope(&GroupResource::new("", "pods")).unwrap();
        let owned = || {
            let facts = names.iter().map(|name| ObjectFacts::common_in(black_box(name)));
            facts.filter(|facts| scope.owns(facts) == Some(true)).count()
        };
        assert!((300..700).contains(&owned()), "{name}: {}", owned());
        group.bench_function(format!("{name}, 1,000 objects"), |bencher| bencher.iter(owned));
    }
    group.finish();
}

/// The judgement of a write by the namespace in its path: of a limited resource, and of another, by what the
/// limits have.
fn fences(criterion: &mut Criterion) {
    let names = (0..500).map(|at| format!("team-{at}")).collect::<Vec<_>>().join(", ");
    let half = "hash: {of: namespace, function: Fnv1aMixed, ranges: [{from: \"0x0000000000000000\", to: \
                \"0x8000000000000000\"}]}";
    let limit = |resource: &str, has: &str| {
        format!(
            "  - {{relateResources: [{{apiGroups: [''], resources: [{resource}]}}], {has}, \
             clusterScoped: Exclude}}\n"
        )
    };
    let patterns = (0..20).map(|at| {
        let pattern = format!("namespaces: {{pattern: '^group-{at}-[a-f]'}}");
        limit(&format!("kind{at}s"), &pattern)
    });
    let mut group = criterion.benchmark_group("fence");
    for (name, limits) in [
        ("500 names", limit("pods", &format!("namespaces: {{names: [{names}]}}"))),
        ("a hash", limit("pods", half)),
        ("20 patterns", patterns.collect()),
    ] {
        let text = format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
             metadata: {{name: shard, namespace: ns}}\nspec:\n  selector: {{matchLabels: {{app: op}}}}\n\
             \x20 fence: {{mode: Enforce}}\n  limits:\n{limits}"
        );
        let policy = from_documents(text.as_bytes(), "shard", Some("ns")).unwrap();
        let policy = policy.resolve(None).unwrap();
        for resource in ["pods", "secrets"] {
            let path = format!("/api/v1/namespaces/other/{resource}/checkout");
            let info = RequestInfo::parse(&Method::PATCH, &path, None).unwrap();
            group.bench_function(format!("{name}/{resource}"), |bencher| {
                bencher.iter(|| {
                    let action = policy.sharding.action(black_box(&info), None);
                    policy.fence.judge(black_box(&policy.sharding), black_box(&info), &action)
                });
            });
        }
    }
    group.finish();
}

criterion_group!(all, policies, judgements, fences);
criterion_main!(all);
