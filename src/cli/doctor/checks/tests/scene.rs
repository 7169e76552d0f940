//! A cluster in which all is well, for tests to break.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::doctor::{
    AdmissionHook, Answer, CannotLook, Check, ClusterFacts, Facts, ManagerFacts, NamespaceFacts,
    PodFacts, Server, Severity, judge,
};

pub(super) const NOW: &str = "2030-01-01T00:00:00Z";

pub(super) fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// The time some seconds after [`NOW`].
pub(super) fn at(seconds: i64) -> String {
    Timestamp::from_second(now().as_second() + seconds).unwrap().to_string()
}

pub(super) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A certificate that ends some seconds after [`NOW`], as the API server writes it.
pub(super) fn ca_bundle(seconds: i64) -> Value {
    let mut params = CertificateParams::default();
    params.not_before = std::time::UNIX_EPOCH.into();
    let end = u64::try_from(now().as_second() + seconds).unwrap();
    params.not_after = (std::time::UNIX_EPOCH + Duration::from_secs(end)).into();
    let pem = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    serde_json::to_value(k8s_openapi::ByteString(pem.into_bytes())).unwrap()
}

pub(super) fn webhooks() -> Value {
    let hook = |name: &str, operator: &str| {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {
                "caBundle": ca_bundle(3600),
                "service": { "name": "ctrlmesh-manager", "namespace": "ctrlmesh-system" },
            },
            "namespaceSelector": { "matchExpressions": [
                {
                    "key": "pod-security.kubernetes.io/enforce",
                    "operator": operator,
                    "values": ["baseline", "restricted"],
                },
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": ["kube-system"],
                },
            ] },
        })
    };
    json!({
        "metadata": { "name": "ctrlmesh", "creationTimestamp": at(-7200) },
        "webhooks": [hook("pods", "NotIn"), hook("baseline", "In")],
    })
}

pub(super) fn deployment(ready: i32) -> Value {
    json!({
        "spec": {
            "replicas": 2,
            "selector": {},
            "template": { "spec": { "containers": [{ "name": "manager", "args": ["manager"] }] } },
        },
        "status": { "readyReplicas": ready },
    })
}

pub(super) fn lease(holder: &str, age: i64) -> Value {
    json!({ "spec": { "holderIdentity": holder, "renewTime": at(-age).replace('Z', ".000000Z") } })
}

/// An injected pod of the shard `blue`.
pub(super) fn pod(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "namespace": "operators",
            "creationTimestamp": at(-3600),
            "labels": { "ctrlmesh.kusionstack.io/enable-proxy": "true", "shard": "blue" },
            "annotations": { "ctrlmesh.kusionstack.io/injected": "iptables" },
        },
        "spec": {
            "serviceAccountName": "robot",
            "initContainers": [
                { "name": "ctrlmesh-init", "securityContext": { "runAsUser": 0 } },
                {
                    "name": "ctrlmesh-proxy",
                    "args": ["proxy", "--webhook-port=9443"],
                    "securityContext": { "runAsUser": 1359 },
                },
            ],
            "containers": [{ "name": "app" }],
        },
        "status": {
            "phase": "Running",
            "initContainerStatuses": [
                status("ctrlmesh-init", json!({ "terminated": { "exitCode": 0 } }), json!({})),
                status("ctrlmesh-proxy", json!({ "running": {} }), json!({})),
            ],
        },
    })
}

pub(super) fn status(name: &str, state: Value, last: Value) -> Value {
    json!({
        "name": name,
        "image": "",
        "imageID": "",
        "ready": true,
        "restartCount": 0,
        "state": state,
        "lastState": last,
    })
}

pub(super) fn config(name: &str, shard: &str) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": name, "namespace": "operators" },
        "spec": {
            "selector": { "matchLabels": { "shard": shard } },
            "webhook": { "certDir": "/certs", "port": 9443 },
        },
    })
}

pub(super) fn bundle() -> Value {
    json!({
        "metadata": { "labels": { "app.kubernetes.io/managed-by": "ctrlmesh" } },
        "data": { "ca.crt": "-----BEGIN CERTIFICATE-----" },
    })
}

pub(super) fn binding(name: &str, role: &str, account: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "", "kind": "ClusterRole", "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": "operators" }],
    })
}

pub(super) fn namespace(level: Option<&str>) -> Value {
    let mut labels = json!({ "kubernetes.io/metadata.name": "operators" });
    if let Some(level) = level {
        labels["pod-security.kubernetes.io/enforce"] = json!(level);
    }
    json!({ "metadata": { "name": "operators", "labels": labels } })
}

/// The answers of a proxy that is ready.
pub(super) fn readyz() -> Answer {
    let body = "[+]policy ok: blue epoch 1\n[+]certificate ok: valid\n\
                [+]webhook ok: port 9443\n"
        .to_owned();
    Answer { code: 200, body }
}

/// The metrics of a proxy whose certificate ends some seconds after [`NOW`].
pub(super) fn metrics(seconds: i64) -> Answer {
    metrics_of(seconds, 2 * 86400)
}

