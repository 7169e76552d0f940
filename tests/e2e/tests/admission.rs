//! Admission as a real API server asks for it: what it sends, what it does with the answer.
//!
//! The listener is the test's own; certificates and answers are the product's.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use ctrlmesh::{
    cli::yaml,
    inject::{Enforces, Settings, Sidecar},
    manager::{
        admission::review,
        configs::Configs,
        trust::{Lifetimes, Purpose, Trust},
    },
    net::{
        ca::{LeafSpec, Validity, certificate_pem},
        tls,
    },
};
use ctrlmesh_e2e::{ApiServer, until};
use rcgen::KeyPair;
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
};
use serde_json::{Value, json};

/// The paths of the webhooks, and the namespaces that each is for.
const PATHS: [(&str, Enforces); 2] =
    [("/inject", Enforces::Privileged), ("/inject/baseline", Enforces::Baseline)];

/// A server of reviews, which counts them.
struct Reviewer {
    port: u16,
    ca: String,
    calls: Arc<AtomicUsize>,
}

impl Reviewer {
    fn start() -> Result<Self> {
        let now = SystemTime::now();
        let purpose = Purpose {
            serving: vec![ServerName::try_from("localhost")?],
            domain: "cluster.local".parse()?,
            addresses: Vec::new(),
            names: Vec::new(),
            lifetimes: Lifetimes::default(),
        };
        let trust = Trust::make(&purpose, now)?;
        let key = KeyPair::generate()?;
        let names = [ServerName::try_from("localhost")?];
        let validity = Validity::starting(now, Duration::from_secs(3600));
        let leaf = LeafSpec { names: &names, uri: None, validity };
        let cert = trust.serving().signing().sign(&leaf, &key)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let calls = Arc::new(AtomicUsize::new(0));
        let (config, noted) = (Arc::new(config), Arc::clone(&calls));
        // Ends with the process of the test. The API server says of a connection that it failed.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let tls = ServerConnection::new(Arc::clone(&config));
                let _ = tls.map(|tls| answer(StreamOwned::new(tls, stream), &noted));
            }
        });
        let ca = trust.serving().published().map(certificate_pem).collect();
        Ok(Self { port, ca, calls })
    }

    /// The configuration that users apply, with this server in place of the manager's Service.
    fn configuration(&self) -> Result<Value> {
        let base = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/base/ctrlmesh.yaml");
        let text = std::fs::read_to_string(base)?;
        let mut objects = yaml::documents(&text).into_iter().filter_map(|text| {
            yaml::parse(&text).ok()?.filter(|it| it["kind"] == "MutatingWebhookConfiguration")
        });
        let mut configuration = objects.next().context("a configuration")?;
        for hook in configuration["webhooks"].as_array_mut().context("webhooks")? {
            let path = hook["clientConfig"]["service"]["path"].as_str().context("a path")?;
            hook["clientConfig"] = json!({
                "url": format!("https://localhost:{}{path}", self.port),
                "caBundle": STANDARD.encode(&self.ca),
            });
        }
        Ok(configuration)
    }

    fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }
}

/// Answers the one request of a connection.
fn answer(mut tls: StreamOwned<ServerConnection, TcpStream>, calls: &AtomicUsize) -> Result<()> {
    let mut reader = BufReader::new(&mut tls);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(reader.read_until(b'\n', &mut head)? > 0, "the API server closed in a head");
    }
    let head = String::from_utf8(head)?.to_ascii_lowercase();
    let length = head.split("content-length:").nth(1).and_then(|rest| rest.lines().next());
    let mut body = vec![0; length.context("a length")?.trim().parse()?];
    reader.read_exact(&mut body)?;
    let path = head.split([' ', '?']).nth(1).context("a path")?;
    let (_, namespaces) = PATHS.into_iter().find(|(it, _)| *it == path).context("a webhook")?;
    calls.fetch_add(1, SeqCst);
    let settings = Settings::new(
        "localhost/ctrlmesh:1".parse()?,
        "localhost/ctrlmesh-init:1".parse()?,
        Sidecar::Native,
        "1359".parse()?,
    )?;
    let answer = review(&body, &settings.at_admission(namespaces), &Configs::default())?.body;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        answer.len()
    );
    tls.write_all(head.as_bytes())?;
    tls.write_all(&answer)?;
    tls.conn.send_close_notify();
    Ok(tls.flush()?)
}

/// A cluster whose pods are reviewed.
fn scene() -> Result<(ApiServer, Reviewer)> {
    let api = ApiServer::start()?;
    let reviewer = Reviewer::start()?;
    api.kubectl(&["create", "serviceaccount", "default"])?;
    api.apply(&yaml::print(&reviewer.configuration()?))?;
    // The API server learns of a configuration by a watch of its own.
    until("a review", Duration::from_secs(30), || {
        create(&api, &pod("default"), &["--dry-run=server"])?;
        Ok((reviewer.calls() > 0).then_some(()))
    })?;
    Ok((api, reviewer))
}

/// A pod that keeps the standard `restricted` by itself, of a controller that names no pods.
fn pod(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "op-",
            "namespace": namespace,
            "labels": { "kridge.kusionstack.io/enable-proxy": "true" },
        },
        "spec": {
            "containers": [{
                "name": "app",
                "image": "localhost/app:1",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] },
                    "runAsNonRoot": true,
                    "runAsUser": 65532,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
            }],
        },
    })
}

