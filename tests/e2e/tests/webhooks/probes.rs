//! Probes and port-forward on the webhook port: of pods in the mesh, and of the same without it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Client, Installed, NAMESPACE, Program, Webhooks, until};
use serde_json::{Value, json};

use crate::webhooks::judge::LIMIT;

/// Probes that fail in a row before it is believed.
const FAILURES: u64 = 2;
const CONTAINER: &str = "operator";
/// The directory of the file without which the operator does not listen.
const GATE: &str = "/gate";

/// A way to ask whether the webhooks are served.
#[derive(Clone, Copy, Debug)]
enum Probe {
    Tcp,
    Http,
    /// controller-runtime's StartedChecker, on another port.
    Started,
}

const PROBES: [Probe; 3] = [Probe::Tcp, Probe::Http, Probe::Started];

struct Pod {
    name: String,
    probe: Probe,
    is_meshed: bool,
}

/// No pod is ready before its operator listens, and none when it does not any more.
pub(crate) fn are_as_without_the_mesh(scene: &Webhooks) -> Result<()> {
    scene.node().apply(&shard().to_string())?;
    let pod = |probe: Probe, is_meshed: bool| {
        let mesh = if is_meshed { "meshed" } else { "bare" };
        let name = format!("probed-{mesh}-{probe:?}").to_lowercase();
        Pod { name, probe, is_meshed }
    };
    let pods: Vec<Pod> =
        PROBES.into_iter().flat_map(|probe| [pod(probe, true), pod(probe, false)]).collect();
    for pod in &pods {
        scene.node().apply(&pod.manifest().to_string())?;
    }
    fail_alike(scene, &pods, 0).context("before the operator listens")?;
    for pod in &pods {
        pod.open(scene.installed())?;
    }
    for pod in &pods {
        pod.wait_ready(scene)?;
    }
    let [meshed, _] = [&pods[0], &pods[1]];
    other_ports(scene, meshed)?;

    for pod in &pods {
        fs::remove_file(pod.gate(scene.installed())?)?;
        scene.installed().kill(&pod.name, CONTAINER)?;
    }
    fail_alike(scene, &pods, 1).context("after the operator was killed")?;
    for pod in &pods {
        pod.open(scene.installed())?;
        pod.wait_ready(scene)?;
    }
    let delete = ["delete", "pods", "--selector=app=probed", "--namespace", NAMESPACE];
    scene.node().kubectl(&delete).map(drop)
}

/// Waits until the probes of all pods have failed. Checks that those of the mesh failed with the
/// same words, and that no pod is ready.
fn fail_alike(scene: &Webhooks, pods: &[Pod], restarts: u64) -> Result<()> {
    let is_restarted = || {
        for pod in pods {
            let status = pod.status(scene)?;
            let is_running = !status["state"]["running"].is_null();
            if !is_running || status["restartCount"].as_u64() != Some(restarts) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    };
    until("the operators run", LIMIT, is_restarted)?;
    let mut before = Vec::new();
    for pod in pods {
        before.push(pod.failures(scene)?.0);
    }
    for pair in pods.iter().zip(before).collect::<Vec<_>>().chunks(2) {
        let mut words = Vec::new();
        for (pod, before) in pair {
            words.push(until(&format!("probes of {} fail", pod.name), LIMIT, || {
                let (count, words) = pod.failures(scene)?;
                Ok((count >= before + FAILURES).then_some(words))
            })?);
            let ready = &pod.status(scene)?["ready"];
            ensure!(*ready == json!(false), "{} is ready, and no one listens", pod.name);
        }
        println!("{:?}: {}", pair[0].0.probe, words[0]);
        ensure!(words[0] == words[1], "in the mesh {:?}, without {:?}", words[0], words[1]);
    }
    Ok(())
}

/// Metrics on another port, and the webhook port itself by port-forward.
fn other_ports(scene: &Webhooks, pod: &Pod) -> Result<()> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}:8080/proxy/metrics", pod.name);
    let metrics = scene.node().kubectl(&["get", "--raw", &path])?;
    ensure!(metrics.contains("certwatcher_read_certificate_total"), "{metrics}");

    let mut command = scene.node().api().kubectl_client().command();
    let (target, port) = (format!("pod/{}", pod.name), format!(":{}", Webhooks::PORT));
    command.args(["--namespace", NAMESPACE, "port-forward", &target, &port]);
    let log = scene.node().api().directory().join("port-forward.log");
    let program = Program::start("port-forward", &command, &log)?;
    let local = |line: &Value| -> Option<u16> {
        let line = line.as_str()?.strip_prefix("Forwarding from 127.0.0.1:")?;
        line.split_whitespace().next()?.parse().ok()
    };
    let local = program.wait_until(LIMIT, |lines| lines.iter().find_map(local))?;
    let url = format!("https://localhost:{local}");
    let client = Client::new(&url, &scene.ca_pem(), "", &scene.node().network())?;
    let health = client.get("/healthz")?;
    ensure!(health.status == 200 && health.text == "ok", "{health:?}");
    program.terminate()
}

