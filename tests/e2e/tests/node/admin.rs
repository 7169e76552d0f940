//! An administrator who is at work while the operators are.

use anyhow::{Context, Result};
use ctrlmesh_e2e::{Client, NAMESPACE, Shards};
use serde_json::{Value, json};

/// How many names there are of each resource: few, so that they are used again.
const NAMES: usize = 10;

/// Random creates, label edits, updates and deletes of Widgets and ConfigMaps, straight at the
/// API server.
pub(crate) struct Admin<'a> {
    client: &'a Client,
    teams: &'a [&'static str],
    random: fastrand::Rng,
    living: Vec<Object>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    resource: &'static str,
    name: String,
}

impl<'a> Admin<'a> {
    /// `CTRLMESH_SEED` repeats a history that was printed.
    pub(crate) fn new(shards: &'a Shards, teams: &'a [&'static str]) -> Self {
        let given = std::env::var("CTRLMESH_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        println!("CTRLMESH_SEED={seed}");
        let client = shards.node().api().client();
        Self { client, teams, random: fastrand::Rng::with_seed(seed), living: Vec::new() }
    }

    /// Makes a ConfigMap for every team that stays to the end.
    pub(crate) fn create_lasting(&self) -> Result<()> {
        for team in self.teams {
            self.create_named("configmaps", "lasting", team)?;
        }
        Ok(())
    }

    /// Makes the object `NAME-TEAM` that stays to the end; its uid and version.
    pub(crate) fn create_named(
        &self,
        resource: &'static str,
        name: &str,
        team: &str,
    ) -> Result<(String, u64)> {
        let object = Object { resource, name: format!("{name}-{team}") };
        let meta = self.create(&object, Some(team))?["metadata"].take();
        let text = |field: &str| meta[field].as_str().with_context(|| format!("{field}: {meta}"));
        Ok((text("uid")?.to_owned(), text("resourceVersion")?.parse()?))
    }

    pub(crate) fn go_on(&mut self, steps: usize) -> Result<()> {
        (0..steps).try_for_each(|_| self.step())
    }

    /// One edit.
    pub(crate) fn step(&mut self) -> Result<()> {
        let choice = self.random.u8(..12);
        if self.living.is_empty() || choice < 4 {
            let resource = self.random.choice(["widgets", "configmaps"]).context("a choice")?;
            let name = format!("edited-{}", self.random.usize(..NAMES));
            let object = Object { resource, name };
            if !self.living.contains(&object) {
                // Some belong to no one.
                let team = self.team().filter(|_| self.random.u8(..8) > 0);
                self.create(&object, team)?;
                self.living.push(object);
                return Ok(());
            }
        }
        let at = self.random.usize(..self.living.len());
        match choice {
            ..8 => {
                let team = self.team();
                self.patch(&self.living[at], &json!({ "metadata": { "labels": { "team": team }}}))
            }
            8..10 => {
                let content = content(self.living[at].resource, self.random.u8(..));
                self.patch(&self.living[at], &content)
            }
            _ => {
                let object = self.living.swap_remove(at);
                self.client.delete(&path(object.resource, &object.name))?.json().map(drop)
            }
        }
    }

    fn team(&mut self) -> Option<&'static str> {
        self.random.choice(self.teams).copied()
    }

    fn create(&self, object: &Object, team: Option<&str>) -> Result<Value> {
        let Object { resource, name } = object;
        let mut whole = content(resource, 1);
        (whole["apiVersion"], whole["kind"]) = match *resource {
            "widgets" => ("demo.example.com/v1alpha1".into(), "Widget".into()),
            _ => ("v1".into(), "ConfigMap".into()),
        };
        whole["metadata"] = json!({ "name": name });
        if let Some(team) = team {
            whole["metadata"]["labels"] = json!({ "team": team });
        }
        self.client.post(&path(resource, ""), &whole)?.json()
    }

    fn patch(&self, object: &Object, patch: &Value) -> Result<()> {
        let path = path(object.resource, &object.name);
        let (kind, patch) = ("application/merge-patch+json", patch.to_string().into_bytes());
        self.client.request("PATCH", &path, kind, patch)?.json().map(drop)
    }
}

/// Everything of a resource in the scene's namespace.
pub(crate) fn items(client: &Client, resource: &str) -> Result<Vec<Value>> {
    match client.get(&path(resource, ""))?.json()?["items"].take() {
        Value::Array(items) => Ok(items),
        other => anyhow::bail!("{resource}: a list has items, not {other}"),
    }
}

fn content(resource: &str, size: u8) -> Value {
    match resource {
        "widgets" => json!({ "spec": { "size": size } }),
        _ => json!({ "data": { "size": size.to_string() } }),
    }
}

fn path(resource: &str, name: &str) -> String {
    let api = if resource == "widgets" { "/apis/demo.example.com/v1alpha1" } else { "/api/v1" };
    let path = format!("{api}/namespaces/{NAMESPACE}/{resource}");
    if name.is_empty() { path } else { format!("{path}/{name}") }
}
