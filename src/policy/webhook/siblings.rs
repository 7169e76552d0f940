//! The shards of one controller.

use std::{collections::BTreeSet, sync::Arc};

use super::settings::Webhook;
use crate::policy::{
    ObjectRef, ShardingDraft,
    dialect::{Checked, Draft, NamespacesUnknown, object_of},
    sharding::{NamespaceLabels, Sharding},
};

/// The shards of one controller that has a webhook, as one of them sees them: the configs of its
/// namespace with the same `leaderElectionName`, or all without one, that have a `spec.webhook`.
/// Immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Siblings {
    /// The webhook server of the shard that looks.
    pub(super) webhook: Webhook,
    pub(super) own: Arc<Sharding>,
    /// The others, by their names.
    pub(super) others: Vec<Arc<Sharding>>,
    pub(super) unreadable: Vec<Unreadable>,
    /// The namespaces that were known; `None` if no boundary asks for their labels.
    pub(super) namespaces: Option<BTreeSet<Box<str>>>,
}

/// A config that may be of a shard of the controller, and cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The config.
    pub config: ObjectRef,
    /// The reason.
    pub why: String,
}

impl Siblings {
    /// The shards of the controller of `own` among the checked configs, of which those in other
    /// namespaces do not count. `known` has the labels of all namespaces, or is `None` if they are
    /// not known. `None` if `own` has no webhook.
    pub fn of<'c>(
        own: &ShardingDraft,
        checked: impl IntoIterator<Item = &'c Checked>,
        known: Option<&NamespaceLabels>,
    ) -> Result<Option<Self>, NamespacesUnknown> {
        let Some(webhook) = own.webhook.clone() else { return Ok(None) };
        let sharding = own.resolve(known)?.sharding;
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
                Err(invalid) => ((*invalid.server).clone(), Err(invalid.to_string())),
            };
            match resolved {
                _ if !server.may_be(&other) => {}
                Ok(policy) => others.push(policy.sharding),
                Err(why) => unreadable.push(Unreadable { config: config.clone(), why }),
            }
        }
        others.sort_by(|one, other| one.shard().cmp(other.shard()));
        unreadable.sort_by(|one, other| one.config.name.cmp(&other.config.name));
        let names =
            |known: &NamespaceLabels| known.keys().map(|name| name.as_str().into()).collect();
        let namespaces = known.filter(|_| needs_namespaces).map(names);
        Ok(Some(Self { webhook, own: sharding, others, unreadable, namespaces }))
    }

    /// The settings of the webhook server, by which the shard that got a review answers it.
    pub fn webhook(&self) -> &Webhook {
        &self.webhook
    }

    /// The names of the shards, the own one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.own).chain(&self.others).map(|sharding| sharding.shard())
    }

    /// The configs that may be of further shards, and cannot be used.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }
}
