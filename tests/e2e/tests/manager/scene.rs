//! A cluster with its namespaces and the webhooks, and what a test does in it.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use ctrlmesh::cli::yaml;
use ctrlmesh_e2e::{ApiServer, Manager, until};
use serde_json::{Value, json};

/// The audience of the tokens that proxies enrol with.
pub(crate) const AUDIENCE: &str = "ctrlmesh.kusionstack.io";
/// The time in which what the leader keeps is right again.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// The namespace of a test that has a cluster of its own.
pub(crate) const OPERATORS: &str = "operators";
/// The Secret with the authorities.
pub(crate) const SECRET: &str = "ctrlmesh-trust";
/// The label of a config that is not compared with others, and needs no manager.
pub(crate) const IGNORE: &str = "ctrlmesh.kusionstack.io/ignore-validate";
/// The Secret by which pods of the shared cluster pull images.
const PULL_SECRETS: &str = "--pull-secrets=regcred";
/// The name of the bundle.
pub(crate) const BUNDLE: &str = "ctrlmesh-ca-bundle";

/// A namespace of a cluster.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) api: &'a ApiServer,
    pub(crate) namespace: &'a str,
}

impl<'a> Place<'a> {
    /// The namespace of a test that has a cluster of its own.
    pub(crate) fn operators(api: &'a ApiServer) -> Self {
        Self { api, namespace: OPERATORS }
    }

    /// Runs kubectl in the namespace.
    pub(crate) fn kubectl(self, args: &[&str]) -> Result<String> {
        self.api.kubectl(&[&["-n", self.namespace], args].concat())
    }

    /// The path of an object of the core group.
    pub(crate) fn at(self, plural: &str, name: &str) -> String {
        at(self.namespace, plural, name)
    }

    /// The path of the ShardingConfigs.
    pub(crate) fn configs(self) -> String {
        let group = "/apis/ctrlmesh.kusionstack.io/v1alpha1";
        format!("{group}/namespaces/{}/shardingconfigs", self.namespace)
    }

    /// A token of the account `default`, bound to an object.
    pub(crate) fn token(self, audience: Option<&str>, bound: Option<&Value>) -> Result<String> {
        let bound = bound.map(|pod| {
            let meta = &pod["metadata"];
            json!({ "kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"] })
        });
        let spec = json!({ "audiences": audience.map(|a| vec![a]), "boundObjectRef": bound });
        let path = self.at("serviceaccounts", "default/token");
        let answer = self.api.client().post(&path, &json!({ "spec": spec }))?.json()?;
        Ok(answer["status"]["token"].as_str().context("a token")?.to_owned())
    }
}

/// A cluster with one replica of the manager.
struct Mesh {
    // Dropped in this order.
    manager: Manager,
    api: ApiServer,
}

/// The namespace of a test, in a cluster with a manager.
pub(crate) struct Bed {
    mesh: Arc<Mesh>,
    namespace: String,
}

impl Bed {
    /// A new namespace in the cluster of all tests that call this. Such a test changes only its own
    /// namespaces, and counts nothing of the whole cluster.
    pub(crate) fn new(namespace: &str) -> Result<Self> {
        let bed = Self { mesh: shared_mesh()?, namespace: namespace.to_owned() };
        make_namespace(bed.api(), namespace)?;
        Ok(bed)
    }

    /// A cluster of its own.
    pub(crate) fn with_own_cluster() -> Result<Self> {
        let mesh = Arc::new(Mesh::start(&[])?);
        Ok(Self { mesh, namespace: OPERATORS.to_owned() })
    }

    /// One more namespace, called `NAMESPACE-NAME`.
    pub(crate) fn another(&self, name: &str) -> Result<Self> {
        let namespace = format!("{}-{name}", self.namespace);
        make_namespace(self.api(), &namespace)?;
        Ok(Self { mesh: Arc::clone(&self.mesh), namespace })
    }

    pub(crate) fn api(&self) -> &ApiServer {
        &self.mesh.api
    }

    pub(crate) fn manager(&self) -> &Manager {
        &self.mesh.manager
    }

    pub(crate) fn place(&self) -> Place<'_> {
        Place { api: self.api(), namespace: &self.namespace }
    }
}

impl Mesh {
    fn start(flags: &[&str]) -> Result<Self> {
        let api = cluster()?;
        Ok(Self { manager: manager(&api, flags)?, api })
    }
}

/// The cluster of the tests that share one; it ends with the last of them.
fn shared_mesh() -> Result<Arc<Mesh>> {
    static SHARED: Mutex<Weak<Mesh>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mesh) = shared.upgrade() {
        return Ok(mesh);
    }
    let mesh = Arc::new(Mesh::start(&[PULL_SECRETS])?);
    *shared = Arc::downgrade(&mesh);
    Ok(mesh)
}

