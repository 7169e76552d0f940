//! A controller in shards on one machine: a pod is an address of loopback, where its proxy stands at
//! the webhook port, and its operator at another address.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use ctrlmesh::net::tls::{H2, HTTP_11};
use http::{HeaderValue, Method, Request, header};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{
    client::{self, AnyBody, Client, Http, request_with, text},
    pki::{Ca, Cert, Signed},
    process::{Process, flags},
    proxy::Files,
    scrape, soon, until,
    upstream::{Behaviour, Call, Place, Stream, Upstream},
};

/// The shards' pods, and who calls them.
pub(super) struct Mesh {
    pub(super) shards: Vec<Shard>,
    /// The webhook port.
    pub(super) port: u16,
    pub(super) ca: Ca,
    files: Files,
    _api: Upstream,
    pods: Arc<Pods>,
}

/// A pod of a shard.
pub(super) struct Shard {
    pub(super) name: &'static str,
    pub(super) addr: SocketAddr,
    pub(super) process: Process,
    pub(super) operator: Upstream,
    pub(super) files: Files,
    /// The operator's certificate.
    pub(super) signed: Signed,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

/// The pods that the API server shows.
#[derive(Default)]
struct Pods {
    shown: Mutex<Vec<Value>>,
    watches: Mutex<Vec<Stream>>,
}

/// The settings of a mesh.
pub(super) struct Setup {
    /// The shards, a pod each; with `-1` behind the name, the second pod of a shard.
    pub(super) shards: Vec<&'static str>,
    /// Further fields of `spec.webhook`.
    pub(super) webhook: &'static str,
    /// The limit of a shard, with `NAME` for its own.
    pub(super) limit: &'static str,
    pub(super) alpn: Vec<&'static [u8]>,
    /// Whether the operators' certificates are there from the start.
    pub(super) has_certificates: bool,
    /// The shard whose proxy has another policy than the others: the teams of both are exchanged.
    pub(super) behind: Option<&'static str>,
}

/// Of ConfigMaps those of a team.
pub(super) const OF_TEAM: &str = "{relateResources: [{apiGroups: [''], resources: [configmaps]}], \
                           selector: {matchLabels: {team: NAME}}}";

impl Default for Setup {
    fn default() -> Self {
        Self {
            shards: vec!["blue", "green"],
            webhook: "",
            limit: OF_TEAM,
            alpn: vec![HTTP_11],
            has_certificates: true,
            behind: None,
        }
    }
}

impl Mesh {
    pub(super) async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    /// Starts the shards, and waits until each knows the others.
    pub(super) async fn with(setup: Setup) -> Self {
        let mesh = Self::begin(setup).await;
        for shard in &mesh.shards {
            mesh.until_known(shard, mesh.shards.len() - 1).await;
            shard.until_open().await;
        }
        mesh
    }

    pub(super) async fn begin(setup: Setup) -> Self {
        let pods = Arc::<Pods>::default();
        let mut api = Upstream::speaking(Http::One).await;
        let shown = Arc::clone(&pods);
        api.serve(move |call| shown.answer(call));
        let files = Files::new(&api.ca.pem);
        let kubeconfig = files.put_kubeconfig(&api.addr.to_string());
        // Each pod has an address of its own, and the port is free at all of them.
        let port = free_port().await;
        files.put_policy(&policy(&setup, port));
        let ca = Ca::new("the operators' CA");
        let all = setup.shards.iter().enumerate();
        let all = all.map(|(at, name)| pod(name, address(at), port, true)).collect();
        *pods.shown.lock().unwrap() = all;
        let mut shards = Vec::new();
        for (at, name) in setup.shards.iter().copied().enumerate() {
            let ip = address(at);
            let (shard, pod, uid) = identity(name);
            let own = Files::new(&api.ca.pem);
            let signed = ca.signed(Cert::Good);
            if setup.has_certificates {
                own.put_pair(&signed);
            }
            let operator = operator(&setup, &signed).await;
            let addr = SocketAddr::from((ip, port));
            let file = if setup.behind == Some(name) {
                let exchanged = policy(&setup, port)
                    .replace("team: blue", "team: ?")
                    .replace("team: green", "team: blue")
                    .replace("team: ?", "team: green");
                own.put_policy(&exchanged);
                own.policy()
            } else {
                files.policy()
            };
            let mut args = flags(&own, &api.addr.to_string());
            args.retain(|arg| {
                !["--policy", "--shard", "--mesh-ca-dir"].iter().any(|flag| arg.starts_with(flag))
            });
            args.extend([
                format!("--policy={}", file.display()),
                format!("--shard={shard}"),
                format!("--mesh-ca-dir={}", files.mesh_ca().display()),
                format!("--webhook-port={port}"),
                format!("--inbound={addr}"),
                format!("--webhook-server={}", operator.addr),
                format!("--webhook-certs={}", own.certs().display()),
                "--drain-timeout=15".to_owned(),
            ]);
            let env = vec![
                ("KUBECONFIG", kubeconfig.display().to_string()),
                ("POD_NAMESPACE", "ns".into()),
                ("POD_NAME", pod),
                ("POD_UID", uid),
            ];
            let process = Process::start_with(&args, &env).await;
            shards.push(Shard { name, addr, process, operator, files: own, signed, args, env });
        }
        Self { shards, port, ca, files, _api: api, pods }
    }

