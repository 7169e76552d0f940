//! A webhook server, and the ways to it: direct, through ctrlmesh in four shards, and through
//! haproxy, one or two in a row.

use std::{fmt, fs, net::SocketAddr, path::Path};

use anyhow::{Context, Result};
use ctrlmesh_e2e::{Client, Network};
use serde_json::{Value, json};

use super::{
    ACCOUNT, CLIENT_LIMIT, End, Maker, NAMESPACE, Proxy, START_LIMIT, TestBed, free_address, limits,
};
use crate::{note, running::Running};

/// The Service of the webhook server.
pub(crate) const SERVICE: &str = "operator";
/// The name in the webhook server's certificate.
const NAME: &str = "operator.bench.svc";
/// The file of the shards' policies.
const POLICIES: &str = "shards.yaml";
/// The directory of the webhook server's certificate.
const CERTS: &str = "webhook-certs";
/// The shards, a pod each, and the teams whose objects they own. The first one is called.
pub(crate) const SHARDS: [&str; 4] = ["blue", "green", "red", "black"];

/// A way to the webhook server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Direct,
    /// Through the pod whose shard owns the objects.
    Here,
    /// Through a pod of another shard, and the owner's.
    There,
    Haproxy,
    /// Through two of them.
    Haproxies,
}

impl Route {
    pub(crate) const ALL: [Self; 5] =
        [Self::Direct, Self::Here, Self::There, Self::Haproxy, Self::Haproxies];

    /// The team of the objects that go this way.
    pub(crate) fn team(self) -> &'static str {
        if self == Self::There { SHARDS[1] } else { SHARDS[0] }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Here => "ctrlmesh, here",
            Self::There => "ctrlmesh, forwarded",
            Self::Haproxy => "haproxy",
            Self::Haproxies => "two haproxies",
        })
    }
}

/// The webhook server and its proxies, without earlier traffic.
pub(crate) struct Webhooks<'a> {
    // Dropped first: proxies end before their upstream.
    pub(crate) pods: Vec<Pod>,
    second: Proxy,
    first: Proxy,
    _operator: Running,
    addr: SocketAddr,
    maker: &'a Maker,
}

/// The proxy of a pod of a shard.
pub(crate) struct Pod {
    pub(crate) proxy: Running,
    addr: SocketAddr,
    /// Asks for metrics and health.
    admin: Client,
}

impl TestBed {
    /// A webhook server with proxies of its own. There is one at a time: the pods of an earlier one
    /// are forgotten.
    pub(crate) fn webhooks(&self) -> Result<Webhooks<'_>> {
        note("starting a webhook server and its proxies");
        let maker = &self.maker;
        maker.put_certificate()?;
        let (operator, addr) = maker.operator()?;
        let first = maker.relay("haproxy-1", addr)?;
        let second = maker.relay("haproxy-2", first.addr()?)?;
        let pods = maker.pods(addr)?;
        Ok(Webhooks { pods, second, first, _operator: operator, addr, maker })
    }
}

impl Webhooks<'_> {
    /// The address that a client of a way calls.
    pub(crate) fn addr(&self, route: Route) -> Result<SocketAddr> {
        match route {
            Route::Direct => Ok(self.addr),
            Route::Here | Route::There => Ok(self.pods[0].addr),
            Route::Haproxy => self.first.addr(),
            Route::Haproxies => self.second.addr(),
        }
    }

    /// The proxies of a way.
    pub(crate) fn proxies(&self, route: Route) -> Vec<&Running> {
        match route {
            Route::Direct => Vec::new(),
            Route::Here => vec![&self.pods[0].proxy],
            Route::There => vec![&self.pods[0].proxy, &self.pods[1].proxy],
            Route::Haproxy => vec![&self.first.running],
            Route::Haproxies => vec![&self.first.running, &self.second.running],
        }
    }

    /// Runs `clients load` over a way and returns its figures.
    pub(crate) fn load(&self, route: Route, args: &[&str]) -> Result<Value> {
        let server = format!("https://{}", self.addr(route)?);
        let ca = self.maker.api.ca_file().display().to_string();
        let to = ["load", "--kubeconfig", "", "--server", &server, "--ca", &ca];
        let all = [&to[..], &["--tls-server-name", NAME], args].concat();
        let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
        let said = self.maker.run("client", &self.maker.clients, &all)?.finish(CLIENT_LIMIT)?;
        let last = said.lines().last().context("clients load printed nothing")?;
        Ok(serde_json::from_str(last)?)
    }

    /// A client of the webhook server itself.
    pub(crate) fn operator(&self) -> Result<Client> {
        let api = &self.maker.api;
        Client::new(&format!("https://{}", self.addr), api.ca_pem(), "none", &Network::Own)
    }
}

