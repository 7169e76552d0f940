//! An API server, and the ways to it: direct and through proxies.

mod webhooks;

use std::{
    fmt, fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use ctrlmesh_e2e::{ApiServer, Client, Network, Rule};
use serde_json::{Value, json};

pub(crate) use self::webhooks::{Route, SERVICE, SHARDS, Webhooks};
use crate::{
    Args,
    counter::Counter,
    note,
    running::{CLIENT_LIMIT, Running},
};

/// The namespace of the objects of most rows.
pub(crate) const NAMESPACE: &str = "bench";
/// The ServiceAccount of the proxies and clients.
const ACCOUNT: &str = "bench";
/// The file of the policy in force.
const POLICY: &str = "policy.yaml";
/// The label that the policy in force selects. All objects have it.
pub(crate) const LABEL: &str = "shard=bench";
/// The limited resources next to ConfigMaps.
const LIMITED: [(&str, &str); 19] = [
    ("", "pods"),
    ("", "secrets"),
    ("", "services"),
    ("", "endpoints"),
    ("", "persistentvolumeclaims"),
    ("", "persistentvolumes"),
    ("", "replicationcontrollers"),
    ("", "resourcequotas"),
    ("apps", "deployments"),
    ("apps", "statefulsets"),
    ("apps", "daemonsets"),
    ("apps", "replicasets"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
    ("networking.k8s.io", "ingresses"),
    ("networking.k8s.io", "networkpolicies"),
    ("policy", "poddisruptionbudgets"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("discovery.k8s.io", "endpointslices"),
];
const START_LIMIT: Duration = Duration::from_secs(20);

/// A way to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Direct,
    Ours,
    Haproxy,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Direct, Self::Ours, Self::Haproxy];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Ours => "ctrlmesh",
            Self::Haproxy => "haproxy",
        })
    }
}

/// A way that has a proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proxied {
    Ours,
    Haproxy,
}

impl Proxied {
    pub(crate) const ALL: [Self; 2] = [Self::Ours, Self::Haproxy];
}

/// A proxy in front of the API server.
pub(crate) struct Proxy {
    pub(crate) running: Running,
    end: End,
}

/// The command that starts a proxy, and the end of it that clients use.
struct Launch {
    program: PathBuf,
    args: Vec<String>,
    end: End,
}

/// The URL for a client, and the CA by which it verifies the server there.
#[derive(Clone)]
struct End {
    url: String,
    ca: PathBuf,
}

/// The API server and one proxy of each kind.
pub(crate) struct TestBed {
    // Dropped first: proxies end before their upstream.
    pub(crate) ours: Proxy,
    pub(crate) haproxy: Proxy,
    maker: Maker,
}

/// Starts proxies and clients.
struct Maker {
    ctrlmesh: PathBuf,
    clients: PathBuf,
    api: ApiServer,
    token_file: PathBuf,
    /// With the same token.
    kubeconfig: PathBuf,
}

impl Proxy {
    /// The arguments that make a client watch through this proxy too.
    pub(crate) fn beside(&self) -> [String; 4] {
        let End { url, ca } = &self.end;
        let ca = ca.display().to_string();
        ["--beside-server".into(), url.clone(), "--beside-ca".into(), ca]
    }
}

impl TestBed {
    pub(crate) fn start(args: &Args) -> Result<Self> {
        note("starting the API server and the proxies");
        let maker = Maker::new(args)?;
        let ours = maker.start("ours", maker.ours(POLICY)?)?;
        let haproxy = maker.start("haproxy", maker.haproxy()?)?;
        Ok(Self { ours, haproxy, maker })
    }

    /// The proxy of a way. `None` for the direct one.
    pub(crate) fn proxy(&self, way: Way) -> Option<&Proxy> {
        match way {
            Way::Direct => None,
            Way::Ours => Some(&self.ours),
            Way::Haproxy => Some(&self.haproxy),
        }
    }

    /// A proxy without earlier traffic.
    pub(crate) fn fresh(&self, way: Proxied) -> Result<Proxy> {
        self.maker.start(&format!("fresh-{way:?}"), self.maker.launch(way)?)
    }

    /// A proxy without earlier traffic whose instructions are counted.
    pub(crate) fn counted(&self, way: Proxied) -> Result<(Proxy, Counter)> {
        let name = format!("counted-{way:?}");
        let counter = Counter::new(self.maker.file(&name));
        let mut launch = self.maker.launch(way)?;
        (launch.program, launch.args) = counter.command(&launch.program, launch.args);
        Ok((self.maker.start(&name, launch)?, counter))
    }

