//! `ctrlmesh inject -f FILE`: the mesh without a manager.
//!
//! An injected workload is printed from its parsed form, every other document verbatim. The objects
//! that a namespace needs precede its first workload.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use clap::Args;
use ctrlmesh_init::{PlanError, ProxyUid};
use kube::api::DynamicObject;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::Value;

use super::yaml::{self, YamlError};
use ctrlmesh_inject::{
    Image, Injected, NotInjected, Settings, Sidecar,
    companions::{self, Trust},
    inject, is_asked_for,
    workload::PodPath,
};
use ctrlmesh_net::{
    Clock, ClusterDomain,
    ca::{CaError, MeshCa, certificate_pem},
};
use ctrlmesh_policy::{Checked, Kind, ShardingDraft, choose, draft, object_of};

/// The maximum input of one run, in bytes: thousands of workloads.
const MAX_INPUT: u64 = 16 << 20;

/// The flags of `ctrlmesh inject`.
#[derive(Args, Clone, Debug)]
pub struct InjectArgs {
    /// The YAML or JSON documents to read, `-` for standard input. Pods and pod templates with the
    /// label ctrlmesh.kusionstack.io/enable-proxy: "true" are injected
    #[arg(short, long, env = "CTRLMESH_FILENAME", value_name = "FILE")]
    filename: PathBuf,

    /// A file with ShardingConfigs, which count next to those among the documents: the reviews of a
    /// webhook server that the config of a pod names are redirected in the pod
    #[arg(long, env = "CTRLMESH_POLICY", value_name = "FILE")]
    policy: Option<PathBuf>,

    /// The image of ctrlmesh-init
    #[arg(long, env = "CTRLMESH_INIT_IMAGE", value_name = "IMAGE")]
    init_image: Image,

    /// The image of ctrlmesh
    #[arg(long, env = "CTRLMESH_PROXY_IMAGE", value_name = "IMAGE")]
    proxy_image: Image,

    /// The directory of the mesh CA, as `ctrlmesh mesh-ca` makes it. The CA's key is printed in a
    /// Secret
    #[arg(long, env = "CTRLMESH_MESH_CA_DIR", value_name = "DIR")]
    mesh_ca_dir: PathBuf,

    /// The CA certificates of the cluster, as in the ConfigMap kube-root-ca.crt
    #[arg(long, env = "CTRLMESH_CLUSTER_CA", value_name = "FILE")]
    cluster_ca: PathBuf,

    /// The DNS domain of the cluster
    #[arg(long, env = "CTRLMESH_CLUSTER_DOMAIN", value_name = "DOMAIN",
          default_value = ClusterDomain::DEFAULT)]
    cluster_domain: ClusterDomain,

    /// The kind of container that the proxy runs in
    #[arg(long, env = "CTRLMESH_SIDECAR", value_enum, default_value_t = Sidecar::Native)]
    sidecar: Sidecar,

    /// The numeric user of the proxy; no other container of the pod may run as it
    #[arg(long, env = "CTRLMESH_PROXY_UID", value_name = "UID", default_value_t = ProxyUid::DEFAULT)]
    proxy_uid: ProxyUid,

    /// Print also a ClusterRole that lets the pods' ServiceAccounts list and watch all namespaces:
    /// limits with `namespaces.selector` need it
    #[arg(long, env = "CTRLMESH_NAMESPACE_LABELS")]
    namespace_labels: bool,

    /// The namespace of workloads without one
    #[arg(short, long, env = "CTRLMESH_NAMESPACE", value_name = "NAME", default_value = "default")]
    namespace: String,
}

