//! The labels that KusionStack's manager stamps, by their keys.

use std::{collections::BTreeMap, str::FromStr};

use ctrlmesh_policy as policy;
use ctrlmesh_wire::selector::{LabelError, Op, Requirement};

/// The key of a label.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub struct LabelKey(String);

impl FromStr for LabelKey {
    type Err = LabelError;

    fn from_str(key: &str) -> Result<Self, LabelError> {
        Requirement::new(key, Op::Exists, [""; 0]).map(|_| Self(key.to_owned()))
    }
}

/// The keys of the labels that objects are stamped with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelKeys {
    /// The key of the namespace's name.
    pub namespace: LabelKey,
    /// The key of the namespace's bucket, one of 32.
    pub shard_hash: LabelKey,
    /// The key whose value is `true`.
    pub control: LabelKey,
}

impl LabelKeys {
    /// Two flags with one key.
    pub(super) fn twice(&self) -> Option<&LabelKey> {
        let Self { namespace, shard_hash, control } = self;
        match namespace == shard_hash || namespace == control {
            true => Some(namespace),
            false => Some(control).filter(|_| control == shard_hash),
        }
    }

    /// The labels of the objects of a namespace.
    pub(super) fn of(&self, namespace: &str) -> BTreeMap<String, String> {
        let bucket = policy::shard_bucket(namespace).to_string();
        BTreeMap::from([
            (self.namespace.0.clone(), namespace.to_owned()),
            (self.shard_hash.0.clone(), bucket),
            (self.control.0.clone(), "true".to_owned()),
        ])
    }
}