/// The same, and the end of the certificate of its webhook server.
pub(super) fn metrics_of(seconds: i64, webhook: i64) -> Answer {
    let [own, webhook] = [seconds, webhook].map(|seconds| now().as_second() + seconds);
    let body = format!(
        "# x\nctrlmesh_leaf_not_after_seconds {own}.5\n\
         ctrlmesh_webhook_certificate_not_after_seconds {webhook}.0\n"
    );
    Answer { code: 200, body }
}

/// A webhook of the controller.
pub(super) fn hook(port: Option<i32>) -> AdmissionHook {
    AdmissionHook { namespace: "operators".into(), service: "op".into(), port }
}

/// The Service in front of the pods with the label.
pub(super) fn service(target: Value) -> Value {
    let port = |port: i32, target: Value| json!({ "port": port, "targetPort": target });
    json!({
        "metadata": { "name": "op" },
        "spec": {
            "selector": { "ctrlmesh.kusionstack.io/enable-proxy": "true" },
            "ports": [port(8443, json!(7000)), port(443, target)],
        },
    })
}

/// A role that grants these verbs on pods.
pub(super) fn role(verbs: &[&str]) -> Value {
    let rule = json!({ "apiGroups": [""], "resources": ["pods"], "verbs": verbs });
    json!({ "metadata": { "name": "ctrlmesh-proxy" }, "rules": [rule] })
}

/// A cluster in which all is well, with one pod that was asked for.
pub(super) fn healthy() -> Facts {
    let pod = || object(pod("op-0"));
    Facts {
        here: now(),
        server: Ok(Server { version: "v1.37.1".to_owned(), date: Some(now()) }),
        cluster: Some(ClusterFacts {
            manager: ManagerFacts {
                namespace: "ctrlmesh-system".to_owned(),
                name: "ctrlmesh-manager".to_owned(),
                has_definition: Ok(true),
                webhooks: Ok(Some(object(webhooks()))),
                deployment: Ok(Some(object(deployment(2)))),
                lease: Ok(Some(object(lease("manager-0", 2)))),
                proxy_role: Ok(Some(object(role(&["get", "list", "watch"])))),
            },
            hooks: Ok(vec![hook(None)]),
            namespaces: Ok(vec![NamespaceFacts {
                name: "operators".to_owned(),
                namespace: Ok(Some(object(namespace(None)))),
                configs: Ok(vec![object(config("blue", "blue"))]),
                pods: Ok(vec![pod()]),
                bundle: Ok(Some(object(bundle()))),
                bindings: Ok(vec![object(binding("ctrlmesh-proxy", "ctrlmesh-proxy", "robot"))]),
                roles: Ok(Vec::new()),
                services: Ok(vec![object(service(json!(9443)))]),
                network_policies: Ok(Vec::new()),
                quotas: Ok(Vec::new()),
                limit_ranges: Ok(Vec::new()),
                refused: Ok(Vec::new()),
            }]),
        }),
        pod: Some(PodFacts {
            namespace: "operators".to_owned(),
            name: "op-0".to_owned(),
            pod: Ok(Some(pod())),
            readyz: Ok(readyz()),
            metrics: Ok(metrics(86400)),
        }),
        files: Vec::new(),
    }
}

pub(super) fn right<T>() -> Result<T, CannotLook> {
    let place = " in namespace operators".to_owned();
    Err(CannotLook::Right { verb: "list", resource: "things".to_owned(), place })
}

/// The parts of facts that tests break.
impl Facts {
    pub(super) fn manager(&mut self) -> &mut ManagerFacts {
        &mut self.cluster.as_mut().unwrap().manager
    }

    pub(super) fn namespace(&mut self) -> &mut NamespaceFacts {
        &mut self.cluster.as_mut().unwrap().namespaces.as_mut().unwrap()[0]
    }

    pub(super) fn one(&mut self) -> &mut PodFacts {
        self.pod.as_mut().unwrap()
    }

    /// All pods of the namespace, and none asked for.
    pub(super) fn pods(&mut self, pods: Vec<Value>) {
        self.pod = None;
        self.namespace().pods = Ok(pods.into_iter().map(object).collect());
    }

    /// Replaces the pod that was asked for.
    pub(super) fn asked(&mut self, pod: Value) {
        self.one().pod = Ok(Some(object(pod)));
    }
}

/// The findings of one check after a cluster was broken, each with its severity.
pub(super) fn found(check: Check, break_it: impl FnOnce(&mut Facts)) -> Vec<(Severity, String)> {
    let mut facts = healthy();
    break_it(&mut facts);
    let findings = judge(&facts).into_iter().filter(|finding| finding.check == check);
    let told = |finding: crate::doctor::Finding| {
        assert_eq!(finding.fix.is_none(), finding.severity == Severity::Ok, "{finding:?}");
        (finding.severity, format!("{}: {}", finding.subject, finding.says))
    };
    findings.map(told).collect()
}

/// Checks that there is one finding of this check, with this severity and this part.
pub(super) fn one(check: Check, severity: Severity, part: &str, break_it: impl FnOnce(&mut Facts)) {
    let found = found(check, break_it);
    let [(is, says)] = &found[..] else { panic!("{check:?}: not one finding: {found:#?}") };
    assert_eq!(*is, severity, "{check:?}: {says}");
    assert!(says.contains(part), "{check:?}: no {part:?} in {says}");
}