    /// A ctrlmesh proxy that leaves out half of all ConfigMaps by itself.
    pub(crate) fn judging(&self) -> Result<Proxy> {
        self.maker.start("judging", self.maker.ours("judging.yaml")?)
    }

    /// A ctrlmesh proxy that judges each ConfigMap, and leaves out none.
    pub(crate) fn judging_all(&self) -> Result<Proxy> {
        self.maker.start("judging-all", self.maker.ours("judging-all.yaml")?)
    }

    /// Runs `clients load` over a way and returns its figures.
    pub(crate) fn load(&self, way: Way, args: &[&str]) -> Result<Value> {
        match self.proxy(way) {
            Some(proxy) => self.load_through(proxy, args),
            None => self.maker.load(&self.maker.direct(), args),
        }
    }

    /// The same through this proxy.
    pub(crate) fn load_through(&self, proxy: &Proxy, args: &[&str]) -> Result<Value> {
        self.maker.load(&proxy.end, args)
    }

    /// Opens watches of one client through a proxy. They last until the value is dropped.
    pub(crate) fn watches(&self, proxy: &Proxy, count: usize) -> Result<Running> {
        let args = ["--no-stdin", "--count", &count.to_string()];
        let mut client = self.maker.client("watches", &proxy.end, &args)?;
        client.await_that("has all its watches", CLIENT_LIMIT, |said| {
            said.contains(r#""event":"open""#)
        })?;
        Ok(client)
    }

    /// The arguments that send the updates of a watch measurement directly.
    pub(crate) fn writer(&self) -> [String; 4] {
        let End { url, ca } = self.maker.direct();
        ["--writer-server".into(), url, "--writer-ca".into(), ca.display().to_string()]
    }

    /// Begins `clients load` without a proxy.
    pub(crate) fn direct(&self, args: &[&str]) -> Result<Running> {
        self.maker.client("load", &self.maker.direct(), args)
    }

    /// The API server itself.
    pub(crate) fn api(&self) -> &ApiServer {
        &self.maker.api
    }

    pub(crate) fn make_namespace(&self, name: &str) -> Result<()> {
        self.maker.api.kubectl(&["create", "namespace", name]).map(drop)
    }
}

impl Maker {
    fn new(args: &Args) -> Result<Self> {
        let api = ApiServer::start()?;
        let account = api.service_account(NAMESPACE, ACCOUNT, &[Rule::all()])?;
        let token_file = api.directory().join("bench.token");
        fs::write(&token_file, &account.token)?;
        let (ctrlmesh, clients) = (args.ctrlmesh.clone(), args.clients.clone());
        let kubeconfig = account.kubeconfig;
        let maker = Self { ctrlmesh, clients, api, token_file, kubeconfig };
        let selected = json!({ "selector": { "matchLabels": { "shard": "bench" } } });
        fs::write(maker.file(POLICY), policy(&selected).to_string())?;
        let half = json!([{ "from": "0x0000000000000000", "to": "0x8000000000000000" }]);
        let all = json!([{ "from": "0x0000000000000000", "to": "" }]);
        for (file, ranges) in [("judging.yaml", half), ("judging-all.yaml", all)] {
            let judged = json!({ "hash": { "of": "uid", "ranges": ranges } });
            fs::write(maker.file(file), policy(&judged).to_string())?;
        }
        let ca = maker.file("mesh-ca").display().to_string();
        maker.run("mesh-ca", &args.ctrlmesh, &["mesh-ca".into(), ca])?.finish(START_LIMIT)?;
        Ok(maker)
    }

    fn direct(&self) -> End {
        End { url: self.api.url(), ca: self.api.ca_file() }
    }

    fn launch(&self, way: Proxied) -> Result<Launch> {
        match way {
            Proxied::Ours => self.ours(POLICY),
            Proxied::Haproxy => self.haproxy(),
        }
    }