/// Starts an API server that has what a chart installs, but for the manager.
pub(crate) fn cluster() -> Result<ApiServer> {
    let api = ApiServer::start()?;
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/base");
    let [namespace, rest] = ["namespace.yaml", "ctrlmesh.yaml"].map(|file| base.join(file));
    api.apply(&format!("{}---\n{}", fs::read_to_string(namespace)?, fs::read_to_string(rest)?))?;
    make_namespace(&api, OPERATORS)?;
    make_account(&api, "default")?;
    Ok(api)
}

/// Makes a namespace in which pods can be created.
fn make_namespace(api: &ApiServer, name: &str) -> Result<()> {
    let namespace = json!({ "metadata": { "name": name } });
    api.client().post("/api/v1/namespaces", &namespace)?.json()?;
    make_account(api, name)
}

/// Makes the account of pods. The controller that would is not there.
fn make_account(api: &ApiServer, namespace: &str) -> Result<()> {
    let account = json!({ "metadata": { "name": "default" } });
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    api.client().post(&path, &account)?.json().map(drop)
}

/// A replica that is ready, and whose webhooks the API server calls.
pub(crate) fn manager(api: &ApiServer, flags: &[&str]) -> Result<Manager> {
    let manager = Manager::start(api, "manager-0", flags)?;
    manager.receive_reviews(api)?;
    manager.wait_ready()?;
    // The API server learns of a configuration by a watch of its own, which nothing shows.
    until("a pod is injected", SOON, || {
        let stored = create(api, &pod("default", "probe"), &["--dry-run=server"]);
        Ok(stored.is_ok_and(|stored| is_injected(&stored)).then_some(()))
    })
    .with_context(|| manager.log().unwrap_or_default())?;
    await_review(api).with_context(|| manager.log().unwrap_or_default())?;
    Ok(manager)
}

/// Waits until the API server has configs reviewed by the replica that was named to it last, and
/// trusts it.
pub(crate) fn await_review(api: &ApiServer) -> Result<()> {
    until("a config is reviewed", SOON, || {
        let stored = create(api, &config("default"), &["--dry-run=server"]);
        Ok(stored.is_ok().then_some(()))
    })
}

/// Whether a pod has a proxy.
pub(crate) fn is_injected(pod: &Value) -> bool {
    pod["spec"]["initContainers"]
        .as_array()
        .is_some_and(|all| all.iter().any(|container| container["name"] == "ctrlmesh-proxy"))
}

/// A ShardingConfig.
pub(crate) fn config(namespace: &str) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "blue", "namespace": namespace },
        "spec": { "selector": { "matchLabels": { "shard": "blue" } } },
    })
}

/// The config, with the label by which it is not compared with others.
pub(crate) fn let_in(mut config: Value) -> Value {
    config["metadata"]["labels"] = json!({ IGNORE: "" });
    config
}

/// A pod that asks for injection.
pub(crate) fn pod(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": { "ctrlmesh.kusionstack.io/enable-proxy": "true" },
        },
        "spec": { "containers": [{ "name": "app", "image": "localhost/app:1" }] },
    })
}

/// Creates an object; returns the stored data.
pub(crate) fn create(api: &ApiServer, object: &Value, flags: &[&str]) -> Result<Value> {
    let args = [&["create", "-o", "json", "-f", "-"], flags].concat();
    let stored = api.kubectl_client().run_with_input(&args, &yaml::print(object))?;
    Ok(serde_json::from_str(&stored)?)
}

/// An object. `None` if there is none.
pub(crate) fn get(api: &ApiServer, path: &str) -> Result<Option<Value>> {
    let response = api.client().get(path)?;
    match response.status {
        404 => Ok(None),
        _ => response.json().map(Some),
    }
}

/// The path of a namespaced object of the core group.
pub(crate) fn at(namespace: &str, plural: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{plural}/{name}")
}

/// The data of the Secret with the authorities.
pub(crate) fn authorities(api: &ApiServer) -> Result<Value> {
    let secret = get(api, &at(Manager::NAMESPACE, "secrets", SECRET))?;
    Ok(secret.context("there is no Secret")?["data"].take())
}

/// A certificate of the Secret, as PEM.
pub(crate) fn certificate(api: &ApiServer, key: &str) -> Result<String> {
    let data = authorities(api)?;
    let text = data[key].as_str().with_context(|| format!("no {key}"))?;
    Ok(String::from_utf8(STANDARD.decode(text)?)?)
}

/// Waits for the bundle of a namespace, and returns its data.
pub(crate) fn bundle(api: &ApiServer, namespace: &str) -> Result<Value> {
    until("a bundle", SOON, || {
        Ok(get(api, &at(namespace, "configmaps", BUNDLE))?.map(|mut map| map["data"].take()))
    })
}

/// Checks that a text has a part.
pub(crate) fn has(text: &str, part: &str) -> Result<()> {
    ensure!(text.contains(part), "no {part:?} in {text}");
    Ok(())
}

/// [`Place::token`] of a test that has a cluster of its own.
pub(crate) fn token(
    api: &ApiServer,
    audience: Option<&str>,
    bound: Option<&Value>,
) -> Result<String> {
    Place::operators(api).token(audience, bound)
}
