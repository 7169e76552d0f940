//! What every test here starts from.

use std::{
    path::Path,
    process::Command,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{
    ApiServer, AuditLevel, Client, Program, Proxy, Rule, ServiceAccount, ctrlmesh_binary,
    go_clients, until,
};
use serde_json::{Value, json};

/// Longer than anything takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A namespace of the shared API server, with an account that may do everything.
pub(crate) struct Bed {
    pub(crate) api: Arc<ApiServer>,
    pub(crate) namespace: String,
    pub(crate) account: ServiceAccount,
    _turn: Turn,
}

/// Tests that measure run alone, the others side by side.
#[expect(dead_code, reason = "held, not read")]
enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

static TURNS: RwLock<()> = RwLock::new(());

impl Bed {
    pub(crate) fn new(name: &str) -> Result<Self> {
        Self::make(shared_api()?, name, shared_turn())
    }

    /// With an API server of its own, to stop it.
    pub(crate) fn with_own_server(name: &str) -> Result<Self> {
        Self::make(Arc::new(ApiServer::start()?), name, shared_turn())
    }

    /// With an API server of its own that shards by itself (KEP-5866).
    pub(crate) fn with_sharding_server(name: &str) -> Result<Self> {
        let api = ApiServer::builder().feature_gate("ShardedListAndWatch", true).start()?;
        Self::make(Arc::new(api), name, shared_turn())
    }

    /// For a test that measures: no other one runs next to it.
    pub(crate) fn alone(name: &str) -> Result<Self> {
        Self::make(
            shared_api()?,
            name,
            Turn::Alone(TURNS.write().unwrap_or_else(PoisonError::into_inner)),
        )
    }

    /// Both.
    pub(crate) fn alone_with_sharding_server(name: &str) -> Result<Self> {
        let turn = Turn::Alone(TURNS.write().unwrap_or_else(PoisonError::into_inner));
        let api = ApiServer::builder().feature_gate("ShardedListAndWatch", true).start()?;
        Self::make(Arc::new(api), name, turn)
    }

    fn make(api: Arc<ApiServer>, name: &str, turn: Turn) -> Result<Self> {
        let namespace = name.replace('_', "-");
        let account = api.service_account(&namespace, "controller", &[Rule::all()])?;
        Ok(Self { api, namespace, account, _turn: turn })
    }

    /// The token of the account.
    pub(crate) fn token(&self) -> &str {
        &self.account.token
    }

    /// `/api/v1/namespaces/NAMESPACE/RESOURCE`.
    pub(crate) fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    /// Creates a ConfigMap straight at the API server; `labels` as `k=v,k=v`.
    pub(crate) fn config_map(&self, name: &str, labels: &str) -> Result<Value> {
        self.create("configmaps", name, labels)
    }

    pub(crate) fn create(&self, resource: &str, name: &str, labels: &str) -> Result<Value> {
        let object = json!({
            "metadata": { "name": name, "labels": label_map(labels) },
        });
        self.api.client().post(&self.path(resource), &object)?.json()
    }

    /// Replaces the label `team` straight at the API server; `null` removes it.
    pub(crate) fn relabel(&self, name: &str, team: Option<&str>) -> Result<Value> {
        let patch = json!({ "metadata": { "labels": { "team": team } } });
        let path = format!("{}/{name}", self.path("configmaps"));
        let kind = "application/merge-patch+json";
        self.api.client().request("PATCH", &path, kind, patch.to_string().into_bytes())?.json()
    }

    /// Deletes a ConfigMap straight at the API server.
    pub(crate) fn delete(&self, name: &str) -> Result<()> {
        let path = format!("{}/{name}", self.path("configmaps"));
        self.api.client().delete(&path)?.json().map(drop)
    }

    /// A proxy whose shard `mine` sees the ConfigMaps with this selector, as in a new pod.
    pub(crate) fn proxy(&self, selector: &[&str]) -> Result<Proxy> {
        Proxy::builder("mine", &config_maps(selector)).keeps_state().start(&self.api)
    }

    /// Makes our custom resources known to the API server.
    pub(crate) fn install_crds(&self) -> Result<()> {
        // Two that apply at the same time both create, and one is refused.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let crds = output(Command::new(ctrlmesh_binary()?).arg("crds"))?;
        self.api.apply(&String::from_utf8(crds)?)?;
        let name = "crd/shardingconfigs.ctrlmesh.kusionstack.io";
        self.api.kubectl(&["wait", "--for=condition=Established", name]).map(drop)
    }

    /// Draws the shard `mine` by a ShardingConfig of the cluster. Returns when the API server has
    /// replied.
    pub(crate) fn draw(&self, teams: &[&str]) -> Result<()> {
        let path = "/apis/ctrlmesh.kusionstack.io/v1alpha1";
        let path = format!("{path}/namespaces/{}/shardingconfigs/mine", self.namespace);
        let kind = "application/apply-patch+yaml";
        let target = format!("{path}?fieldManager=test&force=true");
        let config = config_maps(teams).into_bytes();
        self.api.client().request("PATCH", &target, kind, config)?.json().map(drop)
    }

    /// A proxy that finds its shard as in a pod.
    pub(crate) fn proxy_of_cluster(&self, flags: &[&str]) -> Result<Proxy> {
        let builder =
            Proxy::builder("mine", "").policy_of_cluster(&self.account.kubeconfig, &self.namespace);
        flags.iter().fold(builder, |builder, flag| builder.flag(flag)).start(&self.api)
    }

    /// A Go client program at `url`, as the account.
    pub(crate) fn clients(
        &self,
        way: &Way<'_>,
        subcommand: &str,
        args: &[&str],
    ) -> Result<Program> {
        let mut command = self.clients_command(way, subcommand)?;
        command.args(args);
        self.program(subcommand, &command)
    }

    pub(crate) fn clients_command(&self, way: &Way<'_>, subcommand: &str) -> Result<Command> {
        let mut command = Command::new(go_clients()?);
        command.arg(subcommand);
        command.args(["--namespace", &self.namespace]);
        command.arg("--kubeconfig").arg(way.kubeconfig(self)?);
        Ok(command)
    }

    pub(crate) fn program(&self, name: &str, command: &Command) -> Result<Program> {
        Program::start(name, command, &self.log(name))
    }

    /// curl at a URL, as the account.
    pub(crate) fn curl(&self, way: &Way<'_>, path: &str) -> Command {
        let mut curl = self.curl_without_token(way);
        curl.arg("-H").arg(format!("Authorization: Bearer {}", self.token()));
        curl.arg(format!("{}{path}", way.url(self)));
        curl
    }

    pub(crate) fn curl_without_token(&self, way: &Way<'_>) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "*", "--max-time", "60", "--cacert"]).arg(way.ca(self));
        curl
    }

    fn log(&self, name: &str) -> std::path::PathBuf {
        let unique: String = std::iter::repeat_with(fastrand::lowercase).take(6).collect();
        self.api.directory().join(format!("{name}-{unique}.log"))
    }
}

pub(crate) fn until_ready_says(proxy: &Proxy, what: &str) -> Result<()> {
    until(&format!("/readyz says {what:?}"), LIMIT, || {
        Ok(proxy.admin_text("/readyz")?.contains(what).then_some(()))
    })
}

/// The way to the API server.
pub(crate) enum Way<'a> {
    Straight,
    Through(&'a Proxy),
}

impl Way<'_> {
    pub(crate) fn url(&self, bed: &Bed) -> String {
        match self {
            Self::Straight => bed.api.url(),
            Self::Through(proxy) => proxy.url(),
        }
    }

    pub(crate) fn ca(&self, bed: &Bed) -> std::path::PathBuf {
        match self {
            Self::Straight => bed.api.ca_file(),
            Self::Through(proxy) => proxy.ca_file(),
        }
    }

    pub(crate) fn client(&self, bed: &Bed) -> Result<Client> {
        match self {
            Self::Straight => Ok(bed.api.client().with_token(bed.token())),
            Self::Through(proxy) => proxy.client(bed.token()),
        }
    }

    pub(crate) fn kubeconfig(&self, bed: &Bed) -> Result<std::path::PathBuf> {
        match self {
            Self::Straight => Ok(bed.account.kubeconfig.clone()),
            Self::Through(proxy) => proxy.kubeconfig(&bed.api, bed.token()),
        }
    }
}

