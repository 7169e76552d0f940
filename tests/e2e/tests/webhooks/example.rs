//! The ShardingConfig that KusionStack's documents show, with a webhook: applied as it stands.

use anyhow::{Result, ensure};
use ctrlmesh_e2e::{Webhooks, until};
use serde_json::{Value, json};

use crate::webhooks::{
    judge::{Judge, LIMIT},
    world::World,
};

const NAMESPACE: &str = "operator-demo";
const OPERATOR: &str = "operator-demo";
const VALIDATING: &str = "example.demo.example.com";
/// The label that KusionStack's manager stamps on objects.
const STAMPED: &str = "ctrlmesh.kusionstack.io/namespace";
/// The pods with the namespaces of each: the first is that of the document.
const PODS: [(&str, &str, &[&str]); 2] = [
    ("sharding-demo", "operator-demo-0", &["ns-a", "ns-b"]),
    ("sharding-demo-1", "operator-demo-1", &["ns-c", "ns-d"]),
];

/// Each Service is reviewed by the pod whose it is.
pub(crate) fn routes(world: &mut World<'_>, judge: &mut Judge) -> Result<()> {
    let scene = world.scene;
    let node = scene.node();
    node.kubectl(&["create", "namespace", NAMESPACE])?;
    for (name, pod, namespaces) in PODS {
        node.apply(&config(name, pod, namespaces).to_string())?;
        for namespace in namespaces {
            node.kubectl(&["create", "namespace", namespace])?;
            node.kubectl(&["label", "namespace", namespace, "example=yes"])?;
        }
    }
    scene.serve(NAMESPACE, OPERATOR)?;
    node.apply(&operator().to_string())?;
    for (_, pod, _) in PODS {
        node.wait_for(NAMESPACE, &format!("pod/{pod}"), "condition=Ready", LIMIT)
            .map_err(|error| error.context(scene.installed().told()))?;
    }
    let rules = json!([{
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"],
    }]);
    let client = scene.client_config(NAMESPACE, OPERATOR, "/validate");
    let label = json!({ "matchLabels": { "example": "yes" } });
    scene.register_one("ValidatingWebhookConfiguration", VALIDATING, &client, &rules, &label)?;
    is_asked(world, judge)?;

    let mut expected = Vec::new();
    for (_, pod, namespaces) in PODS {
        for namespace in namespaces {
            let path = format!("/api/v1/namespaces/{namespace}/services");
            world.post(&path, &service(namespace))?;
            expected.push((world.writes, pod));
            world.patch(
                &format!("{path}/foo"),
                &json!({ "metadata": { "labels": { "tier": "x" } } }),
            )?;
            expected.push((world.writes, pod));
            world
                .send("DELETE", &format!("{path}/foo"), "application/json", &Value::Null)?
                .json()?;
            expected.push((world.writes, pod));
        }
    }
    for (write, pod) in expected {
        let by = judge.answer(write, &format!("{VALIDATING}/pod"))?;
        ensure!(by.as_deref() == Some(pod), "write {write} by {by:?}, not by {pod}");
    }
    Ok(())
}

/// The API server learns of a new configuration from a watch.
fn is_asked(world: &mut World<'_>, judge: &mut Judge) -> Result<()> {
    until("the API server asks the new webhook", LIMIT, || {
        let path = "/api/v1/namespaces/ns-a/services?dryRun=All";
        world.post(path, &service("ns-a"))?;
        Ok(judge.answer(world.writes, &format!("{VALIDATING}/pod"))?.map(drop))
    })
}

fn service(namespace: &str) -> Value {
    json!({
        "metadata": { "name": "foo", "labels": { STAMPED: namespace, "app": "foo" } },
        "spec": { "clusterIP": "None" },
    })
}

fn config(name: &str, pod: &str, namespaces: &[&str]) -> Value {
    let stamped = json!({ "key": STAMPED, "operator": "In", "values": namespaces });
    let pods = json!({
        "key": "statefulset.kubernetes.io/pod-name", "operator": "In", "values": [pod],
    });
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "controller": { "leaderElectionName": "operator-leader" },
            "webhook": { "certDir": "/tmp/webhook-certs", "port": 9443 },
            "limits": [{
                "relateResources": [{ "apiGroups": ["*"], "resources": ["pods", "services"] }],
                "selector": { "matchExpressions": [stamped], "matchLabels": { "app": "foo" } },
            }],
            "selector": { "matchExpressions": [pods] },
        },
    })
}

/// The operator with an account that has no rights: it answers reviews, and does nothing else.
fn operator() -> Value {
    let labels = json!({ "app.kubernetes.io/name": "demo-operator" });
    let mut meshed = labels.clone();
    meshed["ctrlmesh.kusionstack.io/enable-proxy"] = "true".into();
    let container = json!({
        "name": "operator",
        "image": "registry.example.com/demo-operator:1",
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "--leader-election-id=operator-leader",
            "--webhook-port=9443",
            "--webhook-cert-dir=/tmp/webhook-certs",
        ],
        "env": [{
            "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } },
        }],
        "readinessProbe": { "httpGet": { "port": 8081, "path": "/readyz" }, "periodSeconds": 1 },
        "volumeMounts": [{ "name": "certs", "mountPath": "/tmp/webhook-certs", "readOnly": true }],
    });
    let certs = json!({ "name": "certs", "secret": { "secretName": Webhooks::SECRET } });
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": { "name": OPERATOR, "namespace": NAMESPACE },
        "spec": {
            "replicas": 2,
            "serviceName": OPERATOR,
            "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": meshed },
                "spec": { "containers": [container], "volumes": [certs] },
            },
        },
    })
}
