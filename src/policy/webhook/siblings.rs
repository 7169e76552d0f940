//! The shards of one controller.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
};

use crate::{
    ObjectRef, ShardingDraft,
    dialect::{Checked, Draft, NamespacesUnknown, Webhook, object_of},
    parts::Policy,
    sharding::{NamespaceLabels, Sharding},
};
use ctrlmesh_wire::selector::Selector;

/// The shards of one controller that has a webhook, as one of them sees them: the configs of its
/// namespace with the same `leaderElectionName`, or all without one, that have a `spec.webhook`.
/// Immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerShards {
    /// The webhook server of the shard that looks.
    pub(super) webhook: Webhook,
    own: Sibling,
    /// The other shards, by their names.
    others: Vec<Sibling>,
    pub(super) unreadable: Vec<Unreadable>,
    /// The namespaces that were known; `None` if no boundary asks for their labels.
    pub(super) namespaces: Option<BTreeSet<Box<str>>>,
}

/// One shard of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sibling {
    sharding: Arc<Sharding>,
    /// The selector of its pods.
    pods: Selector,
}

/// A config that may be of a shard of the controller, and cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The config.
    pub config: ObjectRef,
    /// The reason.
    pub why: String,
}

impl ControllerShards {
    /// The shards of the controller of `own` among the checked configs, of which those in other
    /// namespaces do not count. `known` has the labels of all namespaces, or is `None` if they are
    /// not known. `None` if `own` has no webhook.
    pub fn of<'c>(
        own: &ShardingDraft,
        checked: impl IntoIterator<Item = &'c Checked>,
        known: Option<&NamespaceLabels>,
    ) -> Result<Option<Self>, NamespacesUnknown> {
        let Some(webhook) = own.webhook.clone() else { return Ok(None) };
        let own_shard = Sibling::of(own.resolve(known)?);
        let (server, identity) = (own.server(), &own.config.object);
        let (mut others, mut unreadable) = (Vec::new(), Vec::new());
        let mut needs_namespaces = own.needs_namespaces();
        for checked in checked {
            let config = object_of(checked);
            if config.is_same(identity) || config.namespace != identity.namespace {
                continue;
            }
            let (other, resolved) = match checked {
                Ok(Draft::Sharding(draft)) => {
                    needs_namespaces |= draft.needs_namespaces();
                    (draft.server(), draft.resolve(known).map_err(|why| why.to_string()))
                }
                // Its children are shards.
                Ok(Draft::Root(_)) => continue,
                Err(invalid) => ((*invalid.server).clone(), Err(invalid.to_string())),
            };
            match resolved {
                _ if !server.may_be(&other) => {}
                Ok(policy) => others.push(Sibling::of(policy)),
                Err(why) => unreadable.push(Unreadable { config: config.clone(), why }),
            }
        }
        others.sort_by(|one, other| one.sharding.shard().cmp(other.sharding.shard()));
        unreadable.sort_by(|one, other| one.config.name.cmp(&other.config.name));
        let names =
            |known: &NamespaceLabels| known.keys().map(|name| name.as_str().into()).collect();
        let namespaces = known.filter(|_| needs_namespaces).map(names);
        Ok(Some(Self { webhook, own: own_shard, others, unreadable, namespaces }))
    }

    /// The settings of the webhook server, by which the shard that got a review answers it.
    pub fn webhook(&self) -> &Webhook {
        &self.webhook
    }

    /// The names of the shards, the own one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.shardings().map(|sharding| sharding.shard())
    }

    /// The shard of the pods with these labels. `None` if no sibling selects them, or several do.
    pub fn shard_of(&self, labels: &BTreeMap<String, String>) -> Option<&str> {
        let label = |key: &str| labels.get(key).map(String::as_str);
        let mut selecting = self.all().filter(|sibling| sibling.pods.matches(label));
        let one = selecting.next()?;
        selecting.next().is_none().then(|| one.sharding.shard())
    }

    /// The shardings of the other shards.
    pub fn others(&self) -> impl Iterator<Item = &Sharding> {
        self.others.iter().map(|sibling| &*sibling.sharding)
    }

    /// The shardings, the own one first.
    pub(super) fn shardings(&self) -> impl Iterator<Item = &Sharding> {
        self.all().map(|sibling| &*sibling.sharding)
    }

    fn all(&self) -> impl Iterator<Item = &Sibling> {
        iter::once(&self.own).chain(&self.others)
    }

    /// The configs that may be of further shards, and cannot be used.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }
}

impl Sibling {
    fn of(policy: Policy) -> Self {
        Self { sharding: policy.sharding, pods: policy.config.pods }
    }
}
