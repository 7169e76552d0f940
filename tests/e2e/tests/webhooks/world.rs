//! The objects that are written, and what the reviews of each write say of them.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Response, Webhooks, until};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::webhooks::{
    judge::LIMIT,
    owner::{Facts, Known, TEAMS},
};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
/// First letters of namespaces: of each shard in a partition by patterns, and of none.
const LETTERS: [&str; 5] = ["b", "h", "n", "t", "z"];

/// Namespaces with the tier in their label.
pub(crate) type Namespaces = Vec<(String, String)>;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    ConfigMap,
    Secret,
    Account,
    Pod,
    Deployment,
    Widget,
    Namespace,
}

/// An object that stands.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) resource: Resource,
    pub(crate) namespace: String,
    /// The tier of the namespace.
    pub(crate) tier: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) team: Option<String>,
}

/// A review that a write has, by its key in the audit entry.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) write: usize,
    /// The write, for an error.
    pub(crate) told: String,
    pub(crate) key: String,
    pub(crate) facts: Facts,
}

/// What stands, and what was written.
pub(crate) struct World<'a> {
    pub(crate) scene: &'a Webhooks,
    pub(crate) rng: Rng,
    pub(crate) namespaces: Namespaces,
    pub(crate) objects: Vec<Object>,
    /// The number of writes, by which the audit log knows each.
    pub(crate) writes: usize,
    pub(crate) expected: Vec<Expected>,
}

impl Resource {
    /// The path of the object with this name; of the collection, if it is empty.
    pub(crate) fn path(self, namespace: &str, name: &str) -> String {
        let (root, plural) = match self {
            Self::ConfigMap => ("/api/v1", "configmaps"),
            Self::Secret => ("/api/v1", "secrets"),
            Self::Account => ("/api/v1", "serviceaccounts"),
            Self::Pod => ("/api/v1", "pods"),
            Self::Deployment => ("/apis/apps/v1", "deployments"),
            Self::Widget => ("/apis/demo.example.com/v1alpha1", "widgets"),
            Self::Namespace => ("/api/v1", "namespaces"),
        };
        let slash = if name.is_empty() { "" } else { "/" };
        if self == Self::Namespace {
            return format!("{root}/{plural}{slash}{name}");
        }
        format!("{root}/namespaces/{namespace}/{plural}{slash}{name}")
    }

    /// A new object. Nothing comes of it: no node runs its pod, no controller its Deployment.
    fn body(self, metadata: &Value) -> Value {
        let containers = json!([{ "name": "app", "image": "localhost/none:1" }]);
        let pod = json!({ "schedulerName": "nobody", "containers": containers });
        let labels = json!({ "app": "none" });
        let (version, kind, spec) = match self {
            Self::ConfigMap => ("v1", "ConfigMap", Value::Null),
            Self::Secret => ("v1", "Secret", Value::Null),
            Self::Account => ("v1", "ServiceAccount", Value::Null),
            Self::Namespace => ("v1", "Namespace", Value::Null),
            Self::Pod => ("v1", "Pod", pod),
            Self::Widget => ("demo.example.com/v1alpha1", "Widget", json!({ "size": 1 })),
            Self::Deployment => {
                let template = json!({ "metadata": { "labels": labels }, "spec": pod });
                let selector = json!({ "matchLabels": labels });
                let spec = json!({
                    "replicas": 0, "paused": true, "selector": selector, "template": template,
                });
                ("apps/v1", "Deployment", spec)
            }
        };
        let mut body = json!({ "apiVersion": version, "kind": kind, "metadata": metadata });
        if !spec.is_null() {
            body["spec"] = spec;
        }
        body
    }
}