    pub(super) fn shard(&mut self, name: &str) -> &mut Shard {
        self.shards.iter_mut().find(|shard| shard.name == name).expect("a shard of this name")
    }

    /// The policy file of all shards.
    pub(super) fn policy_file(&self) -> PathBuf {
        self.files.policy()
    }

    /// The directory of the mesh CA.
    pub(super) fn mesh_ca(&self) -> PathBuf {
        self.files.mesh_ca()
    }

    pub(super) fn mesh_ca_pem(&self) -> Vec<u8> {
        self.files.mesh_ca_pem()
    }

    /// Ends the operator of a pod; returns its port.
    pub(super) async fn end_operator(&mut self, name: &str) -> Place {
        let spare = Upstream::start().await;
        std::mem::replace(&mut self.shard(name).operator, spare).down().await.0
    }

    /// Has another server stand where the operator of a pod stood, with a certificate of its own.
    pub(super) async fn put_stranger(&mut self, name: &str) {
        let listener = self.end_operator(name).await.listen();
        self.shard(name).operator =
            Upstream::on(listener, Ca::new("a stranger"), Behaviour::default());
    }

    /// A client that calls a pod's webhook, as the API server does.
    pub(super) async fn client(&self, shard: &Shard, http: Http) -> Client {
        let config = client::config(self.ca.pem.as_bytes(), &[http.alpn()]);
        let tls = client::connect(shard.addr, config, "localhost").await.unwrap();
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(http.alpn()));
        Client::over(tls, http, 1 << 20).await
    }

    /// Has a shard's proxy begin its drain.
    pub(super) async fn drain(&self, shard: &Shard) {
        // Its idle connections to the API server end at once.
        let ca = self.files.mesh_ca_pem();
        let mut idle = Client::to(shard.process.addr, &ca, Http::One).await;
        assert_eq!(text(idle.get("/version").await).await.0, 200);
        shard.process.signal(Signal::SIGTERM);
        let _ = idle.ended().await;
    }

    /// Shows a pod as ready or not from now on, at this address.
    pub(super) async fn show(&self, name: &str, ip: Ipv4Addr, is_ready: bool) {
        let pod = pod(name, ip, self.port, is_ready);
        {
            let mut shown = self.pods.shown.lock().unwrap();
            shown.retain(|other| other["metadata"]["name"] != pod["metadata"]["name"]);
            shown.push(pod.clone());
        }
        self.pods.tell("MODIFIED", &pod).await;
    }

    /// Waits until a pod knows so many others.
    pub(super) async fn until_known(&self, shard: &Shard, count: usize) {
        let peers = || async { scrape::page(shard.process.admin, "/debug/peers").await.1 };
        let wanted = format!("\"count\": {count},");
        until("the peers", peers, |page| page.contains(&wanted)).await;
    }
}

impl Shard {
    /// Kills the proxy, and starts another as the kubelet would.
    pub(super) async fn restart(&mut self) {
        self.process.signal(Signal::SIGKILL);
        let again = Process::start_with(&self.args, &self.env);
        self.process = again.await;
    }

    /// Waits until the listener is there.
    pub(super) async fn until_open(&self) {
        let text = || async { self.ready().await.1 };
        until("the listener", text, |text| text.contains("[+]webhook ok: port ")).await;
    }

    pub(super) async fn ready(&self) -> (u16, String) {
        soon("readyz", scrape::page(self.process.admin, "/readyz")).await
    }

    pub(super) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let (_, text) = soon("metrics", scrape::page(self.process.admin, "/metrics")).await;
        scrape::sample(&text, name, labels)
    }

    /// How many requests were refused for this reason.
    pub(super) async fn refused(&self, reason: &str) -> f64 {
        self.metric("ctrlmesh_refusals_total", &[("reason", reason)]).await
    }

    /// How many reviews were answered in this way.
    pub(super) async fn reviews(&self, how: &str) -> f64 {
        self.metric("ctrlmesh_webhook_reviews_total", &[("how", how)]).await
    }
}

impl Files {
    pub(super) fn certs(&self) -> PathBuf {
        let certs = self.path().join("certs");
        fs::create_dir_all(&certs).unwrap();
        certs
    }