impl Pod {
    /// How many reviews were answered in this way.
    pub(crate) fn reviews(&self, how: &str) -> Result<f64> {
        self.metric("ctrlmesh_webhook_reviews_total", &format!("how=\"{how}\""))
    }

    /// How many requests came to its webhook port, but from other pods.
    pub(crate) fn requests(&self) -> Result<f64> {
        self.metric("ctrlmesh_requests_total", "leg=\"inbound\"")
    }

    /// The sum of the series of a metric that have a label.
    fn metric(&self, name: &str, label: &str) -> Result<f64> {
        let page = self.admin.get("/metrics")?.text;
        let series = page.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
                && line.contains(label)
        });
        let mut values = series.filter_map(|line| line.rsplit(' ').next());
        Ok(values.try_fold(0.0, |sum, value| value.parse::<f64>().map(|value| sum + value))?)
    }
}

impl Proxy {
    fn addr(&self) -> Result<SocketAddr> {
        Ok(self.end.url.trim_start_matches("https://").parse()?)
    }
}

impl Maker {
    /// Writes the webhook server's certificate, once.
    fn put_certificate(&self) -> Result<()> {
        let directory = self.file(CERTS);
        if directory.is_dir() {
            return Ok(());
        }
        let names = [NAME.to_owned(), "localhost".to_owned(), "127.0.0.1".to_owned()];
        let identity = self.api.authority().server("operator", &names)?;
        fs::create_dir(&directory)?;
        fs::write(directory.join("tls.key"), &identity.key_pem)?;
        fs::write(directory.join("tls.crt"), &identity.cert_pem)?;
        Ok(fs::write(directory.join("both.pem"), identity.cert_pem + &identity.key_pem)?)
    }