/// Creates an object; returns the stored data, and what kubectl says next to it.
fn create(api: &ApiServer, object: &Value, flags: &[&str]) -> Result<(Value, String)> {
    let mut child = api
        .kubectl_client()
        .command()
        .args(["create", "-o", "json", "-f", "-"])
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("the pipe just asked for")?;
    stdin.write_all(object.to_string().as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(output.status.success(), "{said}");
    Ok((serde_json::from_slice(&output.stdout)?, said))
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let items = pod["spec"][list].as_array().into_iter().flatten();
    items.map(|item| item["name"].as_str().unwrap_or_default().to_owned()).collect()
}

fn volumes_of_tokens(pod: &Value) -> Vec<String> {
    names(pod, "volumes").into_iter().filter(|name| name.starts_with("kube-api-access")).collect()
}

#[test]
fn i12_a_pod_that_asks_is_created_injected_and_no_other_is_reviewed() -> Result<()> {
    let (api, reviewer) = scene()?;
    for flags in [&["--dry-run=server"][..], &[]] {
        let (stored, said) = create(&api, &pod("default"), flags)?;
        ensure!(said.is_empty(), "{said}");
        ensure!(names(&stored, "initContainers") == ["ctrlmesh-init", "ctrlmesh-proxy"]);
        ensure!(stored["spec"]["initContainers"][1]["restartPolicy"] == "Always");
        ensure!(volumes_of_tokens(&stored) == ["kube-api-access-ctrlmesh"], "{stored:#}");
        let mounts = &stored["spec"]["containers"][0]["volumeMounts"];
        ensure!(mounts.as_array().is_some_and(|mounts| mounts.len() == 1), "{mounts}");
    }
    let calls = reviewer.calls();
    let mut others = pod("default");
    others["metadata"]["labels"] = json!({ "kridge.kusionstack.io/enable-proxy": "false" });
    let mut nameless = pod("default");
    nameless["metadata"]["labels"] = Value::Null;
    for other in [others, nameless] {
        ensure!(names(&create(&api, &other, &[])?.0, "initContainers").is_empty());
    }
    ensure!(reviewer.calls() == calls, "a pod that does not ask was reviewed");
    Ok(())
}

#[test]
fn i12_a_pod_that_cannot_be_injected_is_refused_by_the_name_of_the_webhook() -> Result<()> {
    let (api, _reviewer) = scene()?;
    let mut hosts = pod("default");
    hosts["spec"]["hostNetwork"] = json!(true);
    let said = format!("{:#}", create(&api, &hosts, &[]).err().context("a host's pod was let in")?);
    for part in ["pods.ctrlmesh.kusionstack.io", "denied the request", "hostNetwork: true"] {
        ensure!(said.contains(part), "no {part} in {said}");
    }
    let account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": { "name": "tokenless", "namespace": "default" },
        "automountServiceAccountToken": false,
    });
    api.apply(&yaml::print(&account))?;
    let mut tokenless = pod("default");
    tokenless["spec"]["serviceAccountName"] = json!("tokenless");
    let said = format!("{:#}", create(&api, &tokenless, &[]).err().context("got a token")?);
    ensure!(said.contains("the pod's ServiceAccount has automountServiceAccountToken"), "{said}");
    tokenless["metadata"]["annotations"] = json!({ "ctrlmesh.kusionstack.io/mount-token": "true" });
    let (stored, _) = create(&api, &tokenless, &[])?;
    ensure!(volumes_of_tokens(&stored) == ["kube-api-access-ctrlmesh"], "{stored:#}");
    Ok(())
}

#[test]
fn i20_a_namespace_that_enforces_a_level_gets_env_mode_with_a_warning() -> Result<()> {
    let (api, _reviewer) = scene()?;
    for level in ["baseline", "restricted"] {
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": level,
                "labels": { "pod-security.kubernetes.io/enforce": level },
            },
        });
        api.apply(&yaml::print(&namespace))?;
        api.kubectl(&["create", "serviceaccount", "default", "-n", level])?;
        let (stored, said) = create(&api, &pod(level), &[])?;
        ensure!(names(&stored, "initContainers") == ["ctrlmesh-proxy"], "{stored:#}");
        ensure!(said.starts_with("Warning: the namespace enforces a Pod Security level"), "{said}");
        // What leads the API server's names to the proxy is admitted too.
        let sysctl = json!({ "name": "net.ipv4.ip_unprivileged_port_start", "value": "0" });
        ensure!(stored["spec"]["securityContext"]["sysctls"] == json!([sysctl]), "{stored:#}");
        let alias = &stored["spec"]["hostAliases"][0];
        ensure!(alias["ip"] == "127.0.0.1", "{stored:#}");
        ensure!(alias["hostnames"][2] == "kubernetes.default.svc", "{stored:#}");
        let mut redirected = pod(level);
        redirected["metadata"]["annotations"] =
            json!({ "ctrlmesh.kusionstack.io/enable-iptables": "true" });
        let said = format!("{:#}", create(&api, &redirected, &[]).err().context("NET_ADMIN")?);
        ensure!(said.contains("the pod is injected in env mode"), "{said}");
    }
    Ok(())
}
