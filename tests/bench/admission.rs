//! The cost of a pod's admission, with one container and with thirty.
//!
//! `cargo bench -p ctrlmesh-bench --bench admission`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot run ends")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use ctrlmesh::{
    inject::{Enforces, Settings, Sidecar},
    manager::{admission::review, configs::Configs},
};
use ctrlmesh_init::ProxyUid;
use serde_json::{Value, json};

/// The review of a pod as ServiceAccount admission leaves it.
fn asked(count: u32) -> String {
    let token = "kube-api-access-x2v4n";
    let container = |number| {
        let env: Vec<Value> = (0..20)
            .map(
                |at| json!({ "name": format!("VARIABLE_{at}"), "value": "a value of some length" }),
            )
            .collect();
        json!({
            "name": format!("app-{number}"),
            "image": "registry.example.com/team/app:1.2.3",
            "args": ["--leader-elect", "--metrics-bind-address=:8080"],
            "env": env,
            "resources": { "limits": { "cpu": "1", "memory": "1Gi" } },
            "volumeMounts": [{
                "name": token,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                "readOnly": true,
            }],
        })
    };
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "5b1a9f5e",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "namespace": "operators",
            "operation": "CREATE",
            "object": {
                "metadata": {
                    "generateName": "op-",
                    "labels": { "ctrlmesh.kusionstack.io/enable-proxy": "true" },
                },
                "spec": {
                    "containers": (0..count).map(container).collect::<Vec<_>>(),
                    "volumes": [{ "name": token, "projected": { "sources": [] } }],
                },
            },
        },
    });
    review.to_string()
}

fn bench(criterion: &mut Criterion) {
    let image = || "registry.example.com/ctrlmesh:1".parse().unwrap();
    let settings = Settings::new(image(), image(), Sidecar::Native, ProxyUid::DEFAULT)
        .unwrap()
        .at_admission(Enforces::Privileged);
    let configs = Configs::default();
    let mut group = criterion.benchmark_group("admission");
    for count in [1, 30] {
        let asked = asked(count);
        group.bench_function(format!("{count} containers"), |bench| {
            bench.iter(|| review(black_box(asked.as_bytes()), &settings, &configs).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
