//! ECK from its chart under a root, in two shards and three. It keeps Secrets for each Kibana, finds them by
//! labels, and deletes those whose Kibana it does not see.
//!
//! Kibanas run no pods: their images are on a registry that tests cannot reach.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, Installed, eck, go_module, until};
use serde_json::{Value, json};

const NAMESPACE: &str = "elastic-system";
const OPERATOR: &str = "system:serviceaccount:elastic-system:elastic-operator";
const LIMIT: Duration = Duration::from_secs(300);
/// Namespaces, each with eight Kibanas.
const TENANTS: usize = 12;
const KIBANAS: usize = 8;
/// The groups of ECK's own kinds.
const GROUPS: [&str; 10] = [
    "agent.k8s.elastic.co",
    "apm.k8s.elastic.co",
    "autoscaling.k8s.elastic.co",
    "beat.k8s.elastic.co",
    "elasticsearch.k8s.elastic.co",
    "enterprisesearch.k8s.elastic.co",
    "kibana.k8s.elastic.co",
    "logstash.k8s.elastic.co",
    "maps.k8s.elastic.co",
    "stackconfigpolicy.k8s.elastic.co",
];

/// The operator, and the shards of its root.
struct Eck {
    scene: Installed,
}

/// The uids of the Secrets of each Kibana, by their names.
type Secrets = BTreeMap<String, String>;

impl Eck {
    fn install() -> Result<Self> {
        let scene = Installed::start(Binaries::from_env()?, &[])?;
        scene.node().import_image(&eck()?)?;
        let module = go_module("github.com/elastic/cloud-on-k8s/v3", "v3.5.0")?;
        let mut helm = scene.helm_command()?;
        helm.args(["install", "eck", "--create-namespace", "--namespace", NAMESPACE]);
        helm.arg(module.join("deploy/eck-operator"));
        for value in [
            "image.repository=localhost/eck",
            "image.tag=e2e",
            "replicaCount=2",
            "telemetry.disabled=true",
            "webhook.enabled=false",
            "resources=null",
        ] {
            helm.args(["--set", value]);
        }
        helm.args(["--set-string", r"podLabels.ctrlmesh\.kusionstack\.io/enable-proxy=true"]);
        let output = helm.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(Self { scene })
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.scene.node().kubectl(&[&["--namespace", NAMESPACE][..], args].concat())
    }

