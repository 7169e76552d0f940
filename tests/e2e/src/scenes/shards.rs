//! The main job as a scene: one unmodified operator in several shards on a node.
//!
//! 1. [`Shards::start`]: a [`Mesh`], and on it the operator's image, CRD, rights and namespace.
//! 2. [`Shards::draw`]: a `ShardingConfig` that gives a shard its teams; or
//!    [`Shards::draw_by_namespace`], which needs no label; or [`Shards::draw_by_tier`].
//! 3. [`Shards::run_operator`]: the operator's own Deployment under the shard's name, injected by
//!    `ctrlmesh inject`; nothing else of it is changed.
//! 4. The test works: [`Shards::widgets`] returns the Widgets with their last handlers.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use crate::{
    Binaries, Families, Mesh, Node, NodeBuilder,
    builds::{
        go_program,
        images::{self, Image},
    },
};

/// The namespace of the scene.
pub const NAMESPACE: &str = "demo";

/// The image of the operator, as its own manifests name it.
const OPERATOR_IMAGE: &str = "registry.example.com/demo-operator:1";
const START_LIMIT: Duration = Duration::from_secs(90);

/// The scene; see the module.
pub struct Shards {
    mesh: Mesh,
}

/// A pod of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorPod {
    /// Its name.
    pub name: String,
    /// Its shard.
    pub shard: String,
    /// Restarts of all of its containers together.
    pub restarts: u64,
}

/// A Widget and its last handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Widget {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its label `team`; empty without one.
    pub team: String,
    /// The pod that wrote its status; empty before the first.
    pub handled_by: String,
}

impl Widget {
    /// Whether a pod of this shard handled it last.
    #[must_use]
    pub fn is_handled_by(&self, shard: &str) -> bool {
        self.handled_by.starts_with(&format!("demo-operator-{shard}-"))
    }
}

impl Shards {
    /// Starts a node with all that the operators need.
    ///
    /// # Errors
    ///
    /// When a part does not start.
    pub fn start(binaries: Binaries, families: Families) -> Result<Self> {
        Self::start_on(binaries, Node::builder().families(families))
    }