impl<'a> World<'a> {
    /// Makes the namespaces.
    pub(crate) fn start(scene: &'a Webhooks, mut rng: Rng) -> Result<Self> {
        let mut namespaces = Vec::new();
        for at in 0..2 * LETTERS.len() {
            let rest: String = (0..6).map(|_| rng.lowercase()).collect();
            let name = format!("{}{rest}", LETTERS[at % LETTERS.len()]);
            let tier = TEAMS[(at + at / LETTERS.len()) % TEAMS.len()].to_owned();
            let labels = json!({ Webhooks::REVIEWED: "yes", "tier": tier });
            let namespace = json!({ "metadata": { "name": name, "labels": labels } });
            scene.node().api().client().post("/api/v1/namespaces", &namespace)?.json()?;
            namespaces.push((name, tier));
        }
        // Without it no pod can be created.
        for (name, _) in &namespaces {
            let path = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
            until("a namespace has its account", LIMIT, || {
                Ok((scene.node().api().client().get(&path)?.status == 200).then_some(()))
            })?;
        }
        let (objects, expected) = (Vec::new(), Vec::new());
        Ok(Self { scene, rng, namespaces, objects, writes: 0, expected })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.namespaces.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Sends a write, whose number its query has.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<Response> {
        self.writes += 1;
        let sign = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{sign}write={}", self.writes);
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let answer = self.scene.node().api().client().request(method, &path, kind, body)?;
        let is_ours = answer.text.contains("failed calling webhook");
        ensure!(!is_ours, "{method} {path}: {}", answer.text);
        Ok(answer)
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        self.send("POST", path, JSON, body)?.json()
    }

    pub(crate) fn patch(&mut self, path: &str, body: &Value) -> Result<Value> {
        self.send("PATCH", path, MERGE, body)?.json()
    }

    /// One team, or none.
    pub(crate) fn team(&mut self) -> Option<String> {
        (self.rng.u8(..8) > 0).then(|| TEAMS[self.rng.usize(..TEAMS.len())].to_owned())
    }

    /// The object of this kind that is written next; one is made if there is none.
    pub(crate) fn any(&mut self, resource: Resource) -> Result<usize> {
        let is_it = |(_, object): &(usize, &Object)| object.resource == resource;
        let all: Vec<usize> =
            self.objects.iter().enumerate().filter(is_it).map(|(at, _)| at).collect();
        if all.is_empty() {
            self.create(resource, "")?;
            return Ok(self.objects.len() - 1);
        }
        Ok(all[self.rng.usize(..all.len())])
    }

    /// Creates an object; a query such as `?dryRun=All` may keep it from standing.
    pub(crate) fn create(&mut self, resource: Resource, query: &str) -> Result<()> {
        let (mut namespace, mut tier) =
            self.namespaces[self.rng.usize(..self.namespaces.len())].clone();
        let name: String = (0..8).map(|_| self.rng.lowercase()).collect();
        let is_generated = self.rng.u8(..4) == 0 && resource != Resource::Namespace;
        let team = self.team();
        let mut metadata = if is_generated {
            json!({ "generateName": format!("{name}-") })
        } else {
            json!({ "name": name })
        };
        metadata["labels"] = json!({ "team": team });
        if team.is_none() {
            metadata["labels"] = json!({});
        }
        match resource {
            // The operator copies the labels of Widgets to ConfigMaps of its own.
            Resource::ConfigMap => metadata["labels"]["drawn"] = "yes".into(),
            Resource::Namespace => {
                (namespace, tier) = (name, TEAMS[self.rng.usize(..TEAMS.len())].to_owned());
                metadata["labels"]["tier"] = tier.clone().into();
                metadata["labels"][Webhooks::REVIEWED] = "yes".into();
            }
            _ => {}
        }
        let path = resource.path(&namespace, "");
        let made = self.post(&format!("{path}{query}"), &resource.body(&metadata))?;
        let text = |field: &str| {
            made["metadata"][field].as_str().map(str::to_owned).context("a name and a uid")
        };
        let (name, uid) = (text("name")?, text("uid")?);
        let object = Object { resource, namespace, tier, name, uid, team };
        self.expect_create(&format!("create {resource:?}{query}"), &object);
        if query.is_empty() {
            self.objects.push(object);
        }
        Ok(())
    }

    /// The reviews of a create: a mutating one has no uid.
    pub(crate) fn expect_create(&mut self, told: &str, object: &Object) {
        let validating = object.facts();
        let mutating = Facts { uid: Known::No, ..validating.clone() };
        self.expect(told, "pod", mutating, validating);
    }

    /// The reviews of the last write, of which each has the same facts.
    pub(crate) fn expect_same(&mut self, told: &str, facts: &Facts) {
        self.expect(told, "pod", facts.clone(), facts.clone());
    }

    pub(crate) fn expect(&mut self, told: &str, key: &str, mutating: Facts, validating: Facts) {
        for (webhook, facts) in [(Webhooks::MUTATING, mutating), (Webhooks::VALIDATING, validating)]
        {
            let (write, told) = (self.writes, told.to_owned());
            self.expected.push(Expected { write, told, key: format!("{webhook}/{key}"), facts });
        }
    }
}

impl Object {
    pub(crate) fn path(&self) -> String {
        self.resource.path(&self.namespace, &self.name)
    }

    /// What a review of it says, if it says all.
    pub(crate) fn facts(&self) -> Facts {
        Facts {
            is_limited: self.resource != Resource::Secret,
            namespace: self.namespace.clone(),
            tier: Some(self.tier.clone()),
            team: Known::Yes(self.team.clone()),
            uid: Known::Yes(self.uid.clone()),
        }
    }

    /// What a review of a subresource of another kind says.
    pub(crate) fn facts_of_part(&self, uid: Known<String>) -> Facts {
        Facts { team: Known::No, uid, ..self.facts() }
    }
}