    /// Draws this many shards, with a limit of these groups or with whole namespaces.
    fn draw(&self, size: usize, groups: Option<&[&str]>) -> Result<()> {
        let limit =
            |groups| json!({ "relateResources": [{ "apiGroups": groups, "resources": ["*"] }] });
        let limits: Vec<_> = groups.into_iter().map(limit).collect();
        let root = json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
            "kind": "ShardingConfig",
            "metadata": { "name": "eck", "namespace": NAMESPACE },
            "spec": {
                "controller": { "leaderElectionName": "elastic-operator-leader" },
                "root": {
                    "prefix": "eck",
                    "targetStatefulSet": "elastic-operator",
                    "auto": { "shardingSize": size, "everyShardReplicas": 1, "by": "Namespace" },
                    "resourceSelector": limits,
                },
            },
        });
        self.scene.node().apply(&root.to_string()).map(drop)
    }

    /// Runs this many pods, and waits until each shard is laid out.
    fn run(&self, size: usize, groups: Option<&[&str]>) -> Result<()> {
        let replicas = format!("--replicas={size}");
        let before = self.root()?["status"]["root"]["childShardingConfigs"].clone();
        if before.as_array().is_some_and(|before| before.len() > size) {
            // A shard that goes is emptied while its pod is there.
            self.draw(size, groups)?;
            until("the shards that go are gone", LIMIT, || {
                let children = self.kubectl(&["get", "shardingconfigs", "--output=name"])?;
                Ok((children.lines().count() == size + 1).then_some(()))
            })?;
            self.kubectl(&["scale", "statefulset/elastic-operator", &replicas])?;
        } else {
            self.kubectl(&["scale", "statefulset/elastic-operator", &replicas])?;
            self.draw(size, groups)?;
        }
        for at in 0..size {
            let pod = format!("pod/elastic-operator-{at}");
            self.scene.node().wait_for(NAMESPACE, &pod, "condition=Ready", LIMIT)?;
        }
        let mut last = Value::Null;
        let laid_out = until("the shards are laid out", LIMIT, || {
            last = self.root()?;
            let observed = &last["metadata"]["generation"];
            let mut all = last["status"]["conditions"].as_array().into_iter().flatten();
            let ready = all.find(|one| one["type"] == "Ready");
            let is_done = |ready: &Value| {
                ready["status"] == "True" && ready["observedGeneration"] == *observed
            };
            Ok(ready.is_some_and(is_done).then_some(()))
        });
        laid_out.with_context(|| last["status"].to_string())
    }

    /// The root. Null if it is not there yet.
    fn root(&self) -> Result<Value> {
        let path = format!(
            "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{NAMESPACE}/shardingconfigs/eck"
        );
        let answer = self.scene.node().api().client().get(&path)?;
        if answer.status == 404 { Ok(Value::Null) } else { answer.json() }
    }

    fn make_tenant(&self, at: usize) -> Result<()> {
        let namespace = format!("tenant-{at:02}");
        self.scene.node().kubectl(&["create", "namespace", &namespace])?;
        for number in 0..KIBANAS {
            let kibana = json!({
                "apiVersion": "kibana.k8s.elastic.co/v1", "kind": "Kibana",
                "metadata": { "name": format!("kb-{number}"), "namespace": namespace },
                "spec": { "version": "9.1.0", "count": 0 },
            });
            self.scene.node().apply(&kibana.to_string())?;
        }
        Ok(())
    }

    /// The Secrets of the tenants.
    fn secrets(&self) -> Result<Secrets> {
        let list = self.scene.node().api().client().get("/api/v1/secrets")?.json()?;
        let all = list["items"].as_array().context("items")?.iter();
        let of_tenants = all.filter_map(|secret| {
            let [namespace, name, uid] =
                ["namespace", "name", "uid"].map(|field| secret["metadata"][field].as_str());
            let (namespace, name) = (namespace?, name?);
            let is_tenants = namespace.starts_with("tenant-");
            is_tenants.then(|| Some((format!("{namespace}/{name}"), uid?.to_owned())))?
        });
        Ok(of_tenants.collect())
    }

    /// Waits until there are Secrets of all Kibanas, and for a while none more.
    fn settled(&self) -> Result<Secrets> {
        let mut last = (Secrets::new(), Instant::now());
        until("the Secrets of all Kibanas", LIMIT, || {
            let now = self.secrets()?;
            if now != last.0 {
                last = (now, Instant::now());
            }
            let kibana =
                |name: &String| name.rsplit_once("-kb-").map(|(kibana, _)| kibana.to_owned());
            let kibanas: BTreeSet<_> = last.0.keys().filter_map(kibana).collect();
            let is_settled = last.1.elapsed() > Duration::from_secs(10);
            Ok((kibanas.len() == TENANTS * KIBANAS && is_settled).then(|| last.0.clone()))
        })
    }

    /// The deletes of tenants' Secrets that the API server took of the operator.
    fn deleted(&self) -> Result<Vec<String>> {
        let entries = self.scene.node().api().audit().entries()?.into_iter();
        let deleted = entries.filter_map(|entry| {
            let of = entry.object_ref.unwrap_or_default();
            let is_delete = ["delete", "deletecollection"].contains(&entry.verb.as_str());
            let is_taken = entry.response_status.is_some_and(|status| status.code < 300);
            let is_of_tenants = of.resource == "secrets" && of.namespace.starts_with("tenant-");
            (is_delete && is_taken && is_of_tenants && entry.user.username == OPERATOR)
                .then(|| format!("{}/{}", of.namespace, of.name))
        });
        Ok(deleted.collect())
    }

    /// The writes that the fence of a pod refused.
    fn refused(&self, pods: usize) -> Result<BTreeMap<String, f64>> {
        let mut all: BTreeMap<String, f64> = BTreeMap::new();
        for at in 0..pods {
            let path = format!(
                "/api/v1/namespaces/{NAMESPACE}/pods/elastic-operator-{at}:5441/proxy/metrics"
            );
            for line in self.scene.node().kubectl(&["get", "--raw", &path])?.lines() {
                if let Some(rest) = line.strip_prefix("ctrlmesh_fence_total{")
                    && rest.contains(r#"verdict="refused""#)
                    && let Some((labels, value)) = rest.rsplit_once(' ')
                {
                    *all.entry(labels.to_owned()).or_default() += value.parse::<f64>()?;
                }
            }
        }
        Ok(all)
    }

    /// The message of a condition that a child has with this status.
    fn said(&self, kind: &str, status: &str) -> Result<Option<String>> {
        let path = format!(
            "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{NAMESPACE}/shardingconfigs"
        );
        let list = self.scene.node().api().client().get(&path)?.json()?;
        let mut conditions = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|child| child["status"]["conditions"].as_array())
            .flatten();
        let found = conditions.find(|one| one["type"] == kind && one["status"] == status);
        Ok(found.and_then(|one| one["message"].as_str()).map(str::to_owned))
    }

    /// Has the operator reconcile every Kibana.
    fn touch(&self, mark: &str) -> Result<()> {
        let annotation = format!("touched={mark}");
        for at in 0..TENANTS {
            let namespace = format!("tenant-{at:02}");
            let args = ["--namespace", &namespace, "annotate", "--overwrite", "kibana", "--all"];
            self.scene.node().kubectl(&[&args[..], &[&annotation]].concat())?;
        }
        Ok(())
    }
}