    /// [`Self::start`] on a given node.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_on(binaries: Binaries, node: NodeBuilder) -> Result<Self> {
        Self::on(Mesh::start_on(binaries, with_operators_crd(node)?)?)
    }

    /// The scene without anything of ours but the images, for a scene that installs the rest.
    pub(super) fn bare_on(binaries: Binaries, node: NodeBuilder) -> Result<Self> {
        Self::on(Mesh::bare_on(binaries, with_operators_crd(node)?)?)
    }

    fn on(mesh: Mesh) -> Result<Self> {
        mesh.node().import_image(&operator_image()?)?;
        let shards = Self { mesh };
        shards.make_namespace()?;
        Ok(shards)
    }

    fn make_namespace(&self) -> Result<()> {
        self.node().kubectl(&["create", "namespace", NAMESPACE])?;
        self.node().apply(&sample("rbac.yaml")?).map(drop)
    }

    /// Removes all objects that were made since the start, so that another test finds the scene as
    /// [`Self::start`] leaves it. The text in logs stays.
    ///
    /// # Errors
    ///
    /// When something is not gone in time.
    pub fn clear(&self) -> Result<()> {
        let delete = |args: &[&str]| {
            self.node().kubectl(&[&["delete", "--timeout=90s"], args].concat()).map(drop)
        };
        // Pods first: they may take as long as they like to end, and a namespace waits for that.
        let of_operators = ["deployment", "--all", "--cascade=foreground", "--namespace"];
        delete(&[&of_operators[..], &[NAMESPACE]].concat())?;
        let all = self.node().kubectl(&["get", "namespaces", "-o=name"])?;
        let is_kept = |name: &&str| *name == "namespace/default" || name.contains("/kube-");
        let made: Vec<_> = all.lines().filter(|name| !is_kept(name)).collect();
        delete(&made)?;
        self.make_namespace()
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Node {
        self.mesh.node()
    }

    /// The [`Mesh`] on which the operators run.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Gives the shard the Widgets and ConfigMaps of these teams. Returns when the API server has
    /// replied.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn draw(&self, shard: &str, teams: &[&str]) -> Result<()> {
        self.draw_limit(shard, of_teams(teams))
    }

    /// Gives the shard the Widgets and ConfigMaps of the namespaces whose hash is in this range.
    /// The range has the notation of a ShardingConfig. Returns when the API server has replied.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn draw_by_namespace(&self, shard: &str, from: &str, to: &str) -> Result<()> {
        self.draw_limit(shard, of_namespaces(from, to))
    }

    /// Gives the shard the Widgets and ConfigMaps of the namespaces with this value of the label
    /// `tier`. Returns when the API server has replied.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn draw_by_tier(&self, shard: &str, tier: &str) -> Result<()> {
        let namespaces = json!({ "selector": { "matchLabels": { "tier": tier } } });
        self.draw_limit(shard, json!({ "namespaces": namespaces, "clusterScoped": "Exclude" }))
    }

    /// Gives the shard the Widgets whose uid has a hash in this range. ConfigMaps are not limited:
    /// the operator's own have uids of their own. Returns when the API server has replied.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn draw_by_uid(&self, shard: &str, from: &str, to: &str) -> Result<()> {
        let hash = json!({ "of": "uid", "ranges": [{ "from": from, "to": to }] });
        let widgets = json!([{ "apiGroups": ["demo.example.com"], "resources": ["widgets"] }]);
        self.draw_limits(shard, &json!({ "hash": hash, "relateResources": widgets }))
    }

    fn draw_limit(&self, shard: &str, limit: Value) -> Result<()> {
        self.draw_limits(shard, &of_the_operators(limit))
    }

    fn draw_limits(&self, shard: &str, limit: &Value) -> Result<()> {
        let selector = json!({ "matchLabels": { "shard": shard } });
        self.node().apply(&config(shard, &selector, limit).to_string()).map(drop)
    }

    /// Starts the operator's own Deployment under the shard's name and waits until it is ready.
    ///
    /// # Errors
    ///
    /// When it does not become ready; the error quotes its events.
    pub fn run_operator(&self, shard: &str) -> Result<()> {
        self.run_manifest(shard, &self.injected(shard)?)
    }

    /// [`Self::run_operator`] with a manifest made by the scene from [`Self::deployment`].
    ///
    /// # Errors
    ///
    /// As [`Self::run_operator`].
    pub fn run_manifest(&self, shard: &str, injected: &str) -> Result<()> {
        self.node().apply(injected)?;
        let deployment = format!("deployment/demo-operator-{shard}");
        self.node()
            .wait_for(NAMESPACE, &deployment, "condition=Available", START_LIMIT)
            .map_err(|_| anyhow!("{deployment} is not available\n{}", self.told_by(shard)))
    }

    /// The descriptions and logs of the pods of a shard, for an error.
    fn told_by(&self, shard: &str) -> String {
        let selector = format!("--selector=shard={shard}");
        let ask = |args: &[&str]| {
            let args = [&["--namespace", NAMESPACE], args, &[&selector]].concat();
            self.node().kubectl(&args).unwrap_or_else(|error| error.to_string())
        };
        let logs = ["logs", "--all-containers", "--prefix", "--tail=20"];
        format!("{}\n{}", ask(&["describe", "pods"]), ask(&logs))
    }

    /// The manifest that [`Self::run_operator`] applies.
    ///
    /// # Errors
    ///
    /// When `ctrlmesh inject` refuses it.
    pub fn injected(&self, shard: &str) -> Result<String> {
        self.mesh.inject(&self.deployment(shard)?, &[])
    }

    /// The sample operator as a Deployment of one, with a user's changes for a second instance: its
    /// name and its labels.
    ///
    /// # Errors
    ///
    /// When the manifest cannot be read.
    pub fn deployment(&self, shard: &str) -> Result<String> {
        let mut deployment = self.stateful_set()?;
        deployment["kind"] = json!("Deployment");
        let spec = deployment["spec"].as_object_mut().context("a spec")?;
        spec.remove("serviceName");
        spec.insert("replicas".to_owned(), json!(1));
        deployment["metadata"]["name"] = format!("demo-operator-{shard}").into();
        deployment["spec"]["selector"]["matchLabels"]["shard"] = shard.into();
        let labels = &mut deployment["spec"]["template"]["metadata"]["labels"];
        labels["shard"] = shard.into();
        Ok(deployment.to_string())
    }

    /// The sample operator's StatefulSet of four, with our label.
    ///
    /// # Errors
    ///
    /// When its file cannot be read.
    pub fn stateful_set(&self) -> Result<Value> {
        let manifest = sample("operator.yaml")?;
        let kubectl = self.node().api().kubectl_client();
        let args = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
        Ok(serde_json::from_str(&kubectl.run_with_input(&args, &manifest)?)?)
    }

    /// Makes Widgets, `count` for each team, named `TEAM-N`.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn create_widgets(&self, teams: &[&str], count: usize) -> Result<()> {
        let widget = |team: &&str, at: usize| {
            format!(
                "apiVersion: demo.example.com/v1alpha1\nkind: Widget\n\
                 metadata: {{name: {team}-{at}, namespace: {NAMESPACE}, labels: {{team: {team}}}}}\n\
                 spec: {{size: {at}}}\n"
            )
        };
        let all: Vec<_> =
            teams.iter().flat_map(|team| (1..=count).map(move |at| widget(team, at))).collect();
        self.node().apply(&all.join("---\n")).map(drop)
    }

    /// Makes namespaces with a Widget in each. Nothing has a label.
    ///
    /// # Errors
    ///
    /// When the API server refuses.
    pub fn create_tenants(&self, names: &[&str]) -> Result<()> {
        let client = self.node().api().client();
        for name in names {
            let namespace = json!({ "metadata": { "name": name } });
            client.post("/api/v1/namespaces", &namespace)?.json()?;
            let widget = json!({
                "apiVersion": "demo.example.com/v1alpha1",
                "kind": "Widget",
                "metadata": { "name": "widget" },
                "spec": { "size": 1 },
            });
            let path = format!("/apis/demo.example.com/v1alpha1/namespaces/{name}/widgets");
            client.post(&path, &widget)?.json()?;
        }
        Ok(())
    }

    /// The Widgets of all namespaces, with their last handlers.
    ///
    /// # Errors
    ///
    /// When the API server cannot be asked.
    pub fn widgets(&self) -> Result<Vec<Widget>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let widget = |item: &Value| Widget {
            namespace: text(&item["metadata"]["namespace"]),
            name: text(&item["metadata"]["name"]),
            team: text(&item["metadata"]["labels"]["team"]),
            handled_by: text(&item["status"]["handledBy"]),
        };
        let path = "/apis/demo.example.com/v1alpha1/widgets";
        let list = self.node().api().client().get(path)?.json()?;
        Ok(list["items"].as_array().context("items")?.iter().map(widget).collect())
    }

    /// The operator's pods, in the order of their names.
    ///
    /// # Errors
    ///
    /// When the API server cannot be asked.
    pub fn pods(&self) -> Result<Vec<OperatorPod>> {
        let restarts = |pod: &Value| -> u64 {
            ["initContainerStatuses", "containerStatuses"]
                .iter()
                .filter_map(|list| pod["status"][list].as_array())
                .flatten()
                .filter_map(|status| status["restartCount"].as_u64())
                .sum()
        };
        let pod = |pod: &Value| OperatorPod {
            name: pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            shard: pod["metadata"]["labels"]["shard"].as_str().unwrap_or_default().to_owned(),
            restarts: restarts(pod),
        };
        Ok(self.items("pods")?.iter().map(pod).collect())
    }

    /// The holders of all Leases of the namespace, by the Lease's name.
    ///
    /// # Errors
    ///
    /// When the API server cannot be asked.
    pub fn leases(&self) -> Result<BTreeMap<String, String>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let lease =
            |item: &Value| (text(&item["metadata"]["name"]), text(&item["spec"]["holderIdentity"]));
        Ok(self.items("leases")?.iter().map(lease).collect())
    }

    /// The metrics of a pod's proxy.
    ///
    /// # Errors
    ///
    /// When the pod does not answer.
    pub fn metrics(&self, pod: &str) -> Result<String> {
        self.mesh.metrics(NAMESPACE, pod)
    }

    /// The operator's container in a pod, or in its own manifest if `pod` is `demo-operator`.
    ///
    /// # Errors
    ///
    /// When there is no such pod.
    pub fn operator_container(&self, pod: &str) -> Result<Value> {
        let is_pod = pod != "demo-operator";
        let text = if is_pod {
            self.node().kubectl(&["--namespace", NAMESPACE, "get", "pod", pod, "-o", "json"])?
        } else {
            self.deployment("own")?
        };
        let object: Value = serde_json::from_str(&text)?;
        let spec = if is_pod { &object["spec"] } else { &object["spec"]["template"]["spec"] };
        let containers = spec["containers"].as_array().context("containers")?;
        let operator = containers.iter().find(|container| container["name"] == "operator");
        operator.cloned().with_context(|| format!("{pod} has no container of the operator"))
    }

    /// All objects of a kind in the namespace.
    ///
    /// # Errors
    ///
    /// When the API server cannot be asked.
    pub fn items(&self, resource: &str) -> Result<Vec<Value>> {
        let list =
            self.node().kubectl(&["--namespace", NAMESPACE, "get", resource, "-o", "json"])?;
        let mut list: Value = serde_json::from_str(&list)?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => bail!("kubectl get {resource} gave no list"),
        }
    }
}