impl Pod {
    /// The operator, with an account that has no rights: it answers reviews, and does nothing else.
    fn manifest(&self) -> Value {
        let port = Webhooks::PORT;
        let mut probe = match self.probe {
            Probe::Tcp => json!({ "tcpSocket": { "port": port } }),
            Probe::Http => {
                json!({ "httpGet": { "scheme": "HTTPS", "port": port, "path": "/healthz" } })
            }
            Probe::Started => json!({ "httpGet": { "port": 8081, "path": "/readyz" } }),
        };
        // The kubelet writes 25 events of a pod at once, and then one each five minutes.
        probe["periodSeconds"] = 3.into();
        probe["failureThreshold"] = 1.into();
        // On a busy machine an answer that is late would be another failure.
        probe["timeoutSeconds"] = 10.into();
        let mut labels = json!({ "app": "probed" });
        if self.is_meshed {
            labels["ctrlmesh.kusionstack.io/enable-proxy"] = "true".into();
        }
        let container = json!({
            "name": CONTAINER,
            "image": "registry.example.com/demo-operator:1",
            "imagePullPolicy": "IfNotPresent",
            "args": [
                "--leader-election-id=probed",
                format!("--webhook-port={port}"),
                format!("--webhook-cert-dir={}", Webhooks::CERT_DIR),
                format!("--webhook-after={GATE}/open"),
            ],
            "readinessProbe": probe,
            "volumeMounts": [
                { "name": "certs", "mountPath": Webhooks::CERT_DIR, "readOnly": true },
                { "name": "gate", "mountPath": GATE },
            ],
        });
        let certs = json!({ "name": "certs", "secret": { "secretName": Webhooks::SECRET } });
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": self.name, "namespace": NAMESPACE, "labels": labels },
            "spec": {
                "containers": [container],
                "volumes": [certs, { "name": "gate", "emptyDir": {} }],
                "terminationGracePeriodSeconds": 1,
            },
        })
    }

    /// The file as this machine reaches it.
    fn gate(&self, installed: &Installed) -> Result<PathBuf> {
        let process = installed.process(&self.name, CONTAINER)?;
        let root = Path::new("/proc").join(process.to_string()).join("root");
        Ok(root.join(GATE.trim_start_matches('/')).join("open"))
    }

    /// Has the operator listen.
    fn open(&self, installed: &Installed) -> Result<()> {
        let gate = self.gate(installed)?;
        fs::write(&gate, "").with_context(|| format!("writing {}", gate.display()))
    }

    fn wait_ready(&self, scene: &Webhooks) -> Result<()> {
        let pod = format!("pod/{}", self.name);
        scene.node().wait_for(NAMESPACE, &pod, "condition=Ready", LIMIT)
    }

    /// The status of the operator's container.
    fn status(&self, scene: &Webhooks) -> Result<Value> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}", self.name);
        let pod = scene.node().api().client().get(&path)?.json()?;
        let mut all = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        Ok(all.find(|status| status["name"] == CONTAINER).cloned().unwrap_or_default())
    }

    /// How often the kubelet found it not ready, and the last reason, with no address.
    fn failures(&self, scene: &Webhooks) -> Result<(u64, String)> {
        let of = format!("involvedObject.name={},reason=Unhealthy", self.name);
        let path = format!("/api/v1/namespaces/{NAMESPACE}/events?fieldSelector={of}");
        let client = scene.node().api().client();
        let mut events = client.get(&path)?.json()?;
        let (mut count, mut last) = (0, (Value::Null, String::new()));
        for event in events["items"].as_array_mut().context("events")? {
            let words = event["message"].as_str().unwrap_or_default();
            let of = event["involvedObject"]["fieldPath"].as_str().unwrap_or_default();
            if !words.starts_with("Readiness probe failed") || !of.contains(CONTAINER) {
                continue;
            }
            count += event["count"].as_u64().unwrap_or(1);
            let at = event["lastTimestamp"].clone();
            if at.as_str() >= last.0.as_str() {
                last = (at, words.to_owned());
            }
        }
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}", self.name);
        let pod = client.get(&path)?.json()?;
        let address = pod["status"]["podIP"].as_str().unwrap_or("no address");
        Ok((count, last.1.replace(address, "ADDRESS").trim().to_owned()))
    }
}

/// The shard of the pods that are probed: nothing is theirs.
fn shard() -> Value {
    let team = json!({ "matchLabels": { "team": "nobody" } });
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "probed", "namespace": NAMESPACE },
        "spec": {
            "selector": { "matchLabels": { "app": "probed" } },
            "controller": { "leaderElectionName": "probed" },
            "webhook": { "certDir": Webhooks::CERT_DIR, "port": Webhooks::PORT },
            "limits": [{
                "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
                "selector": team,
            }],
        },
    })
}