/// The reason why nothing was printed.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// A file cannot be read; the flag names it.
    #[error("{} {}", .0, .1.display())]
    Unreadable(&'static str, PathBuf, #[source] io::Error),
    #[error("{} {}: more than {MAX_INPUT} bytes", .0, .1.display())]
    TooLarge(&'static str, PathBuf),
    #[error("--cluster-ca {}: PEM certificates are needed, and it has {}", .0.display(), .1)]
    ClusterCa(PathBuf, &'static str),
    #[error("--mesh-ca-dir")]
    MeshCa(#[from] CaError),
    #[error("--proxy-uid")]
    Plan(#[from] PlanError),
    #[error("document {0}")]
    Document(usize, #[source] YamlError),
    #[error("--policy {}: document {}", .0.display(), .1)]
    Policy(PathBuf, usize, #[source] YamlError),
    /// A document is ambiguous: YAML 1.1 and 1.2 differ on its line breaks.
    #[error(
        "document {0} has a line break that YAML 1.1 knows and YAML 1.2 does not (U+0085, U+2028 \
         or U+2029): write it as an escape in double quotes"
    )]
    LineBreak(usize),
    /// A workload, by its kind, namespace and name, cannot be injected.
    #[error("document {0}, {1}, cannot be injected")]
    NotInjected(usize, String, #[source] NotInjected),
    #[error("cannot write to standard output")]
    InjectOutput(#[source] io::Error),
}

/// Prints all documents, or none. Fails with [`InjectError`].
pub fn run(args: InjectArgs) -> Result<(), InjectError> {
    let trust = trust(&args)?;
    let settings = Settings::new(args.proxy_image, args.init_image, args.sidecar, args.proxy_uid)?
        .in_domain(args.cluster_domain);
    let mut configs = Configs::default();
    if let Some(path) = args.policy {
        let text = read_input("--policy", &path)?;
        for (at, document) in (1..).zip(yaml::documents(&text)) {
            let value = yaml::parse(&document)
                .map_err(|error| InjectError::Policy(path.clone(), at, error))?;
            value.iter().for_each(|value| add_configs(&mut configs, value, &args.namespace));
        }
    }
    let input = read_input("--filename", &args.filename)?;
    let manifest = Manifest::read(&input, &settings, &args.namespace, configs)?;
    let output = manifest.print(&Companions { trust, namespace_labels: args.namespace_labels });
    for note in &output.notes {
        // A closed stderr means that notes are not wanted.
        let _ = writeln!(io::stderr(), "ctrlmesh: {note}");
    }
    io::stdout().write_all(output.yaml.as_bytes()).map_err(InjectError::InjectOutput)
}

fn read_input(flag: &'static str, path: &Path) -> Result<String, InjectError> {
    let unreadable = |error| InjectError::Unreadable(flag, path.to_owned(), error);
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(fs::File::open(path).map_err(unreadable)?),
    };
    let mut text = String::new();
    let read = input.take(MAX_INPUT + 1).read_to_string(&mut text).map_err(unreadable)?;
    if read as u64 > MAX_INPUT {
        return Err(InjectError::TooLarge(flag, path.to_owned()));
    }
    Ok(text)
}

/// Reads the CAs. Of the certificate files, only certificates are passed on.
fn trust(args: &InjectArgs) -> Result<Trust, InjectError> {
    MeshCa::read(&args.mesh_ca_dir, &Clock::system())?;
    let read = |flag, path: PathBuf| {
        fs::read_to_string(&path).map_err(|error| InjectError::Unreadable(flag, path, error))
    };
    let bad = |what| InjectError::ClusterCa(args.cluster_ca.clone(), what);
    let bad_mesh_ca = |what| CaError::Unusable {
        path: args.mesh_ca_dir.join("ca.crt"),
        what: format!("has {what} of the certificates"),
    };
    let cluster_ca = read("--cluster-ca", args.cluster_ca.clone())?;
    let mesh_ca = read("--mesh-ca-dir", args.mesh_ca_dir.join("ca.crt"))?;
    Ok(Trust {
        mesh_ca: certificates(&mesh_ca).map_err(bad_mesh_ca)?,
        mesh_ca_key: read("--mesh-ca-dir", args.mesh_ca_dir.join("ca.key"))?,
        cluster_ca: certificates(&cluster_ca).map_err(bad)?,
    })
}

fn certificates(pem: &str) -> Result<String, &'static str> {
    let mut text = String::new();
    for cert in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        text.push_str(&certificate_pem(&cert.map_err(|_| "one that is broken")?));
    }
    if text.is_empty() { Err("none") } else { Ok(text) }
}

/// The text to print, and the notes on it.
struct InjectOutput {
    yaml: String,
    notes: Vec<String>,
}

/// The input of the objects that are printed next to the workloads.
struct Companions {
    trust: Trust,
    namespace_labels: bool,
}

struct Manifest<'a> {
    pieces: Vec<Piece>,
    notes: Vec<String>,
    /// The namespace of objects that name none.
    namespace: &'a str,
    /// The ShardingConfigs, those among the documents with them.
    configs: Configs,
}

enum Piece {
    /// A document that is printed verbatim. The value serves to recognize our own objects.
    Untouched(String, Option<Value>),
    /// A document that is printed from its parsed form.
    Injected(Value, Vec<AccountOf>),
}

/// The ShardingConfigs among the documents, by namespace and name. Of two with one name the last counts.
#[derive(Default)]
struct Configs(BTreeMap<(Box<str>, Box<str>), Checked>);

impl Configs {
    fn add(&mut self, kind: Kind, config: &DynamicObject) {
        let checked = draft(kind, config);
        let object = object_of(&checked);
        self.0.insert((object.namespace.clone(), object.name.clone()), checked);
    }

    /// The one config that selects the pods of a template. `None` also if several do, or a label is no text.
    fn of_pod(&self, namespace: &str, pod: &Value) -> Option<&ShardingDraft> {
        let labels = pod.pointer("/metadata/labels")?.as_object()?.iter();
        let labels = labels.map(|(key, text)| Some((key.clone(), text.as_str()?.to_owned())));
        let labels = labels.collect::<Option<BTreeMap<_, _>>>()?;
        let all = self.0.iter().filter(|((of, _), _)| **of == *namespace);
        choose(all.map(|(_, checked)| checked), &labels, namespace, None).ok()
    }
}

/// A ServiceAccount of injected pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AccountOf {
    namespace: String,
    name: String,
}

impl<'a> Manifest<'a> {
    fn read(
        text: &str,
        settings: &Settings,
        namespace: &'a str,
        configs: Configs,
    ) -> Result<Self, InjectError> {
        let mut this = Self { pieces: Vec::new(), notes: Vec::new(), namespace, configs };
        let mut documents = Vec::new();
        for (at, document) in (1..).zip(yaml::documents(text)) {
            let value = yaml::parse(&document).map_err(|error| InjectError::Document(at, error))?;
            value.iter().for_each(|value| add_configs(&mut this.configs, value, namespace));
            documents.push((at, document, value));
        }
        for (at, document, value) in documents {
            let Some(mut value) = value else {
                this.pieces.push(Piece::Untouched(document, None));
                continue;
            };
            let mut accounts = Vec::new();
            this.inject(&mut value, at, settings, &mut accounts)?;
            if accounts.is_empty() {
                this.pieces.push(Piece::Untouched(document, Some(value)));
            } else if document.contains(['\u{85}', '\u{2028}', '\u{2029}']) {
                return Err(InjectError::LineBreak(at));
            } else {
                this.pieces.push(Piece::Injected(value, accounts));
            }
        }
        Ok(this)
    }

    /// Injects the object, or the items of a List.
    fn inject(
        &mut self,
        object: &mut Value,
        at: usize,
        settings: &Settings,
        accounts: &mut Vec<AccountOf>,
    ) -> Result<(), InjectError> {
        if object["apiVersion"] == "v1" && object["kind"] == "List" {
            let items = object.get_mut("items").and_then(Value::as_array_mut);
            return items
                .into_iter()
                .flatten()
                .try_for_each(|item| self.inject(item, at, settings, accounts));
        }
        let workload = self.name(object);
        let Some(path) = PodPath::of(object) else {
            self.note_unknown(object, &workload);
            return Ok(());
        };
        let namespace = self.namespace_of(object).to_owned();
        let asks_too_high = is_asked_for(object).unwrap_or(false);
        let refused = |reason| InjectError::NotInjected(at, workload.clone(), reason);
        let pod = path.find(object).ok_or_else(|| {
            refused(NotInjected::Malformed {
                field: "the pod template".into(),
                wanted: "an object",
            })
        })?;
        let config = self.configs.of_pod(&namespace, pod);
        match inject(pod, settings, config).map_err(refused)? {
            Injected::Done { service_account: name, notes, .. } => {
                accounts.push(AccountOf { namespace, name });
                self.notes.extend(notes.iter().map(|note| format!("{workload}: {note}")));
            }
            Injected::NotAsked if asks_too_high => self
                .notes
                .push(format!("{workload} is not injected: the label belongs on its pod template")),
            Injected::NotAsked => self.notes.push(format!(
                "{workload} is not injected: its pods have no label \
                 ctrlmesh.kusionstack.io/enable-proxy: \"true\""
            )),
        }
        Ok(())
    }

    /// Notes unknown kinds whose pods ask for injection: they would silently bypass the mesh.
    fn note_unknown(&mut self, object: &Value, workload: &str) {
        let template = object.pointer("/spec/template");
        if template.is_some_and(|pod| is_asked_for(pod).unwrap_or(true)) {
            self.notes.push(format!(
                "{workload} is NOT injected, although its pods ask for it: {} is not a kind whose \
                 pods ctrlmesh knows",
                object["kind"]
            ));
        }
    }

    fn namespace_of<'b>(&'b self, object: &'b Value) -> &'b str {
        object
            .pointer("/metadata/namespace")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
            .unwrap_or(self.namespace)
    }

    fn name(&self, object: &Value) -> String {
        let text = |at: &str| object.pointer(at).and_then(Value::as_str);
        let name = text("/metadata/name").or_else(|| text("/metadata/generateName"));
        let namespace = self.namespace_of(object);
        format!("{} {namespace}/{}", text("/kind").unwrap_or("object"), name.unwrap_or("?"))
    }

    /// Prints all documents. Our own objects of an earlier run are replaced.
    fn print(self, companions: &Companions) -> InjectOutput {
        let mut done = BTreeSet::new();
        let mut needed = |piece: &Piece| match piece {
            Piece::Injected(_, accounts) => {
                accounts.iter().flat_map(|account| companions.of(account, &mut done)).collect()
            }
            Piece::Untouched(..) => Vec::new(),
        };
        let ours: Vec<Vec<Value>> = self.pieces.iter().map(&mut needed).collect();
        let is_ours = |object: &Value| ours.iter().flatten().any(|one| self.is_same(one, object));
        let mut yaml = String::new();
        for (piece, companions) in self.pieces.iter().zip(&ours) {
            companions.iter().for_each(|companion| push(&mut yaml, &yaml::print(companion)));
            match piece {
                Piece::Untouched(_, Some(object)) if is_ours(object) => {}
                Piece::Untouched(text, _) => push(&mut yaml, text),
                Piece::Injected(object, _) => push(&mut yaml, &yaml::print(object)),
            }
        }
        InjectOutput { yaml, notes: self.notes }
    }

    fn is_same(&self, one: &Value, other: &Value) -> bool {
        let group = |object: &Value| {
            let version = object["apiVersion"].as_str().unwrap_or_default();
            version.rsplit_once('/').map_or(String::new(), |(group, _)| group.to_owned())
        };
        one["kind"] == other["kind"]
            && one.pointer("/metadata/name") == other.pointer("/metadata/name")
            && self.namespace_of(one) == self.namespace_of(other)
            && group(one) == group(other)
    }
}

impl Companions {
    /// The objects that the account needs beyond those of the `done` accounts.
    fn of(&self, account: &AccountOf, done: &mut BTreeSet<AccountOf>) -> Vec<Value> {
        let AccountOf { namespace, name } = account;
        let mut needed = Vec::new();
        if done.is_empty() && self.namespace_labels {
            needed.push(companions::of_cluster());
        }
        if !done.iter().any(|known| known.namespace == *namespace) {
            needed.extend(companions::of_namespace(namespace, &self.trust));
        }
        if done.insert(account.clone()) {
            needed.push(companions::of_service_account(namespace, name));
            if self.namespace_labels {
                needed.push(companions::of_service_account_in_cluster(namespace, name));
            }
        }
        needed
    }
}

/// Adds the object if it is a ShardingConfig, or the items of a List.
fn add_configs(configs: &mut Configs, object: &Value, namespace: &str) {
    if object["apiVersion"] == "v1" && object["kind"] == "List" {
        let items = object.get("items").and_then(Value::as_array).into_iter().flatten();
        return items.for_each(|item| add_configs(configs, item, namespace));
    }
    let [api_version, kind] =
        ["apiVersion", "kind"].map(|field| object[field].as_str().unwrap_or_default());
    let Some(kind) = Kind::of(api_version, kind) else { return };
    // One that is no object of the API is refused by the API server.
    if let Ok(mut config) = serde_json::from_value::<DynamicObject>(object.clone()) {
        let given = config.metadata.namespace.filter(|given| !given.is_empty());
        config.metadata.namespace = Some(given.unwrap_or_else(|| namespace.to_owned()));
        configs.add(kind, &config);
    }
}

fn push(yaml: &mut String, document: &str) {
    yaml.push_str("---\n");
    yaml.push_str(document);
}