/// The standard output of a command that must succeed.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(
        output.status.success(),
        "{:?}: {}: {}",
        command.get_program(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// The policy of shard `mine`: ConfigMaps of these values of the label `team`.
pub(crate) fn config_maps(teams: &[&str]) -> String {
    policy("mine", None, &[(&[""], &["configmaps"], teams)])
}

/// A ShardingConfig with limits of (groups, resources, values of the label `team`).
pub(crate) fn policy(
    shard: &str,
    lock: Option<&str>,
    limits: &[(&[&str], &[&str], &[&str])],
) -> String {
    let limits: Vec<Value> = limits
        .iter()
        .map(|(groups, resources, teams)| {
            json!({
                "relateResources": [{ "apiGroups": groups, "resources": resources }],
                "selector": { "matchExpressions": [
                    { "key": "team", "operator": "In", "values": teams },
                ] },
            })
        })
        .collect();
    let mut config = sharding_config(shard, &limits);
    if let Some(lock) = lock {
        config["spec"]["controller"] = json!({ "leaderElectionName": lock });
    }
    config.to_string()
}

/// A ShardingConfig of the operator's pods with these limits.
pub(crate) fn sharding_config(shard: &str, limits: &[Value]) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": shard },
        "spec": { "selector": { "matchLabels": { "app": "operator" } }, "limits": limits },
    })
}

pub(crate) fn label_map(labels: &str) -> Value {
    let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), Value::from(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The names of a list's items, sorted.
pub(crate) fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut names: Vec<String> = items.iter().map(name).collect();
    names.sort();
    names
}

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// RFC 3339 in seconds since 1970.
pub(crate) fn seconds(time: &str) -> Result<f64> {
    let time: k8s_openapi::jiff::Timestamp = time.parse()?;
    Ok(time.as_microsecond() as f64 / 1e6)
}

fn shared_turn() -> Turn {
    Turn::Shared(TURNS.read().unwrap_or_else(PoisonError::into_inner))
}

fn shared_api() -> Result<Arc<ApiServer>> {
    static SHARED: Mutex<Weak<ApiServer>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(api) = shared.upgrade() {
        return Ok(api);
    }
    let api = ApiServer::builder()
        .feature_gate("CBORServingAndStorage", true)
        .audit(AuditLevel::Metadata)
        .start()?;
    let api = Arc::new(api);
    *shared = Arc::downgrade(&api);
    Ok(api)
}
