//! An operator with webhooks, in four shards of one pod each.
//!
//! 1. [`Webhooks::start`]: an [`Installed`] node; a certificate in a Secret, and the Service.
//! 2. [`Webhooks::draw`]: a ShardingConfig with `spec.webhook`, before its pods are made.
//! 3. [`Webhooks::run`]: the operator's own Deployment of a shard, with webhooks, and our label.
//! 4. [`Webhooks::register`]: the webhook configurations of a chart, for labelled namespaces.
//! 5. The test works: the audit log has the pod that answered, and [`Webhooks::ask`] that which
//!    answers a review that a certain pod gets.

use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};

use super::{
    installed::Installed,
    mesh::Binaries,
    shards::{NAMESPACE, config},
};
use crate::{Authority, Families, Node};

/// The selector of all pods of the operator.
const POD_LABEL: (&str, &str) = ("app.kubernetes.io/name", "demo-operator");
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The scene; see the module.
pub struct Webhooks {
    installed: Installed,
    authority: Authority,
}

/// How the operator of a shard runs.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The mode of the files of its certificate. One that root alone can read has it run as root.
    pub mode: u32,
    /// The strategy of its Deployment, as its field `rollingUpdate`.
    pub rolling: Option<&'a Value>,
}

impl Default for Run<'_> {
    fn default() -> Self {
        Self { mode: 0o444, rolling: None }
    }
}

impl Webhooks {
    /// The shards.
    pub const SHARDS: [&str; 4] = ["ant", "bee", "cat", "dog"];
    /// The name of the Service of the webhooks.
    pub const SERVICE: &str = "demo-operator-webhooks";
    /// The name of the Secret of the certificate.
    pub const SECRET: &str = "demo-operator-certs";
    /// The port on which the operator serves.
    pub const PORT: u16 = 9443;
    /// The directory of the certificate in its container.
    pub const CERT_DIR: &str = "/certs";
    /// The name of the mutating webhook in audit annotations.
    pub const MUTATING: &str = "mutate.demo.example.com";
    /// The name of the validating webhook in audit annotations.
    pub const VALIDATING: &str = "validate.demo.example.com";
    /// The label of the namespaces whose objects are reviewed; its value is `yes`.
    pub const REVIEWED: &str = "reviewed";

    /// Starts a node with the chart, and makes all that the webhooks need but pods and configs.
    ///
    /// # Errors
    ///
    /// When a part does not start.
    pub fn start(binaries: Binaries, families: Families) -> Result<Self> {
        let node = Node::builder().families(families);
        let installed = Installed::start_on(binaries, node, &[])?;
        let webhooks = Self { installed, authority: Authority::new("webhook-ca")? };
        webhooks.serve(NAMESPACE, Self::SERVICE)?;
        Ok(webhooks)
    }