fn number(name: &str, usual: u64) -> Result<u64> {
    env::var(name).ok().map_or(Ok(usual), |text| text.parse()).context(name.to_owned())
}

#[test]
fn eck_keeps_the_secrets_of_each_kibana_whatever_its_root_forgot() -> Result<()> {
    let (seconds, rounds) = (number("SECONDS_WATCHED", 60)?, number("ROUNDS", 1)?);
    let eck = Eck::install()?;
    // As someone writes it who knows the operator's own kinds: without Secrets.
    eck.run(2, Some(&GROUPS))?;
    for at in 0..TENANTS {
        eck.make_tenant(at)?;
    }
    let secrets = eck.settled()?;
    println!("eck: {} Secrets of {} Kibanas", secrets.len(), TENANTS * KIBANAS);
    let began = Instant::now();
    for (kind, status) in [("WritesRefused", "True"), ("RelatedResourcesLimited", "False")] {
        let told = until("the condition names Secrets", Duration::from_secs(60), || {
            eck.touch("once")?;
            Ok(eck.said(kind, status)?.filter(|message| message.contains("secrets")))
        })?;
        println!("eck: {kind} after {:.0} s: {told}", began.elapsed().as_secs_f64());
    }
    while began.elapsed() < Duration::from_secs(seconds) {
        eck.touch(&format!("at-{}", began.elapsed().as_secs()))?;
        pass();
    }
    let refused = eck.refused(2)?;
    ensure!(eck.deleted()?.is_empty(), "deleted: {:?}", eck.deleted()?);
    ensure!(eck.secrets()? == secrets, "they are other ones");
    println!("eck: in {seconds} s none was deleted; refused were {refused:?}");

    // The same root without resources.
    eck.run(2, None)?;
    let before = eck.refused(2)?;
    for round in 0..5 {
        eck.touch(&format!("whole-{round}"))?;
        pass();
    }
    until("all is limited", LIMIT, || {
        Ok(eck.said("RelatedResourcesLimited", "False")?.is_none().then_some(()))
    })?;
    let refused = eck.refused(2)?;
    ensure!(refused == before, "with whole namespaces were refused {before:?}, then {refused:?}");
    for round in 1..=rounds {
        for size in [3, 2] {
            eck.run(size, None)?;
            eck.touch(&format!("moved-{round}-{size}"))?;
            pass();
            ensure!(eck.deleted()?.is_empty(), "{size} shards: {:?}", eck.deleted()?);
        }
        ensure!(eck.settled()? == secrets, "they are other ones after round {round}");
        println!("eck: round {round} of 2 shards, 3, and 2: none was deleted, none came twice");
    }
    Ok(())
}

#[allow(
    clippy::disallowed_methods,
    reason = "the operator reconciles meanwhile, and nothing tells its end"
)]
fn pass() {
    sleep(Duration::from_secs(10));
}
