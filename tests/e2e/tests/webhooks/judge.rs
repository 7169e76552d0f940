//! The judge: the API server's audit log against the oracle.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{AuditReader, OperatorPod, Webhooks, until};
use serde_json::{Value, json};

use crate::webhooks::{
    owner::{Facts, Known, Owner, Partition},
    world::{Expected, World},
};

/// Longer than anything takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// The number of wrong answers that an error quotes.
const QUOTED: usize = 8;

/// Reads who answered.
pub(crate) struct Judge {
    reader: AuditReader,
    /// The annotations of each write.
    answers: BTreeMap<usize, BTreeMap<String, String>>,
}

impl Judge {
    pub(crate) fn new(scene: &Webhooks) -> Result<Self> {
        let reader = scene.node().api().audit().reader()?;
        Ok(Self { reader, answers: BTreeMap::new() })
    }

    /// Checks that each review was answered by a pod that may answer it. Returns how many had one
    /// shard alone for an owner. Those of dry runs count too.
    pub(crate) fn check(&mut self, partition: &Partition, expected: &[Expected]) -> Result<usize> {
        let wrong = self.wrong(partition, expected)?;
        let first: Vec<&String> = wrong.iter().take(QUOTED).collect();
        ensure!(wrong.is_empty(), "{} of {} are wrong: {first:#?}", wrong.len(), expected.len());
        let owners = expected.iter().map(|review| partition.owner(&review.facts));
        Ok(owners.filter(|owner| *owner != Owner::Anyone).count())
    }

    /// The reviews that were answered by a pod that may not.
    pub(crate) fn wrong(
        &mut self,
        partition: &Partition,
        expected: &[Expected],
    ) -> Result<Vec<String>> {
        let writes: BTreeSet<usize> = expected.iter().map(|review| review.write).collect();
        until("the audit log has all writes", LIMIT, || {
            self.read()?;
            Ok(writes.iter().all(|write| self.answers.contains_key(write)).then_some(()))
        })?;
        let mut wrong = Vec::new();
        for Expected { write, told, key, facts } in expected {
            let pod = self.answers[write].get(key);
            let pod = pod.with_context(|| format!("no one answered {key} of {told}"))?;
            let owner = partition.owner(facts);
            if owner != Owner::Anyone && owner != Owner::Shard(shard_of(pod)?) {
                wrong.push(format!("{told}: {key} by {pod}, not by {owner:?}: {facts:?}"));
            }
        }
        Ok(wrong)
    }

    /// The pod that answered the last review of a write with this key; `None` if no one was asked.
    pub(crate) fn answer(&mut self, write: usize, key: &str) -> Result<Option<String>> {
        let answers = until("the audit log has the write", LIMIT, || {
            self.read()?;
            Ok(self.answers.get(&write).cloned())
        })?;
        Ok(answers.get(key).cloned())
    }

    fn read(&mut self) -> Result<()> {
        while let Some(entry) = self.reader.next_written()? {
            let mut query = entry.request_uri.split(['?', '&']);
            if let Some(write) = query.find_map(|pair| pair.strip_prefix("write=")) {
                // A request that was upgraded has two entries.
                self.answers.entry(write.parse()?).or_default().extend(entry.annotations);
            }
        }
        Ok(())
    }
}

/// The pods of the four shards.
pub(crate) fn pods(scene: &Webhooks) -> Result<Vec<OperatorPod>> {
    let mut pods = scene.installed().shards().pods()?;
    pods.retain(|pod| !pod.shard.is_empty());
    Ok(pods)
}

/// The shard of a pod of the operator, by its name.
pub(crate) fn shard_of(pod: &str) -> Result<&'static str> {
    let is_its = |shard: &&str| pod.starts_with(&format!("demo-operator-{shard}-"));
    Webhooks::SHARDS.into_iter().find(is_its).with_context(|| format!("{pod} is of no shard"))
}

/// Gives the shards these boundaries, and waits until each pod sends reviews where they say.
pub(crate) fn redraw(
    world: &mut World<'_>,
    partition: &Partition,
    before: Option<&Partition>,
    more: &Value,
) -> Result<()> {
    let scene = world.scene;
    for (shard, limit) in partition.limits() {
        scene.draw(shard, &limit, more)?;
    }
    let World { rng, namespaces, .. } = world;
    let mut example = |shard| (shard, review(&partition.example(rng, shard, namespaces, before)));
    let examples: Vec<(&str, Value)> = Webhooks::SHARDS.into_iter().map(&mut example).collect();
    let mut last = String::new();
    let drawn = until("each pod knows the boundaries", LIMIT, || {
        for pod in pods(scene)? {
            for (shard, review) in &examples {
                match scene.ask(&pod.name, review) {
                    Ok(by) if shard_of(&by)? == *shard => {}
                    other => {
                        last = format!("{} asked for {shard}: {other:?}", pod.name);
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(()))
    });
    drawn.with_context(|| format!("{:?}: {last}", partition.kind))
}

/// The review of a new ConfigMap.
fn review(facts: &Facts) -> Value {
    let (team, uid) = match (&facts.team, &facts.uid) {
        (Known::Yes(team), Known::Yes(uid)) => (json!(team), json!(uid)),
        _ => (Value::Null, Value::Null),
    };
    let labels = if team.is_null() { json!({}) } else { json!({ "team": team }) };
    let metadata =
        json!({ "name": "example", "namespace": facts.namespace, "uid": uid, "labels": labels });
    json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": uid,
            "kind": { "group": "", "version": "v1", "kind": "ConfigMap" },
            "resource": { "group": "", "version": "v1", "resource": "configmaps" },
            "name": "example",
            "namespace": facts.namespace,
            "operation": "CREATE",
            "userInfo": {},
            "object": { "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata },
            "oldObject": null,
            "dryRun": true,
            "options": { "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" },
        },
    })
}