    fn operator(&self) -> Result<(Running, SocketAddr)> {
        let listen = free_address()?;
        let certs = self.file(CERTS);
        let args = [
            "operator".to_owned(),
            "--listen".to_owned(),
            listen.clone(),
            "--cert".to_owned(),
            certs.join("tls.crt").display().to_string(),
            "--key".to_owned(),
            certs.join("tls.key").display().to_string(),
        ];
        let mut operator = self.run("operator", &self.clients, &args)?;
        operator.await_that("listens", START_LIMIT, |said| said.contains(r#""event":"open""#))?;
        Ok((operator, listen.parse()?))
    }

    /// A haproxy in front of a webhook server or of another haproxy.
    fn relay(&self, name: &str, upstream: SocketAddr) -> Result<Proxy> {
        let (listen, ca) = (free_address()?, self.api.ca_file());
        let config = self.file(&format!("{name}.cfg"));
        let pem = self.file(CERTS).join("both.pem");
        fs::write(&config, relay_config(&listen, &pem, upstream, &ca))?;
        let args = ["-db".into(), "-f".into(), config.display().to_string()];
        let url = format!("https://{listen}");
        let mut running = self.run(name, Path::new("haproxy"), &args)?;
        let client = Client::new(&url, self.api.ca_pem(), "none", &Network::Own)?;
        running.await_that("leads to the webhook server", START_LIMIT, |_| {
            client.get("/healthz").is_ok_and(|response| response.status == 200)
        })?;
        Ok(Proxy { running, end: End { url, ca } })
    }

    /// The pods of the shards, each of which knows the others.
    fn pods(&self, operator: SocketAddr) -> Result<Vec<Pod>> {
        // The port is free at all addresses of loopback.
        let port = free_address()?.parse::<SocketAddr>()?.port();
        fs::write(self.file(POLICIES), policies(port))?;
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        self.api.client().delete(&format!("{pods}?gracePeriodSeconds=0"))?.json()?;
        let addrs = (1..).map(|at| SocketAddr::from(([127, 0, 0, at], port)));
        let mut all = Vec::new();
        for (shard, addr) in SHARDS.into_iter().zip(addrs) {
            let uid = self.show_pod(&pods, shard, addr)?;
            all.push(self.pod(shard, &uid, addr, operator)?);
        }
        for pod in &mut all {
            let admin = &pod.admin;
            let is_ready = |_: &str| is_ready(admin).unwrap_or(false);
            pod.proxy.await_that("takes reviews and knows the others", START_LIMIT, is_ready)?;
        }
        Ok(all)
    }

    /// Shows a pod of a shard as the kubelet does, and returns its uid.
    fn show_pod(&self, pods: &str, shard: &str, addr: SocketAddr) -> Result<String> {
        let args = json!(["proxy", format!("--webhook-port={}", addr.port())]);
        let pod = json!({
            "metadata": { "name": pod_name(shard), "labels": { "app": shard } },
            "spec": {
                "serviceAccountName": ACCOUNT,
                "containers": [{ "name": "ctrlmesh-proxy", "image": "none", "args": args }],
            },
        });
        let client = self.api.client();
        let made = client.post(pods, &pod)?.json()?;
        let ip = addr.ip().to_string();
        let status = json!({ "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{ "ip": ip }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        let path = format!("{pods}/{}/status", pod_name(shard));
        let merge = "application/merge-patch+json";
        client.request("PATCH", &path, merge, status.to_string().into_bytes())?.json()?;
        Ok(made["metadata"]["uid"].as_str().context("a pod has a uid")?.to_owned())
    }

    fn pod(&self, shard: &str, uid: &str, addr: SocketAddr, operator: SocketAddr) -> Result<Pod> {
        let path = |file: &str| self.file(file).display().to_string();
        let admin = free_address()?;
        let kubeconfig = format!("KUBECONFIG={}", self.kubeconfig.display());
        let mut args = vec![kubeconfig, self.ctrlmesh.display().to_string()];
        let flags = [
            "proxy --mode direct --threads 2 --upstream",
            &self.api.address().to_string(),
            "--upstream-ca",
            &self.api.ca_file().display().to_string(),
            "--listen",
            &free_address()?,
            "--admin",
            &admin,
            "--policy",
            &path(POLICIES),
            "--shard",
            shard,
            "--mesh-ca-dir",
            &path("mesh-ca"),
            "--webhook-port",
            &addr.port().to_string(),
            "--inbound",
            &addr.to_string(),
            "--webhook-server",
            &operator.to_string(),
            "--webhook-certs",
            &path(CERTS),
            "--pod-namespace",
            NAMESPACE,
            "--pod-name",
            &pod_name(shard),
            "--pod-uid",
            uid,
        ];
        args.extend(flags.iter().flat_map(|flag| flag.split(' ')).map(str::to_owned));
        let proxy = self.run(&pod_name(shard), Path::new("env"), &args)?;
        let admin =
            Client::new(&format!("http://{admin}"), self.api.ca_pem(), "none", &Network::Own)?;
        Ok(Pod { proxy, addr, admin })
    }
}

fn is_ready(admin: &Client) -> Result<bool> {
    let peers = format!("\"count\": {},", SHARDS.len() - 1);
    let has_listener = admin.get("/readyz")?.text.contains("[+]webhook ok: port ");
    Ok(has_listener && admin.get("/debug/peers")?.text.contains(&peers))
}

fn pod_name(shard: &str) -> String {
    format!("{shard}-0")
}

/// The policies of all shards: the limits of each are those of the other rows, by team.
fn policies(port: u16) -> String {
    let config = |shard| {
        let team = json!({ "selector": { "matchLabels": { "team": shard } } });
        let config = json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
            "kind": "ShardingConfig",
            "metadata": { "name": shard, "namespace": NAMESPACE },
            "spec": {
                "selector": { "matchLabels": { "app": shard } },
                "controller": { "leaderElectionName": "bench" },
                "webhook": { "certDir": "/certs", "port": port },
                "limits": limits(&team),
            },
        });
        format!("---\n{config}\n")
    };
    SHARDS.map(config).concat()
}

/// As for the other rows, but with HTTP/1.1 on both legs, as the API server speaks it to webhooks.
fn relay_config(listen: &str, pem: &Path, upstream: SocketAddr, ca: &Path) -> String {
    let (pem, ca) = (pem.display(), ca.display());
    format!(
        "global
    nbthread 2
defaults
    mode http
    timeout connect 10s
    timeout client 1h
    timeout server 1h
frontend clients
    bind {listen} ssl crt {pem} alpn http/1.1
    default_backend webhooks
backend webhooks
    server operator {upstream} ssl verify required ca-file {ca} sni str({NAME}) verifyhost {NAME} \
         alpn http/1.1
"
    )
}
