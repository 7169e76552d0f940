//! A ring of four shards, and an informer of each pod.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use anyhow::{Context, Result};
use ctrlmesh_e2e::{ApiServer, Client, Front, Program, Proxy, Rule, go_clients, until};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::handover::{
    moves::{SHARDS, Split, Step, TEAMS, Teams},
    records::{Records, held},
};

/// The namespace of a ring with API servers of its own.
const NAMESPACE: &str = "ring";
/// A request of unknown end keeps a claim for a minute, and no test waits for more than one.
pub(crate) const LIMIT: Duration = Duration::from_secs(100);

/// The informers: to stream a list and to page it, in two encodings.
const INFORMERS: [&[&str]; SHARDS.len()] =
    [&[], &["--watchlist=false"], &["--json"], &["--json", "--watchlist=false"]];

/// Whom a shard waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    ForOthers,
    ForNobody,
}

/// Whether a pod says in a Lease what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Yes,
    /// As one of an older mesh.
    No,
}

/// What tells the objects of the shards apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The label `team`.
    Label,
    /// The namespace, which is named as the team. Writes into those of other shards are refused.
    Namespace,
}

/// The API servers of a ring: two on one etcd.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Servers {
    /// For a test that disturbs or measures them.
    Own,
    /// Those of all tests that leave them alone, with a namespace of this name.
    Shared(&'static str),
}

/// A pod of a shard.
pub(crate) struct Pod {
    name: String,
    pub(crate) shard: usize,
    /// The way of the proxy to its API server.
    pub(crate) front: Front,
    pub(crate) proxy: Proxy,
    informer: Program,
}

pub(crate) struct Scene {
    pub(crate) apis: Arc<[ApiServer; 2]>,
    namespace: &'static str,
    pub(crate) pods: Vec<Pod>,
    waits: Waits,
    by: By,
    token: String,
    /// The number of pods so far, and those that are gone.
    count: usize,
    gone: Vec<Gone>,
}

/// A pod that is gone: its shard, the lines of its informer, and its end.
type Gone = (usize, Vec<Value>, Timestamp);

impl Servers {
    /// The API servers, and the name of a namespace that is not there yet.
    fn find(self) -> Result<(Arc<[ApiServer; 2]>, &'static str)> {
        static SHARED: Mutex<Weak<[ApiServer; 2]>> = Mutex::new(Weak::new());
        match self {
            Self::Own => Ok((Arc::new(start()?), NAMESPACE)),
            Self::Shared(namespace) => {
                let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(apis) = shared.upgrade() {
                    return Ok((apis, namespace));
                }
                let apis = Arc::new(start()?);
                *shared = Arc::downgrade(&apis);
                Ok((apis, namespace))
            }
        }
    }
}

/// Starts two API servers that serve ShardingConfigs.
fn start() -> Result<[ApiServer; 2]> {
    let api = ApiServer::start()?;
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds.yaml");
    api.apply(&fs::read_to_string(definitions)?)?;
    let definition = "crd/shardingconfigs.ctrlmesh.kusionstack.io";
    api.kubectl(&["wait", "--for=condition=Established", definition])?;
    let beside = api.beside()?;
    Ok([api, beside])
}

fn config(namespace: &str, shard: &str, teams: &Teams, waits: Waits, by: By) -> Value {
    let values: Vec<_> = teams.iter().copied().chain([shard]).collect();
    let mut limit = match by {
        By::Label => json!({
            "selector": { "matchExpressions": [
                { "key": "team", "operator": "In", "values": values },
            ]},
        }),
        By::Namespace => json!({ "namespaces": { "names": values }, "clusterScoped": "Exclude" }),
    };
    limit["relateResources"] = json!([{ "apiGroups": [""], "resources": ["configmaps"] }]);
    let mode = if waits == Waits::ForOthers { "Wait" } else { "Immediate" };
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": shard, "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": { "app": shard } },
            "ring": "ring",
            "handover": { "mode": mode },
            "fence": { "mode": "Enforce" },
            "limits": [limit],
        },
    })
}

impl Scene {
    /// A ring of shards of this many pods each.
    pub(crate) fn start(
        servers: Servers,
        split: &Split,
        waits: Waits,
        pods_a_shard: usize,
    ) -> Result<Self> {
        Self::of(servers, split, waits, pods_a_shard, Speaks::Yes, By::Label)
    }

    /// A ring on API servers of its own, whose shards have namespaces.
    pub(crate) fn by_namespace(split: &Split, pods_a_shard: usize) -> Result<Self> {
        let (servers, by) = (Servers::Own, By::Namespace);
        Self::of(servers, split, Waits::ForOthers, pods_a_shard, Speaks::Yes, by)
    }

