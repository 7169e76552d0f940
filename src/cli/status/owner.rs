//! The owners of a namespace's objects, or of one object.
//!
//! Hides how a name is read, and how an owner is said.

use std::{collections::BTreeMap, str::FromStr};

use kube::api::ObjectMeta;
use serde::Serialize;

use super::state::by_ring;
use crate::handover::found::Found;
use ctrlmesh_policy::{
    GroupResource, NamespaceLabels, ObjectFacts,
    ownership::{Owners, owners_in, owners_of},
};
use ctrlmesh_wire::{
    dns::is_label,
    object::{Labels, Object},
};

/// A namespace, or an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Namespace(String),
    Object {
        group: String,
        plural: String,
        /// `None` if the object is in none.
        namespace: Option<String>,
        name: String,
    },
}

/// The owner of the objects of one resource, or of an object, in one ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerState {
    /// The namespace of the ring.
    pub namespace: String,
    /// The ring.
    pub ring: String,
    /// The resource.
    pub resource: String,
    /// The shards, each with its scope if it owns some of them alone.
    pub shards: BTreeMap<String, Option<String>>,
    /// The owner in words.
    pub says: String,
}

/// A text that names neither a namespace nor an object.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} names nothing: give a namespace, or RESOURCE[.GROUP]/NAMESPACE/NAME, such as \
     deployments.apps/default/web"
)]
pub struct BadName(String);

impl FromStr for Named {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let parts: Vec<&str> = text.split('/').collect();
        let bad = || BadName(text.to_owned());
        if parts.iter().any(|part| part.is_empty()) {
            return Err(bad());
        }
        let object = |resource: &str, namespace: Option<&str>, name: &str| {
            let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
            Self::Object {
                group: group.to_owned(),
                plural: plural.to_owned(),
                namespace: namespace.map(str::to_owned),
                name: name.to_owned(),
            }
        };
        match *parts {
            [namespace] if is_label(namespace) => Ok(Self::Namespace(namespace.to_owned())),
            [resource, name] => Ok(object(resource, None, name)),
            [resource, namespace, name] => Ok(object(resource, Some(namespace), name)),
            _ => Err(bad()),
        }
    }
}

/// The owners of a namespace's objects.
pub(super) fn of_namespace(name: &str, found: &Found, known: &NamespaceLabels) -> Vec<OwnerState> {
    let mut states = Vec::new();
    for ((namespace, ring), shards) in by_ring(found, Some(known)) {
        let shards: Vec<_> = shards.iter().map(|(shard, area)| (*shard, area)).collect();
        states.extend(owners_in(name, &shards, known).into_iter().map(|owners| OwnerState {
            namespace: namespace.to_owned(),
            ring: ring.to_owned(),
            resource: owners.rule.to_string(),
            says: said(&owners),
            shards: owners.shards.into_iter().map(|(shard, of)| (shard.to_owned(), of)).collect(),
        }));
    }
    states
}

fn said(owners: &Owners<'_>) -> String {
    let mut parts: Vec<_> = owners
        .shards
        .iter()
        .map(|(shard, scope)| match scope {
            None => (*shard).to_owned(),
            Some(scope) => format!("{shard} ({scope})"),
        })
        .collect();
    match &owners.gap {
        Ok(None) => {}
        Ok(Some(_)) if parts.is_empty() => parts.push("no one".to_owned()),
        Ok(Some(gap)) => parts.push(format!("no one has {}", gap.witness)),
        Err(why) => parts.push(format!("it is not known whether all: {why}")),
    }
    parts.join(", ")
}

/// The owners of an object of a resource.
pub(super) fn of_object(
    resource: &GroupResource,
    meta: &ObjectMeta,
    found: &Found,
    known: Option<&NamespaceLabels>,
) -> Vec<OwnerState> {
    let none = BTreeMap::new();
    let object = Object {
        namespace: meta.namespace.as_deref().unwrap_or_default(),
        name: meta.name.as_deref().unwrap_or_default(),
        uid: meta.uid.as_deref().unwrap_or_default(),
        labels: Some(Labels::of(meta.labels.as_ref().unwrap_or(&none))),
        ..Object::default()
    };
    let facts = ObjectFacts::of(&object, resource.are_namespaces());
    let states = by_ring(found, known).into_iter().map(|((namespace, ring), shards)| {
        let shards: Vec<_> = shards.iter().map(|(shard, area)| (*shard, area)).collect();
        let owners = owners_of(resource, &facts, &shards);
        let sure = owners.iter().filter(|(_, owns)| *owns == Some(true));
        let sure: Vec<&str> = sure.map(|(shard, _)| *shard).collect();
        OwnerState {
            namespace: namespace.to_owned(),
            ring: ring.to_owned(),
            resource: resource.to_string(),
            says: if sure.is_empty() { "no one".to_owned() } else { sure.join(", ") },
            shards: sure.iter().map(|shard| ((*shard).to_owned(), None)).collect(),
        }
    });
    states.collect()
}