fn operator_image() -> Result<Image> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("operator");
    let program = go_program("demo-operator", &sources)?;
    images::of_program(OPERATOR_IMAGE, &sources.join("Containerfile"), &program)
}

/// A file of `deploy/sample`.
///
/// # Errors
///
/// When it cannot be read.
pub fn sample(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/sample").join(name);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

fn with_operators_crd(node: NodeBuilder) -> Result<NodeBuilder> {
    Ok(node.custom_resource_definitions(sample("crd.yaml")?))
}

/// The limit to the objects of these teams.
pub(super) fn of_teams(teams: &[&str]) -> Value {
    let teams = json!({ "key": "team", "operator": "In", "values": teams });
    json!({ "selector": { "matchExpressions": [teams] } })
}

/// The limit to the namespaces whose hash is in this range.
pub(super) fn of_namespaces(from: &str, to: &str) -> Value {
    let hash = json!({ "of": "namespace", "ranges": [{ "from": from, "to": to }] });
    json!({ "hash": hash, "clusterScoped": "Exclude" })
}

/// A limit of the Widgets and ConfigMaps.
pub(super) fn of_the_operators(mut limit: Value) -> Value {
    limit["relateResources"] = json!([
        { "apiGroups": ["demo.example.com"], "resources": ["widgets"] },
        { "apiGroups": [""], "resources": ["configmaps"] },
    ]);
    limit
}

/// The ShardingConfig of the pods that are selected.
pub(super) fn config(shard: &str, selector: &Value, limit: &Value) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": shard, "namespace": NAMESPACE },
        "spec": {
            "selector": selector,
            "controller": { "leaderElectionName": "demo-operator" },
            "limits": [limit],
        },
    })
}
