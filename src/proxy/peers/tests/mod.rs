//! Pods and shards as the tests know them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::facts::{PodFacts, WatchedPod};
use ctrlmesh_net::identity::PodIdentity;
use ctrlmesh_policy::{ControllerShards, Draft, Kind, draft};

mod facts;
mod follow;
mod known;
mod links;
mod session;
mod table;

/// The shards of these names. Their pods have the label `shard`.
fn siblings(names: &[&str]) -> Arc<ControllerShards> {
    let config = |name: &&str| {
        let object = json!({
            "metadata": {"namespace": "ops", "name": name},
            "spec": {
                "selector": {"matchLabels": {"shard": name}},
                "webhook": {"certDir": "/certs", "port": 9443},
            },
        });
        draft(Kind::ShardingConfig, &serde_json::from_value(object).unwrap())
    };
    let all: Vec<_> = names.iter().map(config).collect();
    let Ok(Draft::Sharding(own)) = &all[0] else { panic!("{:?}", all[0]) };
    Arc::new(ControllerShards::of(own, &all, None).unwrap().unwrap())
}

fn identity(name: &str) -> PodIdentity {
    PodIdentity::new("ops", name, &format!("uid-{name}")).unwrap()
}

/// A usable pod of a shard, as the API server has it.
fn pod(name: &str, shard: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "ops",
            "name": name,
            "uid": format!("uid-{name}"),
            "resourceVersion": "7",
            "labels": {"shard": shard, "app": "op"},
            "annotations": {"a": "b"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
        },
        "spec": {
            "nodeName": "node",
            "initContainers": [
                {"name": "ctrlmesh-init", "args": ["--inbound=9443:5445"]},
                {"name": "ctrlmesh-proxy", "args": ["proxy", "--mode=iptables",
                    "--webhook-port=9443", "--webhook-certs=/etc/ctrlmesh/webhook"]},
            ],
            "containers": [{"name": "op", "command": ["/op"]}],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
            "podIP": "10.1.0.1",
            "podIPs": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}],
        },
    })
}

fn facts(pod: &Value) -> Option<PodFacts> {
    PodFacts::of(serde_json::from_value::<WatchedPod>(pod.clone()).unwrap())
}

/// The facts of a usable pod.
fn usable(name: &str, shard: &str) -> PodFacts {
    facts(&pod(name, shard)).unwrap()
}