    fn ours(&self, policy: &str) -> Result<Launch> {
        let path = |file: &str| self.file(file).display().to_string();
        let (listen, admin) = (free_address()?, free_address()?);
        let args = [
            "proxy --mode direct --shard bench --threads 2 --upstream",
            &self.api.address().to_string(),
            "--upstream-ca",
            &self.api.ca_file().display().to_string(),
            "--listen",
            &listen,
            "--admin",
            &admin,
            "--policy",
            &path(policy),
            "--mesh-ca-dir",
            &path("mesh-ca"),
            "--pod-namespace",
            NAMESPACE,
        ];
        let args: Vec<String> =
            args.iter().flat_map(|arg| arg.split(' ')).map(str::to_owned).collect();
        let end = End { url: format!("https://{listen}"), ca: self.file("mesh-ca/ca.crt") };
        Ok(Launch { program: self.ctrlmesh.clone(), args, end })
    }

    fn haproxy(&self) -> Result<Launch> {
        let listen = free_address()?;
        let identity =
            self.api.authority().server("haproxy", &["127.0.0.1".into(), "localhost".into()])?;
        let pem = self.file("haproxy.pem");
        fs::write(&pem, identity.cert_pem + &identity.key_pem)?;
        let config = self.file(&format!("{listen}.cfg"));
        let ca = self.api.ca_file();
        fs::write(&config, haproxy_config(&listen, &pem, &self.api.address().to_string(), &ca))?;
        let args = ["-db".into(), "-f".into(), config.display().to_string()];
        let end = End { url: format!("https://{listen}"), ca };
        Ok(Launch { program: "haproxy".into(), args: args.into(), end })
    }

    /// Starts a proxy and waits until the API server answers through it.
    fn start(&self, name: &str, launch: Launch) -> Result<Proxy> {
        let Launch { program, args, end } = launch;
        let mut proxy = Proxy { running: self.run(name, &program, &args)?, end };
        let ca = fs::read_to_string(&proxy.end.ca)?;
        let client = Client::new(&proxy.end.url, &ca, self.api.admin_token(), &Network::Own)?;
        proxy.running.await_that("leads to the API server", START_LIMIT, |_| {
            client.get("/readyz").is_ok_and(|response| response.status == 200)
        })?;
        Ok(proxy)
    }

    fn load(&self, end: &End, args: &[&str]) -> Result<Value> {
        self.client("load", end, args)?.figures()
    }

    fn client(&self, subcommand: &str, end: &End, args: &[&str]) -> Result<Running> {
        let mut all: Vec<String> = vec![
            subcommand.into(),
            "--server".into(),
            end.url.clone(),
            "--ca".into(),
            end.ca.display().to_string(),
            "--token-file".into(),
            self.token_file.display().to_string(),
            "--namespace".into(),
            NAMESPACE.into(),
            "--no-compression".into(),
        ];
        all.extend(args.iter().map(|&arg| arg.to_owned()));
        self.run("client", &self.clients, &all)
    }

    fn run(&self, name: &str, program: &Path, args: &[String]) -> Result<Running> {
        Running::start(name, self.api.directory(), program, args)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.api.directory().join(name)
    }
}

/// A loopback address with a port that was free just now.
fn free_address() -> Result<String> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.to_string())
}

/// A policy with the same limit for every resource, as JSON, which is YAML.
fn policy(limit: &Value) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "bench", "namespace": NAMESPACE },
        "spec": {
            "selector": { "matchLabels": { "app": "bench" } },
            "controller": { "leaderElectionName": "bench" },
            "limits": limits(limit),
        },
    })
}

/// The same limit for each of 20 resources.
fn limits(limit: &Value) -> Vec<Value> {
    let of = |(group, resource): (&str, &str)| {
        let mut limit = limit.clone();
        limit["relateResources"] = json!([{ "apiGroups": [group], "resources": [resource] }]);
        limit
    };
    std::iter::once(("", "configmaps")).chain(LIMITED).map(of).collect()
}

/// Debian's defaults, except for the needs of the comparison: two threads, TLS verified upstream,
/// HTTP/2 on both legs with the API server's number of streams, and streams that may be idle.
fn haproxy_config(listen: &str, pem: &Path, upstream: &str, ca: &Path) -> String {
    let (pem, ca) = (pem.display(), ca.display());
    format!(
        "global
    nbthread 2
    tune.h2.max-concurrent-streams 250
defaults
    mode http
    timeout connect 10s
    timeout client 1h
    timeout server 1h
frontend clients
    bind {listen} ssl crt {pem} alpn h2,http/1.1
    default_backend api
backend api
    server api {upstream} ssl verify required ca-file {ca} sni str(kubernetes) verifyhost \
         kubernetes alpn h2,http/1.1
"
    )
}