    /// Writes an operator's certificate and key.
    pub(super) fn put_pair(&self, signed: &Signed) {
        let (cert, key) = signed.pem();
        fs::write(self.certs().join("tls.key"), key).unwrap();
        fs::write(self.certs().join("tls.crt"), cert).unwrap();
    }
}

impl Pods {
    fn answer(&self, call: Call) {
        if call.path() == "/version" {
            return call.json(200, "{}");
        }
        assert_eq!(call.path(), "/api/v1/namespaces/ns/pods", "the proxy's own calls");
        if call.query("watch").is_some() {
            self.watches.lock().unwrap().push(call.watch());
            return;
        }
        let list = json!({
            "kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"},
            "items": *self.shown.lock().unwrap(),
        });
        call.json(200, &list.to_string());
    }

    async fn tell(&self, kind: &str, pod: &Value) {
        let event = json!({"type": kind, "object": pod}).to_string() + "\n";
        let watches = std::mem::take(&mut *self.watches.lock().unwrap());
        let mut open = Vec::new();
        for watch in watches {
            if watch.offer(event.clone()).await {
                open.push(watch);
            }
        }
        self.watches.lock().unwrap().extend(open);
    }
}

/// The address of the n-th pod.
pub(super) fn address(at: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 5, 11 + u8::try_from(at).unwrap())
}

async fn free_port() -> u16 {
    let probe = TcpListener::bind((address(0), 0)).await.unwrap();
    probe.local_addr().unwrap().port()
}

async fn operator(setup: &Setup, signed: &Signed) -> Upstream {
    let behaviour = Behaviour { alpn: setup.alpn.clone(), ..Behaviour::default() };
    let listener = Place::at("127.0.0.1:0".parse().unwrap()).listen();
    let tls = signed.server(&setup.alpn);
    Upstream::showing(listener, Ca::new("unused"), behaviour, tls)
}

fn policy(setup: &Setup, port: u16) -> String {
    let config = |name: &&str| {
        format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
             metadata: {{name: {name}}}\n\
             spec:\n  selector: {{matchLabels: {{app: {name}}}}}\n  \
             controller: {{leaderElectionName: op}}\n  \
             webhook: {{certDir: /certs, port: {port}{}}}\n  limits: [{}]\n---\n",
            setup.webhook,
            setup.limit.replace("NAME", name),
        )
    };
    setup.shards.iter().filter(|name| !name.ends_with("-1")).map(config).collect()
}

/// The shard of a pod, the pod's name and its uid.
fn identity(name: &str) -> (&str, String, String) {
    match name.strip_suffix("-1") {
        Some(shard) => (shard, name.to_owned(), format!("uid-of-second-{shard}")),
        None => (name, format!("{name}-0"), format!("uid-of-{name}")),
    }
}

fn pod(name: &str, ip: Ipv4Addr, port: u16, is_ready: bool) -> Value {
    let (shard, pod, uid) = identity(name);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod, "namespace": "ns", "uid": uid, "resourceVersion": "5",
            "labels": {"app": shard},
        },
        "spec": {"containers": [
            {"name": "ctrlmesh-proxy", "args": ["proxy", format!("--webhook-port={port}")]},
        ]},
        "status": {
            "phase": "Running",
            "podIP": ip.to_string(), "podIPs": [{"ip": ip.to_string()}],
            "conditions": [{"type": "Ready", "status": if is_ready { "True" } else { "False" }}],
        },
    })
}

/// A review of a ConfigMap of a team, which is created.
pub(super) fn review(team: &str) -> String {
    review_of("CREATE", &json!({"metadata": {"name": "x", "labels": {"team": team}}}), &Value::Null)
}

pub(super) fn review_of(operation: &str, object: &Value, old: &Value) -> String {
    // The order of the API server's own fields.
    format!(
        "{{\"kind\":\"AdmissionReview\",\"apiVersion\":\"admission.k8s.io/v1\",\"request\":{{\
         \"uid\":\"r-1\",\"kind\":{{\"group\":\"\",\"version\":\"v1\",\"kind\":\"ConfigMap\"}},\
         \"resource\":{{\"group\":\"\",\"version\":\"v1\",\"resource\":\"configmaps\"}},\
         \"name\":\"x\",\"namespace\":\"ns\",\"operation\":\"{operation}\",\
         \"userInfo\":{{\"username\":\"u\"}},\"object\":{object},\"oldObject\":{old},\
         \"dryRun\":false}}}}"
    )
}

/// A call of the webhook.
pub(super) fn call(body: impl Into<String>) -> Request<AnyBody> {
    post("/validate?timeout=10s", body.into())
}

pub(super) fn post(target: &str, body: String) -> Request<AnyBody> {
    let mut request = request_with(Method::POST, target, body);
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(header::CONTENT_TYPE, json);
    request.headers_mut().remove(header::AUTHORIZATION);
    request
}

pub(super) const BOTH: &[&[u8]] = &[H2, HTTP_11];