    /// The installation on which it stands.
    #[must_use]
    pub fn installed(&self) -> &Installed {
        &self.installed
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Node {
        self.installed.node()
    }

    /// The CA of the certificates, PEM.
    #[must_use]
    pub fn ca_pem(&self) -> String {
        self.authority.cert_pem()
    }

    /// Makes the Service of the webhooks in a namespace, and the Secret of its certificate.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn serve(&self, namespace: &str, service: &str) -> Result<()> {
        self.rotate_in(namespace, service)?;
        let port = json!({ "port": 443, "targetPort": Self::PORT });
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": service, "namespace": namespace },
            "spec": { "selector": { POD_LABEL.0: POD_LABEL.1 }, "ports": [port] },
        });
        self.node().apply(&service.to_string()).map(drop)
    }

    /// Replaces the certificate of the operator, as a certificate manager does, and returns the new
    /// one.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn rotate(&self) -> Result<CertificateDer<'static>> {
        self.rotate_in(NAMESPACE, Self::SERVICE)
    }

    fn rotate_in(&self, namespace: &str, service: &str) -> Result<CertificateDer<'static>> {
        // localhost is for port-forward.
        let names = [format!("{service}.{namespace}.svc"), "localhost".to_owned()];
        let identity = self.authority.server(service, &names)?;
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": { "name": Self::SECRET, "namespace": namespace },
            "stringData": { "tls.crt": identity.cert_pem, "tls.key": identity.key_pem },
        });
        self.node().apply(&secret.to_string())?;
        Ok(CertificateDer::from_pem_slice(identity.cert_pem.as_bytes())?)
    }

    /// The certificate that is shown at the webhook port of an address, verified as the API server
    /// verifies it.
    ///
    /// # Errors
    ///
    /// When nothing listens there, or shows another's.
    pub fn shown_at(&self, address: IpAddr) -> Result<CertificateDer<'static>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca_pem().as_bytes())?)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(format!("{}.{NAMESPACE}.svc", Self::SERVICE))?;
        let connection = ClientConnection::new(Arc::new(config), name)?;
        let address = SocketAddr::new(address, Self::PORT);
        self.node().network().enter(|| {
            let socket = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
            socket.set_read_timeout(Some(CONNECT_LIMIT))?;
            let mut stream = StreamOwned::new(connection, socket);
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock)?;
            }
            let shown = stream.conn.peer_certificates().and_then(<[_]>::first);
            Ok(shown.context("a server shows a certificate")?.clone().into_owned())
        })
    }

    /// Gives a shard these limits, and its webhook these settings besides directory and port.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn draw(&self, shard: &str, limit: &Value, more: &Value) -> Result<()> {
        let selector = json!({ "matchLabels": { "shard": shard } });
        let mut config = config(shard, &selector, limit);
        let mut webhook = json!({ "certDir": Self::CERT_DIR, "port": Self::PORT });
        for (field, value) in more.as_object().into_iter().flatten() {
            webhook[field] = value.clone();
        }
        config["spec"]["webhook"] = webhook;
        // Shards change places, so one overlaps until the next is drawn.
        config["metadata"]["labels"] = json!({ "ctrlmesh.kusionstack.io/ignore-validate": "" });
        self.node().apply(&config.to_string()).map(drop)
    }

    /// Starts the operator of a shard, or rolls it out, and returns at once.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn run(&self, shard: &str, run: Run<'_>) -> Result<()> {
        let manifest = self.installed.shards().deployment(shard)?;
        let mut deployment: Value = serde_json::from_str(&manifest)?;
        if let Some(rolling) = run.rolling {
            let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": rolling });
            deployment["spec"]["strategy"] = strategy;
        }
        serve_webhooks(&mut deployment["spec"]["template"]["spec"], run.mode)?;
        self.node().apply(&deployment.to_string()).map(drop)
    }

    /// Waits until the operator of a shard is rolled out.
    ///
    /// # Errors
    ///
    /// When it is not in time; the error has what its pods say.
    pub fn wait_for(&self, shard: &str, limit: Duration) -> Result<()> {
        let name = format!("deployment/demo-operator-{shard}");
        let timeout = format!("--timeout={}s", limit.as_secs());
        let args = ["--namespace", NAMESPACE, "rollout", "status", &name, &timeout];
        self.node().kubectl(&args).map(drop).map_err(|error| {
            let selector = format!("--selector=shard={shard}");
            let ask = |args: &[&str]| {
                let args = [&["--namespace", NAMESPACE], args, &[&*selector]].concat();
                self.node().kubectl(&args).unwrap_or_else(|error| error.to_string())
            };
            let logs = ["logs", "--all-containers", "--prefix", "--tail=30"];
            let told = format!("{}\n{}", ask(&["describe", "pods"]), ask(&logs));
            error.context(told).context(self.installed.told())
        })
    }

    /// Has the API server ask the webhooks about everything in the labelled namespaces.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn register(&self) -> Result<()> {
        let rule = |groups: &[&str], resources: &[&str]| {
            json!({
                "operations": ["CREATE", "UPDATE", "DELETE", "CONNECT"],
                "apiGroups": groups,
                "apiVersions": ["v1", "v1alpha1"],
                "resources": resources,
            })
        };
        let core = ["configmaps", "secrets", "namespaces", "serviceaccounts", "pods"];
        let parts = ["serviceaccounts/token", "pods/status", "pods/binding", "pods/eviction"];
        let rules = json!([
            rule(&[""], &[&core[..], &parts[..], &["pods/exec"]].concat()),
            rule(&["apps"], &["deployments", "deployments/scale"]),
            rule(&["demo.example.com"], &["widgets", "widgets/status"]),
        ]);
        let label = json!({ "matchLabels": { Self::REVIEWED: "yes" } });
        for (kind, name, path) in [
            ("MutatingWebhookConfiguration", Self::MUTATING, "/mutate"),
            ("ValidatingWebhookConfiguration", Self::VALIDATING, "/validate"),
        ] {
            let client = self.client_config(NAMESPACE, Self::SERVICE, path);
            self.register_one(kind, name, &client, &rules, &label)?;
        }
        Ok(())
    }

    /// Makes the configuration of one webhook, of the name of the webhook.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn register_one(
        &self,
        kind: &str,
        name: &str,
        client: &Value,
        rules: &Value,
        namespaces: &Value,
    ) -> Result<()> {
        let webhook = json!({
            "name": name,
            "clientConfig": client,
            "rules": rules,
            "namespaceSelector": namespaces,
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            // More than a proxy waits for an owner.
            "timeoutSeconds": 15,
        });
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": { "name": name },
            "webhooks": [webhook],
        });
        self.node().apply(&configuration.to_string()).map(drop)
    }

    /// How the API server reaches a path of a Service of webhooks.
    #[must_use]
    pub fn client_config(&self, namespace: &str, service: &str, path: &str) -> Value {
        let service = json!({ "namespace": namespace, "name": service, "path": path });
        json!({ "service": service, "caBundle": STANDARD.encode(self.ca_pem()) })
    }

    /// The pod that answers a review which this pod gets.
    ///
    /// # Errors
    ///
    /// When it is not answered.
    pub fn ask(&self, pod: &str, review: &Value) -> Result<String> {
        let port = Self::PORT;
        let path = format!(
            "/api/v1/namespaces/{NAMESPACE}/pods/https:{pod}:{port}/proxy/validate?timeout=10s"
        );
        let answer = self.node().api().client().post(&path, review)?.json()?;
        let name = answer["response"]["auditAnnotations"]["pod"].as_str();
        Ok(name.with_context(|| format!("no pod answered: {answer}"))?.to_owned())
    }
}

/// Has the operator's container of a pod template serve webhooks, as their chart does: flags, a
/// port, and a Secret.
fn serve_webhooks(pod: &mut Value, mode: u32) -> Result<()> {
    let volume = json!({ "secretName": Webhooks::SECRET, "defaultMode": mode });
    pod["volumes"] = json!([{ "name": "certs", "secret": volume }]);
    let container = &mut pod["containers"][0];
    let args = container["args"].as_array_mut().context("the operator has arguments")?;
    args.push(format!("--webhook-port={}", Webhooks::PORT).into());
    args.push(format!("--webhook-cert-dir={}", Webhooks::CERT_DIR).into());
    args.push("--webhook-references".into());
    let ports = container["ports"].as_array_mut().context("the operator has ports")?;
    ports.push(json!({ "name": "webhooks", "containerPort": Webhooks::PORT }));
    let mount = json!({ "name": "certs", "mountPath": Webhooks::CERT_DIR, "readOnly": true });
    container["volumeMounts"] = json!([mount]);
    if mode & 0o044 == 0 {
        container["securityContext"]["runAsNonRoot"] = false.into();
        container["securityContext"]["runAsUser"] = 0.into();
    }
    Ok(())
}