    /// The same of pods that may be of an older mesh.
    pub(crate) fn of(
        servers: Servers,
        split: &Split,
        waits: Waits,
        pods_a_shard: usize,
        speaks: Speaks,
        by: By,
    ) -> Result<Self> {
        let (apis, namespace) = servers.find()?;
        let api = &apis[0];
        api.kubectl(&["create", "namespace", namespace])?;
        let account = api.service_account(namespace, "operator", &[Rule::all()])?;
        until("ShardingConfigs are served", LIMIT, || {
            Ok(api.apply(&config(namespace, SHARDS[0], &split.0[0], waits, by).to_string()).ok())
        })?;
        for (shard, teams) in SHARDS.iter().zip(&split.0) {
            api.apply(&config(namespace, shard, teams, waits, by).to_string())?;
        }
        for team in TEAMS {
            let of = match by {
                By::Label => namespace,
                By::Namespace => team,
            };
            if by == By::Namespace {
                api.kubectl(&["create", "namespace", team])?;
            }
            let map = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": { "name": team, "namespace": of, "labels": { "team": team } },
            });
            api.apply(&map.to_string())?;
        }
        let mut scene = Self {
            apis,
            namespace,
            pods: Vec::new(),
            waits,
            by,
            token: account.token,
            count: 0,
            gone: Vec::new(),
        };
        for number in 0..SHARDS.len() * pods_a_shard {
            let pod = scene.pod(number, speaks)?;
            scene.pods.push(pod);
        }
        Ok(scene)
    }

    fn pod(&mut self, number: usize, speaks: Speaks) -> Result<Pod> {
        self.count += 1;
        let api = &self.apis[number % 2];
        let by = self.by;
        Pod::start(number, self.count, (api, self.namespace, by), &self.token, speaks)
    }

    /// Replaces a pod by a new one.
    pub(crate) fn roll(&mut self, number: usize, speaks: Speaks) -> Result<()> {
        let pod = self.pod(number, speaks)?;
        let Pod { shard, mut proxy, mut informer, .. } =
            std::mem::replace(&mut self.pods[number], pod);
        informer.terminate()?;
        informer.end(LIMIT)?;
        self.gone.push((shard, informer.lines(), Timestamp::now()));
        proxy.stop()
    }

    /// Writes a config.
    pub(crate) fn take(&self, step: &Step) -> Result<()> {
        let path = |shard: usize| {
            let root = "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces";
            format!("{root}/{}/shardingconfigs/{}", self.namespace, SHARDS[shard])
        };
        let client = self.apis[0].client();
        let answer = match step {
            Step::Draw(shard, teams) => {
                let body = config(self.namespace, SHARDS[*shard], teams, self.waits, self.by)
                    .to_string()
                    .into_bytes();
                let target = format!("{}?fieldManager=test&force=true", path(*shard));
                client.request("PATCH", &target, "application/apply-patch+yaml", body)?
            }
            Step::Delete(shard) => client.delete(&path(*shard))?,
        };
        answer.json().map(drop)
    }

    /// Waits until each informer has the objects of its shard.
    pub(crate) fn settle(&self, split: &Split) -> Result<()> {
        for pod in &self.pods {
            pod.settle(&split.0[pod.shard])?;
        }
        self.apis[1].fall_behind(Duration::ZERO)
    }

    /// A client of a pod's proxy.
    pub(crate) fn client(&self, pod: &Pod) -> Result<Client> {
        pod.proxy.client(&self.token)
    }

    /// Everything that the informers were told.
    pub(crate) fn records(&self) -> Result<Records> {
        let mut records = Records::default();
        for pod in &self.pods {
            records.add(pod.shard, &pod.informer.lines(), None)?;
        }
        for (shard, lines, end) in &self.gone {
            records.add(*shard, lines, Some(*end))?;
        }
        Ok(records)
    }
}

impl Pod {
    fn start(
        number: usize,
        count: usize,
        (api, namespace, by): (&ApiServer, &str, By),
        token: &str,
        speaks: Speaks,
    ) -> Result<Self> {
        let shard = number % SHARDS.len();
        let name = format!("{}-{count}", SHARDS[shard]);
        let front = Front::start(vec![api.address()])?;
        let address = front.address();
        let of_proxy = api.kubeconfig_for(&format!("https://{address}"), api.ca_pem(), token)?;
        let proxy = Proxy::builder(SHARDS[shard], "")
            .upstream(&address.to_string())
            .policy_of_cluster(&of_proxy, namespace)
            .labelled(SHARDS[shard])
            .keeps_state();
        let uid = format!("{count:08}-0000-4000-8000-000000000000");
        let proxy = match speaks {
            Speaks::Yes => proxy.env("POD_NAME", &name).env("POD_UID", &uid),
            Speaks::No => proxy,
        };
        let proxy = proxy.start(api)?;
        let mut command = Command::new(go_clients()?);
        command.args(["informer", "--arrivals"]).args(INFORMERS[shard]);
        let of = match by {
            By::Label => namespace,
            By::Namespace => "",
        };
        command.args(["--namespace", of]);
        command.arg("--kubeconfig").arg(proxy.kubeconfig(api, token)?);
        let log = api.directory().join(format!("informer-{namespace}-{name}.log"));
        let informer = Program::start(&name, &command, &log)?;
        Ok(Self { name, shard, front, proxy, informer })
    }

    /// The objects that it has now.
    pub(crate) fn has(&self) -> Teams {
        held(&self.informer.lines())
    }

    /// How often it lost an object.
    pub(crate) fn losses(&self) -> usize {
        let lines = self.informer.lines();
        let is_loss =
            |line: &&Value| line["event"] == "deleted" || line["event"] == "missed-delete";
        lines.iter().filter(is_loss).count()
    }

    fn settle(&self, teams: &Teams) -> Result<()> {
        let mut last = Teams::new();
        let settled = self.informer.wait_until(LIMIT, |lines| {
            last = held(lines);
            (last == *teams).then_some(())
        });
        settled.with_context(|| {
            let ready = self.proxy.admin_text("/readyz").unwrap_or_default();
            format!("{} has {last:?} in place of {teams:?}\n{ready}", self.name)
        })
    }
}
