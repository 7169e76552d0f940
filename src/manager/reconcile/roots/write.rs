//! The writes of the children of a root.
//!
//! Hides how a child is written: each only as it was found, by its uid and the number of its spec, and
//! each phase after the other. Does not know why.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, PostParams, Preconditions},
};
use serde_json::{Value, json};

use crate::{configs::ConfigFacts, reconcile::key::NotWritten};
use ctrlmesh_api::{ShardingConfigSpec, keys};
use ctrlmesh_policy::{
    Kind, ObjectRef, object_of,
    roots::{Partition, Root, Write},
};

/// The longest value of a label.
const LABEL_VALUE: usize = 63;

/// The writes of a phase that are under way at once.
const AT_ONCE: usize = 8;

/// The writes of the children of a root.
pub(in crate::reconcile) struct Writes {
    root: ObjectRef,
    /// In phases. Each with the child as it was found; `None` if it was not there.
    phases: Vec<Vec<(Write, Option<ObjectRef>)>>,
}

/// The finalizer of a config that no one takes off.
pub(in crate::reconcile) struct Release(pub(in crate::reconcile) ObjectRef);

impl Writes {
    pub(super) fn new(
        root: &Root,
        children: &BTreeMap<String, &ConfigFacts>,
        phases: &[Vec<Write>],
    ) -> Self {
        let mut found: BTreeMap<&str, ObjectRef> = children
            .iter()
            .map(|(name, config)| (name.as_str(), object_of(&config.checked).clone()))
            .collect();
        let mut as_found = |write: &Write| {
            let (Write::Put { name, .. } | Write::Delete { name }) = write;
            let object = found.get_mut(name.as_str())?;
            let now = object.clone();
            // An object that is written twice has another generation by then.
            object.generation = None;
            Some(now)
        };
        let phases = phases
            .iter()
            .map(|writes| writes.iter().map(|write| (write.clone(), as_found(write))).collect());
        Self { root: root.object.clone(), phases: phases.collect() }
    }

    /// Writes one phase after the other. Fails after the first phase of which a write fails: what comes
    /// after it must not be written.
    pub(in crate::reconcile) async fn send(self, client: &Client) -> Result<(), NotWritten> {
        let Self { root, phases } = self;
        let configs = api(client, &root.namespace);
        // By another version of the root other children would gain.
        as_found(&configs, &root).await?;
        for writes in phases {
            let sent = writes.into_iter().map(|(write, found)| send(&configs, &root, write, found));
            let sent: Vec<_> = stream::iter(sent).buffer_unordered(AT_ONCE).collect().await;
            sent.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }
}

async fn send(
    configs: &Api<DynamicObject>,
    root: &ObjectRef,
    write: Write,
    found: Option<ObjectRef>,
) -> Result<(), NotWritten> {
    match (write, found) {
        (Write::Put { name, spec, partition }, None) => {
            let mut child = DynamicObject::new(&name, &Kind::ShardingConfig.api_resource());
            fill(root, &mut child, &spec, &partition)?;
            configs.create(&PostParams::default(), &child).await?;
        }
        (Write::Put { spec, partition, .. }, Some(found)) => {
            let mut child = as_found(configs, &found).await?;
            fill(root, &mut child, &spec, &partition)?;
            configs.replace(&found.name, &PostParams::default(), &child).await?;
        }
        (Write::Delete { .. }, Some(found)) => {
            let child = as_found(configs, &found).await?;
            let (uid, resource_version) = (child.metadata.uid, child.metadata.resource_version);
            let only = Preconditions { uid, resource_version };
            let only = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
            configs.delete(&found.name, &only).await.map(drop)?;
        }
        (Write::Delete { .. }, None) => {}
    }
    Ok(())
}

impl Release {
    /// Takes the finalizer off.
    pub(in crate::reconcile) async fn send(self, client: &Client) -> Result<(), NotWritten> {
        let Self(found) = self;
        let configs = api(client, &found.namespace);
        let mut config = as_found(&configs, &found).await?;
        config.metadata.finalizers.get_or_insert_default().retain(|one| one != keys::PROTECTED);
        configs.replace(&found.name, &PostParams::default(), &config).await.map(drop)?;
        Ok(())
    }
}

fn api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &Kind::ShardingConfig.api_resource())
}

/// The config, if it is still as it was found.
pub(in crate::reconcile) async fn as_found(
    configs: &Api<DynamicObject>,
    found: &ObjectRef,
) -> Result<DynamicObject, NotWritten> {
    let config = configs.get(&found.name).await?;
    let is_same = config.metadata.uid.as_deref() == found.uid.as_deref()
        && (found.generation.is_none() || config.metadata.generation == found.generation);
    if is_same { Ok(config) } else { Err(NotWritten::Changed(found.to_string())) }
}

/// Makes a config a child of a root with this spec and partition. What else it says of itself stays.
fn fill(
    root: &ObjectRef,
    child: &mut DynamicObject,
    spec: &ShardingConfigSpec,
    partition: &Partition,
) -> Result<(), NotWritten> {
    own(child, root);
    let meta = &mut child.metadata;
    if root.name.len() <= LABEL_VALUE {
        let labels = meta.labels.get_or_insert_default();
        labels.insert(keys::ROOT.to_owned(), root.name.to_string());
    }
    meta.annotations.get_or_insert_default().insert(keys::LOT.to_owned(), partition.text());
    set_spec(child, spec)
}

/// Makes a config another's, for which the manager writes it.
pub(in crate::reconcile) fn own(config: &mut DynamicObject, owner: &ObjectRef) {
    let meta = &mut config.metadata;
    let (label, value) = keys::OURS_LABEL;
    meta.labels.get_or_insert_default().insert(label.to_owned(), value.to_owned());
    let uid = owner.uid.as_deref().unwrap_or_default();
    let owners = meta.owner_references.get_or_insert_default();
    owners.retain(|one| one.uid != uid);
    let kind = owner.kind.api_resource();
    owners.push(OwnerReference {
        api_version: kind.api_version,
        kind: kind.kind,
        name: owner.name.to_string(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    });
}

/// Gives a config this spec.
pub(in crate::reconcile) fn set_spec(
    config: &mut DynamicObject,
    spec: &ShardingConfigSpec,
) -> Result<(), NotWritten> {
    let spec = serde_json::to_value(spec).map_err(kube::Error::SerdeError)?;
    match &mut config.data {
        Value::Object(data) => drop(data.insert("spec".to_owned(), spec)),
        data => *data = json!({ "spec": spec }),
    }
    Ok(())
}
